"""Collectives as operators of a program: what ranks of a process group do together, named by the group.

    all_reduce_(gradient, "SUM", "0")          gather_into_(whole, part, "0")          barrier("0")

Each writes what eager mode writes, by the call that eager mode makes. To a program they run at once: who starts one
reads its result later, in order. None is removed, merged or run again, and their order is the user's: facts of an
operator of dovetail's own that writes. `passes.overlap` makes two operators of one, between which others run:

    t = start_all_reduce_(gradient, "SUM", "0")     ...     wait_(t, [gradient], [], "0")

Messages between two ranks (`ops.messages`) keep their place among the collectives. Other ranks know nothing of them,
and do not agree on them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Value, values_in
from dovetail.ir.sizes import Number, OrOne, evaluate
from dovetail.ops.collective_arguments import check_arguments
from dovetail.ops.custom import define
from dovetail.ops.messages import MESSAGES, SEND, START_RECEIVE, START_SEND, WORK, failures_named, new_token
from dovetail.ops.prims import FunctionalForm
from dovetail.torch_compat.acting import let_act
from dovetail.torch_compat.collectives import (
    find_group,
    gather_parts,
    reduction,
    scatter_sums,
    start_to_scatter_sums,
)
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


def _begin(what: str, group: str, start: Callable[[Any], Any]) -> Any:
    """Work of a group that is under way; None where this process has nothing to do with it."""
    with failures_named(what, group):
        ask_before(group)
        return start(find_group(group))


def _finish(what: str, group: str, work: Any) -> None:
    """Wait for work of a group."""
    if work is None:
        return
    with failures_named(what, group):
        wait = getattr(_ASKED, "wait", None)
        if wait is None:
            work.wait()
        else:
            wait(group, work)


def _all_reduce(pg: Any, tensor: torch.Tensor, op: str) -> Any:
    return dist.all_reduce(tensor, reduction(op), pg, async_op=True)


def _all_reduce_used(pg: Any, tensor: torch.Tensor, used: str) -> Any:
    return _all_reduce(pg, tensor, "SUM")


def _reduce(pg: Any, tensor: torch.Tensor, root: int, op: str) -> Any:
    return dist.reduce(tensor, None, reduction(op), pg, async_op=True, group_dst=root)


def _broadcast(pg: Any, tensor: torch.Tensor, root: int) -> Any:
    return dist.broadcast(tensor, group=pg, async_op=True, group_src=root)


def _all_gather(pg: Any, outs: Sequence[torch.Tensor], part: torch.Tensor) -> Any:
    return dist.all_gather(list(outs), part, pg, async_op=True)


def _gather_into(pg: Any, out: torch.Tensor, part: torch.Tensor) -> Any:
    return gather_parts()(out, part, pg, async_op=True)


def _gather_own(pg: Any, out: torch.Tensor, first: int, length: int) -> Any:
    flat = out.view(-1)
    return _gather_into(pg, flat, flat.narrow(0, first, length))


def _reduce_scatter(pg: Any, out: torch.Tensor, parts: Sequence[torch.Tensor], op: str) -> Any:
    return dist.reduce_scatter(out, list(parts), reduction(op), pg, async_op=True)


def _scatter_from(pg: Any, out: torch.Tensor, whole: torch.Tensor, op: str) -> Any:
    return scatter_sums()(out, whole, reduction(op), pg, async_op=True)


def _scatter_in(pg: Any, out: torch.Tensor, whole: torch.Tensor, op: str) -> Any:
    return start_to_scatter_sums(out, whole, op, pg)


def _all_to_all(pg: Any, outs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> Any:
    return dist.all_to_all(list(outs), list(parts), pg, async_op=True)


def _exchange(pg: Any, out: torch.Tensor, given: torch.Tensor, to: Sequence[int], of: Sequence[int]) -> Any:
    return dist.all_to_all_single(out, given, list(to) or None, list(of) or None, pg, async_op=True)


def _gather(pg: Any, outs: Sequence[torch.Tensor], part: torch.Tensor, root: int) -> Any:
    return dist.gather(part, list(outs) or None, group=pg, async_op=True, group_dst=root)


def _scatter(pg: Any, out: torch.Tensor, parts: Sequence[torch.Tensor], root: int) -> Any:
    return dist.scatter(out, list(parts) or None, group=pg, async_op=True, group_src=root)


def _barrier(pg: Any) -> Any:
    return dist.barrier(pg, async_op=True)


_STARTED: dict[Overload, Overload] = {}


def _define(name: str, arguments: str, start: Callable[..., Any]) -> Any:
    """The operator that runs a collective and waits for it. Beside it, one that starts it and gives a token."""
    what = start.__name__.strip("_")

    def run(*given: Any) -> None:
        *operands, group = given
        _finish(what, group, _begin(what, group, lambda pg: start(pg, *operands)))

    def begin(*given: Any) -> torch.Tensor:
        *operands, group = given
        token = new_token()
        setattr(token, WORK, (what, _begin(what, group, lambda pg: start(pg, *operands))))
        return token

    given = f"({arguments}, str group)" if arguments else "(str group)"
    op = define(name, f"{given} -> ()", run, lambda *given: check_arguments(what, given[:-1], given[-1]))
    if arguments:
        _STARTED[op] = define(f"start_{name}", f"{given} -> Tensor", begin, lambda *_: new_token())
    return op


def _wait(token: torch.Tensor, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor], group: str) -> None:
    what, work = vars(token).pop(WORK)
    _finish(what, group, work)


ALL_REDUCE = _define("all_reduce_", "Tensor(a!) tensor, str op", _all_reduce)
ALL_REDUCE_USED = _define("all_reduce_used_", "Tensor(a!) tensor, str used", _all_reduce_used)
REDUCE = _define("reduce_", "Tensor(a!) tensor, int root, str op", _reduce)
BROADCAST = _define("broadcast_", "Tensor(a!) tensor, int root", _broadcast)
ALL_GATHER = _define("all_gather_", "Tensor(a!)[] outs, Tensor part", _all_gather)
GATHER_INTO = _define("gather_into_", "Tensor(a!) out, Tensor part", _gather_into)
GATHER_OWN = _define("gather_own_", "Tensor(a!) out, int first, int length", _gather_own)
REDUCE_SCATTER = _define("reduce_scatter_", "Tensor(a!) out, Tensor[] parts, str op", _reduce_scatter)
SCATTER_FROM = _define("scatter_from_", "Tensor(a!) out, Tensor whole, str op", _scatter_from)
SCATTER_IN = _define("scatter_in_", "Tensor(a!) out, Tensor(b!) whole, str op", _scatter_in)
ALL_TO_ALL = _define("all_to_all_", "Tensor(a!)[] outs, Tensor[] parts", _all_to_all)
EXCHANGE = _define("exchange_", "Tensor(a!) out, Tensor given, int[] to, int[] of", _exchange)
GATHER = _define("gather_", "Tensor(a!)[] outs, Tensor part, int root", _gather)
SCATTER = _define("scatter_", "Tensor(a!) out, Tensor[] parts, int root", _scatter)
BARRIER = _define("barrier", "", _barrier)
WAIT = define("wait_", "(Tensor token, Tensor(a!)[] written, Tensor[] read, str group) -> ()", _wait, lambda *_: None)
_RUN = {started: op for op, started in _STARTED.items()}

COLLECTIVES = frozenset(
    {
        ALL_REDUCE,
        ALL_REDUCE_USED,
        REDUCE,
        BROADCAST,
        ALL_GATHER,
        GATHER_INTO,
        GATHER_OWN,
        REDUCE_SCATTER,
        SCATTER_FROM,
        SCATTER_IN,
        ALL_TO_ALL,
        EXCHANGE,
        GATHER,
        SCATTER,
        BARRIER,
        *MESSAGES,
    }
)
let_act((*COLLECTIVES, *_RUN, WAIT))
_OWN_SHAPES = frozenset({ALL_TO_ALL, EXCHANGE})  # each rank may send and get another number of elements


def collective_of(node: Node) -> Overload | None:
    """The collective, or message between two ranks, that a node is, in place or on copies; None if it is none."""
    target: Any = node.target
    if isinstance(target, Prim) and isinstance(target.run, FunctionalForm):
        target = target.run.op
    target = _RUN.get(target, target)
    return target if target in COLLECTIVES else None


def gathers(node: Node) -> bool:
    """Whether a node, on copies, gives what all ranks hold: the same again, if it gets the same."""
    return collective_of(node) in (GATHER_OWN, GATHER_INTO, ALL_GATHER) and isinstance(node.target, Prim)


def is_started(node: Node) -> bool:
    """Whether a node starts a collective and does not wait for it, and `wait_` does."""
    return node.target in _RUN


def keeps_scratch(node: Node) -> bool:
    """Whether what a node takes besides is kept until somebody waits."""
    return is_started(node) or node.target is START_RECEIVE


def started_apart(node: Node, token: Value) -> tuple[Node, Node] | None:
    """A collective in two nodes: one that starts it, and one that waits. None where it waits at once.

    token: what the first hands to the second.
    """
    start: Any = _STARTED.get(node.target)  # type: ignore[call-overload]
    if start is None or node.kwargs:
        return None
    operands = [list(values_in(operand)) for operand in node.args]
    count = 2 if node.target is SCATTER_IN else 1
    written, read = ([*chain(*given)] for given in (operands[:count], operands[count:]))
    wait = node.applying(WAIT, (token, written, read, node.args[-1]), (), ())
    return node.applying(start, node.args, (), (token,), unpack=False), wait


def sequences_of(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """For each process group, in the order of first use, a line for each collective: what all ranks must agree on."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        op = collective_of(node)
        if op is not None and op not in MESSAGES:
            found.setdefault(str(node.args[-1]), []).append(_line(op, node))
    return found


