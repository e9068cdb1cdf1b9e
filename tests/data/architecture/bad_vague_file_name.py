# module: dovetail.passes.graph_utils
# expect: vague-file-name
value = 1
