"""Collectives as operators of a program: what ranks of a process group do together, named by the group.

    all_reduce_(gradient, "SUM", "0")          gather_into_(whole, part, "0")          barrier("0")

Each writes what eager mode writes, by the call that eager mode makes. To a program they run at once: who starts one
reads its result later, in order. None is removed, merged or run again, and their order is the user's: facts of an
operator of dovetail's own that writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from dovetail.errors import CollectiveFailed, DovetailError
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, values_in
from dovetail.ops.custom import define
from dovetail.ops.prims import FunctionalForm
from dovetail.torch_compat.collectives import find_group, gather_parts, reduction, scatter_sums
from dovetail.torch_compat.dispatch import Overload, schema_of

_ASKED = threading.local()


@contextmanager
def asked_before(ask: Callable[[str], None], wait: Callable[[str, Any], None] | None = None) -> Iterator[None]:
    """While active, collectives of this thread ask first. ask: gets the name of the group. wait: waits for work of a
    group, which it gets as well.
    """
    before = getattr(_ASKED, "ask", None), getattr(_ASKED, "wait", None)
    _ASKED.ask, _ASKED.wait = ask, wait
    try:
        yield
    finally:
        _ASKED.ask, _ASKED.wait = before


def ask_before(group: str) -> None:
    """A collective of a group is about to run. Raises: what who is asked raises."""
    ask = getattr(_ASKED, "ask", None)
    if ask is not None:
        ask(group)


def _in_group(what: str, group: str, start: Callable[[Any], Any]) -> None:
    try:
        ask_before(group)
        work = start(find_group(group))
        wait = getattr(_ASKED, "wait", None)
        if work is None:  # this process has nothing to do with it
            return
        if wait is None:
            work.wait()
        else:
            wait(group, work)
    except (RuntimeError, LookupError) as error:
        if isinstance(error, DovetailError):
            raise
        raise CollectiveFailed(operator=what, group=group, error=f"{type(error).__name__}: {error}") from error


def _all_reduce(tensor: torch.Tensor, op: str, group: str) -> None:
    _in_group("all_reduce", group, lambda pg: dist.all_reduce(tensor, reduction(op), pg, async_op=True))


def _reduce(tensor: torch.Tensor, root: int, op: str, group: str) -> None:
    _in_group("reduce", group, lambda pg: dist.reduce(tensor, None, reduction(op), pg, async_op=True, group_dst=root))


def _broadcast(tensor: torch.Tensor, root: int, group: str) -> None:
    _in_group("broadcast", group, lambda pg: dist.broadcast(tensor, group=pg, async_op=True, group_src=root))


def _all_gather(outs: Sequence[torch.Tensor], part: torch.Tensor, group: str) -> None:
    _in_group("all_gather", group, lambda pg: dist.all_gather(list(outs), part, pg, async_op=True))


def _gather_into(out: torch.Tensor, part: torch.Tensor, group: str) -> None:
    _in_group("all_gather_into_tensor", group, lambda pg: gather_parts()(out, part, pg, async_op=True))


def _reduce_scatter(out: torch.Tensor, parts: Sequence[torch.Tensor], op: str, group: str) -> None:
    given = list(parts)
    _in_group("reduce_scatter", group, lambda pg: dist.reduce_scatter(out, given, reduction(op), pg, async_op=True))


def _scatter_from(out: torch.Tensor, whole: torch.Tensor, op: str, group: str) -> None:
    _in_group("reduce_scatter_tensor", group, lambda pg: scatter_sums()(out, whole, reduction(op), pg, async_op=True))


def _all_to_all(outs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], group: str) -> None:
    _in_group("all_to_all", group, lambda pg: dist.all_to_all(list(outs), list(parts), pg, async_op=True))


def _exchange(out: torch.Tensor, given: torch.Tensor, to: Sequence[int], of: Sequence[int], group: str) -> None:
    sizes = (list(to) or None, list(of) or None)
    _in_group("all_to_all_single", group, lambda pg: dist.all_to_all_single(out, given, *sizes, pg, async_op=True))


def _barrier(group: str) -> None:
    _in_group("barrier", group, lambda pg: dist.barrier(pg, async_op=True))


def _define(name: str, arguments: str, run: Callable[..., None]) -> Any:
    return define(name, f"({arguments}, str group) -> ()", run, lambda *_: None)


def _all_reduce_used(tensor: torch.Tensor, used: str, group: str) -> None:
    _all_reduce(tensor, "SUM", group)


ALL_REDUCE = _define("all_reduce_", "Tensor(a!) tensor, str op", _all_reduce)
ALL_REDUCE_USED = _define("all_reduce_used_", "Tensor(a!) tensor, str used", _all_reduce_used)
REDUCE = _define("reduce_", "Tensor(a!) tensor, int root, str op", _reduce)
BROADCAST = _define("broadcast_", "Tensor(a!) tensor, int root", _broadcast)
ALL_GATHER = _define("all_gather_", "Tensor(a!)[] outs, Tensor part", _all_gather)
GATHER_INTO = _define("gather_into_", "Tensor(a!) out, Tensor part", _gather_into)
REDUCE_SCATTER = _define("reduce_scatter_", "Tensor(a!) out, Tensor[] parts, str op", _reduce_scatter)
SCATTER_FROM = _define("scatter_from_", "Tensor(a!) out, Tensor whole, str op", _scatter_from)
ALL_TO_ALL = _define("all_to_all_", "Tensor(a!)[] outs, Tensor[] parts", _all_to_all)
EXCHANGE = _define("exchange_", "Tensor(a!) out, Tensor given, int[] to, int[] of", _exchange)
BARRIER = define("barrier", "(str group) -> ()", _barrier, lambda _: None)

COLLECTIVES = frozenset(
    {
        ALL_REDUCE,
        ALL_REDUCE_USED,
        REDUCE,
        BROADCAST,
        ALL_GATHER,
        GATHER_INTO,
        REDUCE_SCATTER,
        SCATTER_FROM,
        ALL_TO_ALL,
        EXCHANGE,
        BARRIER,
    }
)
_OWN_SHAPES = frozenset({ALL_TO_ALL, EXCHANGE})  # each rank may send and get another number of elements


def collective_of(node: Node) -> Overload | None:
    """The collective that a node is, in place or on copies; None if it is none."""
    target: Any = node.target
    if isinstance(target, Prim) and isinstance(target.run, FunctionalForm):
        target = target.run.op
    return target if target in COLLECTIVES else None


def sequences_of(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """For each process group, in the order of first use, a line for each collective: what all ranks must agree on."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        op = collective_of(node)
        if op is not None:
            found.setdefault(str(node.args[-1]), []).append(_line(op, node))
    return found


