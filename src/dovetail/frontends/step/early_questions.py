"""Questions of a program that only ask about numbers which are known before it runs: they are asked beforehand.

    if (number + 1) % 4 == 0: optimizer.step()        answered before the forward pass, and by another program's answer

Only questions about numbers that differ from call to call are: hyperparameters seldom change the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

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

        self._missed = _function_of(self._inputs, self._nodes) if self._nodes else None

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def missed(self, numbers: Sequence[Any]) -> int | None:
        """The number of the first question that has another answer than it had; None when there is none.

        numbers: what the program would be given. A number that cannot be computed has another answer.
        """
        return None if self._missed is None else self._missed(numbers)


def _function_of(inputs: Sequence[Value], nodes: Sequence[Node]) -> Callable[[Sequence[Any]], int | None]:
    """What tells which question has another answer, in Python's own code: it runs before each call."""
    known: dict[str, Any] = {"_is_answer": _is_answer}

    def shown(operand: Any) -> str:
        if isinstance(operand, Value):
            return f"n_{operand.name}"
        known[f"k{len(known)}"] = operand
        return f"k{len(known) - 1}"

    lines = [f"({''.join(f'n_{value.name}, ' for value in inputs)}) = numbers"]
    for node in nodes:
        given = ", ".join(map(shown, node.args))
        if node.target in _QUESTIONS:
            number, answer, which = node.args
            holds = f"bool({shown(number)}) is {answer}" if node.target is GUARD else f"_is_answer({given})"
            lines += [f"asked = {which}", f"if not {holds}:", f"    return {which}"]
        else:
            lines.append(f"{shown(node.results()[0])} = {shown(node.target)}({given})")
    body = "".join(f"        {line}\n" for line in lines)
    failed = "    except (ArithmeticError, ValueError, TypeError):\n        return asked\n"
    source = f"def missed(numbers):\n    asked = 0\n    try:\n{body}{failed}"
    exec(compile(source, "<dovetail early questions>", "exec"), known)
    made: Callable[[Sequence[Any]], int | None] = known["missed"]
    return made


def _is_of_numbers(node: Node) -> bool:
    """Whether a node is a function of Python's that gives one number."""
    made = node.results()
    return callable(node.target) and not isinstance(node.target, Overload) and len(made) == 1 and not made[0].is_tensor


def _is_answer(number: Any, answer: Any, _: Any) -> bool:
    return type(number) is type(answer) and repr(number) == repr(answer)
