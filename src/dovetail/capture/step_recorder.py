"""A recorder for a whole training step: numbers that are read off tensors are traced, and so is what Python does to
them.

    step = state["step"].item()                 step_1 = _local_scalar_dense(step)
    correction = 1 - beta ** step         ->    pow_2 = operator.pow(0.9, step_1); sub_3 = operator.sub(1, pow_2)
    if step > 5: ...                            gt_4 = operator.gt(step_1, 5); guard(gt_4, True, 0)

Python computes with a number as it is now (`capture.known_numbers`, or what an eager run of the step has shown), and
every answer that it gets becomes a question which the program asks again when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from dovetail.capture.checks_of_kernels import CHECKED_QUESTIONS, result_at_full_rank
from dovetail.capture.collectives import Collectives
from dovetail.capture.data_parallel import DataParallel
from dovetail.capture.data_sizes import DataSizes, UnknownSize
from dovetail.capture.fully_sharded import FullySharded, runs_apart
from dovetail.capture.guesses import Guesses
from dovetail.capture.item_log import ItemHints, Results
from dovetail.capture.known_numbers import KnownNumbers
from dovetail.capture.number_sizes import NumberSizes
from dovetail.capture.numpy_numbers import NumpyNumbers, of_numpy, of_python
from dovetail.capture.origins import OriginTracker
from dovetail.capture.packed_sequences import PackedValues
from dovetail.capture.records_sizes import RecordsSizes
from dovetail.capture.resizing import lie_on
from dovetail.capture.step_questions import Question
from dovetail.capture.step_tensors import of_graph_from_before, unowned, wrapper_left
from dovetail.capture.step_texts import Texts
from dovetail.capture.traced_operands import concrete, settled
from dovetail.errors import DataDependentControlFlow, DovetailError, UnsupportedStep
from dovetail.ir.program import Meta, Node, Operand, Origin, Phase, ScalarMeta, Target, Value
from dovetail.ir.sizes import symbol
from dovetail.ops.facts import RENAMES
from dovetail.ops.prims import GUARD, GUARD_NUMBER
from dovetail.torch_compat.autograd import running_sequence_number
from dovetail.torch_compat.collectives import NAMESPACES
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.fakes import DATA_DEPENDENT_ERRORS, FakeMode, fake_apart, is_fake, kernels_for_symbolic_sizes
from dovetail.torch_compat.fully_sharded import taken_apart
from dovetail.torch_compat.subclasses import is_wrapper_type
from dovetail.torch_compat.traced_numbers import Plain, traced_number

_ITEM = torch.ops.aten._local_scalar_dense.default
_LIFT = torch.ops.aten.lift_fresh.default
_UNKNOWN: tuple[type[Exception], ...] = (UnknownSize, *DATA_DEPENDENT_ERRORS)


class StepRecorder(RecordsSizes):
    """See the module docstring.

    Attributes: questions, by the number that their guards carry; numbers_now, what each traced number is now; renamed,
    the line that made each tensor object which is another one for a known value, by its identity; refusals, every error
    that was raised; texts, made of traced numbers; blamed, the input numbers that a refusal is about; moved, values of
    tensors that got other memory by `.data = ...`; of_graphs, labels of tensors that are part of graphs from before the
    step, by identity; of_numpy, numbers of NumPy's types;
    stops_at_weights, whether to stop where a weight is met that was not declared: `UnownedState` is raised.
    """

    follows_numpy = True

    def __init__(self, origins: OriginTracker, mode: FakeMode, hints: ItemHints) -> None:
        super().__init__(origins, partial(fake_apart, mode), mode)
        self.meets = False  # those that a step reaches are declared before
        self.questions, self.renamed = list[Question](), dict[int, Origin]()
        self.numbers_now: dict[str, Plain] = {}
        self.known = KnownNumbers()
        self.packed = PackedValues(self, self.known.learn_number)
        self.refusals: list[DovetailError] = []
        self.guesses, self._tracker = Guesses(hints, origins, self.refusals), origins
        self._from_data, self._tokens = set[Value](), dict[float, Any]()
        self._gradients, self._computed = dict[int, tuple[torch.Tensor, torch.Tensor | None]](), dict[object, Value]()
        self._roots, self.blamed = dict[Value, frozenset[str]](), frozenset[str]()
        self.sizes, self.texts = DataSizes(mode, self, self.symbols), Texts()
        self.number_sizes = NumberSizes(self.sizes, self)
        self.moved: set[Value] = set()
        self.of_graphs: Mapping[int, str] = {}
        self.used_of_graphs, self.stops_at_weights = set[int](), False
        self.of_numpy, self.collectives = NumpyNumbers(), Collectives(self.recorded, origins)
        self.parallel = DataParallel(self.collectives, origins, self.refusals)
        self.fully_sharded = FullySharded(self.collectives, origins, self.refusals)
        self.data_parallel = self.parallel.forward  # type: ignore[method-assign]

    def value_of(self, tensor: torch.Tensor) -> Value:
        """See `Recorder`."""
        known = len(self.constants)
        self.refuse_of_graphs([tensor])
        value = super().value_of(tensor)
        if len(self.constants) > known:
            self.note_gradient(tensor)
            if self.stops_at_weights and tensor.is_leaf and tensor.requires_grad:
                self.refusals.append(unowned(tensor, self._tracker.here()))
                raise self.refusals[-1]
        return value

    def refuse_of_graphs(self, values: Iterable[Any]) -> None:
        """Raises: StateChangedOtherwise where one is a tensor with a graph from before."""
        for value in values if self.of_graphs else ():
            if id(value) in self.of_graphs:
                self.used_of_graphs.add(id(value))
                error = of_graph_from_before(self.of_graphs[id(value)], self._tracker.here())
                self.refusals.append(error)
                raise error

    def note_gradient(self, tensor: torch.Tensor) -> None:
        """Note the gradient that a real tensor has: backward may put a fake there, or the code nothing."""
        if tensor.is_leaf and tensor.requires_grad and not is_fake(tensor):
            self._gradients.setdefault(id(tensor), (tensor, tensor.grad))

    def put_gradients_back(self) -> None:
        """Let real tensors have the gradients that they had."""
        for tensor, gradient in self._gradients.values():
            if tensor.grad is not gradient:
                tensor.grad = gradient

    def set_data(self, tensor: torch.Tensor, other: torch.Tensor) -> bool:
        """`tensor.data = other`: from now on the tensor stands for the other one's memory. Whether it can."""
        if not (is_fake(tensor) and is_fake(other)) or (tensor.dtype, tensor.device) != (other.dtype, other.device):
            return False
        self.moved.add(self.value_of(tensor))
        lie_on(self, tensor, other)
        return True

    def trace_number(self, value: Value, now: Plain) -> Any:
        """A symbolic number for an input that is a number, which is `now` in this call."""
        return traced_number(self, value, of_python(now))

    def add_exchanged(self, tensor: torch.Tensor, name: str, real: torch.Tensor) -> Value:
        """Declare an input tensor. real: what has its contents while the step is recorded."""
        value = self.add_tensor(tensor, name, real)
        self.guesses.reals[value] = real
        return value

    def add_traced(self, name: str, now: Plain) -> Value:
        """Declare an input number that is traced."""
        self.numbers_now[name] = of_python(now)
        value = Value(name, ScalarMeta(symbol(name)))
        self._roots[value] = frozenset((name,))
        self.of_numpy.given(value, now)
        return value

    def end(self) -> None:
        """Nothing is recorded any more: what knows the recorder is let go: numbers, and errors, by their frames."""
        self.collectives.end()
        for known in (self._tokens, self.guesses.reals, self.refusals, self.parallel.reducers):
            known.clear()

    # --- operators ------------------------------------------------------------------------------------------

    def _dispatched(self, func: Any, types: object, args: Sequence[Any], kwargs: Any) -> Any:
        try:
            return self._told(func, types, args, kwargs)
        except DovetailError as error:
            self.refusals.append(error)
            raise

    def _told(self, func: Any, types: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        if isinstance(types, Sequence) and any(map(is_wrapper_type, types)):
            return self.leave_to_class(func, args, kwargs)
        if func is _ITEM:
            return self._item(args[0])
        if func.namespace == "profiler":  # ranges that torch opens for itself
            return func(*args, **(kwargs or {}))
        self.phase = Phase.FORWARD if running_sequence_number() is None else Phase.BACKWARD
        if func.namespace == "fsdp" and (run := taken_apart(func.overloadpacket.__name__)) is not None:
            return runs_apart(self, run, args, kwargs or {})
        if func.namespace in NAMESPACES:
            return self.collectives.run(func, args, kwargs or {})
        if self._tokens:
            args, kwargs = self.meant(args, kwargs)
        if isinstance(func, Overload):
            args, kwargs = settled(func, args, kwargs or {}, self._as_size, set(map(id, self._tokens.values())))
        result = super()._dispatched(func, types, args, kwargs)
        if func is _LIFT and not is_fake(args[0]):
            self.known.learn(result, args[0])
        self.sizes.ask()
        if func in RENAMES:
            self.renamed[id(result)] = self._tracker.here()
        return result

    def _describe(self, tensor: torch.Tensor, name: str) -> Meta:
        if tensor.layout is torch.sparse_coo and is_fake(tensor):
            self.refuse_sparse(name)
        if is_wrapper_type(type(tensor)):
            raise wrapper_left(tensor, self._tracker.here())
        return super()._describe(tensor, name)

    def refuse_sparse(self, func: Any) -> NoReturn:
        """See `SparseGradients`."""
        raise UnsupportedStep(
            what=f"uses a sparse gradient for more than updates of weights ({func})",
            why="a program knows such gradients by their indices and values",
            hint="create the layer with sparse=False, or convert the gradient with .to_dense()",
            origin=self._tracker.here(),
        )

    def refuse_matrix(self, label: str, what: str) -> NoReturn:
        """See `SparseOperands`."""
        raise UnsupportedStep(
            what=f"uses {label}, a sparse matrix, for more than products with dense matrices ({what})",
            why="a program knows such a matrix by its indices and values",
            hint="compute it before the step, or convert it with .to_dense()",
            origin=self._tracker.here(),
        )

    def _run(self, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        args = [concrete(argument) for argument in args]
        keywords = {name: concrete(argument) for name, argument in keywords.items()}
        if func in CHECKED_QUESTIONS:
            return self.answer_to(func, args)
        if (made := result_at_full_rank(func, args, keywords)) is not None:
            return made
        in_eager_mode = partial(self.guesses.results, func, args)
        try:
            try:
                result = self._known_results.run(func, args, keywords)
            except DATA_DEPENDENT_ERRORS:
                if not self.sizes.begin():
                    raise
                with kernels_for_symbolic_sizes():
                    result = self._known_results.run(func, args, keywords)
            result = self.sizes.settled(result, in_eager_mode)
        except _UNKNOWN as error:
            result = self._as_seen(func, in_eager_mode(), error)
        self.known.follow(func, args, keywords, result)
        self.number_sizes.note_sizes(result)
        return result

    def _as_seen(self, func: Overload, results: Results, error: Exception) -> Any:
        """What an operator gives whose fakes know less than an eager run has shown."""
        returned = schema_of(func).returns
        if (
            not results
            or len(results) != len(returned)
            or any(kind != "Tensor" or alias for kind, alias, _ in returned)
        ):
            raise DataDependentControlFlow(operator=str(func), origin=self._tracker.here()) from error
        try:
            made = self.sizes.as_seen(results)
        except UnknownSize:
            raise DataDependentControlFlow(operator=str(func), origin=self._tracker.here()) from error
        return made[0] if len(returned) == 1 else tuple(made)

    # --- numbers --------------------------------------------------------------------------------------------

    def _item(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):  # autograd asks for the number that it was given as a tensor
            return tensor
        self.phase = Phase.FORWARD if running_sequence_number() is None else Phase.BACKWARD
        tensor = self._without_real(tensor)
        known = self.known.number(tensor)
        now, is_guess = self.guesses.number_at(self, tensor, known)
        value = self._number_node(_ITEM, (self.value_of(tensor),), "item", now)
        if known is None:
            self._from_data.add(value)
        if is_guess:
            self.guesses.add(value)
        return traced_number(self, value, now)

    def _number_node(self, target: Target, operands: tuple[Operand, ...], name: str, now: Plain) -> Value:
        name = self._fresh_name(name)
        self.numbers_now[name] = now
        value = Value(name, ScalarMeta(symbol(name)))
        self.nodes.append(
            Node(target, operands, outputs=(value,), phase=self.phase, origin=self._tracker.here(), unpack=False)
        )
        return value

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...], result: Plain) -> Any:
        """See `NumberTrace`. The same of the same numbers is one number, unless they may change in between."""
        values = [operand for operand in operands if isinstance(operand, Value)]
        roots = frozenset[str]().union(*(self._roots.get(value, frozenset()) for value in values))
        key = (function, *((type(x).__name__, x if isinstance(x, Value) else repr(x)) for x in operands))
        if key in self._computed and not roots:
            return self._computed[key]
        name, now = getattr(function, "__name__", "number").strip("_"), of_python(result)
        meant, found = self.of_numpy.meant(function, operands, self.numbers_now)
        made = self._number_node(meant, operands, name, now)
        self._computed[key] = made
        if any(value in self._from_data for value in values):
            self._from_data.add(made)
            self.guesses.add(made, values)
        self._roots[made] = roots
        self.number_sizes.computed(made, function, operands)
        self.of_numpy.computed(function, values, made, result if found is None else found)
        return made

    def dtype_of_numpy(self, numbers: Iterable[Any]) -> torch.dtype | None:
        """See `NumpyNumbers`. Raises: UnsupportedStep."""
        return self.of_numpy.dtype_of(numbers, self._refuse)

    def typed(self, handle: Any, now: Plain) -> Any:
        """See `NumberTrace`."""
        return self.of_numpy.typed(handle, now) if isinstance(handle, Value) else now

    def knows(self, handle: Any) -> bool:
        """See `NumberTrace`: an eager run has shown all numbers."""
        return True

    def might_give(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Plain | None:
        """See `NumberTrace`: numbers of NumPy give where Python's fail."""
        return self.of_numpy.result(function, operands, self.numbers_now)

    def expect_number(self, handle: Any, answer: bool) -> bool:
        """See `NumberTrace`."""
        return self.decide(handle, answer)

    def is_of_numpy(self, handle: Any) -> bool:
        """See `NumberTrace`."""
        return self.of_numpy.may_be(handle)

    # --- questions ------------------------------------------------------------------------------------------

    def decide(self, handle: Any, answer: bool) -> bool:
        """See `NumberTrace`. Of data, another answer is as likely where it was the right one in this call."""
        if self.number_sizes.is_known_to_torch(handle):
            return bool(self.number_sizes.ask_torch(handle, answer))
        if isinstance(handle, Value):
            answer = self.other_answer(answer) if handle in self._from_data else answer
            self.ask(GUARD, handle, answer)
        return answer

    def fix(self, handle: Any, number: Plain) -> Plain:
        """See `NumberTrace`. Raises: UnsupportedStep for a number that data decide."""
        if not isinstance(handle, Value):
            return number
        if self.number_sizes.is_known_to_torch(handle):
            asked: Plain = self.number_sizes.ask_torch(handle, number)
            return asked
        number = self.of_numpy.typed(handle, number) if type(number) is float else number
        long: Plain | None = self.texts.long_number(handle, number)
        if long is not None:
            return long
        if handle in self._from_data and isinstance(number, float):
            self._refuse(
                what="turns a number that it computes into a plain Python number",
                why="the number differs in each call, and a program cannot track plain Python numbers",
                hint="use .item() and arithmetic, or compare it; or do it after the step, or in a dovetail.host_call",
            )
        self.ask(GUARD_NUMBER, handle, number)
        return number

    def text(self, handle: Any, now: Plain, convert: Callable[[Any], str]) -> str:
        """See `NumberTrace`. Raises: UnsupportedStep where the text is made by a library."""
        if not isinstance(handle, Value):
            return convert(handle)
        is_whole = handle in self._from_data and type(now) is not float
        if is_whole or self.number_sizes.is_of_arguments(handle):
            if self.texts.asks_whole_numbers:
                return convert(self.fix(handle, now))
            self.texts.has_whole_numbers = True
        if convert is repr and (kind := self.of_numpy.kind_of(handle)) is not None:
            convert = of_numpy(repr, (kind,))
        convert = self.texts.settled(convert, lambda x: self.fix(x, self.numbers_now[x.name]))
        made = self.texts.mark_for(handle, convert)
        if made is None:
            self.blame_texts([handle])
            self._refuse(
                what="turns a number that it computes into text, in a library's code",
                why="what the library does with the text would be done once, while the step is captured, and never "
                "again",
                hint="return the number, and make the text after the step; or do it in a function marked with "
                "dovetail.host_call",
            )
        return made

    def blame_texts(self, handles: Iterable[Any] = ()) -> None:
        """The step is refused for a text of these numbers, or for some text."""
        for handle in handles or self.texts.items:
            self.blamed |= self._roots.get(handle, frozenset()) if isinstance(handle, Value) else frozenset()

    def _refuse(self, **facts: object) -> NoReturn:
        error = UnsupportedStep(origin=self._tracker.here(), **facts)
        self.refusals.append(error)
        raise error
