"""Operators over sub-programs (`scan`, `while_loop`, ...) and how torch takes their sub-programs apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch._guards import active_fake_mode
from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner
from torch.utils._python_dispatch import _disable_current_modes

from dovetail.torch_compat.autograd import without_saved_tensor_hooks


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
