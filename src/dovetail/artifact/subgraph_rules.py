"""Which operators over subgraphs a file may call, how their calls are written, and the rules for each call.

    {"target": "torch.ops.higher_order.cond", "args": [pred, {"tuple": [operand, ...]}], "kwargs": {},
     "subgraphs": [program, program], ...}

The arguments of the operator stand in `args` in their order, without its subgraphs. A subgraph takes what the operator
hands to it, and gives what the operator takes back, one for one; what its own calls do is checked as in any program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.artifact.limits import MAX_OPERANDS, bits_of, check_count, check_integer
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Program, Stage, Value
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ir.sizes import SizeExpr
from dovetail.ir.sub_programs import SubProgram, WithSubPrograms
from dovetail.torch_compat.dispatch import HigherOrder

_PREFIX = "torch.ops.higher_order."


@dataclass(frozen=True, slots=True)
class Form:
    """How an operator is called. arguments: "one" operand, "several" in a sequence, or a "subgraph", in order.

    bare: which of its subgraphs give one result by itself.
    """

    arguments: tuple[str, ...]
    bare: frozenset[int] = frozenset()

    @property
    def subgraphs(self) -> int:
        """How many there are."""
        return self.arguments.count("subgraph")


_LOOP = Form(("subgraph", "subgraph", "several", "several"), frozenset({0}))
FORMS: Mapping[str, Form] = {
    "cond": Form(("one", "subgraph", "subgraph", "several")),
    "map_impl": Form(("subgraph", "several", "several")),
    "scan": Form(("subgraph", "several", "several", "several")),
    "while_loop": _LOOP,
    "while_loop_stack_output": _LOOP,
}


def run_of(node: Node) -> WithSubPrograms | None:
    """What runs the subgraphs of a node; None for other nodes."""
    run = node.target.run if isinstance(node.target, Prim) else None
    return run if isinstance(run, WithSubPrograms) else None


def subgraph_call(run: WithSubPrograms, operands: tuple[Operand, ...]) -> tuple[str, list[Operand]]:
    """The text of the operator, and its arguments without subgraphs.

    Raises: ValueError for an operator, or a call of it, that no file may hold.
    """
    text = f"{_PREFIX}{run.operator.name()}"
    form = FORMS.get(run.operator.name())
    if run.told is None:
        raise ValueError(f"{text} calls subgraphs that cannot be written: {run.reason}")
    if form is None or read_operator(text) is not run.operator:
        raise ValueError(f"{text} calls subgraphs, and is not an operator that a file can name")
    args, kwargs = run.arguments(operands, lambda number: _SUBGRAPH)
    found = ["subgraph" if arg is _SUBGRAPH else "" for arg in args]
    wanted = ["subgraph" if kind == "subgraph" else "" for kind in form.arguments]
    bare = frozenset(place for place, sub in enumerate(run.told) if sub.is_bare)
    if kwargs or found != wanted or bare != form.bare:
        raise ValueError(f"{text} is called in another form than files have for it")
    return text, [_plain(arg) for arg in args if arg is not _SUBGRAPH]


def _plain(arg: Operand) -> Operand:
    """A list of torch.fx's as a list."""
    return list(arg) if isinstance(arg, list) else tuple(arg) if isinstance(arg, tuple) else arg


_SUBGRAPH = object()


def is_subgraph_target(text: object) -> bool:
    """Whether a target is an operator over subgraphs, known or not."""
    return isinstance(text, str) and text.startswith(_PREFIX)


def read_operator(text: str) -> HigherOrder:
    """The operator of this text. Raises: ValueError for one that is not on the list, or not in this torch."""
    name = text.removeprefix(_PREFIX)
    if name not in FORMS:
        raise ValueError(f"{text!r} is not an operator over subgraphs that a file can name")
    found = getattr(torch.ops.higher_order, name, None)
    if not isinstance(found, HigherOrder) or found.name() != name:
        raise ValueError(f"this torch has no operator {text}")
    return found


