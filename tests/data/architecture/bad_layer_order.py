# module: dovetail.ir.bad_layer_order
# expect: layer-order
from dovetail.analysis.alias import AliasFacts

facts = AliasFacts
