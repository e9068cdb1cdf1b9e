"""Record a running program, operator by operator, as an impure program.

The recorder sits below autograd: eager autograd runs above it and decides what forward and backward do, fake tensors
run below it and answer with shapes. What arrives here is what eager executes, in eager's order, views and writes
included. Nothing is rewritten while recording, with two exceptions: an operator that changes a tensor's shape in place
(`t_`) is noted as the view it amounts to, and a composite operator (seen in inference mode) is taken apart.

One recorder serves Dynamo's graphs, plain functions, modules, and whole steps: it knows tensors, not who owns them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from dovetail.capture.checks_of_kernels import CHECKED_QUESTIONS, answer_of_check, check_result, result_at_full_rank
from dovetail.capture.cuts import Cuts
from dovetail.capture.engine import as_taken
from dovetail.capture.left_modes import refuse_switched
from dovetail.capture.lent_memory import LentMemory
from dovetail.capture.number_symbols import NumberSymbols
from dovetail.capture.numbers_of_factories import number_of_factories
from dovetail.capture.operators import device_type, must_be_kept, refuse_leaves, short_name
from dovetail.capture.origins import OriginTracker
from dovetail.capture.overlapping_writes import refuse_order_dependent_write
from dovetail.capture.packed_sequences import PackedValues
from dovetail.capture.real_tensors import RealTensors
from dovetail.capture.records_facts import RecordsFacts
from dovetail.capture.records_sparse import RecordsSparse
from dovetail.capture.recurrent import as_recorded, result_of, stays_whole
from dovetail.capture.resizing import note_outs
from dovetail.capture.sparse_gradients import SparseGradients
from dovetail.capture.traced_operands import concrete, settled
from dovetail.capture.views_of_written import ViewsOfWritten
from dovetail.errors import (
    UnsupportedHigherOrderOperator,
    UnsupportedInputMutation,
    UnsupportedTensor,
)
from dovetail.ir.convert import QUANTIZED, describe, scalar_of, unsupported_class, unsupported_kind
from dovetail.ir.known_results import KnownResults
from dovetail.ir.program import Meta, Node, Operand, Phase, ScalarMeta, Target, Value
from dovetail.ir.sizes import Scalar
from dovetail.ops.facts import (
    RENAMES,
    counts_writes_in_its_kernel,
    counts_writes_one_by_one,
    facts_of,
    may_resize,
    resizes_storage,
)
from dovetail.ops.sized_operators import meant
from dovetail.ops.sub_programs import run_with_sub_programs
from dovetail.reach.frames import work_on
from dovetail.torch_compat.autograd import refuse_inference_tensor
from dovetail.torch_compat.dispatch import (
    HigherOrder,
    Overload,
    PlainMode,
    decompose,
    has_kernel,
    is_composite,
    is_question,
    schema_of,
    storage_key,
    tags_of,
)
from dovetail.torch_compat.fake_layouts import as_laid_out
from dovetail.torch_compat.fakes import (
    DEVICE_QUESTION,
    FakeMode,
    device_of_fake,
    is_fake,
    kernels_for_symbolic_sizes,
)
from dovetail.torch_compat.subclasses import is_wrapper_type
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES, symbol_name
from dovetail.torch_compat.traced_numbers import as_size, is_traced

aten = torch.ops.aten


class Recorder(RecordsSparse, RecordsFacts, PlainMode):
    """A dispatch mode that appends one `Node` per operator; enter it innermost, over a fake mode.

    Real tensors that nobody declared are constants of the program: the recorded operators get a fake in their place, so
    that recording writes nothing; what `torch.tensor([...])` makes is a copy, because eager makes it anew in each call.

    Attributes: nodes, the impure program so far; constants, the real tensors met that nobody declared, with their
    values; reals, what autograd knows of these; phase, stamped on new nodes; symbols, the symbolic number of each size
    symbol; written, the tensor objects that operators wrote, with what they stood for and the grad mode;
    metadata_changes, tensors, operators, other arguments of new shapes; switches, as they began.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        origins: OriginTracker,
        fake_of: Callable[[torch.Tensor], torch.Tensor],
        mode: FakeMode,
        *,
        numbers: NumberSymbols | None = None,
    ) -> None:
        """fake_of: makes the fake twin of a real tensor. mode: of all fakes. numbers: the inputs that are traced."""
        super().__init__()
        self._numbers, self._fake_of, self.meets = numbers, fake_of, True
        self.sparse = SparseGradients(self)
        self.nodes: list[Node] = []
        self.constants: list[tuple[torch.Tensor, Value]] = []
        self.reals = RealTensors()
        self.phase, self.recomputing, self.switches = Phase.FORWARD, False, dict[str, Any]()
        self.symbols: dict[str, Any] = {} if numbers is None else numbers.symbols
        self._expected, self._cuts = set[Scalar](), Cuts()
        self._given, self._of_inference = set[int](), set[int]()
        self.written: list[tuple[Value, torch.Tensor, bool]] = []
        self.metadata_changes: list[tuple[torch.Tensor, Overload, tuple[Operand, ...]]] = []
        self._origins = origins
        self.packed, self.lent = PackedValues(self), LentMemory(origins)
        self.views = ViewsOfWritten(self.unrecorded)
        self._values: dict[int, Value] = {}
        self._known_results = KnownResults(mode, self._values)
        self._tensors: dict[Value, list[torch.Tensor]] = {}
        self._twins: dict[Value, torch.Tensor] = {}
        self._alive, self._storages = list[object](), dict[int, int]()
        self._storage_numbers, self._names = itertools.count(), itertools.count(1)

    # --- declaring -------------------------------------------------------------------------------------------------

    def add_tensor(self, tensor: torch.Tensor, name: str, real: torch.Tensor | None = None) -> Value:
        """Declare an input tensor. real: what it stands for, if it does not tell itself whether writes are allowed."""
        value = self._bind(tensor, Value(name, self._describe(tensor, name)))
        return self._note_given(value, tensor if real is None else real)

    def _note_given(self, value: Value, tensor: torch.Tensor) -> Value:
        self._given.add(value.tensor.storage)
        if tensor.is_inference():
            self._of_inference.add(value.tensor.storage)
        return value

    def add_number(self, number: object, name: str) -> Value:
        """Declare an input number, symbolic or not."""
        self._note_symbols(number)
        return Value(name, ScalarMeta(scalar_of(number)))

    def add_alias(self, tensor: torch.Tensor, value: Value) -> None:
        """Let another tensor object stand for `value`."""
        self._bind(tensor, value)

    def let_stand_for(self, real: torch.Tensor, twin: torch.Tensor, value: Value) -> None:
        """Let a real tensor, and the fake that operators get in its place, stand for a known value."""
        self._storages[storage_key(real)] = value.tensor.storage
        self._twins[value] = twin
        self._bind(real, value)
        self._bind(twin, value)

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value that a tensor seen while recording stands for; unseen real tensors become constants."""
        self.sparse.operands.refuse(tensor)
        value = self._values.get(id(tensor))
        if value is not None:
            if value.is_tensor and self._storages.get(storage_key(tensor)) != value.tensor.storage:
                raise UnsupportedInputMutation(
                    what="the storage (`.data = ...`)", name=value.name, origin=self._origins.here()
                )
            return value
        assert not is_fake(tensor), f"a tensor {tuple(tensor.shape)} made where nothing is recorded: by another thread?"
        name = f"constant_{len(self.constants)}"
        value = self._bind(tensor, Value(name, self._describe(tensor, name)))
        self.constants.append((tensor, self._note_given(value, tensor)))
        self.reals.meet(tensor)
        return value

    def _without_real(self, argument: Any) -> Any:
        """An operator argument with the fake twin of each real tensor."""
        if isinstance(argument, torch.Tensor) and not is_fake(argument):
            value = self.value_of(argument)
            twin = self._twins.get(value)
            if twin is None:
                twin = self._twins[value] = self._fake_of(argument)
                self._storages[storage_key(twin)] = value.tensor.storage
                self._bind(twin, value)
            return twin
        if isinstance(argument, list | tuple) and any(isinstance(item, torch.Tensor) for item in argument):
            return type(argument)(map(self._without_real, argument))
        return argument

    def tensors_of(self, value: Value) -> list[torch.Tensor]:
        """The tensor objects that stand for `value` now, oldest first (`t_` lets an object stand for another value)."""
        return [tensor for tensor in self._tensors.get(value, ()) if self._values.get(id(tensor)) is value]

    def operand_of(self, argument: object) -> Operand:
        """An operator argument as an operand of the IR."""
        if isinstance(argument, torch.Tensor):
            return self.value_of(argument)
        if isinstance(argument, SYMBOLIC_TYPES):
            self._note_symbols(argument)
            return scalar_of(argument)
        if isinstance(argument, tuple | list):
            return (type(argument) if type(argument) in (tuple, list) else list)(map(self.operand_of, argument))
        if isinstance(argument, torch.dtype) and argument in QUANTIZED:  # fakes would carry on with floats
            what, instead = "a quantized tensor", "dequantize it first"
            raise UnsupportedTensor(name=str(argument), kind=what, hint=instead, origin=self._origins.here())
        return argument

    # --- recording ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        with work_on(func):
            return self._dispatched(func, types, args, kwargs)

    def _dispatched(self, func: Any, types: object, args: Sequence[Any], kwargs: Any) -> Any:
        if func is DEVICE_QUESTION and is_fake(args[0]):  # asked for several times for each operator
            return device_of_fake(args[0])
        if self._numbers is not None and isinstance(func, Overload):
            args, kwargs = settled(func, args, kwargs or {}, as_size)
        func, args, made = self.packed.instead(meant(func), args)
        if made is not None:
            return made
        if func is aten.new_empty_strided.default:
            args = as_taken(args)
        self.views.write(func, args)
        sparse = self.run_sparse(func, args, kwargs or {})
        result = self._record(func, types, args, kwargs) if sparse is None else sparse[0]
        self.views.read(func, args, result)
        return result if self._numbers is None else self._numbers.told(result)

    def _record(self, func: Any, types: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        if isinstance(types, Sequence) and any(map(is_wrapper_type, types)):
            refuse_leaves(args, self._values, self._origins)
            return NotImplemented  # the wrapper's own class takes the operator apart; its parts come here
        keywords = dict(kwargs or {})
        if isinstance(func, HigherOrder):
            return self._record_sub_programs(func, args, keywords)
        if is_question(func):
            return func(*args, **keywords)
        if is_composite(func) and not (has_kernel(func, device_type(args)) or stays_whole(func, args)):
            with self:
                return decompose(func, args, keywords)
        if func is aten.lift_fresh.default and not is_fake(args[0]):
            fresh = func(*args)
            self._append(aten.lift_fresh_copy.default, (self.value_of(args[0]),), (), fresh)
            self.lent.note(args[0], self.value_of(fresh).tensor.storage)
            return fresh
        given, args = args, [self._without_real(argument) for argument in args]
        keywords = {name: self._without_real(argument) for name, argument in keywords.items()}
        if resizes_storage(func) or torch.Tag.inplace_view in tags_of(func) or may_resize(func):
            return self._record_metadata_change(func, args, keywords)
        operands, keyword_operands = self._operands(args, keywords)
        refuse_order_dependent_write(func, operands, keyword_operands, self._origins)
        if (number := number_of_factories(func, operands, self.nodes, self.constants)) is not None:
            return number
        with self.named_errors(func), kernels_for_symbolic_sizes() if self.symbols else nullcontext():
            result = as_laid_out(func, args, self._run(func, args, keywords), keywords)
        self.packed.follow(func, args, result)
        if func in RENAMES:
            self.add_alias(result, self.value_of(args[0]))
            return result
        if self.symbols and isinstance(result, torch.Tensor):
            result = self._cuts.as_before(func, operands, keyword_operands, args, result)
        if note_outs(self, func, args, keywords):
            operands, keyword_operands = self._operands(args, keywords)
        if counts_writes_one_by_one(func):  # fakes do not get to where eager counts
            torch.autograd.graph.increment_version([t for t in given[0] if isinstance(t, torch.Tensor)])
        self._append(as_recorded(func, given), operands, keyword_operands, result)
        self._note_writes(func, args, keywords)
        check_result(self, func, args, result)
        return result

    def _operands(
        self, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[tuple[Operand, ...], tuple[tuple[str, Operand], ...]]:
        return tuple(map(self.operand_of, args)), tuple((name, self.operand_of(x)) for name, x in keywords.items())

    def _run(self, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        if func in CHECKED_QUESTIONS and (answer := answer_of_check(self, func, args)) is not None:
            return answer
        if self._numbers is not None:
            args = list(map(concrete, args))
            keywords = {name: concrete(argument) for name, argument in keywords.items()}
        made = result_at_full_rank(func, args, keywords)
        made = result_of(func, args, keywords, self._known_results) if made is None else made
        return made if self._numbers is None else self._numbers.with_known_sizes(made)

    def _record_sub_programs(self, func: HigherOrder, args: Sequence[Any], keywords: dict[str, Any]) -> object:
        args = [self._without_real(argument) for argument in args]
        with kernels_for_symbolic_sizes() if self.symbols else nullcontext():
            made = run_with_sub_programs(func, args, keywords, lambda x: isinstance(x, torch.Tensor | torch.SymInt))
        if made is None:
            raise UnsupportedHigherOrderOperator(operator=str(func), origin=self._origins.here())
        prim, operands, result = made
        self._append(prim, tuple(map(self.operand_of, operands)), (), result)
        return result

    def _note_writes(self, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        arguments = schema_of(func).arguments
        for position in facts_of(func).writes:
            held = args[position] if position < len(args) else keywords.get(arguments[position].name)
            for tensor in held if isinstance(held, list | tuple) else [held]:
                if isinstance(tensor, torch.Tensor):
                    if counts_writes_in_its_kernel(func):
                        torch.autograd.graph.increment_version(tensor)
                    value = self.value_of(tensor)
                    self.lent.refuse_write(value.tensor.storage)
                    if value.tensor.storage in self._of_inference and tensor is held:  # lists are not asked about
                        refuse_inference_tensor()
                    self.written.append((value, tensor, torch.is_grad_enabled()))

    def _append(
        self, target: Target, args: tuple[Operand, ...], kwargs: tuple[tuple[str, Operand], ...], result: object
    ) -> None:
        unpack = isinstance(result, tuple | list)
        items = list(result) if isinstance(result, tuple | list) else [result]
        refuse_switched(self.switches, [*args, *(x for _, x in kwargs)], items, self._origins)
        self._alias_written(target, args, kwargs, items)
        name = short_name(target)
        outputs = tuple(self._result_value(item, name) for item in items)
        if all(output is None for output in outputs) and not must_be_kept(target):
            return  # a question about metadata, or an alias that is the operand itself
        self.nodes.append(
            Node(
                target=target,
                args=args,
                kwargs=kwargs,
                outputs=outputs if len(items) != 1 or items[0] is not None else (),
                unpack=unpack,
                phase=self.phase,
                origin=self._origins.here(),
                recomputed=self.recomputing,
            )
        )

    def _alias_written(
        self, target: Target, args: tuple[Operand, ...], kwargs: tuple[tuple[str, Operand], ...], items: list[object]
    ) -> None:
        """A written argument handed back is that argument, even when fakes hand back another object."""
        if not isinstance(target, Overload) or not schema_of(target).is_mutable:
            return
        schema = schema_of(target)
        keywords = dict(kwargs)
        for item, (_, alias, is_write) in zip(items, schema.returns, strict=False):
            if is_write and isinstance(item, torch.Tensor) and id(item) not in self._values:
                position = next(i for i, a in enumerate(schema.arguments) if a.alias == alias)
                held = args[position] if position < len(args) else keywords.get(schema.arguments[position].name)
                if isinstance(held, Value):
                    self.add_alias(item, held)

    def _result_value(self, item: object, name: str) -> Value | None:
        if isinstance(item, torch.Tensor):
            if id(item) in self._values:
                return None
            return self._bind(item, Value(self._fresh_name(name), self._describe(item, name)))
        if isinstance(item, SYMBOLIC_TYPES):
            self._note_symbols(item)
            return Value(self._fresh_name(name), ScalarMeta(scalar_of(item)))
        return None

    # --- bookkeeping -------------------------------------------------------------------------------------------------

    def _bind(self, tensor: torch.Tensor, value: Value) -> Value:
        self._values[id(tensor)] = value
        self.views.note(tensor)
        self._tensors.setdefault(value, []).append(tensor)
        self._alive.append(tensor)
        return value

    def _describe(self, tensor: torch.Tensor, name: str) -> Meta:
        if self.sparse.is_known(tensor):
            self.refuse_sparse(name)
        refused = unsupported_kind(tensor) or unsupported_class(tensor)
        if refused is not None:
            raise UnsupportedTensor(name=name, kind=refused[0], hint=refused[1], origin=self._origins.here())
        storage = tensor.untyped_storage()
        key = storage_key(tensor)
        if key not in self._storages:
            self._storages[key] = self.new_storage()
            self._alive.append(storage)
        for dim in (*tensor.shape, *tensor.stride(), tensor.storage_offset()):
            if type(dim) is not int:
                self._note_symbols(dim)
        return describe(tensor, self._storages[key])

    def _note_symbols(self, number: object) -> None:
        if isinstance(number, SYMBOLIC_TYPES) and not is_traced(number) and (name := symbol_name(number)) is not None:
            self.symbols.setdefault(name, number)

    def _fresh_name(self, base: str) -> str:
        return f"{base}_{next(self._names)}"