def groups_of_messages(nodes: Iterable[Node]) -> frozenset[str]:
    """The process groups in which messages go between two ranks."""
    return frozenset(str(node.args[-1]) for node in nodes if collective_of(node) in MESSAGES)


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
    if op is SCATTER_IN:
        op = SCATTER_FROM  # they differ in what is left in memory
    if op is GATHER:
        operands = node.args[1:-1]  # the others are the root's alone
    if op is SCATTER:
        operands = (node.args[0], node.args[2])
    if op is GATHER_OWN:
        op, operands = GATHER_INTO, (node.args[0], f"{_dtype_of(node)}[{node.args[2]}]")
    for operand in operands:
        values = [value.tensor for value in values_in(operand) if value.is_tensor]
        if values and op in _OWN_SHAPES:
            parts += [str(values[0].dtype)]
        elif values:
            parts += [f"{tensor.dtype}{list(tensor.shape)}" for tensor in values]
        elif not isinstance(operand, list | tuple):
            parts.append(str(operand))
    return f"{schema_of(op).name.strip('_')}({', '.join(parts)})".replace("torch.", "")


def _dtype_of(node: Node) -> torch.dtype:
    return next(values_in(node.args[0])).tensor.dtype


def scratch_bytes(node: Node, hints: Mapping[str, Number]) -> int:
    """What gloo takes while a collective of tensors on the CPU is under way: it flattens lists, and copies.

    hints: a number for each size symbol. Measured (torch 2.13): a test compares.
    """
    op = collective_of(node)
    outs, parts = (
        [int(evaluate(value.tensor.size_bytes(), OrOne(hints))) for value in values_in(operand) if value.is_tensor]
        for operand in (*node.args, (), ())[:2]
    )
    if op in (GATHER_INTO, GATHER_OWN, ALL_GATHER, GATHER, START_RECEIVE):
        return sum(outs)
    if op in (SCATTER_FROM, SCATTER):
        return sum(parts)
    if op is REDUCE_SCATTER:
        return sum(parts[1:])
    return sum(outs) + sum(parts) if op is ALL_TO_ALL else 0


def bytes_sent(node: Node) -> int:
    """The bytes that a rank hands to a collective, 0 where sizes are not known."""
    op = collective_of(node)
    if op in (None, BARRIER) or (op in MESSAGES and op not in (SEND, START_SEND)):
        return 0
    if op is GATHER_OWN:
        length = node.args[2]
        return length * _dtype_of(node).itemsize if isinstance(length, int) else 0
    given = node.args[0] if op in (ALL_REDUCE, ALL_REDUCE_USED, REDUCE, BROADCAST, SEND, START_SEND) else node.args[1]
    sizes = [value.tensor.size_bytes() for value in values_in(given) if value.is_tensor]
    return sum(size for size in sizes if isinstance(size, int))
