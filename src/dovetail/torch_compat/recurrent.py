"""The functions of recurrent layers, which `torch.nn` and users call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dovetail.torch_compat.autograd import below_autograd


@contextmanager
def functions_below_autograd(names: Sequence[str], suits: Callable[[Sequence[Any]], bool]) -> Iterator[None]:
    """While active, these functions of torch reach dispatch modes as the operators they are, in this thread.

    Above autograd torch takes composite operators apart before a mode sees them. Calls under gradients or autocast,
    which the parts would see, stay as they are. A function mode would do as well, but torch's own modules take other
    ways where one is active. suits: whether a call, by its arguments, is meant.
    """
    spaces: tuple[Any, ...] = (torch, torch._VF)
    before = [(space, name, space.__dict__.get(name)) for space in spaces for name in names]
    thread = threading.get_ident()
    for name in names:
        function = _below_autograd(getattr(torch, name), suits, thread)
        for space in spaces:
            setattr(space, name, function)
    try:
        yield
    finally:
        for space, name, function in before:
            if function is None:
                delattr(space, name)
            else:
                setattr(space, name, function)


def _below_autograd(
    function: Callable[..., Any], suits: Callable[[Sequence[Any]], bool], thread: int
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_other = threading.get_ident() != thread or torch.is_grad_enabled() or kwargs or not suits(args)
        if is_other or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return function(*args, **kwargs)
        with below_autograd():
            return function(*args, **kwargs)

    return call


_OF_PACKED = frozenset(("lstm_data_impl", "gru_impl_data", "rnn_tanh_data", "rnn_relu_data"))


def runs_packed(error: BaseException) -> bool:
    """Whether an error was raised in a recurrent layer over a packed sequence."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        is_layer = code.co_filename == torch.nn.modules.rnn.__file__
        if is_layer and isinstance(trace.tb_frame.f_locals.get("batch_sizes"), torch.Tensor):
            return True
        if code.co_name in _OF_PACKED and "_decomp" in code.co_filename:
            return True
        trace = trace.tb_next
    return False
