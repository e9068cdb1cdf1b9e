"""The program: an immutable list of nodes over values that know their storage and region.

Every stage of the pipeline holds its program in these classes. A `Node` applies one operator; a `Value` is one
result (or input) and is compared by identity; a tensor value's `TensorMeta` names the storage that holds its bytes
and the strided region it occupies there. Nothing is edited: a pass builds a new `Program` that shares what it kept.

Operands are values, numbers, sizes (`SizeExpr`), torch constants (dtype, device, layout, memory format, generator),
strings, None, and lists or tuples of these.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from dovetail.ir.signature import Signature
from dovetail.ir.sizes import Scalar, Size, SizeExpr, is_same_product, product

Operand: TypeAlias = object
Target: TypeAlias = Callable[..., object]


# Walked over for every node of every pass: a tuple is checked faster than a union.
_SEQUENCES = (tuple, list)


class Phase(enum.Enum):
    """When a node runs: as part of the forward pass, or of the backward pass."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Stage(enum.Enum):
    """What a program may contain; `ir.stages` has the rules."""

    IMPURE = "impure"
    FUNCTIONAL = "functional"
    WHOLE = "whole"
    SPLIT = "split"
    IN_PLACE = "in-place"


@dataclass(frozen=True, slots=True)
class Origin:
    """The user's code that a node comes from. `module` is the dotted module path, if there is one."""

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""

    def __str__(self) -> str:
        if not self.file:
            return self.module
        where = f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")
        return f"{where}   ({self.module})" if self.module else where


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape, layout and place of a tensor value.

    shape, stride, offset: in elements. storage: number of the storage that holds the bytes; values of one program
    with equal numbers share bytes.
    """

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    dtype: torch.dtype
    device: torch.device
    storage: int

    def at(self, storage: int, offset: Size) -> TensorMeta:
        """The same tensor in another place."""
        return TensorMeta(self.shape, self.stride, offset, self.dtype, self.device, storage)

    def layout(self) -> tuple[tuple[Size, ...], tuple[Size, ...], torch.dtype, torch.device]:
        """What a consumer can see of the tensor, apart from its place in memory."""
        return (self.shape, self.stride, self.dtype, self.device)

    def lies_like(self, other: TensorMeta) -> bool:
        """Whether a consumer sees no difference: equal layouts."""
        return (
            self.shape == other.shape
            and self.stride == other.stride
            and self.dtype == other.dtype
            and self.device == other.device
        )

    def differs_in_strides_alone(self, other: TensorMeta) -> bool:
        """Whether a consumer sees that the elements lie otherwise, and nothing else."""
        return self.stride != other.stride and (
            (self.shape, self.dtype, self.device) == (other.shape, other.dtype, other.device)
        )

    def numel(self) -> Size:
        """Number of elements."""
        return product(self.shape)

    def size_bytes(self) -> Size:
        """Bytes of the elements (not of the storage)."""
        return product((self.numel(), self.dtype.itemsize))

    def is_contiguous(self) -> bool:
        """Whether the elements lie in order without gaps; may say no where sizes are symbolic."""
        step: Size = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and not is_same_product(stride, step):
                return False
            step = product((step, size)) if size != 0 else step
        return True

    def overlaps_itself(self) -> bool:
        """Whether two elements may be one (the tensor is expanded, say), so that a write to one shows in the other."""
        dims = [(step, size) for step, size in zip(self.stride, self.shape, strict=True) if size != 1]
        known = [(step, size) for step, size in dims if isinstance(step, int) and isinstance(size, int)]
        if len(known) < len(dims):
            return any(step == 0 for step, _ in dims)
        reach = 0
        for step, size in sorted(known):
            if step <= reach:
                return True
            reach += step * (size - 1)
        return False

    def __str__(self) -> str:
        text = f"{_DTYPE_NAMES.get(self.dtype, str(self.dtype))}[{', '.join(map(str, self.shape))}]"
        return text if self.device.type == "cpu" else f"{text} {self.device}"


@dataclass(frozen=True, slots=True)
class ScalarMeta:
    """A number that is known when the program runs; `expr` says it in symbols."""

    expr: Scalar

    def __str__(self) -> str:
        return f"scalar {self.expr}"


Meta: TypeAlias = "TensorMeta | ScalarMeta"


class _Described:
    """What every pass asks of a value many times, so that it is kept.

    is_tensor: whether the value is a tensor. tensor: its description; asking a number for it raises TypeError.
    """

    __slots__ = ("is_tensor", "tensor")
    is_tensor: bool
    tensor: TensorMeta


@dataclass(frozen=True, slots=True, eq=False)
class Value(_Described):
    """One result or input. Compared by identity; `name` is unique within a program."""

    name: str
    meta: Meta

    def __post_init__(self) -> None:
        is_tensor = isinstance(self.meta, TensorMeta)
        object.__setattr__(self, "is_tensor", is_tensor)
        if is_tensor:
            object.__setattr__(self, "tensor", self.meta)

    def __getattr__(self, name: str) -> object:
        """What is not kept: of a number, or of a copy, which is made without the above."""
        if name not in ("is_tensor", "tensor"):
            raise AttributeError(name)
        is_tensor = isinstance(self.meta, TensorMeta)
        if name == "tensor" and not is_tensor:
            raise TypeError(f"{self.name} is a number, not a tensor")
        return is_tensor if name == "is_tensor" else self.meta

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator application.

    outputs: one entry per result, None where the operator returns no tensor there. unpack: whether the target
    returns a sequence (then `outputs` are its items) or the single output itself. recomputed: inside a
    checkpoint region that runs again during backward.
    """

    target: Target
    args: tuple[Operand, ...]
    kwargs: tuple[tuple[str, Operand], ...] = ()
    outputs: tuple[Value | None, ...] = ()
    unpack: bool = False
    phase: Phase = Phase.FORWARD
    origin: Origin = Origin()
    recomputed: bool = False
    # Every pass asks for these many times, so they are kept.
    _operands: tuple[Value, ...] | None = field(default=None, init=False, repr=False)
    _results: tuple[Value, ...] | None = field(default=None, init=False, repr=False)

    def operands(self) -> tuple[Value, ...]:
        """Values read, in argument order, with repeats."""
        known = self._operands
        if known is None:
            given = (*self.args, *[operand for _, operand in self.kwargs])
            known = tuple([value for x in given for value in ((x,) if isinstance(x, Value) else values_in(x))])
            object.__setattr__(self, "_operands", known)
        return known

    def symbols(self) -> Iterator[str]:
        """Names of the size symbols read by the operands."""
        yield from symbols_in(self.args)
        for _, operand in self.kwargs:
            yield from symbols_in(operand)

    def results(self) -> tuple[Value, ...]:
        """Outputs that exist."""
        known = self._results
        if known is None:
            known = tuple([value for value in self.outputs if value is not None])
            object.__setattr__(self, "_results", known)
        return known

    def with_operands(self, swap: Callable[[Value], Operand]) -> Node:
        """The same application with each operand value replaced by `swap(value)`; itself when nothing changed."""
        args = map_operands(self.args, swap)
        kwargs = tuple((name, map_operands(operand, swap)) for name, operand in self.kwargs)
        if args is self.args and all(new is old for (_, new), (_, old) in zip(kwargs, self.kwargs, strict=True)):
            return self
        assert isinstance(args, tuple), "operand tuples stay tuples"
        return Node(self.target, args, kwargs, self.outputs, self.unpack, self.phase, self.origin, self.recomputed)

    def with_results(self, swap: Callable[[Value], Value]) -> Node:
        """The same application with each result replaced by `swap(value)`; itself when nothing changed."""
        return self.giving(tuple([None if value is None else swap(value) for value in self.outputs]))

    def applying(
        self,
        target: Target,
        args: tuple[Operand, ...],
        kwargs: tuple[tuple[str, Operand], ...],
        outputs: tuple[Value | None, ...],
        unpack: bool | None = None,
    ) -> Node:
        """Another application in the place of this one. unpack: as here if not given."""
        unpack = self.unpack if unpack is None else unpack
        return Node(target, args, kwargs, outputs, unpack, self.phase, self.origin, self.recomputed)

    def giving(self, outputs: tuple[Value | None, ...]) -> Node:
        """The same application with these results; itself when nothing changed."""
        if outputs == self.outputs:
            return self
        return Node(self.target, self.args, self.kwargs, outputs, self.unpack, self.phase, self.origin, self.recomputed)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A named list of nodes in execution order, with inputs, outputs and the role of each.

    outputs: operands; usually values, but numbers, sizes and None can be returned as well.
    """

    name: str
    stage: Stage
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Operand, ...]
    signature: Signature = field(default_factory=Signature)

    def values(self) -> Iterator[Value]:
        """The inputs, then the results of each node, in order."""
        yield from self.inputs
        for node in self.nodes:
            yield from node.results()

    def producers(self) -> dict[Value, Node]:
        """The node that makes each value (inputs have none)."""
        return {value: node for node in self.nodes for value in node.results()}

    def use_counts(self) -> dict[Value, int]:
        """How many times each value is read, outputs included."""
        counts: dict[Value, int] = {}
        for node in self.nodes:
            for value in node.operands():
                counts[value] = counts.get(value, 0) + 1
        for value in values_in(self.outputs):
            counts[value] = counts.get(value, 0) + 1
        return counts

    def input_storages(self) -> frozenset[int]:
        """Storages that exist before the program runs."""
        return frozenset(value.tensor.storage for value in self.inputs if value.is_tensor)

    def output_storages(self) -> frozenset[int]:
        """Storages that the caller holds after the program ran."""
        return frozenset(value.tensor.storage for value in values_in(self.outputs) if value.is_tensor)

    def replace_nodes(self, nodes: tuple[Node, ...], outputs: tuple[Operand, ...] | None = None) -> Program:
        """The program with other nodes (and outputs); itself when they are the same objects."""
        new_outputs = self.outputs if outputs is None else outputs
        same_nodes = len(nodes) == len(self.nodes) and all(a is b for a, b in zip(nodes, self.nodes, strict=True))
        if same_nodes and new_outputs == self.outputs:
            return self
        return replace(self, nodes=nodes, outputs=new_outputs)


def values_in(operand: Operand) -> Iterator[Value]:
    """The values inside an operand, depth first."""
    if isinstance(operand, Value):
        yield operand
    elif isinstance(operand, _SEQUENCES):
        for item in operand:
            if isinstance(item, Value):
                yield item
            elif isinstance(item, _SEQUENCES):
                yield from values_in(item)


def symbols_in(operand: Operand) -> Iterator[str]:
    """The size symbols inside an operand, depth first."""
    if isinstance(operand, SizeExpr):
        yield from operand.symbols()
    elif isinstance(operand, _SEQUENCES):
        for item in operand:
            if type(item) is not int:
                yield from symbols_in(item)


def meta_symbols(meta: Meta) -> Iterator[str]:
    """The size symbols that a description mentions."""
    if isinstance(meta, ScalarMeta):
        return symbols_in(meta.expr)
    return iter(()) if is_static(meta) else symbols_in((*meta.shape, *meta.stride, meta.offset))


def is_static(meta: Meta) -> bool:
    """Whether it is a description of a tensor, and all its numbers are plain."""
    if type(meta) is not TensorMeta or type(meta.offset) is not int:
        return False
    for size in meta.shape:
        if type(size) is not int:
            return False
    for step in meta.stride:  # noqa: SIM110 (a generator takes twice as long, and this is asked for every value)
        if type(step) is not int:
            return False
    return True


def map_operands(operand: Operand, swap: Callable[[Value], Operand]) -> Operand:
    """The operand with each value replaced; the same object when nothing changed."""
    if isinstance(operand, Value):
        return swap(operand)
    if not isinstance(operand, _SEQUENCES):
        return operand
    items: list[Operand] = []
    is_new = False
    for old in operand:
        new = swap(old) if isinstance(old, Value) else map_operands(old, swap)
        is_new = is_new or new is not old
        items.append(new)
    if not is_new:
        return operand
    return tuple(items) if isinstance(operand, tuple) else items


def map_leaves(operand: Operand, swap: Callable[[Operand], Operand]) -> Operand:
    """The operand with everything replaced that is not a list or tuple; the same object when nothing changed."""
    if isinstance(operand, tuple | list):
        items = [map_leaves(item, swap) for item in operand]
        if all(new is old for new, old in zip(items, operand, strict=True)):
            return operand
        return tuple(items) if isinstance(operand, tuple) else items
    return swap(operand)


_DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
