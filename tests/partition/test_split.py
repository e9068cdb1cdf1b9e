"""The split of a joint program, and that its checker sees every corruption."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.errors import InvalidProgram
from dovetail.ir.program import Phase, Program, Stage, values_in
from dovetail.ir.signature import Constant, Gradient, Residual, Tangent, UserInput, UserOutput
from dovetail.ir.stages import verify_program
from dovetail.partition.check import verify_split
from dovetail.partition.split import Split, split_by_phase
from dovetail.pipeline import splitting
from dovetail.pipeline.driver import writes


def _joint(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *inputs: Any, **options: Any) -> Program:
    """The program of two phases that compiling `function` hands to the split."""
    seen: list[Program] = []

    def split(program: Program) -> Split:
        seen.append(program)
        return split_by_phase(program)

    with monkeypatch.context() as patch:
        patch.setattr(splitting, "split_by_phase", split)
        dovetail.compile(function, inputs, partition="default", **options)
    return seen[0]


def _net(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = (x @ w).sin()
    return h.exp(), h.sum()


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> Program:
    return _joint(monkeypatch, _net, torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True))


def test_roles_and_phases(joint: Program) -> None:
    split = split_by_phase(joint)
    forward, backward = split.forward.signature, split.backward.signature
    assert forward.inputs == (UserInput(0), UserInput(1))
    residuals = tuple(map(Residual, split.residuals))
    assert forward.outputs == (UserOutput(0), UserOutput(1), *residuals)
    assert backward.inputs == (*residuals, Tangent(0), Tangent(1))
    assert backward.outputs == (Gradient(0), Gradient(1))
    assert {node.phase for node in split.forward.nodes} == {Phase.FORWARD}
    assert {node.phase for node in split.backward.nodes} == {Phase.BACKWARD}
    assert (split.forward.stage, split.backward.stage) == (Stage.SPLIT, Stage.SPLIT)
    assert (split.forward.name, split.backward.name) == ("_net_forward", "_net_backward")
    assert split.forward.nodes + split.backward.nodes == joint.nodes


def test_what_is_saved_is_what_backward_reads(joint: Program) -> None:
    split = split_by_phase(joint)
    made = {v for node in split.backward.nodes for v in node.results()}
    read = {v for node in split.backward.nodes for v in node.operands()} - made
    tangents = set(split.backward.inputs[len(split.residuals) :])
    assert {v.name for v in read - tangents} == set(split.residuals)
    assert set(split.residuals) == {"mm", "exp", "arg_0", "arg_1"}


def test_a_sound_split_passes(joint: Program) -> None:
    split = split_by_phase(joint)
    verify_split(joint, split)
    verify_program(split.forward, writes)
    verify_program(split.backward, writes)


def test_an_inference_program_has_an_empty_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _joint(monkeypatch, lambda x: x.sin(), torch.randn(2))
    split = split_by_phase(program)
    verify_split(program, split)
    assert split.residuals == ()
    assert (split.backward.inputs, split.backward.nodes, split.backward.outputs) == ((), (), ())


def test_constants_that_only_backward_reads_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = torch.tensor([2.0, 3.0])

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * scale

    program = _joint(monkeypatch, lambda x: Scaled.apply(x * 1), torch.randn(2, requires_grad=True))
    split = split_by_phase(program)
    verify_split(program, split)
    assert split.residuals == ()
    assert [type(role) for role in split.backward.signature.inputs] == [Constant, Tangent]
    assert [type(role) for role in split.forward.signature.inputs] == [UserInput]


def test_numbers_that_backward_mentions_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _joint(monkeypatch, lambda x: x.sum(0), torch.randn(3, 4, requires_grad=True), dynamic=True)
    split = split_by_phase(program)
    verify_split(program, split)
    assert len(split.residuals) == 2
    assert all(not value.is_tensor for value in split.backward.inputs[:2])
    assert [str(o) for o in split.forward.outputs[1:]] == list(split.residuals)


def test_a_value_that_backward_returns_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.sin()
            ctx.save_for_backward(y)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return ctx.saved_tensors[0]

    program = _joint(monkeypatch, lambda x: Given.apply(x * 1), torch.randn(2, requires_grad=True))
    split = split_by_phase(program)
    verify_split(program, split)
    assert split.residuals == ("sin",)


# --- corruptions ----------------------------------------------------------------------------------------

Change = Callable[[Split], Split]


def _forward(split: Split, **changes: Any) -> Split:
    return dataclasses.replace(split, forward=dataclasses.replace(split.forward, **changes))


def _backward(split: Split, **changes: Any) -> Split:
    return dataclasses.replace(split, backward=dataclasses.replace(split.backward, **changes))


def _swapped(items: tuple[Any, ...]) -> tuple[Any, ...]:
    return (items[1], items[0], *items[2:])


def _without_residual(split: Split) -> Split:
    late = split.backward
    return dataclasses.replace(
        split, residuals=split.residuals[1:], backward=dataclasses.replace(late, inputs=late.inputs[1:])
    )


def _another_output(split: Split) -> Split:
    return _forward(split, outputs=(split.forward.nodes[0].outputs[0], *split.forward.outputs[1:]))


def _tangent_in_forward(split: Split) -> Split:
    return _forward(split, inputs=(*split.forward.inputs, split.backward.inputs[-1]))


def _early_value_in_backward(split: Split) -> Split:
    (value,) = split.forward.nodes[1].results()
    return _backward(split, inputs=(*split.backward.inputs, value))


CORRUPTIONS: list[tuple[str, Change, str]] = [
    ("a node is lost", lambda s: _backward(s, nodes=s.backward.nodes[1:]), "every node is in one half"),
    (
        "a node is there twice",
        lambda s: _forward(s, nodes=s.forward.nodes + s.backward.nodes[:1]),
        "every node is in one half",
    ),
    (
        "a node is replaced",
        lambda s: _forward(s, nodes=(dataclasses.replace(s.forward.nodes[0]), *s.forward.nodes[1:])),
        "the halves share the program's nodes",
    ),
    ("nodes change places", lambda s: _forward(s, nodes=_swapped(s.forward.nodes)), "order is kept"),
    ("a residual is not taken", _without_residual, "a half reads only its own inputs"),
    ("a primal is not taken", lambda s: _forward(s, inputs=s.forward.inputs[1:]), "a half reads only its own inputs"),
    (
        "a tangent is not taken",
        lambda s: _backward(s, inputs=s.backward.inputs[:-1]),
        "a half reads only its own inputs",
    ),
    (
        "forward gives what backward makes",
        lambda s: _forward(s, outputs=(s.backward.outputs[0], *s.forward.outputs[1:])),
        "a half gives only what it has",
    ),
    (
        "residuals change places",
        lambda s: dataclasses.replace(s, residuals=_swapped(s.residuals)),
        "forward gives each residual",
    ),
    ("a residual is not given", lambda s: _forward(s, outputs=s.forward.outputs[:-1]), "forward gives each residual"),
    (
        "residuals are taken in another order",
        lambda s: _backward(s, inputs=_swapped(s.backward.inputs)),
        "backward takes each residual",
    ),
    ("forward takes a tangent", _tangent_in_forward, "a half takes only its inputs"),
    ("backward takes what was not saved", _early_value_in_backward, "a half takes only its inputs"),
    ("an output is lost", lambda s: _backward(s, outputs=s.backward.outputs[1:]), "each output is given once"),
    ("an output is another value", _another_output, "each output is given once"),
    (
        "an output is given twice",
        lambda s: _backward(s, outputs=s.backward.outputs[:1] * 2),
        "each output is given once",
    ),
]


@pytest.mark.parametrize(("change", "rule"), [c[1:] for c in CORRUPTIONS], ids=[c[0] for c in CORRUPTIONS])
def test_a_corruption_is_named(joint: Program, change: Change, rule: str) -> None:
    split = split_by_phase(joint)
    with pytest.raises(InvalidProgram) as caught:
        verify_split(joint, change(split))
    assert str(caught.value).startswith(
        f"DT-INTERNAL-001 InvalidProgram: program _net breaks a rule of stage 'split': {rule}."
    )
    assert caught.value.facts["detail"]
    verify_split(joint, split)


def test_every_output_lies_in_its_half(joint: Program) -> None:
    split = split_by_phase(joint)
    assert set(values_in(split.backward.outputs)) == set(values_in(joint.outputs[2:]))