def used_of(nodes: Iterable[Node]) -> dict[str, str]:
    """For each process group, which parameters get gradients, as far as ranks tell each other: "1", or "0" if not."""
    found: dict[str, str] = {}
    for node in nodes:
        if collective_of(node) is ALL_REDUCE_USED:
            found[str(node.args[-1])] = f"{found.get(str(node.args[-1]), '')}{node.args[1]} "
    return found


def _line(op: Overload, node: Node) -> str:
    parts: list[str] = []
    operands = node.args[:-1]
    if op is ALL_REDUCE_USED:
        op, operands = ALL_REDUCE, (node.args[0], "SUM")
    for operand in operands:
        values = [value.tensor for value in values_in(operand) if value.is_tensor]
        if values and op in _OWN_SHAPES:
            parts += [str(values[0].dtype)]
        elif values:
            parts += [f"{tensor.dtype}{list(tensor.shape)}" for tensor in values]
        elif not isinstance(operand, list | tuple):
            parts.append(str(operand))
    return f"{schema_of(op).name.strip('_')}({', '.join(parts)})".replace("torch.", "")


def bytes_sent(node: Node) -> int:
    """The bytes that a rank hands to a collective, 0 where sizes are not known."""
    op = collective_of(node)
    if op is None or op is BARRIER:
        return 0
    given = node.args[0] if op in (ALL_REDUCE, ALL_REDUCE_USED, REDUCE, BROADCAST) else node.args[1]
    sizes = [value.tensor.size_bytes() for value in values_in(given) if value.is_tensor]
    return sum(size for size in sizes if isinstance(size, int))
