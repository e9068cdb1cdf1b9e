"""What a user asks for nodes, by patterns: operators by name, and modules by path with everything inside them.

{"aten.gelu": "RECOMPUTE", "layers.*.attention": "MUST_RECOMPUTE", "aten.*mm*": "SAVE"}
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase

from dovetail.errors import BadOptionValue
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Phase, Program
from dovetail.partition.policy import Mark, can_run_again, is_view

_MUST = (Mark.MUST_SAVE, Mark.MUST_RECOMPUTE)
_SHOWN = 4  # names in an error


class Patterns:
    """The value of the option `policy`.

    is_met: whether each pattern matched something in a program; later programs need not have all of it.
    """

    def __init__(self, marks: Mapping[str, Mark]) -> None:
        self.marks = dict(marks)
        self.is_met = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Patterns) and list(self.marks.items()) == list(other.marks.items())

    def __hash__(self) -> int:
        return hash(tuple(self.marks.items()))

    def __repr__(self) -> str:
        return repr({pattern: mark.value for pattern, mark in self.marks.items()})

    def of(self, program: Program) -> dict[Node, Mark]:
        """What is asked for each node that anything is asked for. A view has no memory: what is asked says nothing.

        Raises: BadOptionValue where two patterns contradict each other.
        """
        found: dict[Node, Mark] = {}
        for node in program.nodes if self.marks else ():
            mark = self._mark(node)
            if mark is not None and not is_view(node):
                found[node] = mark
        return found

    def _mark(self, node: Node) -> Mark | None:
        asked = [(pattern, mark) for pattern, mark in self.marks.items() if matches(pattern, node)]
        must = [(pattern, mark) for pattern, mark in asked if mark in _MUST]
        if len({mark for _, mark in must}) > 1:
            (first, _), (second, _) = (next(one for one in must if one[1] is mark) for mark in _MUST)
            raise BadOptionValue(
                option="policy",
                value=self,
                reason=f"{described(node)} is MUST_SAVE by {first!r} and MUST_RECOMPUTE by {second!r}",
                expected="one of the two for each node",
            )
        return (must or asked)[-1][1] if asked else None

    def meet(self, program: Program) -> None:
        """Check that the patterns are for a program: the first one that is made.

        Raises: BadOptionValue where a pattern matches nothing, or asks to run again what cannot.
        """
        if self.is_met or not self.marks:
            return
        for pattern in self.marks:
            if not any(matches(pattern, node) for node in program.nodes):
                raise self._unmatched(pattern, program)
        fixed = frozenset(made_symbols(program))
        for node, mark in self.of(program).items():
            if mark is Mark.MUST_RECOMPUTE and node.phase is Phase.FORWARD and not can_run_again(node, fixed):
                raise self.cannot(node, "it draws, writes, has an effect, or makes numbers")
        self.is_met = True

    def cannot(self, node: Node, why: str) -> BadOptionValue:
        """The error for a node that is MUST_RECOMPUTE and cannot run again."""
        pattern = next(p for p, mark in self.marks.items() if mark is Mark.MUST_RECOMPUTE and matches(p, node))
        return BadOptionValue(
            option="policy",
            value=self,
            reason=f"{described(node)} is MUST_RECOMPUTE by {pattern!r} and cannot run again: {why}",
            expected="RECOMPUTE, or patterns without it",
        )

    def _unmatched(self, pattern: str, program: Program) -> BadOptionValue:
        operators = {operator_name(node) for node in program.nodes}
        paths = {path for node in program.nodes for path in _starts(node.origin.module)}
        near = difflib.get_close_matches(pattern, sorted(operators | paths), n=_SHOWN, cutoff=0.3)
        near = near or sorted(operators)[:_SHOWN]
        return BadOptionValue(
            option="policy",
            value=self,
            reason=f"{pattern!r} names neither an operator nor a module of the program",
            expected="names of its operators and modules: " + ", ".join(near or ["it has none"]),
        )


def operator_name(node: Node) -> str:
    """The name of a node's operator; of what wraps one, that of the wrapped one."""
    target = node.target
    if not isinstance(target, Prim):
        return str(target)
    wrapped = getattr(target.run, "op", None)
    return f"prims.{target.name}" if wrapped is None else str(wrapped)


def described(node: Node) -> str:
    """A node in an error: operator, module, line."""
    where = str(node.origin)
    return f"{operator_name(node)} at {where}" if where else operator_name(node)


def matches(pattern: str, node: Node) -> bool:
    """Whether a pattern names the operator of a node, with or without the overload, or a module that the node is in.

    In a path, `*` stands for one name, and it may begin at any module.
    """
    name = operator_name(node)
    if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern):
        return True
    wanted, path = pattern.split("."), node.origin.module.split(".")
    return any(
        all(fnmatchcase(part, want) for part, want in zip(path[start:], wanted, strict=False))
        for start in range(len(path) - len(wanted) + 1)
        if path != [""]
    )


def _starts(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def patterns_of(given: object) -> Patterns:
    """The value of the option as it was given. Raises: BadOptionValue."""
    if isinstance(given, Patterns):
        return given

    def refused(reason: str, expected: str) -> BadOptionValue:
        return BadOptionValue(option="policy", value=given, reason=reason, expected=expected)

    if not isinstance(given, Mapping):
        raise refused("it is a mapping", '{pattern: "RECOMPUTE"}, say')
    texts = {mark.value: mark for mark in Mark}
    for pattern, mark in given.items():
        if not isinstance(pattern, str) or not pattern:
            raise refused(f"{pattern!r} is no pattern", "names of operators or paths of modules")
        if not isinstance(mark, str) or mark not in texts:
            raise refused(f"{mark!r} says nothing", "one of " + ", ".join(sorted(texts)))
    return Patterns({pattern: texts[mark] for pattern, mark in given.items()})
