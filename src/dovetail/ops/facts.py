"""Facts per operator: what it writes, whether it draws random numbers, whether it has effects.

What an operator writes, whether it draws, has effects, is elementwise or deterministic is derived from its schema and
tags. What these do not say is a short table of names, with the reason beside it: hidden writes, operators whose bits
depend on where the result lies or on the grad mode, recurrent layers, copies, and views that read bytes differently.
An operator that nobody knows is opaque: it is kept, never merged, and executed as written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Target, Value, values_in
from dovetail.ops.prims import COPY_TO_LAYOUT
from dovetail.torch_compat.dispatch import Overload, Schema, schema_of, tags_of
from dovetail.torch_compat.symbols import number_function_text

RENAMES = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})
"""Views of all of their operand, as it lies."""

_TRANSPARENT_NAMESPACES = frozenset({"aten", "prims", "mkldnn", "mkl", "quantized", "quantized_decomposed"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an operator without looking at its operands.

    writes: positions of the written arguments in the schema. draws: moves a random generator's state.
    reads_generator: its result depends on where the generator stands. effect: must run, once, in order.
    pointwise: each result element depends on the operand elements at the same place only. repeats: gives the same bits
    each time it runs on the same operands.
    """

    writes: tuple[int, ...] = ()
    draws: bool = False
    reads_generator: bool = False
    effect: bool = False
    pointwise: bool = False
    repeats: bool = True

    @property
    def is_pure(self) -> bool:
        """Whether equal operands give equal results and nothing else happens."""
        return not (self.writes or self.draws or self.reads_generator or self.effect)


P = ParamSpec("P")
T = TypeVar("T")


def once_for_each(ask: Callable[Concatenate[Target, P], T]) -> Callable[Concatenate[Target, P], T]:
    """A question about operators that is worked out once for each, and for what else it is given.

    By identity, because overloads hash in Python; each is kept, so that no other object gets its number.
    """
    known: dict[Hashable, tuple[Target, T]] = {}

    @wraps(ask)
    def asked(target: Target, *more: P.args, **_: P.kwargs) -> T:
        key = (id(target), *more) if more else id(target)
        found = known.get(key)
        if found is None:
            found = known[key] = (target, ask(target, *more))  # type: ignore[call-arg]
        return found[1]

    return asked  # type: ignore[return-value]


# By identity, because overloads hash in Python; each is kept, so that no other object gets its number.
_FACTS: dict[int, tuple[Target, Facts]] = {}


def facts_of(target: Target) -> Facts:
    """The facts of an operator overload, of one of dovetail's own primitives, or of a function of numbers."""
    known = _FACTS.get(id(target))
    if known is None:
        known = _FACTS[id(target)] = (target, _find_facts(target))
    return known[1]


def _find_facts(target: Target) -> Facts:
    if isinstance(target, Prim):
        return Facts(draws=target.draws, reads_generator=target.reads_generator, effect=target.effect)
    if not isinstance(target, Overload):
        return Facts(effect=number_function_text(target) is None)
    schema = schema_of(target)
    tags = tags_of(target)
    return Facts(
        writes=tuple(i for i, argument in enumerate(schema.arguments) if argument.is_write),
        draws=torch.Tag.nondeterministic_seeded in tags or _takes_generator(schema),
        effect=not schema.returns or (schema.namespace not in _TRANSPARENT_NAMESPACES),
        pointwise=torch.Tag.pointwise in tags,
        repeats=torch.Tag.nondeterministic_bitwise not in tags,
    )


def _takes_generator(schema: Schema) -> bool:
    return any(
        argument.type.startswith("Optional[Generator]") or argument.type == "Generator" for argument in schema.arguments
    )


def may_be_removed(node: Node) -> bool:
    """Whether nobody can tell that the node did not run, given that its results are not read.

    A draw from a generator moves it, so it stays.
    """
    facts = facts_of(node.target)
    return not (writes_of(node) or facts.draws or facts.effect)


def may_be_merged(node: Node) -> bool:
    """Whether two equal applications of this node can be one."""
    return facts_of(node.target).is_pure and not writes_of(node)


# --- operators whose schema hides a write ---------------------------------------------------------------------------


