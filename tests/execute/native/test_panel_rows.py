"""Products and convolutions by panels as rows of clusters: a network is one call, with the bits of its layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.analysis.reads import is_view
from dovetail.execute.native import executor
from dovetail.execute.native.convolutions import planned
from dovetail.execute.native.driver import APART, SERIAL
from dovetail.execute.native.own_threads import leaves_pool_alone
from dovetail.execute.native.panel_calls import call_of
from dovetail.execute.native.panels import multiplies_panels, panel_call
from dovetail.execute.native.rows import ReadyRow
from dovetail.ir.program import Node, Program
from dovetail.ops.panels import PACK_PANELS, PanelLinear

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")


def _code(frozen: Any) -> Any:
    """The code of the only program."""
    ((variant,),) = (method.variants for method in frozen._running.methods.values())
    return variant.runner.graph.forward


def _outside(frozen: Any) -> list[str]:
    """The nodes that no cluster runs, but for views."""
    code = _code(frozen)
    inside = {at for group in code.executors.groups.values() for at in range(group.first, group.last + 1)}
    outside = [node for at, node in enumerate(code.program.nodes) if at not in inside]
    return [str(node.target) for node in outside if not is_view(node)]


def _frozen(model: nn.Module, *args: Tensor) -> Any:
    return dovetail.freeze(model.eval(), args, passes="fast", dynamic_shapes="static")


class _Block(nn.Module):
    """A transformer's layer, with a mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mask = torch.where(seen, torch.tensor(0.0), torch.tensor(-float("inf")))
        x = self.norm(x + self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)))
        made: Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return made


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Hardswish(), nn.Identity()])
def test_a_network_is_one_call_with_the_bits_of_its_layers(activation: nn.Module) -> None:
    first, second = nn.Linear(260, 300), nn.Linear(300, 270, bias=False)
    model, x = nn.Sequential(first, activation, second), torch.randn(5, 260)
    frozen = _frozen(model, x)
    assert not _outside(frozen)
    names = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu", nn.Hardswish: "hardswish", nn.Identity: "none"}
    panels = [PACK_PANELS(layer.weight.detach()) for layer in (first, second)]
    made = panel_call(PanelLinear(names[type(activation)]))(x, panels[0], 300, first.bias.detach())  # type: ignore[arg-type]
    assert torch.equal(frozen(x), panel_call(PanelLinear("none"))(made, panels[1], 270, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 9, 256), (2, 5, 256)])
def test_a_transformer_is_one_call(shape: tuple[int, ...]) -> None:
    model, x, seen = _Block(256), torch.randn(shape), torch.rand(shape[0], 1, shape[1], shape[1]) > 0.3
    seen |= torch.eye(shape[1], dtype=torch.bool)
    frozen = _frozen(model, x, seen)
    assert not _outside(frozen)
    for _ in range(3):
        x = torch.randn(shape)
        torch.testing.assert_close(frozen(x, seen), model(x, seen), rtol=1e-5, atol=1e-5)


def test_bits_do_not_depend_on_threads() -> None:
    model, x = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)), torch.randn(30, 256)
    frozen, threads = _frozen(model, x), torch.get_num_threads()
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(frozen(x))
    torch.set_num_threads(threads)
    assert torch.equal(*found)


class _Count(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_modes_see_operators() -> None:
    model, x = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)), torch.randn(3, 256)
    frozen = _frozen(model, x)
    with _Count() as mode:
        made = frozen(x)
    assert mode.seen > 1
    torch.testing.assert_close(made, frozen(x))


