"""Checks of `torch_compat.fx_graphs`."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.graph import CodeGen

from dovetail.torch_compat import fx_graphs
from dovetail.torch_compat.checks.difference import first_difference


class _FromList(CodeGen):
    def gen_fn_def(self, *args: object, **kwargs: object) -> str:
        return "def forward(self, xs):\n    x, = xs"

    def process_inputs(self, *inputs: object) -> object:
        return inputs[0]


def check_copy_calling_convention() -> str | None:
    """A graph with the calling convention of another is called like that one."""
    source, target = fx.Graph(), fx.Graph()
    source.set_codegen(_FromList())
    target.output(target.call_function(torch.ops.aten.neg.default, (target.placeholder("x"),)))
    fx_graphs.copy_calling_convention(source, target)
    found = fx.GraphModule(torch.nn.Module(), target)([torch.ones(1)])
    return first_difference(
        ("the result", found.tolist(), [-1.0]),
        ("the inputs of the nodes", target.process_inputs([1]), [1]),
    )


CHECKS = (check_copy_calling_convention,)
