"""What recording on fakes takes numbers of tensors for, and which of them are no more than a guess.

Numbers are known (`capture.known_numbers`), or an eager call of the step has shown what they were like (`ItemHints`).
Where there was no such call the rest are guesses: a number may be computed with, but nothing may depend on its value.
Where there was one, it may have gone another way: a loop until something is small enough would go on for ever over
numbers that it has not shown, so few of those are made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import torch

from dovetail.capture.computed_numbers import ComputedNumbers
from dovetail.capture.item_log import ItemHints, Results
from dovetail.capture.origins import OriginTracker
from dovetail.capture.recorder import Recorder
from dovetail.capture.sparse_gradients import guessed_results
from dovetail.errors import DataDependentControlFlow, DovetailError
from dovetail.ir.program import Value
from dovetail.torch_compat.dispatch import Overload
from dovetail.torch_compat.traced_numbers import Plain

_MOST_MADE_UP = 16  # numbers or sizes that one line takes off data


class Guesses:
    """See the module docstring. reals: tensors from before the step, by their values.

    ran_out: whether the code asked for more than an eager call has shown, and was refused for that.
    """

    def __init__(self, hints: ItemHints, tracker: OriginTracker, refusals: list[DovetailError]) -> None:
        """refusals: gets what is raised, which the user's code may catch."""
        self.reals: dict[Value, torch.Tensor] = {}
        self._hints = hints
        self._tracker = tracker
        self._refusals = refusals
        self.ran_out = False
        self._made_up = 0
        self._guessed: set[object] = set()
        self._computed = ComputedNumbers()

    def number_at(self, recorder: Recorder, tensor: torch.Tensor, known: Plain | None) -> tuple[Plain, bool]:
        """What to take the number of a tensor for, and whether that is a guess. known: what it is, if anything."""
        origin = self._tracker.here()
        hint = self._hints.next_at(origin, tensor.dtype)
        if known is not None:
            return known, False
        if self._hints.knows(origin):
            self._relied()
            return hint, False
        reals = {**self.reals, **{value: constant for constant, value in recorder.constants}}
        found = self._computed.number_of(recorder.nodes, recorder.value_of(tensor), reals)
        return (hint, True) if found is None else (found, False)

    def answer(self, likely: bool | None) -> bool:
        """What a comparison of tensors answers. likely: what it nearly always does.

        Raises: DataDependentControlFlow where nothing tells.
        """
        here = self._tracker.here()
        if likely is None and not self._hints.knows(here):
            self._refuse("a comparison")
        answer = bool(self._hints.next_at(here, torch.bool, likely))
        self._relied()
        return answer

    def results(self, func: Overload, args: Sequence[object]) -> Results:
        """What an operator gives whose sizes depend on data. Raises: DataDependentControlFlow where nothing tells."""
        found = self._hints.next_results(self._tracker.here(), func)
        if not found and not self._hints.is_log:
            self._refuse(str(func))
        self._relied()
        return found or guessed_results(func, args)

    def add(self, value: Value, operands: Iterable[Value] = ()) -> None:
        """A value is a guess; or, given operands, it is where one of them is."""
        operands = list(operands)
        if not operands or not self._guessed.isdisjoint(operands):
            self._guessed.add(value)

    def check(self, handle: object) -> None:
        """The program is to depend on what a number is. Raises: DataDependentControlFlow where that is a guess.

        So it does where too many numbers are: see the module docstring.
        """
        self.ran_out = self._made_up > _MOST_MADE_UP
        if self.ran_out or handle in self._guessed:
            self._refuse("a number")

    def _relied(self) -> None:
        """What the hints gave last is taken for what it would be."""
        self._made_up = max(self._made_up, self._hints.beyond)

    def _refuse(self, what: str) -> NoReturn:
        error = DataDependentControlFlow(operator=what, origin=self._tracker.here())
        self._refusals.append(error)
        raise error
