"""Checks of `torch_compat.cudnn_layers`: where there is a GPU, on it; else, that the operators take what they took."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from dovetail.torch_compat import cudnn_layers
from dovetail.torch_compat.checks.difference import first_difference

_aten = torch.ops.aten


def _operands(device: str) -> list[Any]:
    sizes = ((12, 4), (12, 3), (12,), (12,))
    weights = [torch.ones(size, device=device) for size in sizes]
    states = [torch.zeros(1, 2, 3, device=device) for _ in range(2)]
    operand = torch.ones(2, 5, 4, device=device)
    return [operand, weights, 4, None, *states, 2, 3, 0, 1, True, 0.0, True, False, [], None]


def _layouts(results: Any) -> list[Any]:
    return [(tuple(r.shape), r.stride()) if isinstance(r, torch.Tensor) else r for r in results]


def check_run_layer_on_fakes() -> str | None:
    """The result of a batch-first layer begins each sequence beside the others."""
    with FakeTensorMode():
        told = _layouts(cudnn_layers.run_layer_on_fakes(*_operands("cpu")))
    wanted: list[Any] = [((2, 5, 3), (3, 6, 1)), ((1, 2, 3), (6, 3, 1)), ((1, 2, 3), (6, 3, 1))]
    if torch.cuda.is_available():
        wanted = _layouts(_aten._cudnn_rnn.default(*_operands("cuda")))[:3]
    return first_difference(("layouts", told[:3], wanted))


def check_run_backward_on_fakes() -> str | None:
    """The operators' arguments stand where they stood, and gradients lie as the operator lays them."""

    def backward(operands: list[Any], run: Any, layer: Any) -> Any:
        result, hidden, cell, reserve, buffer = layer(*operands)
        gradients = [torch.ones_like(one) for one in (result, hidden, cell)]
        head = [*operands[:3], buffer, *operands[4:6], result, *gradients]
        return run(*head, *operands[6:], reserve, [True] * 4)

    with FakeTensorMode():
        given = backward(_operands("cpu"), cudnn_layers.run_backward_on_fakes, cudnn_layers.run_layer_on_fakes)
    *told, weights = given
    found = [*_layouts(told), *_layouts(weights)]
    wanted: list[Any] = [((2, 5, 4), (4, 8, 1)), *[((1, 2, 3), (6, 3, 1))] * 2]
    wanted += [((12, 4), (4, 1)), ((12, 3), (3, 1)), ((12,), (1,)), ((12,), (1,))]
    if torch.cuda.is_available():
        *others, made = backward(_operands("cuda"), _aten._cudnn_rnn_backward.default, _aten._cudnn_rnn.default)
        wanted = [*_layouts(others), *_layouts(made)]
    names = [argument.name for argument in _aten._cudnn_rnn_backward.default._schema.arguments]
    places = [names.index(name) for name in ("batch_first", "batch_sizes", "output_mask")]
    return first_difference(("layouts", found, wanted), ("places of arguments", places, [14, 18, 21]))


CHECKS = (check_run_layer_on_fakes, check_run_backward_on_fakes)
