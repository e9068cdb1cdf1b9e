"""Questions of a program that only ask about numbers which are known before it runs: they are asked beforehand.

    if (number + 1) % 4 == 0: optimizer.step()        answered before the forward pass, and by another program's answer

Only questions about numbers that differ from call to call are: hyperparameters seldom change the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dovetail.capture.step_questions import Question
from dovetail.ir.program import Node, Program, Value
from dovetail.ir.signature import NumberInput
from dovetail.ops.prims import GUARD, GUARD_NUMBER
from dovetail.torch_compat.dispatch import Overload

_QUESTIONS = frozenset({GUARD, GUARD_NUMBER})


class EarlyQuestions:
    """The questions, and what computes the numbers that they ask about, in the order in which the step asks."""

    def __init__(self, program: Program, changing: Collection[int]) -> None:
        """changing: those of the program's numbers, by their place among them, that differ from call to call."""
        pairs = zip(program.inputs, program.signature.inputs, strict=True)
        self._inputs = [value for value, role in pairs if isinstance(role, NumberInput)]
        known, asked_of = set(self._inputs), {self._inputs[place] for place in changing}
        computed: list[Node] = []
        self._nodes: list[Node] = []
        for node in program.nodes:
            operands = list(node.operands())
            if node.target in _QUESTIONS:
                if operands and operands[0] in asked_of:
                    self._nodes += [*computed, node]
                    computed = []
            elif operands and known.issuperset(operands) and _is_of_numbers(node):
                computed.append(node)
                known.update(node.results())
                if not asked_of.isdisjoint(operands):
                    asked_of.update(node.results())

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def missed(self, numbers: Sequence[Any]) -> int | None:
        """The number of the first question that has another answer than it had; None when there is none.

        numbers: what the program would be given. A number that cannot be computed has another answer.
        """
        held = dict(zip(self._inputs, numbers, strict=True))
        asked = 0
        for node in self._nodes:
            given: list[Any] = [held[x] if isinstance(x, Value) else x for x in node.args]
            if node.target in _QUESTIONS:
                number, answer, which = given
                asked = int(which)
                if not _is_answer(node, number, answer):
                    return asked
                continue
            function: Any = node.target
            try:
                held[node.results()[0]] = function(*given)
            except (ArithmeticError, ValueError, TypeError):
                return asked
        return None


def _is_of_numbers(node: Node) -> bool:
    """Whether a node is a function of Python's that gives one number."""
    made = node.results()
    return callable(node.target) and not isinstance(node.target, Overload) and len(made) == 1 and not made[0].is_tensor


def _is_answer(node: Node, number: Any, answer: Any) -> bool:
    if node.target is GUARD:
        return bool(number) is answer
    return type(number) is type(answer) and repr(number) == repr(answer)


def question_at(questions: Sequence[Question], which: int) -> str:
    """A question by its number, for people."""
    return str(questions[which])
