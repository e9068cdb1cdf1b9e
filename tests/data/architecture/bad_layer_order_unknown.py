# module: dovetail.extras.bad_layer_order_unknown
# expect: layer-order
value = 1
