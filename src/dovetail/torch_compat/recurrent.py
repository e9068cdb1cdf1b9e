"""The functions of recurrent layers, which `torch.nn` and users call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch

from dovetail.torch_compat.autograd import below_autograd


@contextmanager
def functions_below_autograd(names: Sequence[str], suits: Callable[[Sequence[Any]], bool]) -> Iterator[None]:
    """While active, these functions of torch reach dispatch modes as the operators they are, in this thread.

    Above autograd torch takes composite operators apart before a mode sees them. Calls under gradients or autocast,
    which the parts would see, stay as they are. A function mode would do as well, but torch's own modules take other
    ways where one is active. suits: whether a call, by its arguments, is meant.
    """

    def is_meant(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        is_other = torch.is_grad_enabled() or bool(kwargs) or not suits(args)
        return not (is_other or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))

    with functions_replaced({name: (is_meant, _below_autograd(getattr(torch, name))) for name in names}):
        yield


Replacement: TypeAlias = "tuple[Callable[[Sequence[Any], Mapping[str, Any]], bool], Callable[..., Any]]"


@contextmanager
def functions_replaced(table: Mapping[str, Replacement]) -> Iterator[None]:
    """While active, other functions run in place of these of torch, in this thread.

    table: by name, which calls are meant, by their arguments, and what runs in their place.
    """
    spaces: tuple[Any, ...] = (torch, torch._VF)
    before = [(space, name, space.__dict__.get(name)) for space in spaces for name in table]
    thread = threading.get_ident()
    for name, (suits, instead) in table.items():
        function = _replaced(getattr(torch._VF, name), suits, instead, thread)
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


def _replaced(
    function: Callable[..., Any],
    suits: Callable[[Sequence[Any], Mapping[str, Any]], bool],
    instead: Callable[..., Any],
    thread: int,
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_meant = threading.get_ident() == thread and suits(args, kwargs)
        return (instead if is_meant else function)(*args, **kwargs)

    return call


def _below_autograd(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with below_autograd():
            return function(*args, **kwargs)

    return call


def above_autograd() -> AbstractContextManager[None]:
    """While active, a kernel that autograd has called may use autograd again."""
    kept, left_out = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for name in _AUTOGRAD:
        left_out = left_out.remove(getattr(torch._C.DispatchKey, name))
    return torch._C._ForceDispatchKeyGuard(kept, left_out)


_AUTOGRAD = ("AutogradCPU", "AutogradCUDA", "AutogradOther", "AutogradFunctionality", "ADInplaceOrView")
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
