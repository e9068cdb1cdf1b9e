"""Messages between two ranks as operators of a program.

    send(activation, 1, 0, "0")          receive_(gradient, 1, 0, "0")

They wait, as `torch.distributed.send` and `recv` do. What the user's code waits for later begins and ends in two
operators, at the places where eager mode begins it and waits: it may only be right to wait once others are under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from dovetail.errors import CollectiveFailed, DovetailError
from dovetail.ops.custom import define
from dovetail.torch_compat.acting import let_act
from dovetail.torch_compat.collectives import find_group

WORK = "_dovetail_work"
"""The attribute of a token that holds what is under way."""

_WATCH = threading.local()


@contextmanager
def messages_watched(begin: Callable[[str], None], wait: Callable[[str, int, int, Any], None]) -> Iterator[None]:
    """While active, messages of this thread tell before they begin, and are waited for by another function.

    begin: gets the name of the group. wait: gets that, the other rank, the tag, and the work.
    """
    before = getattr(_WATCH, "functions", None)
    _WATCH.functions = begin, wait
    try:
        yield
    finally:
        _WATCH.functions = before


@contextmanager
def failures_named(what: str, group: str) -> Iterator[None]:
    """While active, errors of torch's say which collective, or message, of which group failed."""
    try:
        yield
    except (RuntimeError, LookupError) as error:
        if isinstance(error, DovetailError):
            raise
        raise CollectiveFailed(operator=what, group=group, error=f"{type(error).__name__}: {error}") from error


def new_token(*_: object) -> torch.Tensor:
    """What stands for something that is under way."""
    return torch.empty(0, dtype=torch.uint8)


def _send(pg: Any, tensor: torch.Tensor, to: int, tag: int) -> Any:
    return dist.isend(tensor, group=pg, tag=tag, group_dst=to)


def _receive(pg: Any, tensor: torch.Tensor, of: int, tag: int) -> Any:
    return dist.irecv(tensor, group=pg, tag=tag, group_src=of)


def _begin(start: Callable[..., Any], tensor: torch.Tensor, other: int, tag: int, group: str) -> Any:
    functions = getattr(_WATCH, "functions", None)
    if functions is not None:
        functions[0](group)
    return start(find_group(group), tensor, other, tag)


def _finish(work: Any, other: int, tag: int, group: str) -> None:
    functions = getattr(_WATCH, "functions", None)
    if functions is None:
        work.wait()
    else:
        functions[1](group, other, tag, work)


def _start_send(tensor: torch.Tensor, to: int, tag: int, group: str) -> torch.Tensor:
    token = new_token()
    with failures_named("send", group):
        setattr(token, WORK, (_begin(_send, tensor, to, tag, group), to, tag))
    return token


def _end_send(token: torch.Tensor, tensor: torch.Tensor, group: str) -> None:
    with failures_named("send", group):
        work, to, tag = vars(token).pop(WORK)
        _finish(work, to, tag, group)


def _start_receive(like: torch.Tensor, of: int, tag: int, group: str) -> torch.Tensor:
    """Memory of its own receives the message: a program on copies would lose what arrives in an operand later."""
    token, arriving = new_token(), torch.empty_like(like, memory_format=torch.contiguous_format)
    with failures_named("receive", group):
        setattr(token, WORK, (arriving, _begin(_receive, arriving, of, tag, group), of, tag))
    return token


def _end_receive(token: torch.Tensor, tensor: torch.Tensor, group: str) -> None:
    with failures_named("receive", group):
        arrived, work, of, tag = vars(token).pop(WORK)
        _finish(work, of, tag, group)
    tensor.copy_(arrived)


def _define_message(name: str, arguments: str, start: Callable[..., Any]) -> Any:
    """The operator that sends or receives a message, and waits for it, as eager mode does."""
    what = start.__name__.strip("_")

    def run(tensor: torch.Tensor, other: int, tag: int, group: str) -> None:
        with failures_named(what, group):
            _finish(_begin(start, tensor, other, tag, group), other, tag, group)

    return define(name, f"({arguments}, str group) -> ()", run, lambda *_: None)


SEND = _define_message("send", "Tensor tensor, int to, int tag", _send)
RECEIVE = _define_message("receive_", "Tensor(a!) tensor, int of, int tag", _receive)
START_SEND = define("start_send", "(Tensor tensor, int to, int tag, str group) -> Tensor", _start_send, new_token)
END_SEND = define("end_send", "(Tensor token, Tensor tensor, str group) -> ()", _end_send, lambda *_: None)
START_RECEIVE = define(
    "start_receive", "(Tensor like, int of, int tag, str group) -> Tensor", _start_receive, new_token
)
END_RECEIVE = define(
    "end_receive_", "(Tensor token, Tensor(a!) tensor, str group) -> ()", _end_receive, lambda *_: None
)

MESSAGES = frozenset({SEND, RECEIVE, START_SEND, START_RECEIVE, END_SEND, END_RECEIVE})
let_act(MESSAGES)
