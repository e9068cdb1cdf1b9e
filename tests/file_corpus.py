"""Honest files for `file_sweep`: small frozen models and dumps of many kinds, as the bytes of their members.

Small, so that thousands of forgeries are read in a second; of many kinds, so that every part of the format is there:
random numbers, state, several methods, free sizes, dtypes, results of every structure, written arguments, views.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import dovetail
from dovetail.artifact.container import open_container

FROZEN, DUMP = "frozen", "dump"
_STEPS = ("recorded", "functional", "forward", "backward", "reinplace-forward", "reinplace-backward")


@dataclass(frozen=True, slots=True)
class Subject:
    """An honest file. kind: FROZEN, whose members are those of the container, or DUMP: files of a folder.

    calls: of a frozen model, each a method and its arguments.
    """

    name: str
    kind: str
    members: dict[str, bytes]
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    weights: dict[str, Tensor] = field(default_factory=dict)


def corpus(only: int | None = None) -> list[Subject]:
    """Every honest file; only: the first so many of either kind."""
    torch.manual_seed(7)
    found = []
    for name, make in list(_MODELS.items())[:only]:
        model, calls, dynamic = make()
        found.append(_frozen(name, model, calls, dynamic))
    for name, function in list(_FUNCTIONS.items())[:only]:
        found += _dumped(name, *function())
    return found


def _frozen(name: str, model: nn.Module, calls: Any, dynamic: Any) -> Subject:
    examples = {method: (arguments, {}) for method, arguments in calls}
    frozen = dovetail.freeze(model.eval(), examples, dynamic_shapes=dynamic)
    with tempfile.TemporaryDirectory() as folder:
        frozen.save(Path(folder) / "one.dovetail")
        file = open_container(Path(folder) / "one.dovetail")
        members = {member: file.read(member) for member in file.names}
    weights = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
    return Subject(name, FROZEN, members, tuple(calls), weights)


def _dumped(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], dynamic: bool) -> list[Subject]:
    """One subject for each of some steps: the first ones, the last ones, and both halves when they are new."""
    with tempfile.TemporaryDirectory() as folder:
        result = dovetail.compile(function, dynamic=dynamic, dump=folder, dump_calls=True)(*arguments)
        if result.requires_grad:
            result.backward()
        subjects = []
        for place in sorted(path for path in Path(folder).iterdir() if path.is_dir()):
            calls = {path.name: path.read_bytes() for path in place.glob("*.safetensors")}
            steps = [path for path in sorted(place.glob("[0-9]*.json")) if path.stem.partition("-")[2] in _STEPS]
            for path in steps:
                facts = json.loads(path.read_bytes())
                kept = {call: content for call, content in calls.items() if call.startswith(facts["part"])}
                subjects.append(Subject(f"{name}-{path.stem}", DUMP, {path.name: path.read_bytes(), **kept}))
        return subjects


# --- models -----------------------------------------------------------------------------------------------------------


class _Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * 2 + 1


class _Random(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        noise = torch.rand(3, 4) + torch.randn_like(x)
        return {"noise": x * noise, "mask": torch.bernoulli(torch.sigmoid(x)), "drop": F.dropout(x, 0.5, training=True)}


class _State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor, k: int = 2) -> tuple[Tensor, ...]:
        self.count.add_(x[0])
        return x * self.scale * k, self.count, x.t()[1:], x


class _Written(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[:, 1:].mul_(2)
        return x.sum(1), y.view(2, 6)[0].cos()


class _Pair(NamedTuple):
    low: Tensor
    high: Tensor


class _Methods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def encode(self, tokens: Tensor) -> _Pair:
        return _Pair(*self.table(tokens).split(2, -1))

    def decode(self, x: Tensor) -> Any:
        return (x @ self.table.weight.t()).max(-1)

    def forward(self, tokens: Tensor) -> list[Any]:
        return [self.table(tokens).mean(0), None, 3, "text"]


class _Sizes(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        joined = torch.cat([x, y]).reshape(-1, 2)
        return joined / x.shape[0] + torch.arange(joined.shape[0])[:, None]


class _Dtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("z", torch.randn(3, dtype=torch.complex64))
        self.register_buffer("index", torch.tensor([2, 0]))
        self.register_buffer("small", torch.randn(3).to(torch.bfloat16))

    def forward(self, x: Tensor, flags: Tensor) -> dict[str, Any]:
        picked = x[:, self.index].to(torch.float16)
        return {
            "a": torch.where(flags, picked, -picked),
            "b": (self.z * x).abs(),
            "c": self.small + x.to(torch.bfloat16),
        }


class _Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 2)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Any:
        return F.max_pool2d(F.relu(self.norm(self.convolution(x))), 2, return_indices=True)


class _Sorted(nn.Module):
    def forward(self, x: Tensor) -> Any:
        ordered, index = x.sort(0)
        return {"pair": (ordered.cumsum(1), index), "top": list(x.topk(2)), "put": x.index_put((index[0],), x[:1])}


_x = torch.linspace(-1, 1, 12).reshape(3, 4)
_MODELS: dict[str, Callable[[], tuple[nn.Module, list[tuple[str, tuple[Any, ...]]], Any]]] = {
    "plain": lambda: (_Plain(), [("forward", (_x,))], "static"),
    "random": lambda: (_Random(), [("forward", (_x,))], "static"),
    "state": lambda: (_State(), [("forward", (_x,))], "static"),
    "written": lambda: (_Written(), [("forward", (_x.clone(), _x))], "static"),
    "methods": lambda: (
        _Methods(),
        [("encode", (torch.tensor([1, 4]),)), ("decode", (_x,)), ("forward", (torch.tensor([0, 3]),))],
        "static",
    ),
    "sizes": lambda: (_Sizes(), [("forward", (_x, _x[:2] * 3))], {"x": {0: "n"}}),
    "dtypes": lambda: (_Dtypes(), [("forward", (_x[:, :3], torch.tensor([[True, False]])))], "static"),
    "convolution": lambda: (_Convolution(), [("forward", (torch.linspace(-1, 1, 16).reshape(1, 1, 4, 4),))], "static"),
    "sorted": lambda: (_Sorted(), [("forward", (_x,))], "static"),
}


# --- functions whose compilations are dumped --------------------------------------------------------------------------


def _drops(x: Tensor, weight: Tensor) -> Tensor:
    return (F.dropout(torch.tanh(x @ weight), 0.5) * x.sum()).sum()


def _writes(x: Tensor, y: Tensor) -> Tensor:
    y[0].add_(x.exp().sum(0))
    return (y.t() * 2)[1:].relu_() + x.shape[0]


def _gradients() -> tuple[Callable[..., Any], tuple[Any, ...], bool]:
    weight = torch.randn(4, 4, requires_grad=True)
    return _drops, (_x.clone().requires_grad_(), weight), False


def _branches(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cond(
        x.sum() > 0, lambda x, w: torch.tanh(x @ w), lambda x, w: F.dropout(x @ w, 0.5), (x, weight)
    ).sum()


def _loops(x: Tensor) -> Tensor:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.cond(row.sum() > 0, lambda c, r: c * r, lambda c, r: c - r, (carry, row))
        return new, carry + row

    carry, items = scan(step, x[0].clone(), x)
    return carry.sum() + map_over(lambda row, c: (row * c).sin(), items, x[0]).sum()


def _counts(x: Tensor) -> Tensor:
    y = while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x * 1.5 + i), (0, x))[1]
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.view(-1).view(x.shape) - i), (x.new_zeros(()), y))[1]


def _branched() -> tuple[Callable[..., Any], tuple[Any, ...], bool]:
    return _branches, _gradients()[1], False


_FUNCTIONS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...], bool]]] = {
    "gradients": _gradients,
    "writes": lambda: (_writes, (_x.clone(), _x.clone()), True),
    "branches": _branched,
    "loops": lambda: (_loops, (_x.clone().requires_grad_(),), False),
    "counts": lambda: (_counts, (_x.clone(),), True),
}
