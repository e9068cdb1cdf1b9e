"""Preconditions that descriptions settle: of attention with known sizes, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.execute.executors.checked import CheckedExecutor
from dovetail.ir.program import Node, Value
from dovetail.ops.described_operands import holds_by_description
from tests.passes.recorded_models import Recorded, record

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Attends(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _recorded(dynamic: bool = False) -> tuple[Recorded, Node]:
    shapes = [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 1, 5, 7)]
    recorded = record(Attends(), *map(torch.randn, shapes), dynamic=dynamic)
    (node,) = [node for node in recorded.program.nodes if node.target is ATTENTION]
    return recorded, node


def _with(node: Node, place: int, shape: tuple[int, ...]) -> Node:
    """The node with another description of an operand, as a file might have it."""
    operands = list(node.operands())
    old = operands[place]
    stride = tuple(torch.empty(shape, device="meta").stride())
    new = Value(old.name, replace(old.tensor, shape=shape, stride=stride))
    return node.with_operands(lambda value: new if value is old else value)


def test_what_is_recorded_holds() -> None:
    _, node = _recorded()
    assert holds_by_description(node)


@pytest.mark.parametrize(
    ("place", "shape"),
    [(0, (2, 3, 5, 9)), (0, (3, 3, 5, 8)), (1, (2, 3, 6, 8)), (2, (2, 3, 1, 8)), (2, (2, 2, 7, 8)), (3, (2, 1, 5, 2))],
)
def test_what_does_not_fit_is_left_to_a_check_of_real_tensors(place: int, shape: tuple[int, ...]) -> None:
    _, node = _recorded()
    assert not holds_by_description(_with(node, place, shape))


def test_only_programs_without_symbols_and_true_descriptions_are_believed() -> None:
    for dynamic, is_described, is_left in ((False, True, False), (False, False, True), (True, True, True)):
        recorded, node = _recorded(dynamic)
        executor = CheckedExecutor(is_described=is_described).bound_to(recorded.program, lambda _: True)
        assert executor.claim(node) is is_left
    assert CheckedExecutor().claim(node)


def test_contents_are_never_settled() -> None:
    """Whether indices are within bounds no description says."""
    indices, weight = torch.tensor([1, 0]), torch.randn(3, 4)
    recorded = record(nn.EmbeddingBag.from_pretrained(weight), indices, torch.tensor([0]))
    claimed = [node for node in recorded.program.nodes if CheckedExecutor().claim(node)]
    assert claimed
    assert not any(map(holds_by_description, claimed))


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_the_call_itself_does_not_run() -> None:
    """torch would import sympy for it, in each process that loads a file."""
    _, node = _recorded()
    with _Names() as mode:
        assert holds_by_description(node)
    assert mode.seen
    assert ATTENTION not in mode.seen
