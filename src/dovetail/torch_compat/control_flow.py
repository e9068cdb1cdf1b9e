"""Operators over sub-programs (`scan`, `while_loop`, ...) and how torch takes their sub-programs apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import Source, active_fake_mode
from torch._higher_order_ops import utils
from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner
from torch._higher_order_ops.utils import setup_compilation_env
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from dovetail.torch_compat.autograd import without_saved_tensor_hooks
from dovetail.torch_compat.fakes import kernels_for_symbolic_sizes
from dovetail.torch_compat.symbols import new_shape_env

if TYPE_CHECKING:
    from torch._dynamo.convert_frame import CaptureOutput, FrameInfo

# Seconds to wait for another thread that compiles with Dynamo.
_PATIENCE = 5.0


class _Here(threading.local):
    """What holds in a thread. apart: `traced_apart`. cut: a sub-program is being cut in two. run: what runs graphs."""

    apart = False
    cut = False
    run: Callable[[GraphModule, Sequence[Any]], Any] | None = None


_HERE = _Here()


@contextmanager
def _holding(name: str, value: object) -> Iterator[None]:
    """While active, something holds in this thread."""
    before = getattr(_HERE, name)
    setattr(_HERE, name, value)
    try:
        yield
    finally:
        setattr(_HERE, name, before)


_REPLACING = threading.Lock()
_USERS: list[int] = []  # threads that want torch's functions replaced, once for each time


@contextmanager
def _replaced() -> Iterator[None]:
    """While active in any thread, torch's functions ask `_HERE` first; several threads may record at a time."""
    user = threading.get_ident()
    with _REPLACING:
        _USERS.append(user)
        if len(_USERS) == 1:
            _put(_partitioned, _functionalized, _compiled_and_called)
    try:
        yield
    finally:
        with _REPLACING:
            _USERS.remove(user)
            if not _USERS:
                _put(_PARTITION, _FUNCTIONALIZE, _COMPILE_AND_CALL)


_PARTITION: Any = HopGraphMinCutPartitioner.create_partitioned_graph
_FUNCTIONALIZE: Any = torch.func.functionalize
_COMPILE_AND_CALL: Any = utils._hop_compile_and_call


def _put(partition: Any, functionalize: Any, compile_and_call: Any) -> None:
    places: Any = (HopGraphMinCutPartitioner, torch.func, utils)
    places[0].create_partitioned_graph = staticmethod(partition)
    places[1].functionalize = functionalize
    places[2]._hop_compile_and_call = compile_and_call


@contextmanager
def traced_apart() -> Iterator[None]:
    """While active, this thread's modes, but for a fake mode, do not see how `scan` cuts its sub-program in two.

    That is a compilation of torch's own, over fake tensors of its own: no part of what the user's program runs.
    """
    with _holding("apart", True), _replaced():
        yield


def _partitioned(*args: Any, **kwargs: Any) -> Any:
    if not _HERE.apart:
        return _PARTITION(*args, **kwargs)
    fake_mode = active_fake_mode()
    try:
        with _holding("cut", True), _disable_current_modes(), without_saved_tensor_hooks(), fake_mode or nullcontext():
            return _PARTITION(*args, **kwargs)
    except RuntimeError as error:  # a kernel that takes no symbols, for one
        raise NotImplementedError("the gradient of the sub-program could not be traced") from error


def _functionalized(graph: Any, **options: Any) -> Any:
    """The last pass over a step and its gradient: now operators may run kernels in Python, for symbolic sizes."""
    pure = _FUNCTIONALIZE(graph, **options)
    if not _HERE.cut:
        return pure

    def run(*args: Any) -> Any:
        with kernels_for_symbolic_sizes():
            return pure(*args)

    return run


