"""Facts per operator, for all of ATen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dovetail.ir.program import Node
from dovetail.ops import prims
from dovetail.ops.facts import (
    Facts,
    facts_of,
    hidden_writes,
    is_copy,
    is_reinterpretation,
    may_be_merged,
    may_be_removed,
    runs_in_grad_mode,
)
from tests.ops.operators import aten_overloads

aten = torch.ops.aten


def test_every_overload_that_may_draw_is_kept_and_never_merged() -> None:
    seeded = [
        op
        for op in aten_overloads()
        if torch.Tag.nondeterministic_seeded in op.tags or any("Generator" in str(a.type) for a in op._schema.arguments)
    ]
    assert len(seeded) > 140
    for op in seeded:
        assert facts_of(op).draws, op
        assert not may_be_removed(Node(op, ())), op
        assert not may_be_merged(Node(op, ())), op


def test_every_declared_write_is_a_fact() -> None:
    for op in aten_overloads():
        declared = tuple(
            i for i, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
        )
        assert facts_of(op).writes == declared, op
        if declared:
            assert not may_be_removed(Node(op, ())), op


def test_an_operator_without_results_is_an_effect() -> None:
    without = [op for op in aten_overloads() if not op._schema.returns]
    assert aten._assert_async.default in without
    assert all(facts_of(op).effect for op in without)


def test_ordinary_operators_are_pure() -> None:
    for op in (aten.add.Tensor, aten.mm.default, aten.view.default, aten.native_layer_norm.default):
        assert facts_of(op).is_pure
        assert may_be_removed(Node(op, ()))
    assert facts_of(aten.add.Tensor).pointwise
    assert not facts_of(aten.mm.default).pointwise
    assert not Facts(reads_generator=True).is_pure


def test_what_nobody_knows_is_an_effect() -> None:
    with torch.library._scoped_library("dovetail_facts", "FRAGMENT") as library:
        library.define("unknown(Tensor x) -> Tensor")
        op = torch.ops.dovetail_facts.unknown.default
        assert facts_of(op).effect
        assert not may_be_removed(Node(op, ()))
        assert not may_be_merged(Node(op, ()))
    assert facts_of(print).effect


def test_primitives_carry_their_facts() -> None:
    assert facts_of(prims.SET_RNG_STATE) == Facts(draws=True, effect=True)
    assert not may_be_merged(Node(prims.GET_RNG_STATE, ()))
    assert may_be_removed(Node(prims.GET_RNG_STATE, ()))
    assert facts_of(prims.COPY_TO_LAYOUT).is_pure


X, MEAN, VAR = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
COUNTS = torch.tensor([4.0, 4.0])
HIDDEN = [
    (aten.native_batch_norm.default, (X, None, None, MEAN, VAR, True, 0.1, 1e-5), (3, 4)),
    (aten.native_batch_norm.default, (X, None, None, None, None, True, 0.1, 1e-5), ()),
    (aten.native_batch_norm.default, (X, None, None, MEAN, VAR, False, 0.1, 1e-5), ()),
    (aten.batch_norm_update_stats.default, (X, MEAN, VAR, 0.1), (1, 2)),
    (aten.batch_norm_update_stats.default, (X, None, None, 0.1), ()),
]


@pytest.mark.parametrize(("op", "args", "expected"), HIDDEN)
def test_hidden_writes_are_what_the_kernel_writes(
    op: object, args: tuple[object, ...], expected: tuple[int, ...]
) -> None:
    copies = [a.clone() if isinstance(a, Tensor) else a for a in args]
    op(*copies)  # type: ignore[operator]
    changed = tuple(
        i
        for i, (a, b) in enumerate(zip(args, copies, strict=True))
        if isinstance(a, Tensor) and not torch.equal(a, b)  # type: ignore[arg-type]
    )
    assert changed == expected
    assert hidden_writes(op, args, {}) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("op", [aten.batch_norm_gather_stats.default, aten.batch_norm_gather_stats_with_counts.default])
def test_hidden_writes_of_synchronised_batch_norm(op: object) -> None:
    stats = torch.ones(2, 3)
    assert hidden_writes(op, (X, stats, stats, MEAN, VAR, 0.1, 1e-5, COUNTS), {}) == (3, 4)  # type: ignore[arg-type]
    assert hidden_writes(op, (X, stats, stats, None, None, 0.1, 1e-5, COUNTS), {}) == ()  # type: ignore[arg-type]


def test_declared_writes_are_not_hidden() -> None:
    op = aten._native_batch_norm_legit.default
    assert facts_of(op).writes == (3, 4)
    assert hidden_writes(op, (X, None, None, MEAN, VAR, True, 0.1, 1e-5), {}) == ()
    assert hidden_writes(prims.COPY_TO_LAYOUT, (X,), {}) == ()


def test_copies_and_reinterpretations() -> None:
    assert all(is_copy(t) for t in (aten.clone.default, aten._to_copy.default, prims.COPY_TO_LAYOUT))
    assert not any(is_copy(t) for t in (aten.relu.default, aten.view.default, prims.GET_RNG_STATE))
    assert is_reinterpretation(aten._conj.default)
    assert is_reinterpretation(aten._neg_view.default)
    assert not any(is_reinterpretation(t) for t in (aten.view.default, prims.COPY_TO_LAYOUT))
    assert runs_in_grad_mode(aten.mkldnn_rnn_layer.default)
    assert not any(runs_in_grad_mode(t) for t in (aten.mm.default, prims.COPY_TO_LAYOUT))
