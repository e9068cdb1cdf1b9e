# module: dovetail.passes.common.views
# expect: vague-file-name
value = 1