class _Turned(nn.Module):
    """A product over what does not lie in order, and an activation that the kernel does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 300), nn.Linear(300, 256)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(torch.tanh(self.first(x.t())))
        return made.t() * 2


def test_what_the_row_does_not_take_runs_by_itself() -> None:
    model, x = _Turned(), torch.randn(256, 7)
    frozen = _frozen(model, x)
    assert any("panel_linear" in name for name in _outside(frozen))
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-5, atol=1e-5)


def test_results_are_memory_of_their_own() -> None:
    """Also one that is read by a later layer and returned."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 256)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.first(x)
            return hidden, self.second(hidden)

    model, x = Both(), torch.randn(4, 256)
    frozen = _frozen(model, x)
    hidden, made = frozen(x)
    again, _ = frozen(-x)
    torch.testing.assert_close(hidden, model(x)[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made, model(x)[1], rtol=1e-5, atol=1e-5)
    assert again.data_ptr() != hidden.data_ptr()
    hidden.zero_()
    assert torch.equal(frozen(x)[1], made)


def test_numbers_that_are_tensors() -> None:
    """`scalar_tensor` is a row, with any number."""

    class Scalars(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for number in (1.5, -float("inf"), 3, float("nan")):
                x = torch.where(x > 0, torch.ops.aten.scalar_tensor(number, dtype=torch.float32), x * 2)
            return x

    model, x = Scalars(), torch.randn(3, 40)
    frozen = dovetail.freeze(model, (x,), executors=("native", "aten"), dynamic_shapes="static")
    assert not any("scalar_tensor" in name for name in _outside(frozen))
    assert torch.equal(frozen(x).nan_to_num(7.0), model(x).nan_to_num(7.0))


# --- convolutions -----------------------------------------------------------------------------------------------------


def _images(kernel: int, padding: int, stride: int, *, last: bool = True) -> tuple[nn.Sequential, Tensor]:
    """Convolutions of all kinds: dense, of each channel by itself, of pixels."""
    model = nn.Sequential(
        *(nn.Conv2d(8, 24, kernel, stride, padding), nn.ReLU6()),
        *(nn.Conv2d(24, 24, kernel, stride, padding, groups=24, bias=False), nn.SiLU()),
        *(nn.Conv2d(24, 40, 1), nn.Hardswish()),
        *(nn.Conv2d(40, 32, 3, 1, 1), nn.ReLU()),
    )
    x = torch.randn(2, 8, 15, 13)
    return model.eval(), x.to(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize(("kernel", "padding", "stride"), [(3, 1, 1), (3, 0, 1), (5, 2, 2), (4, 3, 1), (2, 1, 1)])
def test_a_network_of_convolutions_is_one_call(kernel: int, padding: int, stride: int) -> None:
    model, x = _images(kernel, padding, stride)
    frozen = _frozen(model, x)
    assert not _outside(frozen)
    for _ in range(2):
        x = torch.randn_like(x)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)


def test_convolutions_have_the_bits_that_they_have_by_themselves() -> None:
    """Where a cluster does not run, its nodes are calls of the same functions."""
    model, x = _images(3, 1, 2)
    frozen = _frozen(model, x)
    code = _code(frozen)
    held = [*frozen._running.methods["forward"].variants[0].runner.graph.constant_list]
    expected = frozen(x)
    alone = type(code)(code.program, code.executors.__class__((_Single(),)))
    assert torch.equal(alone([x, *held])[0], expected)


class _Single:
    """The calls of nodes one by one, as they are behind a cluster."""

    name = "single"

    def claim(self, node: Any) -> bool:
        return True

    def call(self, names: Any, node: Any) -> str:
        return call_of(names, node)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("kind", ["dense", "pixels", "by channel"])
def test_an_image_of_planes_is_laid_out_by_a_row(kind: str, padding: int) -> None:
    groups, kernel = (6 if kind == "by channel" else 1), (1 if kind == "pixels" else 3)
    first = nn.Conv2d(6, 32 if groups == 1 else 6, kernel, 1, 0 if kind == "pixels" else padding, groups=groups)
    model = nn.Sequential(first, nn.SiLU(), nn.Conv2d(first.out_channels, 32, 3, padding=1), nn.ReLU()).eval()
    x = torch.randn(3, 6, 13, 16)
    frozen = _frozen(model, x)
    assert not [name for name in _outside(frozen) if "conv" in name]
    for _ in range(2):
        x = torch.randn(3, 6, 13, 16)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)


def test_an_image_that_lies_in_neither_way_is_taken_by_a_call() -> None:
    model, x = _images(3, 1, 1, last=False)
    x = torch.randn(2, 13, 8, 11).transpose(1, 2)
    frozen = _frozen(model, x)
    assert "panel_conv" in _outside(frozen)[0]
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("passes", ["fast", "bitwise"])
def test_a_small_product_by_mkl_keeps_no_program_from_own_threads(passes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rounding may differ, MKL is told to take one thread; for eager mode's bits it shares as it likes."""
    found: list[tuple[set[int], bool]] = []

    def asked(program: Program, nodes: Collection[Node], rows: Iterable[ReadyRow]) -> bool:
        known = list(rows)
        found.append(({row.marks for row in known}, leaves_pool_alone(program, nodes, known)))
        return found[-1][1]

    monkeypatch.setattr(executor, "leaves_pool_alone", asked)
    model, x = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).eval(), torch.randn(1, 512)
    frozen = dovetail.freeze(model, (x,), passes=passes, dynamic_shapes="static", executors=("native", "aten"))
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-5, atol=1e-5)
    ((marks, own),) = found
    assert (SERIAL in marks, APART in marks, own) == ((True, False, True) if passes == "fast" else (False, True, False))


@pytest.mark.parametrize("size", [3, 5])
def test_what_convolutions_take_for_themselves_is_part_of_the_peak(size: int) -> None:
    """The copy around the image, or what is transformed, is there for one row only."""
    model = nn.Sequential(*(nn.Conv2d(16, 16, size, padding=size // 2) for _ in range(4))).eval()
    x = torch.randn(1, 16, 12, 12).to(memory_format=torch.channels_last)
    frozen = _frozen(model, x)
    assert not _outside(frozen)
    plan = planned(x.shape, (16, 16, size, size), [size // 2] * 2, [1, 1], 1, 1)
    assert plan is not None
    assert plan.kind == ("winograd" if size == 3 else "direct")
    (group,) = _code(frozen).executors.groups.values()
    assert group.own_bytes <= 4 * (2 * 12 * 12 * 16 + plan.room)


def test_padding_that_hides_whole_windows_is_refused_by_the_kernel() -> None:
    assert planned((1, 4, 8, 8), (4, 1, 3, 3), (3, 3), (1, 1), 4, 9) is None
    assert planned((1, 4, 8, 8), (4, 1, 3, 3), (2, 2), (1, 1), 4, 9) is not None
    assert planned((1, 4, 1, 1), (4, 1, 3, 3), (1, 1), (1, 1), 4, 9) is not None
    assert planned((1, 4, 0, 8), (4, 1, 3, 3), (2, 2), (1, 1), 4, 9) is None
