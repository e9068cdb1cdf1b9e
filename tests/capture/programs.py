"""Small functions, and how their recorded and functional programs are written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dovetail
from dovetail.capture.recording import RecordedPrograms
from dovetail.ir.program import Program
from dovetail.ir.text import emit, plain_call

_HEAD = ("def ", "args.clear", "arg_", "tangent_", "constant_", "shared_")


def programs_of(name: str) -> RecordedPrograms:
    """What recording a function gives, with a backward for gradients of all results."""
    function, inputs = FUNCTIONS[name]
    recording, _ = dovetail.compile(function).record(*inputs())
    return recording.programs("f", recording.full_pattern())


def lines_of(program: Program) -> str:
    """A program's nodes and results, shortened: without `torch.ops.aten`, and how inputs are taken apart."""
    text = emit(program, plain_call, {}, comments=False).text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    body = [line for line in lines if not line.startswith(_HEAD)]
    return "\n".join(body).replace("torch.ops.aten.", "")


CONSTANT = torch.arange(3.0)


def _view_written(x: Tensor) -> Any:
    y = x * 2
    y[0].add_(1)
    return y


def _view_of_view_written(x: Tensor) -> Any:
    y = x * 2
    y[0][1:].mul_(3)
    return y


def _base_of_view_written(x: Tensor) -> Any:
    y = x.clone()
    v = y.t()
    y.add_(1)
    return v * 2


def _transposed_in_place(x: Tensor) -> Any:
    y = x * 2
    y.t_()
    return y + 1


def _out(x: Tensor) -> Any:
    z = torch.empty(2, 3)
    torch.add(x, 1, out=z)
    return z


def _lists(x: Tensor, y: Tensor) -> Any:
    torch._foreach_add_([x, y], 1.0)
    return x * y


def _draws(x: Tensor) -> Any:
    return torch.rand_like(x) + x.clone().normal_()


def _closed_over(x: Tensor) -> Any:
    return x + CONSTANT


def _made_in_each_call(x: Tensor) -> Any:
    return x * torch.tensor([1.0, 2.0, 3.0])


def _mask(x: Tensor) -> Any:
    y = x.clone()
    y[y > 0] = 0
    return y


def _argument_written(x: Tensor) -> Any:
    x.add_(1)
    return x.detach() * x


def _by_addresses(x: Tensor) -> Any:
    y = x.clone()
    y.as_strided((2,), (2,), 1).zero_()
    return y


def _part_of_an_argument(x: Tensor, y: Tensor) -> Any:
    x[1].copy_(y)
    return x.sum()


def _parameter_updated(w: Tensor) -> Any:
    with torch.no_grad():
        w.mul_(0.5)
    return w * 2


def _backward(x: Tensor, w: Tensor) -> Any:
    x.mul_(2)
    return (x @ w).relu_().sum()


def _saved_twice(x: Tensor) -> Any:
    y = x.exp()
    return y * y


def _hidden_write(x: Tensor) -> Any:
    x.data.mul_(2)
    return x + 1


# Functions by name, with inputs that are made anew.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], list[Tensor]]]] = {
    "view written": (_view_written, lambda: [torch.ones(2, 3)]),
    "view of view written": (_view_of_view_written, lambda: [torch.ones(2, 3)]),
    "base of view written": (_base_of_view_written, lambda: [torch.ones(2, 3)]),
    "transposed in place": (_transposed_in_place, lambda: [torch.ones(2, 3)]),
    "out": (_out, lambda: [torch.ones(2, 3)]),
    "lists": (_lists, lambda: [torch.ones(2), torch.ones(2)]),
    "draws": (_draws, lambda: [torch.ones(2)]),
    "closed over": (_closed_over, lambda: [torch.ones(3)]),
    "made in each call": (_made_in_each_call, lambda: [torch.ones(3)]),
    "mask": (_mask, lambda: [torch.ones(3)]),
    "argument written": (_argument_written, lambda: [torch.ones(2)]),
    "by addresses": (_by_addresses, lambda: [torch.ones(2, 3)]),
    "part of an argument": (_part_of_an_argument, lambda: [torch.ones(2, 3), torch.ones(3)]),
    "parameter updated": (_parameter_updated, lambda: [torch.ones(2, requires_grad=True)]),
    "backward": (_backward, lambda: [torch.ones(2, 3), torch.ones(3, 3, requires_grad=True)]),
    "saved twice": (_saved_twice, lambda: [torch.ones(2, requires_grad=True)]),
    "hidden write": (_hidden_write, lambda: [torch.ones(2)]),
}
