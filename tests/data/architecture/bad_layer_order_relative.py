# module: dovetail.ops.bad_layer_order_relative
# expect: layer-order
from ..passes import cse

rewrite = cse.cse
