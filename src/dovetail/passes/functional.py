"""Whether a program is functional except for copies back into its inputs, as `passes.inplace` requires."""

from __future__ import annotations

from dovetail.analysis.destinations import is_copy_back
from dovetail.analysis.pairs import may_overlap
from dovetail.errors import NotFunctional
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.facts import writes_of


def require_functional(program: Program) -> None:
    """Raise NotFunctional for the first node that writes an operand.

    Allowed is `copy_` into an input, or into a view of one, of which no node reads a byte afterwards.
    """
    outside = program.input_storages()
    copied: dict[int, list[tuple[Node, Value]]] = {}  # by storage
    for node in program.nodes:
        for value in node.operands():
            copies = copied.get(value.tensor.storage, ()) if copied and value.is_tensor else ()
            if not copies or _shows(node, value):
                continue
            for back, target in copies:
                if may_overlap(value.tensor, target.tensor):
                    reason = f"it reads {value.name} after {back.target} has written it"
                    raise NotFunctional(node=_name(node), reason=reason, origin=str(node.origin))
        if is_copy_back(node, outside):
            place = node.args[0]
            assert isinstance(place, Value), "a copy back has a target"
            copied.setdefault(place.tensor.storage, []).append((node, place))
        elif writes_of(node):
            reason = f"{node.target} writes an operand that is not an input, or not by copy_"
            raise NotFunctional(node=_name(node), reason=reason, origin=str(node.origin))


def _shows(node: Node, value: Value) -> bool:
    """Whether the node only makes views of the value, or writes it."""
    is_first = bool(node.args) and node.args[0] is value
    results = [result for result in node.results() if result.is_tensor]
    is_view = bool(results) and all(result.tensor.storage == value.tensor.storage for result in results)
    return is_first and (is_view or bool(writes_of(node)))


def _name(node: Node) -> str:
    return next((value.name for value in node.results()), str(node.target))
