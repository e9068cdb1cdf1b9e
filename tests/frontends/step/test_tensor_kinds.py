"""Whether tensors are like those that a step was captured with, and as separate from each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dovetail.frontends.step.memory import Accesses, shared_memory
from dovetail.frontends.step.tensor_kinds import Source, TensorKinds


def _state(number: int) -> Source:
    return Source("state", number)


def _given(number: int) -> Source:
    return Source("argument", number)


def _writing(*written: int) -> Accesses:
    return Accesses(frozenset(written))


def _kinds(
    sources: Sequence[Source],
    state: Sequence[torch.Tensor],
    leaves: Sequence[Any],
    leaf_sources: Sequence[tuple[int, int]],
    written: Sequence[int] = (0,),
    accesses: Accesses | None = None,
) -> TensorKinds:
    kinds = TensorKinds(list(sources), list(leaf_sources), [], accesses or _writing(*written))
    tensors = kinds.tensors(state, leaves)
    assert tensors is not None
    kinds.learn(tensors)
    return kinds


def _are(kinds: TensorKinds, state: Sequence[torch.Tensor], leaves: Sequence[Any]) -> bool:
    tensors = kinds.tensors(state, leaves)
    return tensors is not None and kinds.are(tensors, leaves)


def _one_weight_two_arguments() -> tuple[TensorKinds, list[torch.Tensor]]:
    """The state is written, the arguments are read."""
    state = [torch.nn.Parameter(torch.ones(4))]
    leaves = [torch.ones(4), torch.ones(4)]
    return _kinds([_state(0), _given(0), _given(1)], state, leaves, [(0, 1), (1, 2)]), list(state)


def test_other_arguments_of_the_same_kind_are_as_expected() -> None:
    kinds, state = _one_weight_two_arguments()
    for _ in range(3):
        assert _are(kinds, state, [torch.zeros(4), torch.zeros(4)])


OTHER: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.ones(5),
    lambda: torch.ones(4, dtype=torch.float64),
    lambda: torch.ones(8)[::2],
    lambda: torch.ones(4, requires_grad=True),
    lambda: torch.nn.Parameter(torch.ones(4)),
    lambda: torch.ones(1, 4),
    lambda: torch._neg_view(torch.ones(4)),
)


@pytest.mark.parametrize("make", OTHER, ids=range(len(OTHER)))
def test_an_argument_of_another_kind_is_not(make: Callable[[], torch.Tensor]) -> None:
    kinds, state = _one_weight_two_arguments()
    assert not _are(kinds, state, [make(), torch.ones(4)])
    assert _are(kinds, state, [torch.ones(4), torch.ones(4)])


def test_one_tensor_for_two_arguments_is_another_pattern() -> None:
    kinds, state = _one_weight_two_arguments()
    x = torch.ones(4)
    assert not _are(kinds, state, [x, x])


def test_two_tensors_where_one_was_given_twice_are_another_pattern() -> None:
    state = [torch.nn.Parameter(torch.ones(4))]
    x = torch.ones(4)
    kinds = _kinds([_state(0), _given(0)], state, [x, x], [(0, 1), (1, 1)])
    y = torch.ones(4)
    assert _are(kinds, state, [y, y])
    assert not _are(kinds, state, [y, torch.ones(4)])


def test_the_state_itself_as_an_argument_is_another_pattern() -> None:
    state = [torch.ones(4)]
    kinds = _kinds([_state(0), _given(0)], state, [torch.ones(4)], [(0, 1)])
    assert not _are(kinds, state, [state[0]])
    kinds = _kinds([_state(0)], state, [state[0]], [(0, 0)])
    assert _are(kinds, state, [state[0]])
    assert not _are(kinds, state, [torch.ones(4)])


def test_an_argument_that_shares_written_memory_is_not_as_expected() -> None:
    state = [torch.ones(8)]
    kinds = _kinds([_state(0), _given(0)], state, [torch.ones(4)], [(0, 1)])
    assert not _are(kinds, state, [state[0][:4]])
    assert _are(kinds, state, [torch.ones(8)[:4]])


def test_an_argument_that_shares_memory_that_is_only_read_is() -> None:
    state = [torch.ones(8), torch.ones(8)]
    kinds = _kinds([_state(0), _state(1), _given(0)], state, [torch.ones(4)], [(0, 2)], written=(0,))
    assert _are(kinds, state, [state[1][:4]])
    assert not _are(kinds, state, [state[0][:4]])


def test_two_arguments_that_share_memory() -> None:
    whole = torch.ones(8)
    for written, expected in (((0,), True), ((1,), False)):
        state = [torch.ones(4)]
        sources = [_state(0), _given(0), _given(1)]
        kinds = _kinds(sources, state, [torch.ones(4), torch.ones(4)], [(0, 1), (1, 2)], written)
        assert _are(kinds, state, [whole[:4], whole[2:6]]) is expected


def test_an_argument_with_hooks_is_not_as_expected() -> None:
    state = [torch.ones(4)]
    kinds = _kinds([_state(0), _given(0)], state, [torch.ones(4, requires_grad=True)], [(0, 1)])
    x = torch.ones(4, requires_grad=True)
    assert _are(kinds, state, [x])
    handle = x.register_hook(lambda gradient: gradient * 2)
    assert not _are(kinds, state, [x])
    handle.remove()
    assert _are(kinds, state, [x])


def test_gradients_must_be_there_or_not() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    kinds = TensorKinds([_state(0), Source("gradient", 0)], [], [], _writing(0))
    assert kinds.tensors([weight], []) is None
    weight.grad = torch.ones(4)
    found = kinds.tensors([weight], [])
    assert found is not None
    assert found[1] is weight.grad
    without = TensorKinds([_state(0)], [], [0], _writing(0))
    assert without.tensors([weight], []) is None
    weight.grad = None
    assert without.tensors([weight], []) == [weight]


def test_sources_of_all_kinds_in_any_order() -> None:
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.ones(4)
    sources = [_given(1), _state(1), _state(0), Source("gradient", 2), Source("gradient", 1), _given(0), _state(1)]
    leaves = [torch.zeros(1), torch.zeros(2)]
    found = TensorKinds(sources, [], [1], _writing(0)).tensors(weights, leaves)
    assert found is None, "a gradient that may not be there"
    found = TensorKinds(sources, [], [], _writing(0)).tensors(weights, leaves)
    expected = [leaves[1], weights[1], weights[0], weights[0].grad, weights[1].grad, leaves[0], weights[1]]
    assert found is not None
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in expected]
    assert TensorKinds(sources, [], [], _writing(0)).tensors(weights, [leaves[0], 1.0]) is None
    assert TensorKinds([], [], [], _writing()).tensors([], []) == []


def test_a_gradient_of_a_gradient_is_found_behind_that() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4, requires_grad=True)
    weight.grad.grad = torch.zeros(4)
    found = TensorKinds([_state(0), Source("gradient", 0), Source("gradient", 1)], [], [], _writing()).tensors(
        [weight], []
    )
    assert found is not None
    assert found[2] is weight.grad.grad


def test_a_gradient_in_other_memory_is_as_expected_unless_it_is_shared() -> None:
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.ones(4)
    sources = [_state(0), _state(1), Source("gradient", 0), Source("gradient", 1)]
    kinds = _kinds(sources, weights, [], [], written=(0, 1, 2, 3))
    weights[0].grad = torch.zeros(4)
    assert _are(kinds, weights, [])
    weights[0].grad = weights[1].grad
    assert not _are(kinds, weights, [])


def test_shared_memory() -> None:
    whole = torch.ones(12)
    left, right, middle = whole[:6], whole[6:], whole[4:8]
    matrix = whole.view(3, 4)
    for tensors, written, expected in (
        ([left, right], (0, 1), None),
        ([left, middle], (0,), (0, 1)),
        ([left, middle], (1,), (1, 0)),
        ([left, middle], (), None),
        ([left, left], (0,), None),  # one object
        ([left, whole[:6]], (0,), (0, 1)),
        ([torch.ones(0), torch.ones(0)], (0, 1), None),
        ([matrix[:, 0], whole[4:5]], (1,), (1, 0)),
        ([matrix[:, 0], matrix[:, 1]], (0, 1), None),
        ([whole[::2], whole[1::2], whole[3:4]], (0,), None),
        ([whole[::2], whole[1::2], whole[3:4]], (1,), (1, 2)),
    ):
        assert shared_memory(tensors, _writing(*written)) == expected


def test_what_the_program_does_not_take_may_share_memory() -> None:
    whole = torch.ones(8, 2)
    assert shared_memory([whole, whole[:, 0]], Accesses(frozenset({1}), frozenset({1}))) is None
    assert shared_memory([whole, whole[:, 0]], Accesses(frozenset({1}), frozenset({0, 1}))) == (1, 0)


def test_a_tensor_whose_storage_is_addressed_is_all_of_it() -> None:
    whole = torch.ones(8, 2)
    one, other = whole[:, 0], whole[:, 1]
    assert shared_memory([one, other], Accesses(frozenset({0}), whole=frozenset({1}))) == (0, 1)
    assert shared_memory([one, other.clone()], Accesses(frozenset({0}), whole=frozenset({1}))) is None


def test_columns_as_arguments_are_apart_until_they_are_not() -> None:
    matrix = torch.ones(6, 4)
    state = [matrix[:, 0]]
    kinds = _kinds([_state(0), _given(0), _given(1)], state, [matrix[:, 1], matrix[:, 2]], [(0, 1), (1, 2)], (0, 1))
    assert _are(kinds, state, [matrix[:, 3], matrix[:, 1]])
    assert not _are(kinds, state, [matrix[:, 3], matrix[:, 3]])
    assert not _are(kinds, state, [matrix[:, 0], matrix[:, 1]])
    assert not _are(kinds, state, [matrix[:, 1], matrix[:, 0]])
    assert _are(kinds, state, [matrix[:, 1], matrix[:, 2]])


def test_state_that_is_bound_to_the_next_column_is_apart() -> None:
    matrix = torch.ones(6, 4)
    state = [torch.nn.Parameter(matrix[:, column]) for column in (0, 1)]
    kinds = _kinds([_state(0), _state(1)], state, [], [])
    state[1].data = matrix[:, 2]
    assert _are(kinds, state, [])
    state[1].data = matrix[:, 0]
    assert not _are(kinds, state, [])


def test_the_difference_is_told() -> None:
    kinds, state = _one_weight_two_arguments()
    assert "shape of argument 0 changed" in kinds.difference(state, [torch.ones(5), torch.ones(4)])
    assert "dtype of argument 1 changed" in kinds.difference(state, [torch.ones(4), torch.ones(4).double()])
