# module: dovetail.capture.bad_private_torch_experimental
# expect: private-torch
from torch.fx.experimental.proxy_tensor import make_fx

trace = make_fx
