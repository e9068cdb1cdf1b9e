"""Operators over sub-programs (`scan`, `while_loop`, ...) and how torch takes their sub-programs apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch._dynamo import config
from torch._dynamo.convert_frame import CaptureOutput, FrameInfo, _get_frame, compile_lock, fullgraph_capture
from torch._dynamo.utils import get_metrics_context
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

# Seconds to wait for another thread that compiles with Dynamo.
_PATIENCE = 5.0


@contextmanager
def traced_apart() -> Iterator[None]:
    """While active, this thread's modes, but for a fake mode, do not see how `scan` cuts its sub-program in two.

    That is a compilation of torch's own, over fake tensors of its own: no part of what the user's program runs.
    """
    original = HopGraphMinCutPartitioner.create_partitioned_graph
    thread = threading.get_ident()

    def create_partitioned_graph(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        fake_mode = active_fake_mode()
        with ExitStack() as stack:
            stack.enter_context(_disable_current_modes())
            stack.enter_context(without_saved_tensor_hooks())
            if fake_mode is not None:
                stack.enter_context(fake_mode)
            stack.enter_context(mock.patch("torch.func.functionalize", functionalize))
            try:
                return original(*args, **kwargs)
            except RuntimeError as error:  # a kernel that takes no symbols, for one
                raise NotImplementedError("the gradient of the sub-program could not be traced") from error

    functionalize_as_torch = torch.func.functionalize

    def functionalize(graph: Any, **options: Any) -> Any:
        """The last pass over the graph; here its operators may need kernels in Python, which take symbolic sizes."""
        pure = functionalize_as_torch(graph, **options)
        is_here = threading.get_ident() == thread

        def run(*args: Any) -> Any:
            with kernels_for_symbolic_sizes() if is_here else nullcontext():
                return pure(*args)

        return run

    owner: Any = HopGraphMinCutPartitioner
    owner.create_partitioned_graph = staticmethod(create_partitioned_graph)
    try:
        yield
    finally:
        owner.create_partitioned_graph = staticmethod(original)


@contextmanager
def sub_programs_by_dynamo(run: Callable[[GraphModule, Sequence[Any]], Any]) -> Iterator[None]:
    """While active, what this thread gives to `torch.cond` and its kind goes through Dynamo, in spite of modes.

    Eager does that, too: Dynamo makes graphs of Python functions, and operands of the tensors that they close over.
    `run` gets Dynamo's graph and its inputs, with the modes entered again, and gives what the graph gives. What Dynamo
    takes for granted of symbolic sizes is taken for granted by the caller's symbols from then on.
    """
    original = utils._hop_compile_and_call
    thread = threading.get_ident()

    def compile_and_call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if threading.get_ident() != thread:
            return original(fn, args, kwargs)
        modes = _get_current_dispatch_mode_stack()
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

    place: Any = utils
    place._hop_compile_and_call = compile_and_call
    try:
        yield
    finally:
        place._hop_compile_and_call = original


def _captured(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[FrameInfo, CaptureOutput]:
    # Who holds Dynamo's lock may be waiting for the recording that runs here; its graph is made by then.
    is_locked = compile_lock.acquire(timeout=_PATIENCE)
    try:
        sizes = config.patch(automatic_dynamic_shapes=False, assume_static_by_default=True)  # symbols stay symbols
        with setup_compilation_env(), get_metrics_context(), sizes:
            return _get_frame(fn, args, kwargs), fullgraph_capture(fn, args, kwargs)
    finally:
        if is_locked:
            compile_lock.release()


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
