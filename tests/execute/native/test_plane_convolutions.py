"""Convolutions over planes: within the error of any order of additions, for tiles of both sizes and some threads."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.machine import driver, function_of, has_vectors
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.plane_convolution_text import plane_text, room_elements
from dovetail.execute.native.plane_geometry import Geometry
from dovetail.execute.native.plane_tiles import NARROW, WIDE, Shape
from dovetail.execute.native.rows import table_row
from dovetail.inspect.memory import measure_peak
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")

SHAPES = {"narrow": NARROW, "wide": WIDE}
_UNIT = torch.finfo(torch.float32).eps / 2


def _drawn(seed: int) -> tuple[int, Geometry]:
    """How many images, and a convolution of them."""
    draw = random.Random(seed)
    while True:
        kernel, stride, dilation = ((draw.randint(1, most), draw.randint(1, most)) for most in (5, 4, 3))
        size, padding = (draw.randint(1, 17), draw.randint(1, 17)), (draw.randint(0, 4), draw.randint(0, 4))
        found = Geometry(draw.randint(1, 7), size, draw.randint(1, 20), kernel, stride, padding, dilation)
        if min(found.made) > 0:
            return draw.randint(1, 9), found


def _run(kind: str, of: Geometry, shape: Shape, images: int, tensors: Sequence[Tensor]) -> None:
    """One row. Nothing is known of the memory of its rooms, and nothing is written behind them."""
    function = function_of(plane_text(kind, of, shape).replace("NAME", f"planes_{kind}"), f"planes_{kind}", ())
    assert function is not None
    size = 2 * room_elements(kind, of, shape)
    room = torch.full((size + 1,), math.nan)
    room[-1] = 7.0
    made = {}
    for threads in (1, 2):
        pointers = [each.data_ptr() for each in (*tensors, room)]
        table = table_row(function, 2 * THREADED, pointers, (), struct.pack("3q", images, 2, 0))
        assert not driver()(table, 1, threads, 0)
        made[threads] = [tensor.clone() for tensor in tensors]
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(made[1], made[2], strict=True))
    assert room[-1] == 7.0


@dataclass
class _Taps:
    """Each product of a tap by what it reads, whatever the padding: exact, or of which numbers something is made."""

    of: Geometry

    def parts(self) -> Any:
        """Of each tap: itself, lines of the result, lines of the image."""
        for row in range(self.of.kernel[0]):
            for column in range(self.of.kernel[1]):
                spans = [self._span(dim, tap) for dim, tap in enumerate((row, column))]
                yield (row, column), [made for made, _ in spans], [image for _, image in spans]

    def _span(self, dim: int, tap: int) -> tuple[list[int], list[int]]:
        step, start = self.of.stride[dim], tap * self.of.dilation[dim] - self.of.padding[dim]
        made = [y for y in range(self.of.made[dim]) if 0 <= y * step + start < self.of.size[dim]]
        return made, [y * step + start for y in made]

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made = torch.zeros(len(x), self.of.outputs, *self.of.made, dtype=x.dtype)
        made += 0 if bias is None else bias[:, None, None]
        for (row, column), (ys, xs), (image_ys, image_xs) in self.parts():
            part = torch.einsum("oc,ncyx->noyx", weight[:, :, row, column], x[:, :, image_ys][..., image_xs])
            made[:, :, torch.tensor(ys, dtype=torch.int64)[:, None], torch.tensor(xs, dtype=torch.int64)] += part
        return made

    def images(self, gradient: Tensor, weight: Tensor) -> Tensor:
        made = torch.zeros(len(gradient), self.of.channels, *self.of.size, dtype=gradient.dtype)
        for (row, column), (ys, xs), (image_ys, image_xs) in self.parts():
            part = torch.einsum("oc,noyx->ncyx", weight[:, :, row, column], gradient[:, :, ys][..., xs])
            down, across = (torch.tensor(each, dtype=torch.int64) for each in (image_ys, image_xs))
            made[:, :, down[:, None], across] += part
        return made

    def weight(self, gradient: Tensor, x: Tensor) -> Tensor:
        made = torch.zeros(self.of.outputs, self.of.channels, *self.of.kernel, dtype=x.dtype)
        for (row, column), (ys, xs), (image_ys, image_xs) in self.parts():
            parts = gradient[:, :, ys][..., xs], x[:, :, image_ys][..., image_xs]
            made[:, :, row, column] = torch.einsum("noyx,ncyx->oc", *parts)
        return made


def _assert_near(found: Tensor, exact: Callable[..., Tensor], terms: int, *given: Tensor | None) -> None:
    wanted = exact(*(None if each is None else each.double() for each in given))
    sizes = exact(*(None if each is None else each.double().abs() for each in given))
    bound = (terms + 3) * _UNIT * sizes
    is_finite = wanted.isfinite()
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found[wanted.isinf()].double(), wanted[wanted.isinf()])
    assert ((found.double() - wanted).abs() <= bound)[is_finite].all()


def _check(images: int, of: Geometry, shape: Shape, *, has_bias: bool, spoil: Callable[[list[Tensor]], None]) -> None:
    x, weight = torch.randn(images, of.channels, *of.size), torch.randn(of.outputs, of.channels, *of.kernel)
    gradient, bias = torch.randn(images, of.outputs, *of.made), torch.randn(of.outputs) if has_bias else None
    spoil([x, weight, gradient])
    taps, all_taps = _Taps(of), math.prod(of.kernel)
    made = torch.full(gradient.shape, 5.0)
    more = [] if bias is None else [bias]
    _run("forward" if has_bias else "unbiased", of, shape, images, [made, x, weight, *more])
    _assert_near(made, taps.forward, of.channels * all_taps, x, weight, bias)
    of_x, of_weight, of_bias = (torch.full_like(each, 5.0) for each in (x, weight, torch.empty(of.outputs)))
    _run("images", of, shape, images, [of_x, gradient, weight])
    _assert_near(of_x, taps.images, of.outputs * all_taps, gradient, weight)
    _run("weight", of, shape, images, [of_weight, of_bias, gradient, x])
    _assert_near(of_weight, taps.weight, images * math.prod(of.made), gradient, x)
    _assert_near(of_bias, lambda given: given.sum((0, 2, 3)), images * math.prod(of.made), gradient)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", rotated(list(range(400)), 40))
def test_sizes(shape: str, seed: int) -> None:
    if not has_vectors(SHAPES[shape].lanes):
        pytest.skip("the processor has no such vectors")
    torch.manual_seed(seed)
    _check(*_drawn(seed), SHAPES[shape], has_bias=seed % 3 > 0, spoil=lambda _: None)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("seed", rotated(list(range(60)), 15))
def test_infinite_numbers_reach_no_further_than_their_products(seed: int, number: float) -> None:
    draw = random.Random(seed)

    def spoil(tensors: list[Tensor]) -> None:
        chosen = draw.choice(tensors).view(-1)
        chosen[draw.randrange(len(chosen))] = number

    torch.manual_seed(seed)
    shape = WIDE if has_vectors(WIDE.lanes) else NARROW
    _check(*_drawn(seed), shape, has_bias=True, spoil=spoil)


# --- programs ---------------------------------------------------------------------------------------------------------


class _Net(nn.Module):
    """A few convolutions of images, or of lines."""

    def __init__(self, convolution: type[nn.Module], pool: type[nn.Module], batch_norm: type[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Sequential(convolution(3, 8, 3, padding=1), batch_norm(8), nn.GELU(), pool(2))
        self.second = nn.Sequential(convolution(8, 16, 3, stride=2, bias=False), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.first(x)).flatten(2).mean(-1)
        scores: Tensor = self.head(made)
        return scores


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (lambda: _Net(nn.Conv2d, nn.MaxPool2d, nn.BatchNorm2d), (3, 16, 16)),
    "lines": (lambda: _Net(nn.Conv1d, nn.AvgPool1d, nn.BatchNorm1d), (3, 60)),
}
_CONVOLUTIONS = ("convolution", "convolution_backward")


def _losses(net: nn.Module, size: tuple[int, ...], **options: Any) -> tuple[list[float], Any]:
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = dovetail.compile_step(step, **options) if options else step
    torch.manual_seed(1)
    batches = [(torch.randn(6, *size), torch.randint(4, (6,))) for _ in range(6)]
    return [float(run(*batch)) for batch in batches], run


def _owners(step: Any) -> set[str]:
    """Who runs the convolutions of a step."""
    (variant,) = step._cache.variants
    code = variant.runner.program.code
    nodes = [node for node in code.program.nodes if str(node.target).split(".")[-2:-1] in ([x] for x in _CONVOLUTIONS)]
    assert nodes
    return {code.executors.owner(node).name for node in nodes}


@pytest.mark.parametrize("name", NETS)
def test_steps_differ_by_rounding(name: str) -> None:
    make, size = NETS[name]
    found = {}
    for numerics in ("", "eager", "fast"):
        torch.manual_seed(0)
        found[numerics] = _losses(make(), size, **({"numerics": numerics} if numerics else {}))
    assert found["eager"][0] == found[""][0]
    torch.testing.assert_close(found["fast"][0], found[""][0], rtol=1e-4, atol=1e-5)
    assert _owners(found["fast"][1]) == {"native"}
    assert _owners(found["eager"][1]) == {"aten"}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_functions_differ_by_rounding(name: str, door: str) -> None:
    make, size = NETS[name]
    net = make()
    if door == "compile":
        run: Any = dovetail.compile(net, numerics="fast")
    else:
        run = torch.compile(net, backend="dovetail", options={"numerics": "fast"})
    for images in (6, 6, 2):
        x = torch.randn(images, *size, requires_grad=True)
        gradients = []
        for model in (net, run):
            x.grad = None
            net.zero_grad()
            model(x).square().sum().backward()
            gradients.append([x.grad, *(each.grad for each in net.parameters())])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("place", ["weight", "image"])
@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_infinite_numbers_are_where_they_are_in_eager_mode(place: str, number: float) -> None:
    layer, x = nn.Conv2d(2, 8, 3, padding=1, stride=2), torch.randn(3, 2, 8, 8)
    with torch.no_grad():
        (layer.weight if place == "weight" else x)[1, 0, 0, 0] = number
    x.requires_grad_()
    kinds = []
    for run in (layer, dovetail.compile(layer, numerics="fast")):
        x.grad = None
        layer.zero_grad()
        made = run(x)
        made.backward(torch.linspace(-1, 1, made.numel()).view(made.shape))
        found = [made.detach(), x.grad, *(each.grad for each in layer.parameters())]
        kinds.append([(each.isnan(), each.isinf()) for each in found if each is not None])
    assert len(kinds[0]) == 4
    assert all(torch.equal(a, b) for one, other in zip(*kinds, strict=True) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.ConvTranspose2d(4, 4, 3),
        nn.Conv2d(4, 4, 3).double(),
        nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last),
        nn.Conv2d(4, 64, 9, stride=9),
    ],
    ids=str,
)
def test_other_convolutions(layer: nn.Module) -> None:
    weight: Any = layer.weight
    x = torch.randn(2, 4, 12, 12, dtype=weight.dtype)
    if not weight.is_contiguous():
        x = x.to(memory_format=torch.channels_last)
    run: Any = dovetail.compile(layer, numerics="fast")
    for _ in range(2):
        found, wanted = run(x), layer(x)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, check_stride=True)


def test_a_step_takes_no_more_memory() -> None:
    make, size = NETS["images"]
    peaks = {}
    for numerics in ("", "fast"):
        torch.manual_seed(0)
        _, step = _losses(make(), size, **({"numerics": numerics} if numerics else {}))
        batch = torch.randn(6, *size), torch.randint(4, (6,))
        peaks[numerics] = measure_peak(partial(step, *batch)).peak_bytes
    assert peaks["fast"] <= peaks[""]
