# module: dovetail.capture.bad_private_torch_import
# expect: private-torch
from torch.utils import _pytree as pytree

flatten = pytree.tree_flatten
