"""What follows from values in another layout: which nodes are described again, and what is copied back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dovetail.analysis.propagate_layouts import LayoutPropagation, propagate_layouts
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.prims import COPY_TO_LAYOUT
from dovetail.passes.dead_code import remove_dead_code
from tests.passes.described import assert_described_as_made
from tests.passes.programs import body
from tests.passes.recorded_models import Recorded, record
from tests.rotation import rotated

aten = torch.ops.aten


class Tail(nn.Module):
    """A sine, which a pass lays out again, and what follows it."""

    def __init__(self, tail: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.tail = tail

    def forward(self, x: Tensor) -> Any:
        return self.tail(x.sin())


def _recorded(tail: Callable[[Tensor], Any], *shape: int, dynamic: bool = False) -> tuple[Recorded, Tensor]:
    x = torch.randn(shape or (2, 4, 3, 5))
    return record(Tail(tail).eval(), x, dynamic=dynamic), x


def _sine_with_channels_last(recorded: Recorded) -> Program:
    """The program in which a copy of the sine with its channels last stands for the sine."""
    program = recorded.program
    state = LayoutPropagation(program, recorded.infer)
    sine = next(node for node in program.nodes if node.target is aten.sin.default)
    for node in program.nodes:
        state.follow(node)
        if node is sine:
            kwargs = (("memory_format", torch.channels_last),)
            (result,) = sine.results()
            state.change(result, state.add(state.maker.call(aten.clone.default, (result,), kwargs, name="last")))
    return remove_dead_code(state.finish())[0]


def _same(recorded: Recorded, program: Program, x: Tensor) -> None:
    """The program gives what the recorded one gives, laid out as by that, and describes what it makes."""
    expected, found = recorded.run(recorded.program, x), recorded.run(program, x)
    for a, b in zip(expected, found, strict=True):
        assert torch.allclose(a, b, atol=1e-6)  # sums are taken in the order of memory
        assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())
    stored = [[a.untyped_storage().data_ptr() for a in results] for results in (expected, found)]
    firsts = [[pointers.index(pointer) for pointer in pointers] for pointers in stored]
    assert firsts[0] == firsts[1], "results share memory as before"
    assert_described_as_made(program, [x])
    assert program.outputs == recorded.program.outputs


def test_before_and_after() -> None:
    recorded, x = _recorded(lambda y: y.relu().exp())
    after = _sine_with_channels_last(recorded)
    assert body(after)[1:] == [
        "last = sin.clone(memory_format=torch.channels_last)".replace("sin.clone(", "clone.default(sin, "),
        "relu_1 = relu.default(last)",
        "exp_1 = exp.default(relu_1)",
        "exp = prims.COPY_TO_LAYOUT(exp_1, [2, 4, 3, 5], [60, 15, 5, 1], torch.float32, _cpu)",
        "return (exp,)",
    ]
    _same(recorded, after, x)


TAILS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda y: y.relu() + 1,
    "mixed layouts": lambda y: torch.where(y > 0, y, torch.ones(y.shape)),
    "a view that stays one": lambda y: y.flatten(2) * 2,
    "a view that becomes a copy": lambda y: y.view(y.shape[0], -1) * 2,
    "a view of the batch": lambda y: y.view(y.shape[0] * y.shape[1], -1) * 2,
    "a returned view": lambda y: (y.flatten(1), y[:, 1:]),
    "a returned view and what it shows": lambda y: (y, y.flatten(1), y.exp()),
    "returned views of what follows": lambda y: list(y.exp().split(2, 1)),
    "permuted": lambda y: y.permute(0, 2, 3, 1) * 2,
    "permuted and contiguous": lambda y: y.permute(0, 2, 3, 1).contiguous().exp(),
    "tokens": lambda y: y.flatten(2).transpose(1, 2).exp(),
    "strided": lambda y: y.as_strided((2, 4), (5, 1)) * 2,
    "strided at a place": lambda y: y[1:].as_strided((2, 4), (5, 1), 3) * 2,
    "strided and returned": lambda y: y.exp().as_strided((2, 4), (5, 1), 3),
    "strided beside": lambda y: y.exp()[1:, :2].as_strided((2, 4), (5, 1), 7) * 2,
    "written through a strided view": lambda y: torch.as_strided_scatter(y, torch.ones(2, 2), (2, 2), (5, 1)) + 1,
    "joined": lambda y: torch.cat([y, y.exp()], 1),
    "einsum": lambda y: torch.einsum("bchw,bdhw->bcd", y, y),
    "products": lambda y: y @ y.transpose(-1, -2),
    "several results": lambda y: torch.max(y, 1)[0] * torch.nn.functional.max_pool2d(y, 2, 1).mean(),
    "bits": lambda y: y.view(torch.int32) + 1,
    "complex": lambda y: torch.view_as_real(torch.complex(y, y)) * 2,
    "rolled, which fakes describe differently": lambda y: y.roll(1, 2) * 2,
    "shuffled, which fakes describe differently": lambda y: torch.nn.functional.channel_shuffle(y, 2),
    "a mean": lambda y: y.mean((2, 3)) + 1,
    "a conversion": lambda y: y.double().exp().float(),
    "zeros like it": lambda y: torch.zeros_like(y) + 1,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", rotated([*TAILS], 3))
def test_same_values_strides_and_sharing(name: str, dynamic: bool) -> None:
    recorded, x = _recorded(TAILS[name], dynamic=dynamic)
    _same(recorded, _sine_with_channels_last(recorded), x)


@pytest.mark.parametrize("shape", [(2, 1, 3, 5), (1, 4, 3, 5), (2, 4, 1, 1), (1, 1, 1, 1), (2, 4, 1, 5), (0, 4, 3, 5)])
def test_layouts_that_look_alike(shape: Sequence[int]) -> None:
    recorded, x = _recorded(lambda y: (y.exp().flatten(1) * 2, y.relu(), y.mean((2, 3))), *shape)
    _same(recorded, _sine_with_channels_last(recorded), x)


def test_the_memory_order_of_random_numbers_stays() -> None:
    recorded, x = _recorded(lambda y: torch.rand_like(y) + torch.bernoulli(y.sigmoid()))
    after = _sine_with_channels_last(recorded)
    torch.manual_seed(3)
    (expected,) = recorded.run(recorded.program, x)
    torch.manual_seed(3)
    (found,) = recorded.run(after, x)
    assert torch.equal(expected, found)


def test_sizes_that_depend_on_data() -> None:
    recorded, x = _recorded(lambda y: y[y > 0] * 2)
    (expected,), (found,) = recorded.run(recorded.program, x), recorded.run(_sine_with_channels_last(recorded), x)
    assert torch.equal(expected, found)


def test_no_fact_about_symbolic_sizes_is_assumed() -> None:
    recorded, _ = _recorded(lambda y: y.view(y.shape[0], -1).relu() + y.flatten(1), dynamic=True)
    env = recorded.infer.mode.shape_env
    assert env is not None
    before = len(env.guards)
    _sine_with_channels_last(recorded)
    assert len(env.guards) == before


@pytest.mark.parametrize("size", [(3, 4, 6, 6), (5, 4, 2, 7)])
def test_symbolic_sizes_serve_others(size: Sequence[int]) -> None:
    recorded, _ = _recorded(lambda y: (y.view(y.shape[0], -1) * 2, y.relu()), dynamic=True)
    _same(recorded, _sine_with_channels_last(recorded), torch.randn(size))


# --- propagate_layouts ------------------------------------------------------------------------------------------------


def test_a_changed_value_stands_for_the_old_one_after_it_is_made() -> None:
    recorded, x = _recorded(lambda y: y.relu())
    program = recorded.program
    (arg,) = program.inputs
    state = LayoutPropagation(program, recorded.infer)
    copy = state.maker.call(aten.clone.default, (arg,), (("memory_format", torch.channels_last),), name="last")
    (last,) = copy.results()
    after = propagate_layouts(program.replace_nodes((copy, *program.nodes)), {arg: last}, recorded.infer)
    assert [node.target for node in after.nodes] == [
        aten.clone.default,
        aten.sin.default,
        aten.relu.default,
        COPY_TO_LAYOUT,
    ]
    assert after.nodes[0] is copy
    _same(recorded, after, x)


def test_nothing_changed_gives_the_same_program() -> None:
    recorded, _ = _recorded(lambda y: y.relu())
    assert propagate_layouts(recorded.program, {}, recorded.infer) is recorded.program


def test_a_node_whose_results_look_as_before_keeps_them() -> None:
    recorded, _ = _recorded(lambda y: (y.mean((2, 3)) + 1).exp())
    before = {value.name: value for node in recorded.program.nodes for value in node.results()}
    after = _sine_with_channels_last(recorded)
    kept: list[Node] = [node for node in after.nodes if all(v is before.get(v.name) for v in node.results())]
    assert [value.name for node in kept for value in node.results()] == ["sin", "mean", "add", "exp"]


def test_values_are_copied_once_for_all_who_need_the_old_layout() -> None:
    recorded, x = _recorded(lambda y: (y.exp().roll(1, 2) + y.exp().roll(1, 3)).sum())
    after = _sine_with_channels_last(recorded)
    copied: list[Value] = [v for node in after.nodes if node.target is COPY_TO_LAYOUT for v in node.operands()]
    assert len(set(copied)) == len(copied)
    _same(recorded, after, x)
