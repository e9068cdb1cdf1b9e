"""What `torch.distributed` hands to its operators: process groups, reductions, and work that is under way."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, wraps
from inspect import unwrap
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

is_available: bool = dist.is_available()
NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})

# The names of reductions that say all about them; one more multiplies by a factor that only its object knows.
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def default_group() -> Any:
    """The default process group; None before `init_process_group`."""
    return dist.GroupMember.WORLD if is_available and dist.is_initialized() else None


def group_in(argument: Any) -> Any:
    """The process group that an operator got: by its name, as itself, or boxed for the dispatcher."""
    if isinstance(argument, str):
        return find_group(argument)
    if isinstance(argument, torch.ScriptObject):
        return torch._C._distributed_c10d.ProcessGroup.unbox(argument)
    return argument


def is_boxed_group(argument: Any) -> bool:
    """Whether an argument of an operator is a process group."""
    return isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type())


def name_of_group(group: Any) -> str:
    """The name by which every rank of a group finds it again."""
    name: str = group.group_name
    return name


_WAITING = frozenset(unwrap(function).__code__ for function in (dist.send, dist.recv)) if is_available else frozenset()
_TAGS_APART = 1_008_000_000  # gloo has a connection for each network device, and takes one by the tag's remainder
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_", "isend", "irecv", "batch_p2p_ops", "check_for_nan")


def group_of_operator(func: Any, args: Sequence[Any]) -> str | None:
    """The name of the group whose ranks all take part in an operator of torch's; None where they do not."""
    name = func.overloadpacket.__name__
    if name in _BETWEEN_TWO or name in ("wait_tensor", "_wrap_tensor_autograd"):
        return None
    if func.namespace == "c10d":
        boxed = next(filter(is_boxed_group, args), None)
        return None if boxed is None else name_of_group(group_in(boxed))
    names = [argument.name for argument in func._schema.arguments]
    held = args[names.index("group_name")] if "group_name" in names else None
    return None if held is None else name_of_group(group_in(held))


def group_of_message(func: Any, args: Sequence[Any]) -> Any:
    """The group in which an operator of torch's sends a message to one rank, or receives one; None for others."""
    if func.namespace != "c10d" or func.overloadpacket.__name__ not in _BETWEEN_TWO:
        return None
    boxed = next(filter(is_boxed_group, args), None)
    return None if boxed is None else group_in(boxed)


def is_waiting_for_message() -> bool:
    """Whether code of this thread is in `send` or `recv`, which wait until the message is there."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _WAITING:
        frame = frame.f_back
    return frame is not None


def start_to_gather(numbers: Sequence[int], group: Any) -> tuple[Any, Callable[[], list[list[int]]]]:
    """Gather what every rank of a group says: as many numbers. Gives the work, and what reads the result after it."""
    device = _device_of(group)
    made = torch.empty(group.size() * len(numbers), dtype=torch.int64, device=device)
    told = torch.tensor(numbers, dtype=torch.int64, device=device)
    work = gather_parts()(made, told, group, async_op=True)
    return work, lambda: made.view(-1, len(numbers)).tolist()


def end_messages(group: Any, other: int, tag: int) -> None:
    """Let messages of a group on gloo fail that are waited for. Nothing can be sent in it afterwards.

    A wait that is too late ends the connections of its group: here that for a message which nobody sends.
    """
    with suppress(RuntimeError):
        apart = tag + (_TAGS_APART if tag < _TAGS_APART else -_TAGS_APART)
        never = dist.irecv(torch.empty(1), group=group, tag=apart, group_src=other)
        if never is not None:
            never.wait(timedelta(milliseconds=1))


def done_within(work: Any, seconds: float) -> bool:
    """Wait for work that is under way. Whether it is done. Raises: RuntimeError where it has failed."""
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()
    return True


def groups_of_process() -> list[Any]:
    """The process groups that this process is part of."""
    return list(dist.distributed_c10d._world.pg_map) if default_group() is not None else []


def rank_in(group: Any) -> int:
    """The number of this process in a group."""
    return int(group.rank())


def notes_of_group(group: Any) -> Any:
    """A store that the ranks of a group share, apart from torch's own keys; None where waiting cannot be watched."""
    if dist.get_backend(group) != "gloo":
        return None
    return dist.PrefixStore(f"dovetail/{name_of_group(group)}", dist.distributed_c10d._get_default_store())


def add_note_of_group(store: Any, key: str, before: str, text: str) -> str:
    """Let a note become `text` where it is `before` ("" for none), in one step. What it is then."""
    found: bytes = store.compare_set(key, before, text)
    return found.decode()


def gathered_objects(item: Any, group: Any) -> list[Any]:
    """What every rank of a group says, of any kind."""
    made: list[Any] = [None] * group.size()
    dist.all_gather_object(made, item, group)
    return made


def _device_of(group: Any) -> torch.device:
    kinds = sorted({device.type for device in group._device_types})
    return torch.device("cpu" if "cpu" in kinds or not kinds else kinds[0])


_FOUND: dict[str, Any] = {}


def find_group(name: str) -> Any:
    """The process group of a name. Raises: LookupError where there is none, or none any more."""
    known = _FOUND.get(name)
    group = None if known is None else known()
    if group is not None and group in dist.distributed_c10d._world.pg_map:
        return group
    for group, held in dist.distributed_c10d._world.pg_names.items():
        if held == name:
            _FOUND[name] = weakref.ref(group)
            return group
    raise LookupError(f"there is no process group {name!r}")


