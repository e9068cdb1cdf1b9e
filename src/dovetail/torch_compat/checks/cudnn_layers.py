"""Checks of `torch_compat.cudnn_layers`: where there is a GPU, against it."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import UnsupportedOperatorException

from dovetail.torch_compat import cudnn_layers
from dovetail.torch_compat.checks.difference import first_difference

_layer = torch.ops.aten._cudnn_rnn.default


def _operands(device: str, train: bool = False) -> list[Any]:
    sizes = ((12, 4), (12, 3), (12,), (12,))
    weights = [torch.ones(size, device=device) for size in sizes]
    states = [torch.zeros(1, 2, 3, device=device) for _ in range(2)]
    operand = torch.ones(2, 5, 4, device=device)
    return [operand, weights, 4, None, *states, 2, 3, 0, 1, True, 0.0, train, False, [], None]


def check_run_layer_on_fakes() -> str | None:
    """The result of a batch-first layer begins each sequence beside the others; layers in training are refused."""
    with FakeTensorMode():
        told = [(tuple(r.shape), r.stride()) for r in cudnn_layers.run_layer_on_fakes(*_operands("cpu"))[:3]]
        try:
            cudnn_layers.run_layer_on_fakes(*_operands("cpu", train=True))
            refused = False
        except UnsupportedOperatorException:
            refused = True
    wanted: list[Any] = [((2, 5, 3), (3, 6, 1)), ((1, 2, 3), (6, 3, 1)), ((1, 2, 3), (6, 3, 1))]
    if torch.cuda.is_available():
        wanted = [(tuple(r.shape), r.stride()) for r in _layer(*_operands("cuda"))[:3]]
    names = [argument.name for argument in _layer._schema.arguments]
    places = [names.index(name) for name in ("batch_first", "train", "batch_sizes")]
    return first_difference(
        ("layouts", told, wanted), ("places of arguments", places, [10, 12, 14]), ("refused", refused, True)
    )


def check_draws_for_itself() -> str | None:
    """Layers in training with dropout do, on a GPU; there a call on fakes keeps a seed from being followed."""
    with FakeTensorMode():
        x = {device: torch.empty(2, 5, 4, device=device) for device in ("cpu", "cuda")}
    calls = {
        "on a CPU": (x["cpu"], 0.5, True),
        "in training": (x["cuda"], 0.5, True),
        "in evaluation": (x["cuda"], 0.5, False),
        "without dropout": (x["cuda"], 0.0, True),
    }
    found = {
        how: cudnn_layers.draws_for_itself((given, None, [], True, 2, dropout, train, False, True))
        for how, (given, dropout, train) in calls.items()
    }
    wanted = dict.fromkeys(calls, False) | {"in training": torch.backends.cudnn.enabled}
    return first_difference(("calls", found, wanted))


CHECKS = (check_run_layer_on_fakes, check_draws_for_itself)