def _batch_norm_writes(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[int, ...]:
    training = args[5] if len(args) > 5 else kwargs.get("training", kwargs.get("train", False))
    return tuple(i for i in (3, 4) if training and len(args) > i and args[i] is not None)


# Running statistics are declared `Tensor?` without an alias annotation, and written when training.
_Rule: TypeAlias = Callable[[Sequence[object], Mapping[str, object]], tuple[int, ...]]
_HIDDEN_WRITES: dict[str, _Rule] = {
    "aten::batch_norm_update_stats": lambda args, kwargs: tuple(i for i in (1, 2) if args[i] is not None),
    "aten::batch_norm_gather_stats": lambda args, kwargs: tuple(i for i in (3, 4) if args[i] is not None),
    "aten::batch_norm_gather_stats_with_counts": lambda args, kwargs: tuple(i for i in (3, 4) if args[i] is not None),
    "aten::native_batch_norm": _batch_norm_writes,
    "aten::cudnn_batch_norm": _batch_norm_writes,
    "aten::miopen_batch_norm": _batch_norm_writes,
}


@once_for_each
def _rule_of_hidden_writes(target: Target) -> _Rule | None:
    if not isinstance(target, Overload) or schema_of(target).is_mutable:
        return None
    return _HIDDEN_WRITES.get(f"{schema_of(target).namespace}::{schema_of(target).name}")


def hidden_writes(target: Target, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[int, ...]:
    """Positions of arguments that this application writes although the schema does not say so."""
    rule = _rule_of_hidden_writes(target)
    return () if rule is None else rule(args, kwargs)


def writes_of(node: Node) -> tuple[int, ...]:
    """Positions of the arguments that a node writes, whether its schema says so or not."""
    known = facts_of(node.target).writes
    if known or (rule := _rule_of_hidden_writes(node.target)) is None:
        return known
    return rule(node.args, dict(node.kwargs))


def written_values(node: Node) -> list[Value]:
    """The values that a node writes, in argument order, lists flattened; `out=` included."""
    places = writes_of(node)
    if not places:
        return []
    named = dict(node.kwargs)
    arguments = schema_of(node.target).arguments if isinstance(node.target, Overload) else ()
    operands = (node.args[i] if i < len(node.args) else named.get(arguments[i].name) for i in places)
    return [value for operand in operands for value in values_in(operand)]


# --- operators that fakes treat otherwise than eager ----------------------------------------------------------


def counts_writes_one_by_one(target: Target) -> bool:
    """Whether eager moves the version counters of a written list where it writes each tensor, below autograd."""
    return (
        isinstance(target, Overload) and schema_of(target).is_mutable and schema_of(target).name.startswith("_foreach_")
    )


def counts_writes_in_its_kernel(target: Target) -> bool:
    """Whether version counters move where the operator's own kernel writes, which fakes do not run."""
    return (
        isinstance(target, Overload)
        and schema_of(target).is_mutable
        and schema_of(target).namespace not in _TRANSPARENT_NAMESPACES
    )


_RESIZING = frozenset({"set_", "resize_", "resize_as_"})


def may_resize(target: Target) -> bool:
    """Whether the operator can give its first operand another storage or another number of elements."""
    return isinstance(target, Overload) and schema_of(target).name in _RESIZING


def resizes_storage(target: Target) -> bool:
    """Whether all the operator does is to free the bytes under a tensor, or to make room for some: Dynamo has one."""
    return isinstance(target, Overload) and schema_of(target).name == "resize_storage_bytes_"


# --- operators that round differently in place ------------------------------------------------------------------

# `mul_` by a number hands the two factors to the kernel the other way round, and a number that comes first is rounded
# to the tensor's dtype, while one that comes second is multiplied in the wider dtype of the arithmetic.
_OTHERWISE_IN_PLACE = frozenset(
    {("aten", "mul", "Scalar"), ("aten", "mul_", "Scalar")}
    | {("aten", name, kind) for name in ("_foreach_mul", "_foreach_mul_") for kind in ("Scalar", "ScalarList")}
)
_NARROW = frozenset({torch.bfloat16, torch.float16})


def rounds_otherwise_in_place(target: Target, dtype: torch.dtype | None) -> bool:
    """Whether an operator over tensors of this dtype, and its namesake that writes or does not, may give unequal bits.

    The rounding of complex products and quotients depends on whether the result lies where an operand lies.
    """
    if dtype is None or not isinstance(target, Overload):
        return False
    if dtype.is_complex:
        return True
    schema = schema_of(target)
    return dtype in _NARROW and (schema.namespace, schema.name, schema.overload) in _OTHERWISE_IN_PLACE


# They take another path through memory that is not contiguous.
_DRAWING_OTHERWISE = frozenset({("aten", "bernoulli"), ("aten", "bernoulli_")})


def draws_otherwise_in_place(op: Overload) -> bool:
    """Whether filling memory with random numbers may give others than making a tensor of them."""
    return (schema_of(op).namespace, schema_of(op).name) in _DRAWING_OTHERWISE


# It averages in one pass where it makes its result, and over a buffer where the result is given.
_OTHERWISE_INTO_OUT = frozenset({("aten", "binary_cross_entropy")})


def rounds_otherwise_into_out(op: Overload) -> bool:
    """Whether the overload that takes `out=` may give other bits than the functional one."""
    return (schema_of(op).namespace, schema_of(op).name) in _OTHERWISE_INTO_OUT


# They write every element's loss into `out` before they average, so that torch resizes it, with a warning.
_RESIZING_OUT = frozenset({("aten", "huber_loss"), ("aten", "mse_loss"), ("aten", "smooth_l1_loss")})


def resizes_out(op: Overload) -> bool:
    """Whether the overload that takes `out=` gives it other memory, though it has the shape of the result."""
    return (schema_of(op).namespace, schema_of(op).name) in _RESIZING_OUT


# They compute the loss of every element where the result is to lie, and average it there.
_AVERAGING_IN_PLACE = frozenset(
    ("aten", name) for name in ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
)


def averages_in_place(target: Target) -> bool:
    """Whether the memory of a result, be it one number, is as large as the operand, for as long as the result lives."""
    return isinstance(target, Overload) and (schema_of(target).namespace, schema_of(target).name) in _AVERAGING_IN_PLACE


# --- operators that look at the grad mode ---------------------------------------------------------------------

# The kernel prepares its workspace for backward only when the grad mode is on.
_ASK_GRAD_MODE = frozenset({"aten::mkldnn_rnn_layer"})


def runs_in_grad_mode(target: Target) -> bool:
    """Whether the operator's results depend on the grad mode, so that it must run as it was recorded."""
    if not isinstance(target, Overload):
        return False
    schema = schema_of(target)
    return f"{schema.namespace}::{schema.name}" in _ASK_GRAD_MODE


# --- recurrent layers ---------------------------------------------------------------------------------------------

_RECURRENT = frozenset({"gru", "lstm", "rnn_tanh", "rnn_relu"})


def is_recurrent_layer(target: Target) -> bool:
    """Whether the operator is a recurrent layer of torch's, over padded sequences."""
    if not isinstance(target, Overload):
        return False
    schema = schema_of(target)
    return schema.namespace == "aten" and schema.name in _RECURRENT and schema.overload == "input"


@cache
def is_recurrent_cell(target: Target) -> bool:
    """Whether the operator is one time step of a gated recurrent layer of torch's."""
    if not isinstance(target, Overload):
        return False
    schema = schema_of(target)
    return schema.namespace == "aten" and schema.name in ("gru_cell", "lstm_cell") and not schema.overload


# --- operators that only copy -----------------------------------------------------------------------------------------


@cache
@once_for_each
def overwrites(target: Target) -> bool:
    """Whether the operator fills its first operand with its second one, whatever was there before."""
    return isinstance(target, Overload) and (schema_of(target).namespace, schema_of(target).name) == ("aten", "copy_")


_OVERWRITING = frozenset({("aten", "copy"), ("aten", "fill"), ("aten", "zero")})


@once_for_each
def ignores_first_contents(target: Target) -> bool:
    """Whether a functional operator reads the layout of its first operand only, not what is in it."""
    return isinstance(target, Overload) and (schema_of(target).namespace, schema_of(target).name) in _OVERWRITING


_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})