@contextmanager
def sub_programs_by_dynamo(run: Callable[[GraphModule, Sequence[Any]], Any]) -> Iterator[None]:
    """While active, what this thread gives to `torch.cond` and its kind goes through Dynamo, in spite of modes.

    Eager does that, too: Dynamo makes graphs of Python functions, and operands of the tensors that they close over.
    `run` gets Dynamo's graph and its inputs, with the modes entered again, and gives what the graph gives. What Dynamo
    takes for granted of symbolic sizes is taken for granted by the caller's symbols from then on.
    """
    with _holding("run", run), _replaced():
        yield


def _compiled_and_called(fn: Any, args: Any, kwargs: Any = None) -> Any:
    run, modes = _HERE.run, _get_current_dispatch_mode_stack()
    if run is None:
        return _COMPILE_AND_CALL(fn, args, kwargs)
    with _disable_current_modes():
        frame, captured = _captured(fn, tuple(args), dict(kwargs or {}))
        _rely_on(captured.graph_capture_output.output_graph.shape_env, frame)
        if captured.backend_input is None:
            raise NotImplementedError("Dynamo found nothing to compute")
        graph = captured.backend_input.graph_module

        def call(*inputs: Any) -> Any:
            with ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                return run(graph, inputs)

        return captured.forward_callable(compiled_fn=call, extra_globals=fn.__globals__)(*args, **(kwargs or {}))


def _captured(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[FrameInfo, CaptureOutput]:
    # Who holds Dynamo's lock may be waiting for the recording that runs here; its graph is made by then.
    dynamo = torch._dynamo  # loaded here: it takes longer than all of dovetail, and few programs need it
    is_locked = dynamo.convert_frame.compile_lock.acquire(timeout=_PATIENCE)
    try:
        sizes = dynamo.config.patch(
            automatic_dynamic_shapes=False, assume_static_by_default=True
        )  # symbols stay symbols
        with setup_compilation_env(), dynamo.utils.get_metrics_context(), sizes:
            frame: FrameInfo = dynamo.convert_frame._get_frame(fn, args, kwargs)
            return frame, dynamo.convert_frame.fullgraph_capture(fn, args, kwargs)
    finally:
        if is_locked:
            dynamo.convert_frame.compile_lock.release()


def _rely_on(shape_env: ShapeEnv, frame: FrameInfo) -> None:
    """Ask of the sizes that the caller knows what Dynamo has found out about its own symbols for them."""
    scope = {"L": frame.locals, "G": frame.globals}
    known: dict[Any, Any] = {}
    for symbol, sources in shape_env.var_to_sources.items():
        numbers = [_number_at(source, scope) for source in sources]
        if all(type(number) is int for number in numbers):
            known.update(zip([symbol], numbers, strict=False))
            continue
        known[symbol] = numbers[0]
        bounds = shape_env.var_to_range[symbol]
        holds = [number == numbers[0] for number in numbers]
        holds += [numbers[0] >= int(bounds.lower)] if bounds.lower.is_Integer else []
        holds += [numbers[0] <= int(bounds.upper)] if bounds.upper.is_Integer else []
        _check_all(holds)
    facts = [guard.expr for guard in shape_env.guards]
    for asserts in shape_env.deferred_runtime_asserts.values():
        facts += [fact.expr for fact in asserts if fact.expr.free_symbols <= known.keys()]  # others are found anew
    _check_all([sympy_interp(PythonReferenceAnalysis, known, fact) for fact in facts])


def _number_at(source: Source, scope: dict[str, Any]) -> Any:
    """The size that Dynamo has a symbol for; it says where it found it as a Python expression."""
    try:
        return eval(source.name, scope)
    except Exception as error:
        raise NotImplementedError(f"a size is not found again: {source}") from error


def _check_all(facts: Sequence[Any]) -> None:
    for fact in facts:
        if not fact:  # a symbolic fact is relied upon when it is asked
            raise NotImplementedError(f"Dynamo takes sizes to be others than they are: {fact}")


def let_sizes_be_unknown() -> None:
    """Give the fake mode that is active symbols for sizes, if it has none: loops count with them."""
    fake_mode = active_fake_mode()
    if fake_mode is not None and fake_mode.shape_env is None:
        fake_mode.shape_env = new_shape_env()
