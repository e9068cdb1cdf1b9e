"""Checks that torch's C++ makes of data while a program is recorded: of `cov`, `istft`, ranks, eigenvectors.

    norm_factor <= 0 (is it?)             ->    truth = item(le(norm_factor, 0)); expect(not truth)
    LinalgEigBackward0 of fakes: nothing  ->    _assert_async(all(isclose(imag(diagonal), 0)), "linalg_eig_backward: ")

C++ asks some questions of real tensors only, and branches on the answers of others. In each case all but one way raises
or warns: that way is recorded, and the program checks that the data take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from dovetail.ir.program import Node, Value
from dovetail.torch_compat.autograd import running_node_name
from dovetail.torch_compat.fake_layouts import least_squares

aten = torch.ops.aten
# The answers of `is_scalar_tensor_true` in ATen, by what it asks, that neither raise nor warn.
_ANSWERS = {aten.le.Scalar: False, aten.lt.Scalar: False, aten.ge.Scalar: True, aten.ne.Scalar: True}
_OF_EIGENVECTORS = {"LinalgEigBackward0": "linalg_eig_backward", "LinalgEighBackward0": "linalg_eigh_backward"}
_ILL_DEFINED = (
    "{}: a complex vector may be multiplied by any number of length one and is the same solution; the loss depends on "
    "that number, and is ill-defined"
)
CHECKED_QUESTIONS = frozenset({aten.equal.default, aten.allclose.default})


class Values(Protocol):
    """Who knows what was recorded so far."""

    nodes: list[Node]

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value that a tensor stands for."""


class Dispatcher(Values, Protocol):
    """The recorder, as this module sees it."""

    def recorded(self, make: Any) -> Any:
        """What is made by operators that are recorded."""

    def expect_truth(self, make: Callable[[], torch.Tensor], answer: bool) -> None:
        """Let the program check that the truth of a tensor, which operators make, is `answer`."""


def answer_of_check(recorder: Dispatcher, func: Any, args: Sequence[Any]) -> bool | None:
    """What `equal` answers where it asks for the truth of one number, and `allclose`, the program checks; else None.

    Raises: DataDependentControlFlow where symbols for what depends on data are not allowed.
    """
    if func is aten.allclose.default:
        if running_node_name() != "LinalgSvdBackward0":
            return None
        message = _ILL_DEFINED.format("svd_backward")
        recorder.recorded(lambda: aten._assert_async.msg(torch.isclose(*args).all(), message))
        return True
    wanted = likely_answer(recorder, func, args)
    if wanted is not None:
        recorder.expect_truth(lambda: args[0], wanted)
    return wanted


def likely_answer(recorder: Values, func: Any, args: Sequence[Any]) -> bool | None:
    """What `equal` answers where it asks for the truth of one number and nothing is wrong; None for other questions."""
    if func is aten.allclose.default:
        return None
    asked, truth = (_maker(recorder, tensor) for tensor in args)
    if truth is not aten.new_ones.default or args[0].dim() or args[1].dim():
        return None
    return _ANSWERS.get(asked)


def _maker(recorder: Values, tensor: torch.Tensor) -> Any:
    value = recorder.value_of(tensor)
    return next((node.target for node in reversed(recorder.nodes) if value in node.outputs), None)


def result_at_full_rank(func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """What least squares give where matrices are of full rank, which `check_result` asks; None for other operators."""
    return least_squares(*args, **keywords, full_rank=True) if func is aten.linalg_lstsq.default else None


def check_result(recorder: Dispatcher, func: Any, args: Sequence[Any], result: Any) -> None:
    """Let the program check what C++ checks of real tensors, or asks them for a size.

    A loss may not depend on phases of eigenvectors; least squares have residuals where matrices are of full rank.
    """
    if func is aten.linalg_lstsq.default and _hangs_on_ranks(args, result):
        columns, rank = args[0].shape[-1], result[2]
        recorder.expect_truth(lambda: rank.eq(columns).all(), True)
    if func is not aten.diagonal.default or not result.is_complex():
        return
    name = _OF_EIGENVECTORS.get(running_node_name() or "")
    if name is not None:
        recorder.recorded(lambda: _assert_real(result, _ILL_DEFINED.format(name)))


def _assert_real(diagonal: torch.Tensor, message: str) -> None:
    parts = torch.imag(diagonal)
    is_real = torch.isclose(parts, torch.zeros_like(parts), rtol=1e-2, atol=1e-2).all()
    aten._assert_async.msg(is_real, message)


def _hangs_on_ranks(args: Sequence[Any], result: Sequence[Any]) -> bool:
    """Whether `linalg_lstsq` gives residuals only if the matrices are of full rank. It tells ranks of some drivers."""
    rows, columns = args[0].shape[-2:]
    return bool(rows > columns and result[2].shape == args[0].shape[:-2] and result[1].numel())
