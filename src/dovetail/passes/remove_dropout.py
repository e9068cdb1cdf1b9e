"""Remove dropout that has no effect.

Outside training, or with probability 0, `dropout` and its variants return the operand itself; so their users can read
the operand. `native_dropout` then returns a copy and a mask of ones; it becomes a copy, which `no_ops` removes where
that makes no difference.

    d = dropout(x, 0.1, False)            ->   x
    d, m = native_dropout(x, 0.1, False)  ->   d = clone(x)      (m is not read)

Source: torch's documentation of these operators. Cost: O(nodes + operands).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Program, Value, values_in

aten = torch.ops.aten

_GIVE_BACK = frozenset(
    {
        aten.dropout.default,
        aten.feature_dropout.default,
        aten.alpha_dropout.default,
        aten.feature_alpha_dropout.default,
    }
)

REASONS = {
    "TRAINS": "it drops elements",
    "DRAWS": "it advances the random generator although it drops nothing",
    "UNKNOWN": "whether it is in training mode is known only at run time",
    "BAD-PROBABILITY": "it raises when it runs",
    "RETURNED": "the program returns both its result and its operand",
    "MASK": "its mask is read",
}


@dataclass(frozen=True, slots=True)
class DropoutReport:
    """removed: names of results whose users read the operand, or a copy of it, now. kept: (name, key of REASONS).

    asked: values that are to be constants; none.
    """

    removed: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    asked: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"removed {len(self.removed)} dropouts that have no effect"]
        return "\n".join([*lines, *(f"  kept {name}: {reason}: {REASONS[reason]}" for name, reason in self.kept)])


def remove_dropout(program: Program, constants: Collection[str], infer: MetaInference) -> tuple[Program, DropoutReport]:
    """The program without dropout that drops nothing; itself if there is none. constants: not looked at."""
    if not any(node.target in _GIVE_BACK or node.target is aten.native_dropout.default for node in program.nodes):
        return program, DropoutReport((), ())
    remover = _Remover(program, infer)
    for node in program.nodes:
        remover.take(node)
    report = DropoutReport(tuple(remover.removed), tuple(remover.kept))
    return remover.draft.finish(), report


class _Remover:
    def __init__(self, program: Program, infer: MetaInference) -> None:
        self.draft = Draft(program)
        self.maker = NodeMaker(self.draft, infer)
        self.returned = set(values_in(program.outputs))
        self.inputs = set(program.inputs)
        self.read = program.use_counts()
        self.removed: list[str] = []
        self.kept: list[tuple[str, str]] = []

    def take(self, old: Node) -> None:
        """Append the node over current values, or what stands for it."""
        if old.target not in _GIVE_BACK and old.target is not aten.native_dropout.default:
            return self.draft.take(old)
        node = old.with_operands(self.draft.current)
        result = next((value for value in old.results()), None)
        reason = self._reason_to_keep(node, old)
        if reason is not None:
            self.kept.append((str(old.target) if result is None else result.name, reason))
            return self.draft.take(old)
        source = node.args[0]
        if result is None or not isinstance(source, Value):
            return self.draft.nodes.append(node)
        self.removed.append(result.name)
        if node.target in _GIVE_BACK:
            return self.draft.merge(result, source)
        made = self.maker.call(aten.clone.default, (source,), name=result.name, origin=node.origin, phase=node.phase)
        copy = Value(result.name, made.results()[0].meta)
        self.draft.merge(result, copy)
        self.draft.nodes.append(replace(made, outputs=(copy,), recomputed=node.recomputed))

    def _reason_to_keep(self, node: Node, old: Node) -> str | None:
        given = _arguments(node)
        p, train = given.get("p"), given.get("train")
        if not isinstance(p, int | float) or not isinstance(train, bool | None):
            return "UNKNOWN"
        if node.target is aten.native_dropout.default:
            if train is not False:
                return "DRAWS" if p == 0 else "TRAINS"
            mask = old.outputs[1] if len(old.outputs) > 1 else None
            return "MASK" if mask is not None and mask in self.read else None
        if not 0 <= p <= 1:
            return "BAD-PROBABILITY"
        if train is not False and p != 0:
            return "TRAINS"
        source = node.args[0] if node.args else None
        is_returned = any(value in self.returned for value in old.results())
        return "RETURNED" if is_returned and (source in self.inputs or source in self.returned) else None


def _arguments(node: Node) -> Mapping[str, Operand]:
    return {**dict(zip(("input", "p", "train"), node.args, strict=False)), **dict(node.kwargs)}
