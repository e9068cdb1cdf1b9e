"""Operators over sub-programs (`scan`, `while_loop`, ...) and how torch takes their sub-programs apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch._dynamo.convert_frame import fullgraph_capture
from torch._dynamo.utils import get_metrics_context
from torch._guards import active_fake_mode
from torch._higher_order_ops import utils
from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner
from torch._higher_order_ops.utils import setup_compilation_env
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from dovetail.torch_compat.autograd import without_saved_tensor_hooks
from dovetail.torch_compat.symbols import new_shape_env


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
            return original(*args, **kwargs)

    owner: Any = HopGraphMinCutPartitioner
    owner.create_partitioned_graph = staticmethod(create_partitioned_graph)
    try:
        yield
    finally:
        owner.create_partitioned_graph = staticmethod(original)


@contextmanager
def sub_programs_by_dynamo(run: Callable[[GraphModule, Sequence[Any]], Any]) -> Iterator[None]:
    """While active, what this thread gives to `torch.cond` and its kind goes through Dynamo, although modes are entered.

    Eager does that, too: Dynamo makes graphs of Python functions, and operands of the tensors that they close over.
    `run` gets Dynamo's graph and its inputs, with the modes entered again, and gives what the graph gives.
    """
    original = utils._hop_compile_and_call
    thread = threading.get_ident()

    def compile_and_call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if threading.get_ident() != thread:
            return original(fn, args, kwargs)
        modes = _get_current_dispatch_mode_stack()

        def compiled(graph: GraphModule) -> Any:
            def call(*inputs: Any) -> Any:
                with ExitStack() as stack:
                    for mode in modes:
                        stack.enter_context(mode)
                    return run(graph, inputs)
            return call

        with _disable_current_modes(), setup_compilation_env(), get_metrics_context():
            captured = fullgraph_capture(fn, tuple(args), kwargs)
            return captured.forward_callable(compiled_fn=compiled(captured.backend_input.graph_module), extra_globals=fn.__globals__)(*args, **(kwargs or {}))

    place: Any = utils
    place._hop_compile_and_call = compile_and_call
    try:
        yield
    finally:
        place._hop_compile_and_call = original


def let_sizes_be_unknown() -> None:
    """Give the fake mode that is active symbols for sizes, if it has none: loops count with them."""
    fake_mode = active_fake_mode()
    if fake_mode is not None and fake_mode.shape_env is None:
        fake_mode.shape_env = new_shape_env()
