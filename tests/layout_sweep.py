"""Search for gradients that differ because memory is laid out otherwise than eager lays it out.

    python -m tests.layout_sweep --minutes 20 --shard 0/2 --state layout-0.json
    python -m tests.layout_sweep --first 4711 --programs 1

Kernels of convolutions, recurrent layers and norms round by the layout of what they read. A random net chains them with
permutations, residual sums, activations and losses; results, gradients and strides are compared with eager, bit by bit.
The exit status is 1 when something failed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from tests.searching import Standing, begin, keep, parser_of

_CHANNELS = 8

SEQUENCE: dict[str, Callable[[], nn.Module]] = {
    "conv1d": lambda: nn.Conv1d(_CHANNELS, _CHANNELS, 3, padding=1),
    "conv_transpose1d": lambda: nn.ConvTranspose1d(_CHANNELS, _CHANNELS, 3, padding=1),
    "batch_norm": lambda: nn.BatchNorm1d(_CHANNELS),
    "group_norm": lambda: nn.GroupNorm(2, _CHANNELS),
    "lstm": lambda: _Last(nn.LSTM(_CHANNELS, _CHANNELS)),
    "gru": lambda: _Last(nn.GRU(_CHANNELS, _CHANNELS, batch_first=True)),
    "layer_norm": lambda: _Last(nn.LayerNorm(_CHANNELS)),
    "linear": lambda: _Last(nn.Linear(_CHANNELS, _CHANNELS)),
}
IMAGE: dict[str, Callable[[], nn.Module]] = {
    "conv2d": lambda: nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1),
    "depthwise": lambda: nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, groups=_CHANNELS),
    "batch_norm": lambda: nn.BatchNorm2d(_CHANNELS),
    "group_norm": lambda: nn.GroupNorm(4, _CHANNELS),
    "instance_norm": lambda: nn.InstanceNorm2d(_CHANNELS, affine=True),
    "layer_norm": lambda: _Last(nn.LayerNorm(_CHANNELS)),
    "max_pool": lambda: nn.MaxPool2d(3, 1, 1),
    "replicate": lambda: nn.Sequential(nn.ReplicationPad2d(1), nn.AvgPool2d(3, 1)),
    "reflect": lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.MaxPool2d(3, 1)),
    "shuffle": lambda: nn.ChannelShuffle(2),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "logsigmoid": F.logsigmoid,
    "leaky_relu": F.leaky_relu,
    "glu": lambda x: F.glu(torch.cat([x, x], 1), 1),
    "log_softmax": lambda x: x.log_softmax(1),
    "dropout": lambda x: F.dropout(x, 0.3),
    "roll": lambda x: x.roll(1, 1),
    "power": lambda x: 1.5 ** x.tanh(),
}
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "huber": F.huber_loss,
    "smooth_l1": F.smooth_l1_loss,
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "square": lambda x, y: x.square().mean(),
}


class _Last(nn.Module):
    """A layer that works along the last dimension, with the channels there."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x.movedim(1, -1))
        return (made[0] if isinstance(made, tuple) else made).movedim(-1, 1)


class Net(nn.Module):
    """A random chain of layers that keep the shape, with sums over some of them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.is_image = rng.random() < 0.5
        layers = IMAGE if self.is_image else SEQUENCE
        names = [rng.choice(list(layers)) for _ in range(rng.randint(1, 4))]
        self.layers = nn.ModuleList(layers[name]() for name in names)
        self.steps = [(rng.choice(list(ACTIVATIONS)), rng.random(), rng.random()) for _ in names]
        self.loss = rng.choice(list(LOSSES))
        size = [5, 6] if self.is_image else [rng.randint(3, 40)]
        self.shape = [rng.choice([1, 2, 3]), _CHANNELS, *size]
        self.order = list(range(len(self.shape)))
        if rng.random() < 0.5:
            rng.shuffle(self.order)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer, (name, residual, turned) in zip(self.layers, self.steps, strict=True):
            made = layer(x)
            x = made + x if residual < 0.3 else x + made if residual < 0.6 else made
            if turned < 0.5:
                x = ACTIVATIONS[name](x.transpose(0, 2)).transpose(0, 2) if turned < 0.3 else ACTIVATIONS[name](x)
        return LOSSES[self.loss](x, y)

    def samples(self, seed: int) -> tuple[Tensor, Tensor]:
        """An input, laid out in the order of the net, and a target."""
        generator = torch.Generator().manual_seed(seed)
        laid_out = torch.randn([self.shape[d] for d in self.order], generator=generator)
        x = laid_out.permute([self.order.index(d) for d in range(len(self.order))])
        return x.detach().requires_grad_(), torch.randn(self.shape, generator=generator)


@dataclass
class State(Standing):
    """Where a search stands. next: the first seed that was not tried."""


def failure(seed: int) -> str:
    """What is wrong with the net of a seed, "" for nothing."""
    expected = _outcome(seed, lambda net: net)
    for door in (dovetail.compile, lambda net: torch.compile(net, backend="dovetail")):
        torch.compiler.reset()
        found = _outcome(seed, door)
        for name, wanted in expected.items():
            if found[name].stride() != wanted.stride():
                return f"strides of {name}: {found[name].stride()}, not {wanted.stride()}"
            if not torch.equal(found[name], wanted):
                return f"{name} differs by {(found[name] - wanted).abs().max()}"
    return ""


def _outcome(seed: int, door: Callable[[nn.Module], Callable[..., Tensor]]) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    net = Net(seed)
    x, y = net.samples(seed)
    loss = door(net)(x, y)
    loss.backward()
    gradients = {name: p.grad for name, p in [*net.named_parameters(), ("x", x)] if p.grad is not None}
    return {"loss": loss.detach(), **gradients}


def search(state: State, step: int, seconds: float, programs: int | None, note: Callable[[State], None]) -> None:
    """Try seeds `state.next`, `state.next + step`, ... up to a limit; `state` is kept up to date."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (programs is None or state.tried < programs):
        seed = state.next
        try:
            wrong = failure(seed)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}".split("\n")[0]
        if wrong:
            state.failures[str(seed)] = wrong
            print(f"seed {seed}: {wrong}", flush=True)
        state.tried += 1
        state.next += step
        note(state)


def main(argv: list[str] | None = None) -> int:
    """The exit status."""
    options = parser_of("tests.layout_sweep", __doc__).parse_args(argv)
    state, step = begin(options, State(0))
    search(state, step, options.minutes * 60, options.programs, lambda now: keep(options, now))
    print(f"{state.tried} nets, {len(state.failures)} failures")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
