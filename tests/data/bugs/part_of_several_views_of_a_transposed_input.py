"""Parts of an input were made before it was transposed, not after: autograd forbids that for several views in one."""

import torch


def program(x):
    x.t_()
    return x.split(1)[0], x.unbind()[1]


def inputs():
    return (torch.randn(3, 4, requires_grad=True) * 1,)


def finish(results):
    for result in results:
        assert result.requires_grad
        result.register_hook(lambda gradient: gradient)


DYNAMO = False
