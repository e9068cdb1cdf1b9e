# module: dovetail.execute.bad_layer_order_execute
# expect: layer-order
from dovetail.memory.problem import MemoryProblem
from dovetail.memory.schedule import schedule

solve = (MemoryProblem, schedule)
