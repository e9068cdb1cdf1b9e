# module: dovetail.inspect.bad_layer_order_testing
# expect: layer-order
from dovetail.testing import programs

make = programs
