# module: dovetail.capture.bad_private_torch_submodule
# expect: private-torch
from torch._subclasses.fake_tensor import FakeTensorMode

mode = FakeTensorMode
