"""Whether a program describes its values correctly: it runs on tensors without data, and the results are compared.

Passes trust descriptions: which values share memory decides what may be written in place. So the descriptions in a file
are checked against the results of torch's own operators: shapes, strides, dtypes, offsets, and shared storages.
Operators that give another answer there than on a device, or none, are asked again as fakes (which is slower), the way
programs are recorded. Data-dependent sizes are not checked.

Cost: one call of each operator on the meta device for each layout of its operands: microseconds for views, up to
milliseconds where torch describes the result in Python; some ten microseconds for a call like an earlier one.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dovetail.artifact.known_results import KnownResults
from dovetail.artifact.target_text import wrapped_operator
from dovetail.deferred import deferred
from dovetail.ir.prim import Prim
from dovetail.ir.program import (
    Node,
    Operand,
    Program,
    ScalarMeta,
    TensorMeta,
    Value,
    map_leaves,
    meta_symbols,
    values_in,
)
from dovetail.ir.sizes import Number, Scalar, Size, SizeExpr, evaluate
from dovetail.ops import prims
from dovetail.torch_compat.dispatch import Overload, schema_of, storage_key, tags_of
from dovetail.torch_compat.fake_layouts import as_laid_out, as_on_cpu, run_on_fakes
from dovetail.torch_compat.plain_numbers import kernels_for_plain_numbers
from dovetail.torch_compat.python_kernels import python_kernels_without_dynamo

if TYPE_CHECKING:
    from dovetail.torch_compat import fakes
else:
    fakes = deferred("dovetail.torch_compat.fakes")

_META = torch.device("meta")
_DEVICES = frozenset({"cpu", "cuda", "meta"})
_BY_INDICES = frozenset({torch.ops.aten.index.Tensor})
_MASKS = frozenset({torch.bool, torch.uint8})
_OF_DATA = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
# They describe no tensor, or one that is as their name says.
_NOT_RUN = frozenset(
    {
        *(prims.GET_RNG_STATE, prims.SET_RNG_STATE, prims.MANUAL_SEED, prims.EXPECT, prims.GUARD),
        *(prims.GUARD_NUMBER, prims.REACHED),
    }
)
_MAX_BYTES = 1 << 40
_ATTEMPTS = 400
_FIRST = (7, 16, 4, 2, 32, 1)
_SIZES = (*range(1, 17), 24, 32, 48, 64, 96, 128, 224, 256, 512, 1024)


def check_descriptions(program: Program, sizes: Mapping[str, Number] | None, known: KnownResults | None = None) -> None:
    """Raise ValueError unless the values of a program are what its operators make.

    sizes: for symbols of its inputs. known: from other programs of the same file.
    """
    symbols = {name for value in program.inputs for name in meta_symbols(value.meta)}
    if sizes is None and symbols:
        return
    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        torch.inference_mode(False),
        python_kernels_without_dynamo(),
        kernels_for_plain_numbers(),
    ):
        warnings.simplefilter("ignore")
        numbers = {name: number for name, number in (sizes or {}).items() if name in symbols}
        run = _Run(numbers, KnownResults() if known is None else known)
        try:
            run.take(program.inputs)
        except _Lie as error:
            raise ValueError(f"an input: {error}") from error
        for place, node in enumerate(program.nodes):
            try:
                run.step(node)
            except _Lie as error:
                raise ValueError(f"node {place} ({node.target}): {error}") from error


def sizes_for(program: Program, facts: Sequence[Scalar]) -> dict[str, Number] | None:
    """A number for each size symbol of a program's inputs with which all facts hold; None where none are found."""
    symbols = sorted({name for value in program.inputs for name in meta_symbols(value.meta)})
    choose = random.Random(0)
    for attempt in range(_ATTEMPTS):
        if attempt < len(_FIRST):
            sizes: dict[str, Number] = {name: _FIRST[attempt] + place for place, name in enumerate(symbols)}
        elif attempt < 3 * len(_FIRST):
            sizes = dict.fromkeys(symbols, _FIRST[attempt % len(_FIRST)] * (2 if attempt % 2 else 1))
        else:
            sizes = {name: choose.choice(_SIZES) for name in symbols}
        if _hold(facts, sizes):
            return sizes
    return None


