# module: dovetail.capture.bad_layer_order_root
# expect: layer-order
import dovetail

compile_function = dovetail.compile
