# module: dovetail.partition.bad_sibling_import
# expect: sibling-import
from dovetail.joint import phases

phase = phases
