# module: dovetail.analysis.bad_layer_order_by_name
# expect: layer-order
import importlib

driver = importlib.import_module("dovetail.pipeline.driver")
