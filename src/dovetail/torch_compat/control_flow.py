"""Operators over subgraphs (`scan`, `while_loop`, ...) and how torch takes their subgraphs apart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from os.path import dirname
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import Source, active_fake_mode
from torch._higher_order_ops import partitioner, utils
from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner
from torch._higher_order_ops.utils import setup_compilation_env
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_iter
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from dovetail.torch_compat.autograd import without_saved_tensor_hooks
from dovetail.torch_compat.fakes import kernels_for_symbolic_sizes, mode_of
from dovetail.torch_compat.hidden_fakes import shown_fakes
from dovetail.torch_compat.symbols import new_shape_env

if TYPE_CHECKING:
    from torch._dynamo.convert_frame import CaptureOutput, FrameInfo

# Seconds to wait for another thread that compiles with Dynamo.
_PATIENCE = 5.0


class _Here(threading.local):
    """What holds in a thread. apart: `traced_apart`. cut: a subgraph is being cut in two. run: what runs graphs."""

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
_DETECT: Any = vars(utils)["detect_fake_mode"]
_COMPILE: Any = torch.compile
# In torch 2.11, each operator calls `torch.compile` itself, and looks for fakes' mode around before it asks operands.
_HAS_COMPILE_AND_CALL = hasattr(utils, "_hop_compile_and_call")


def _compile_and_call(fn: Any, args: Any, kwargs: Any = None) -> Any:
    """What torch does with the function that an operator over subgraphs makes of its operands."""
    with setup_compilation_env() as backend:
        return _COMPILE(fn, backend=backend, fullgraph=True)(*args, **(kwargs or {}))


_COMPILE_AND_CALL: Any = getattr(utils, "_hop_compile_and_call", _compile_and_call)


_IS_LOUD = partitioner.logger.level == logging.DEBUG  # before torch 2.13, which then prints every graph


def _put(partition: Any, functionalize: Any, compile_and_call: Any) -> None:
    if _IS_LOUD:
        partitioner.logger.setLevel(logging.DEBUG if partition is _PARTITION else logging.NOTSET)
    places: Any = (HopGraphMinCutPartitioner, torch.func, utils)
    places[0].create_partitioned_graph = staticmethod(partition)
    places[1].functionalize = functionalize
    if _HAS_COMPILE_AND_CALL:
        places[2]._hop_compile_and_call = compile_and_call
    else:
        torch.compile = _COMPILE if compile_and_call is _COMPILE_AND_CALL else _compiled
        places[2].detect_fake_mode = _DETECT if compile_and_call is _COMPILE_AND_CALL else _mode_of_operands


def _mode_of_operands(operands: Any = None) -> Any:
    """The mode of the fakes that a subgraph is traced with; a compilation around may have another one."""
    modes = [mode for mode in map(mode_of, tree_iter(operands)) if mode is not None] if _HERE.apart else []
    return modes[0] if modes else _DETECT(operands)


def _compiled(*args: Any, **options: Any) -> Any:
    """`torch.compile`, but for what torch's operators over subgraphs give to it."""
    fn = args[0] if args else None
    if _HERE.run is None or not str(getattr(fn, "__module__", "")).startswith("torch._higher_order_ops."):
        return _COMPILE(*args, **options)
    return lambda *given, **named: _compiled_and_called(fn, given, named)


@contextmanager
def traced_apart() -> Iterator[None]:
    """While active, this thread's modes, but for a fake mode, do not see how `scan` cuts its subgraph in two.

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
        raise NotImplementedError("the gradient of the subgraph could not be traced") from error


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
        with setup_compilation_env(), dynamo.utils.get_metrics_context(), sizes, shown_fakes():
            frame: FrameInfo = dynamo.convert_frame._get_frame(fn, args, kwargs)
            return frame, dynamo.convert_frame.fullgraph_capture(fn, args, kwargs)
    except dynamo.exc.UncapturedHigherOrderOpError as error:
        if "input mutation" not in str(error):
            raise
        raise NotImplementedError("a subgraph writes its inputs") from error  # since torch 2.13 others find that
    finally:
        if is_locked:
            dynamo.convert_frame.compile_lock.release()


# Code that gives functions of the user's to Dynamo: from here, and where `torch.compile` was asked for.
GIVES_TO_DYNAMO = (
    (__file__, _captured.__name__),
    (f"{dirname(torch.__file__)}/_dynamo/eval_frame.py", "compile_wrapper"),
)


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
        facts += [fact.expr for fact in asserts if fact.expr.free_symbols <= known.keys()]  # others are found again
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


def unknown_integer() -> torch.SymInt:
    """An integer of which nothing is known, for fakes of the mode that is active, which does not wait for it."""
    fake_mode = active_fake_mode()
    assert fake_mode is not None and fake_mode.shape_env is not None, "called where sizes may be unknown"
    with fake_mode.shape_env.ignore_fresh_unbacked_symbols():
        number: torch.SymInt = fake_mode.shape_env.create_unbacked_symint()
    return number
