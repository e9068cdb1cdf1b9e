"""Questions about numbers that a recorded step asks, and that its program asks again in each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import torch

from dovetail.capture.checks_of_kernels import likely_answer
from dovetail.capture.guesses import Guesses
from dovetail.capture.origins import OriginTracker
from dovetail.capture.recorder import Recorder
from dovetail.ir.known_results import Answers
from dovetail.ir.program import Node, Operand, Origin, Target, Value
from dovetail.ir.sizes import SizeExpr
from dovetail.ops.prims import GUARD, GUARD_NUMBER
from dovetail.torch_compat.dispatch import Overload, is_composite
from dovetail.torch_compat.modes import functions_unnoticed
from dovetail.torch_compat.traced_numbers import Plain

_ITEM = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True, slots=True)
class Question:
    """An answer that the recorded code got about a number. origin: the line that asked. about: what was asked.

    is_exact: which number it is, not whether it is true.
    """

    answer: Plain
    origin: Origin
    about: str = "it"
    is_exact: bool = False

    def __str__(self) -> str:
        return f"{self.about} was {self.answer} at {self.origin}"


class AskingRecorder(Recorder):
    """See the module docstring.

    questions: by the number that their guards carry. answered_otherwise: by the same numbers, questions of programs
    that had another answer in the call that is recorded.
    """

    questions: list[Question]
    answered_otherwise: Mapping[int, Question] = MappingProxyType({})
    guesses: Guesses
    _tracker: OriginTracker

    def share_answers(self, answers: Answers) -> None:
        """Know what operators gave in other recordings of the same call, and let later ones know what they give now."""
        self._known_results.answers = answers

    def _record(self, func: Any, types: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        if not isinstance(func, Overload) or is_composite(func):  # others work through functions of torch's
            return super()._record(func, types, args, kwargs)
        with functions_unnoticed():
            return super()._record(func, types, args, kwargs)

    def _number_node(self, target: Target, operands: tuple[Operand, ...], name: str, now: Plain) -> Value:
        raise NotImplementedError

    def answer_to(self, func: Any, args: Sequence[torch.Tensor]) -> bool:
        """What `equal` or `allclose` of two tensors answered in eager mode: the program asks again."""
        logged = self.guesses.answer(likely_answer(self, func, args))
        assert isinstance(logged, bool), "of this dtype"
        first, second, *rest = cast("tuple[Any, ...]", args)
        if func is torch.ops.aten.allclose.default:
            self.expect_truth(lambda: torch.isclose(first, second, *rest).all(), logged)
        elif first.shape != second.shape:
            return False
        else:
            self.expect_truth(lambda: first.eq(second).all(), logged)
        return logged

    def other_answer(self, answer: bool) -> bool:
        """What to answer to the next question, where this one comes of numbers of another call."""
        missed = self.answered_otherwise.get(len(self.questions))
        is_same = missed is not None and missed.origin == self._tracker.here() and type(missed.answer) is bool
        return not missed.answer if missed is not None and is_same else answer

    def expect_truth(self, make: Callable[[], torch.Tensor], answer: bool) -> None:
        """The program asks whether the truth of a tensor is this one, as it is in what was recorded."""
        truth = self.recorded(make)
        self.ask(GUARD, self._number_node(_ITEM, (self.value_of(truth),), "item", answer), answer)

    def ask(self, target: Target, handle: Value | SizeExpr, answer: Plain, about: str = "it") -> None:
        """Append a question whose answer the code took for this one."""
        self.guesses.check(handle)
        origin = self._tracker.here()
        which = len(self.questions)
        self.questions.append(Question(answer, origin, about, target is GUARD_NUMBER))
        self.nodes.append(Node(target, (handle, answer, which), phase=self.phase, origin=origin))