@cache
def leaves_contents_open(target: Target) -> bool:
    """Whether the result is memory that nothing was written to."""
    return isinstance(target, Overload) and schema_of(target).namespace == "aten" and schema_of(target).name in _EMPTY


_COPIES = frozenset({"aten::clone", "aten::_to_copy", "aten::lift_fresh_copy"})


@once_for_each
def is_copy(target: Target) -> bool:
    """Whether the result holds the first operand's numbers (converted, laid out again) and nothing else."""
    if isinstance(target, Overload):
        schema = schema_of(target)
        return f"{schema.namespace}::{schema.name}" in _COPIES
    return target is COPY_TO_LAYOUT


@once_for_each
def with_memory(target: Target) -> Target:
    """The operator that makes the same zeros in memory, for one that makes zeros without any; else the operator."""
    if not isinstance(target, Overload):
        return target
    schema = schema_of(target)
    has_none = (schema.namespace, schema.name) == ("aten", "_efficientzerotensor")
    return torch.ops.aten.zeros.default if has_none else target


# --- views that read their bytes otherwise ------------------------------------------------------------------

_REINTERPRETATIONS = frozenset({"aten::_conj", "aten::_neg_view"})


@cache
def is_reinterpretation(target: Target) -> bool:
    """Whether a view shows other numbers than its operand although both have the same layout."""
    if isinstance(target, Overload):
        schema = schema_of(target)
        return f"{schema.namespace}::{schema.name}" in _REINTERPRETATIONS
    return False