def checked_call(name: str, args: Sequence[Operand], programs: Sequence[Program]) -> list[Any]:
    """The arguments of the operator, subgraphs among them.

    Raises: ValueError unless they have the operator's form, and each subgraph takes what the operator hands to it.
    """
    form = FORMS[name]
    if len(programs) != form.subgraphs or len(args) != len(form.arguments) - form.subgraphs:
        raise ValueError(f"{name} is called with {len(args)} operands and {len(programs)} subgraphs")
    subs = [SubProgram(program, place in form.bare) for place, program in enumerate(programs)]
    left, left_subs = iter(args), iter(subs)
    whole: list[Any] = [next(left_subs) if kind == "subgraph" else next(left) for kind in form.arguments]
    for kind, arg in zip(form.arguments, whole, strict=True):
        if kind == "one" and not _is_operand(arg):
            raise ValueError(f"{name} is called with an operand that is neither a value nor a number")
        if kind == "several":
            if type(arg) not in (tuple, list):
                raise ValueError(f"{name} is called with operands that are not in a tuple or a list")
            check_count(len(arg), MAX_OPERANDS, "operands")
            if not all(map(_is_operand, arg)):
                raise ValueError(f"{name} is called with an operand that is neither a value nor a number")
    for sub in subs:
        _check_program(sub)
    _check_handed(name, whole)
    return whole


def check_results(name: str, node: Node, programs: Sequence[Program]) -> None:
    """Raise ValueError unless the node has the results that its subgraphs give."""
    given = programs[-1].outputs
    if node.kwargs or not node.unpack or len(node.outputs) != len(given):
        raise ValueError(f"{name} is called with keywords, or does not give what its subgraph gives")
    for value, output in zip(node.outputs, given, strict=True):
        if value is not None and value.is_tensor is not _is_tensor(output):
            raise ValueError(f"{value.name} is not a result of {name}")


def _check_program(sub: SubProgram) -> None:
    """What `ops.sub_recording` makes: a plain function of its operands."""
    program = sub.program
    roles = Signature(
        tuple(UserInput(place) for place in range(len(program.inputs))),
        tuple(UserOutput(place) for place in range(len(program.outputs))),
    )
    if program.stage is not Stage.IMPURE or program.signature != roles:
        raise ValueError("a subgraph is a plain function of its operands")
    if sub.is_bare and len(program.outputs) != 1:
        raise ValueError("a condition gives one result")
    if not all(_is_operand(output) or output is None for output in program.outputs):
        raise ValueError("a subgraph gives values and numbers")


def _check_handed(name: str, args: Sequence[Any]) -> None:
    """Raise ValueError unless each subgraph is handed what it takes, and gives back what the operator goes on with."""
    if name == "cond":
        _, yes, no, operands = args
        _check_taken(yes, operands)
        _check_taken(no, operands)
        kinds = [[_kind(output) for output in sub.program.outputs] for sub in (yes, no)]
        if kinds[0] != kinds[1]:
            raise ValueError("the branches of cond give different results")
    elif name == "map_impl":
        function, rows, operands = args
        _check_rows(rows)
        _check_taken(function, [*rows, *operands])
        if not rows or any(_kind(output) == "number" for output in function.program.outputs):
            raise ValueError("map gives tensors, one for each row")
    elif name == "scan":
        function, first, rows, operands = args
        _check_rows(rows)
        _check_taken(function, [*first, *rows, *operands])
        given = [_kind(output) for output in function.program.outputs]
        if not rows or given[: len(first)] != ["tensor"] * len(first) or "number" in given:
            raise ValueError("scan carries on as many tensors as it begins with, and gives tensors")
    else:
        condition, body, carried, operands = args
        _check_taken(condition, [*carried, *operands])
        _check_taken(body, [*carried, *operands])
        if [_kind(output) for output in body.program.outputs] != [_kind(operand) for operand in carried]:
            raise ValueError(f"{name} carries on as many values as it begins with")


def _check_rows(rows: Sequence[Operand]) -> None:
    if not all(map(_is_tensor, rows)):
        raise ValueError("rows are those of tensors")


def _check_taken(sub: SubProgram, operands: Sequence[Operand]) -> None:
    if [_kind(value) for value in sub.program.inputs] != [_kind(operand) for operand in operands]:
        raise ValueError("a subgraph takes other operands than it is handed")


def _kind(operand: Operand) -> str:
    return "none" if operand is None else "tensor" if _is_tensor(operand) else "number"


def _is_tensor(operand: Operand) -> bool:
    return isinstance(operand, Value) and operand.is_tensor


def _is_operand(operand: Operand) -> bool:
    """Whether it is a value or a number. Raises: ValueError for a number that may be too long."""
    if type(operand) is int:
        check_integer(operand)
    if isinstance(operand, SizeExpr):
        bits_of(operand)
    return isinstance(operand, Value | SizeExpr) or type(operand) in (int, float, bool)
