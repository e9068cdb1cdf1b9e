# module: dovetail.inspect.bad_layer_order_testing
# expect: layer-order
from dovetail.testing import sanitizer

make = sanitizer
