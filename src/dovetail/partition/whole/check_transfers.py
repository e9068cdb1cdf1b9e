"""Prove that what comes back from a file is what left, and that nobody uses memory while it is written or filled.

A value leaves by one node and is there until another has waited for it; only then may it be fetched. What is fetched is
no value until a node has waited for it, and then it is the one that left. Whatever begins also ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.ir.program import Node, Value
from dovetail.ops.transfers import FETCH, FETCHED, SPILL, SPILLED


@dataclass(slots=True)
class _Leaving:
    """A value whose contents leave. number: of the contents. token: stands for them, once they have left."""

    value: Value
    number: int
    token: Value | None = None


class Transfers:
    """The transfers of a program, node by node. require: (condition, rule, detail), as the checker has it."""

    def __init__(self, require: Callable[[bool, str, str], None]) -> None:
        self._require = require
        self._leaving: dict[Value, _Leaving] = {}
        self._away: dict[Value, _Leaving] = {}
        self._coming: dict[Value, _Leaving] = {}
        self._tokens: set[Value] = set()

    def has_token(self, operands: tuple[Value, ...]) -> bool:
        """Whether a node asks for nothing but that a transfer is over."""
        return bool(operands) and self._tokens.issuperset(operands)

    def check(self, node: Node, numbers: dict[Value, int], storages: set[int]) -> None:
        """Check a node that moves contents. numbers: of values; one that is back gets one. storages: taken ones."""
        made = node.results()
        own = len(made) == 1 and made[0].is_tensor and made[0].tensor.storage not in storages
        self._require(own, "a transfer has one result, in memory of its own", str(node.target))
        operands = node.operands()
        if node.target is SPILL:
            (value,) = operands
            self._require(value in numbers, "what leaves is there", value.name)
            self._leaving[made[0]] = _Leaving(value, numbers[value])
        elif node.target is SPILLED:
            value, token = operands
            leaving = self._leaving.pop(token, None)
            same = leaving is not None and leaving.value is value and numbers.get(value) == leaving.number
            self._require(same, "what has left is what began to leave", value.name)
            assert leaving is not None, "just required"
            leaving.token = made[0]
            self._tokens.add(made[0])
            self._away[made[0]] = leaving
        elif node.target is FETCH:
            self._check_fetch(node, operands[0], made[0])
        else:
            assert node.target is FETCHED, "there are four kinds"
            value, token = operands
            coming = self._coming.pop(value, None)
            is_its = coming is not None and coming.token is token
            self._require(is_its, "what is back is what began to come", value.name)
            assert coming is not None, "just required"
            numbers[value] = coming.number
            self._tokens.add(made[0])

    def _check_fetch(self, node: Node, token: Value, made: Value) -> None:
        away = self._away.get(token)
        self._require(away is not None, "what is fetched has left", token.name)
        assert away is not None, "just required"
        like, meta = away.value.tensor, made.tensor
        layout = (list(like.shape), list(like.stride), like.dtype)
        is_like = meta.layout() == like.layout() and meta.offset == 0 and tuple(node.args[1:]) == layout
        self._require(is_like, "what is fetched has the layout of what left", made.name)
        self._coming[made] = away

    def finish(self) -> None:
        """Check that nothing is under way in the end."""
        left = [*(x.value for x in self._leaving.values()), *self._coming]
        self._require(not left, "a transfer that begins ends", ", ".join(value.name for value in left))