@cache
def asks_for_group(name: str) -> Callable[[], Any]:
    """A function that gives the process group of a name, None where there is none any more."""

    def ask() -> Any:
        try:
            return find_group(name)
        except LookupError:
            return None

    return ask


def _reduction_in(arguments: Iterable[Any]) -> Any:
    for argument in arguments:
        if hasattr(argument, "reduceOp"):
            return argument.reduceOp
        if isinstance(argument, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return argument
    return dist.ReduceOp.SUM


@contextmanager
def reductions_noted() -> Iterator[list[Any]]:
    """While active, the reductions of this thread's calls that are under way: operators get them boxed for good."""
    under_way: list[Any] = []
    thread = threading.get_ident()
    found = vars(dist.ProcessGroup).items() if is_available else ()
    held = {name: method for name, method in found if "reduce" in name and callable(method)}

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return method(*args, **kwargs)
            under_way.append(_reduction_in((*args[2:], *kwargs.values())))
            try:
                return method(*args, **kwargs)
            finally:
                under_way.pop()

        return call

    for name in held:
        setattr(dist.ProcessGroup, name, noting(getattr(dist.ProcessGroup, name)))
    try:
        yield under_way
    finally:
        for name, method in held.items():  # what `getattr` gives of a builtin method is not bound again
            setattr(dist.ProcessGroup, name, method)


def name_of_reduction(op: Any) -> str | None:
    """The name of a reduction, None where a name does not say all about it."""
    return next((name for name in REDUCTIONS if op == getattr(dist.ReduceOp, name)), None)


def reduction(name: str) -> Any:
    """The reduction of a name."""
    return getattr(dist.ReduceOp, name)


def scatter_sums() -> Callable[..., Any]:
    """`reduce_scatter_tensor`, by the name that it has now."""
    return getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Handing:
    """Work after which a part of what was reduced is handed out."""

    def __init__(self, work: Any, out: torch.Tensor, part: torch.Tensor) -> None:
        self._work, self._out, self._part = work, out, part

    def wait(self, *timeout: timedelta) -> None:
        """Wait for the work. Raises: RuntimeError."""
        self._work.wait(*timeout)
        self._out.copy_(self._part)

    def is_completed(self) -> bool:
        """Whether there is nothing to wait for."""
        done: bool = self._work.is_completed()
        return done


_SCATTERS_SUMS = ("2.13.",)
"""Versions whose gloo scatters sums by a sum of all ranks: a test of several processes compares the two."""


def start_to_scatter_sums(out: torch.Tensor, whole: torch.Tensor, op: str, group: Any) -> Any:
    """`reduce_scatter_tensor`, which may overwrite what it reduces.

    Gloo reduces a copy on all ranks, and each takes its part of it: here without the copy. Ranks that call either go
    together.
    """
    is_gloo = dist.get_backend(group) == "gloo" and torch.__version__.startswith(_SCATTERS_SUMS)
    if not is_gloo or not whole.is_contiguous() or whole.numel() != out.numel() * group.size():
        return scatter_sums()(out, whole, reduction(op), group, async_op=True)
    work = dist.all_reduce(whole, reduction(op), group, async_op=True)
    return _Handing(work, out, whole.view(group.size(), -1)[rank_in(group)].view(out.shape))


def gather_parts() -> Callable[..., Any]:
    """`all_gather_into_tensor`, by the name that it has now."""
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def new_work(results: Sequence[torch.Tensor] = ()) -> Any:
    """Work that is done. Code that calls the operator which hands it back, boxed, gets this object.

    results: what its future has, where it has one.
    """
    future: Any = torch.futures.Future()
    future.set_result(list(results))
    return torch._C._distributed_c10d._create_work_from_future(future)


def finished_work(results: Sequence[torch.Tensor] = ()) -> Any:
    """Work that is done, boxed: what an operator hands back that ran, or was recorded, at once."""
    return new_work(results).boxed()


@contextmanager
def pickling_replaced(refuse: Callable[[], Any]) -> Iterator[None]:
    """While active, collectives of objects call `refuse` on this thread, where they would make bytes of an object."""
    if not is_available:
        yield
        return
    home: Any = dist.distributed_c10d
    thread, own = threading.get_ident(), home._object_to_tensor

    @wraps(own)
    def make_bytes(*args: Any, **kwargs: Any) -> Any:
        return refuse() if threading.get_ident() == thread else own(*args, **kwargs)

    home._object_to_tensor = make_bytes
    try:
        yield
    finally:
        home._object_to_tensor = own


@contextmanager
def waits_noted(on_wait: Callable[[Any], None]) -> Iterator[None]:
    """While active, `on_wait` gets work that code of this thread waits for."""
    if not is_available:
        yield
        return
    thread, own = threading.get_ident(), dist.Work.wait

    @wraps(own)
    def wait(work: Any, *timeout: Any, **named: Any) -> Any:
        if threading.get_ident() == thread:
            on_wait(work)
        return own(work, *timeout, **named)

    dist.Work.wait = wait  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        dist.Work.wait = own  # type: ignore[method-assign]
