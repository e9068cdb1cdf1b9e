# module: dovetail.execute.bad_private_torch_getattr
# expect: private-torch
import torch

add = getattr(torch, "_foreach_add")
