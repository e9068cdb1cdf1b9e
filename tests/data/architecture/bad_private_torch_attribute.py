# module: dovetail.execute.bad_private_torch_attribute
# expect: private-torch
import torch as t


def is_grad_mode() -> bool:
    return t._C.is_grad_enabled()