def _hold(facts: Sequence[Scalar], sizes: Mapping[str, Number]) -> bool:
    try:
        return all(evaluate(fact, sizes) for fact in facts)
    except (ArithmeticError, ValueError, KeyError):
        return False


class _Lie(ValueError):
    pass


class _Run:
    def __init__(self, sizes: dict[str, Number], known: KnownResults) -> None:
        self._sizes = sizes
        self._known = known
        self._live: dict[Value, Any] = {}
        self._memory: dict[int, tuple[int, torch.Tensor]] = {}  # by number: the storage's key, and who keeps it alive
        self._numbers: dict[int, int] = {}  # by the storage's key
        self._fake_mode: Any = None

    def take(self, inputs: tuple[Value, ...]) -> None:
        """The inputs as described: those that share memory share it."""
        for value in inputs:
            meta = value.meta
            if isinstance(meta, ScalarMeta):
                self._live[value] = self._number(meta.expr)
            elif self._is_known(meta):
                self._place(value, self._described(meta))

    def step(self, node: Node) -> None:
        """Run one node and compare. Raises: _Lie."""
        if all(not value.is_tensor for value in node.results()):
            self._note_numbers(node)
            return
        is_known = all(value in self._live for value in node.operands())
        is_known = is_known and all(map(self._has, node.symbols()))
        if is_known and _depends_on_data(node) and _is_torchs(node.target):
            self._ask_for_kinds(node)
        elif is_known and not _is_not_run(node):
            self._refuse_new_symbols(node)
        if not is_known or not all(self._is_known(value.meta) for value in node.results()) or _is_not_run(node):
            self._believe(node)
            return
        results = self._ran(node)
        if results is not None:
            for value, result in self._pairs(node, results):
                self._check_memory(value, result)
            if not any(self._other_layout(value.tensor, result) for value, result in self._pairs(node, results)):
                for value, result in self._pairs(node, results):
                    self._place(value, result)
                return
        self._ask_fakes(node)
        self._believe(node)

    def _refuse_new_symbols(self, node: Node) -> None:
        """Sizes of results follow from the operands, unless data tells them. Raises: _Lie."""
        for value in node.results():
            unknown = next((name for name in meta_symbols(value.meta) if not self._has(name)), None)
            if value.is_tensor and unknown is not None:
                raise _Lie(f"{value.name} is described with the size {unknown}, which nothing gives a number")

    def _ran(self, node: Node) -> list[Any] | None:
        """What the node gives on tensors without memory; None where fakes are to be asked."""
        try:
            args = [map_leaves(operand, self._operand) for operand in node.args]
            kwargs = [(name, map_leaves(operand, self._operand)) for name, operand in node.kwargs]
            if _takes_device(node):
                kwargs.append(("device", _META))
            results = self._known.run(node.target, args, kwargs, node.unpack)
            if all(value.tensor.device.type == "cpu" for value in node.results() if value.is_tensor):
                results = [*as_on_cpu(node.target, args, results)]
        except _Lie:
            raise
        except Exception:  # operators raise what they like
            return None
        self._check_number(node, results)
        return results if all(isinstance(result, torch.Tensor) for _, result in self._pairs(node, results)) else None

    def _ask_for_kinds(self, node: Node) -> None:
        """Hold the dtypes and ranks of results against fakes, where data tells the sizes. Raises: _Lie."""
        results = self._fakes_of(node, fakes.new_symbolic_fake_mode())
        for value, result in self._pairs(node, results) if results is not None else ():
            meta = value.tensor
            if (result.dtype, result.dim()) != (meta.dtype, len(meta.shape)):
                described = f"{meta.dtype} of {len(meta.shape)} dimensions"
                raise _Lie(f"{value.name} is described as {described}, and is {result.dtype} of {result.dim()}")

    def _ask_fakes(self, node: Node) -> None:
        """Hold the descriptions of results against fakes, as they were recorded. Raises: _Lie."""
        call = (
            node.target,
            *(map_leaves(operand, self._layout) for operand in (*node.args, node.kwargs, node.results())),
        )
        if self._known.has_agreed(call):
            return
        if self._fake_mode is None:
            self._fake_mode = fakes.new_fake_mode()
        results = self._fakes_of(node, self._fake_mode)
        if results is None:
            return
        for value, result in self._pairs(node, results):
            reason = self._other_layout(value.tensor, result) if isinstance(result, torch.Tensor) else "is not a tensor"
            if reason is not None:
                raise _Lie(f"{value.name} {reason}")
        self._known.agree(call)

    def _fakes_of(self, node: Node, fake_mode: Any) -> list[Any] | None:
        """What the node gives on fakes; None where there is no telling. Raises: _Lie where it refuses its operands."""
        made: dict[Value, Any] = {}

        def fake(operand: Operand) -> Any:
            if isinstance(operand, Value) and operand.is_tensor:
                if operand not in made:
                    made[operand] = self._fake(operand)
                return made[operand]
            return operand if isinstance(operand, torch.device) else self._operand(operand)

        try:
            with fake_mode:
                args = [map_leaves(operand, fake) for operand in node.args]
                kwargs = {name: map_leaves(operand, fake) for name, operand in node.kwargs}
                result = as_laid_out(_operator_of(node), args, run_on_fakes(node.target, args, kwargs))
                results = list(result) if node.unpack else [result]
                self._check_number(node, results)
        except _unknown():
            return None
        except _Lie:
            raise
        except Exception as error:  # operators raise what they like
            text = str(error).strip().partition("\n")[0]
            raise _Lie(f"it refuses its operands: {text}") from error
        return results

    def _layout(self, operand: Operand) -> Any:
        """An operand as fakes see it."""
        if not isinstance(operand, Value) or not operand.is_tensor:
            return operand if isinstance(operand, str | torch.device) else self._operand(operand)
        meta = operand.tensor
        return self._numbers_of(meta.shape), self._numbers_of(meta.stride), meta.dtype, meta.device

    def _fake(self, value: Value) -> torch.Tensor:
        meta = value.tensor
        shape, stride = self._numbers_of(meta.shape), self._numbers_of(meta.stride)
        return torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)

    def _check_number(self, node: Node, results: list[Any]) -> None:
        if len(results) != len(node.outputs):
            raise _Lie(f"it gives {len(results)} results, not {len(node.outputs)}")

    def _operand(self, operand: Operand) -> Any:
        if isinstance(operand, Value):
            return self._live[operand]
        if isinstance(operand, SizeExpr):
            return self._number(operand)
        return _META if isinstance(operand, torch.device) else operand

    def _other_layout(self, meta: TensorMeta, result: torch.Tensor) -> str | None:
        shape, stride = self._numbers_of(meta.shape), self._numbers_of(meta.stride)
        if tuple(result.shape) != shape or result.dtype != meta.dtype:
            return f"is described as {meta.dtype} of {list(shape)}, and is {result.dtype} of {list(result.shape)}"
        if result.layout is not torch.strided:
            return f"has the layout {result.layout}"
        steps = zip(result.stride(), stride, shape, strict=True)
        if result.numel() and any(a != b and size > 1 for a, b, size in steps):
            return f"is described with the strides {list(stride)}, and has {list(result.stride())}"
        return None

    def _check_memory(self, value: Value, result: torch.Tensor) -> None:
        meta, key = value.tensor, storage_key(result)
        known = self._memory.get(meta.storage)
        if (known[0] != key) if known is not None else (key in self._numbers):
            raise _Lie(f"{value.name} shares memory with other values than its description says")
        if result.numel() and result.storage_offset() != self._number(meta.offset):
            raise _Lie(f"{value.name} has another offset in its memory than its description says")
        self._claim(meta.storage, result)

    def _claim(self, number: int, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        self._memory.setdefault(number, (key, tensor))
        self._numbers.setdefault(key, number)

    def _pairs(self, node: Node, results: list[Any]) -> list[tuple[Value, Any]]:
        return [
            (value, result)
            for value, result in zip(node.outputs, results, strict=True)
            if value is not None and value.is_tensor
        ]

    def _believe(self, node: Node) -> None:
        """Take the results as described: what they are is not known, or depends on the device."""
        for value in node.results():
            if value.is_tensor and self._is_known(value.meta):
                self._place(value, self._described(value.tensor))

    def _place(self, value: Value, tensor: torch.Tensor) -> None:
        self._live[value] = tensor
        self._claim(value.tensor.storage, tensor)

    def _described(self, meta: TensorMeta) -> torch.Tensor:
        """A tensor without memory of this description, on the storage that has its number."""
        if meta.device.type not in _DEVICES:
            raise _Lie(f"{meta.device} is not a device that a program in a file can use")
        shape, stride, offset = self._numbers_of(meta.shape), self._numbers_of(meta.stride), self._number(meta.offset)
        reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if all(shape) else 0
        if (offset + reach) * meta.dtype.itemsize > _MAX_BYTES:
            raise _Lie("a tensor is larger than any memory")
        known = self._memory.get(meta.storage)
        made = torch.empty(0, dtype=meta.dtype, device=_META)
        if known is None:
            return made.set_(made.untyped_storage(), offset, shape, stride)
        return made.set_(known[1].untyped_storage(), offset, shape, stride)

    def _note_numbers(self, node: Node) -> None:
        for value in node.results():
            expr = value.meta.expr if isinstance(value.meta, ScalarMeta) else None
            if not isinstance(expr, SizeExpr):
                if expr is not None:
                    self._live[value] = expr
            elif all(map(self._has, expr.symbols())):
                self._live[value] = self._number(expr)

    def _has(self, name: str) -> bool:
        return name in self._sizes

    def _is_known(self, meta: TensorMeta | ScalarMeta) -> bool:
        return all(map(self._has, meta_symbols(meta)))

    def _numbers_of(self, sizes: tuple[Size, ...]) -> tuple[int, ...]:
        return tuple([size if type(size) is int else self._number(size) for size in sizes])

    def _number(self, size: Scalar) -> Any:
        if not isinstance(size, SizeExpr):
            return size
        try:
            return evaluate(size, self._sizes)
        except (ArithmeticError, ValueError, KeyError) as error:
            raise _Lie(f"the size {size} has no value: {error}") from error


def _unknown() -> tuple[type[Exception], ...]:
    return (NotImplementedError, *fakes.NO_FAKE_KERNEL_ERRORS, *fakes.DATA_DEPENDENT_ERRORS)


def _operator_of(node: Node) -> Any:
    return wrapped_operator(node.target) if isinstance(node.target, Prim) else node.target


def _takes_device(node: Node) -> bool:
    """Whether a node says nothing of the device that it could name: its results would get memory."""
    if not isinstance(node.target, Overload) or any(name == "device" for name, _ in node.kwargs):
        return False
    return any(argument.name == "device" and argument.kwarg_only for argument in schema_of(node.target).arguments)


def _depends_on_data(node: Node) -> bool:
    op = _operator_of(node)
    if op in _BY_INDICES and not any(value.tensor.dtype in _MASKS for value in values_in(node.args[1:2])):
        return False  # as many elements as there are indices
    return isinstance(op, Overload) and not _OF_DATA.isdisjoint(tags_of(op))


def _is_torchs(op: Any) -> bool:
    return not isinstance(op, Overload) or schema_of(op).namespace in ("aten", "prims")


def _is_not_run(node: Node) -> bool:
    """Whether a node is believed: what it gives depends on data, or its kernels are not torch's or dovetail's."""
    if isinstance(node.target, Prim) and node.target in _NOT_RUN:
        return True
    return _depends_on_data(node) or not _is_torchs(_operator_of(node))
