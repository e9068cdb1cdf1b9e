# module: dovetail.passes.bad_private_attribute_import
# expect: private-attribute
from dovetail.ir.program import _renumber

renumber = _renumber
