"""Collectives of `torch.distributed` that a step calls: nothing is sent while it is recorded.

    dist.all_reduce(t, group=g)              ->    all_reduce_(t, "SUM", "g")
    y = all_reduce(t, "sum", g)              ->    y = clone(t); all_reduce_(y, "SUM", "g")     (functional collectives)

Below Python all ways to call one arrive as an operator of `c10d`, with the group itself. The recorded operator names
the group, so that a program finds it again; that it is the same one is guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.errors import UnsupportedDistributed
from dovetail.ir.program import Origin
from dovetail.ops import collectives as ops
from dovetail.ops import messages
from dovetail.torch_compat.collectives import (
    asks_for_group,
    finished_work,
    group_in,
    is_boxed_group,
    is_waiting_for_message,
    name_of_group,
    name_of_reduction,
    new_work,
    pickling_replaced,
    reductions_noted,
    waits_noted,
)
from dovetail.torch_compat.dispatch import storage_key

_HINT = (
    "all_reduce, reduce, broadcast, all_gather, all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor, "
    "all_to_all, all_to_all_single, gather, scatter, barrier, send, recv, isend and irecv can be part of a step"
)
_FUNCTIONAL_GROUP = {"all_reduce": 2, "all_reduce_": 2, "broadcast": 2, "broadcast_": 2, "all_gather_into_tensor": 2}
_FUNCTIONAL_GROUP |= {"all_gather_into_tensor_out": 2, "reduce_scatter_tensor": 3, "all_to_all_single": 3}


class Collectives:
    """Records collectives. reductions: of the calls of Python that are under way. guard: gets questions to be asked
    before each run."""

    def __init__(self, recorded: Callable[[Callable[[], Any]], Any], origins: OriginTracker) -> None:
        self.reductions: Sequence[Any] = ()
        self.guard: Callable[[Callable[[], Any]], Any] = _nothing
        self._recorded = recorded
        self._origins = origins
        self._under_way: list[tuple[Any, Callable[[], Any], Origin]] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        """While active, the step runs. Raises: UnsupportedDistributed, where it leaves a message under way."""
        objects = pickling_replaced(partial(self._refuse, "sends objects to other processes"))
        with reductions_noted() as self.reductions, waits_noted(self._waited), objects:
            yield
        for *_, origin in self._under_way:
            raise UnsupportedDistributed(
                what="the step does not wait for a message that it begins to send or to receive",
                why="a program ends all that it begins",
                hint="call `wait()` of what isend, irecv or batch_isend_irecv gives, before the step ends",
                origin=origin,
            )

    def end(self) -> None:
        """Nothing is recorded any more: forget who records."""
        self._recorded, self.guard, self._under_way = _nothing, _nothing, []

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record what an operator of torch's does. Raises: UnsupportedDistributed."""
        name = func.overloadpacket.__name__
        args = [*args, *kwargs.values()]
        if func.namespace == "c10d":
            made = getattr(self, f"_of_{name.strip('_')}", None)
            if made is None:
                self._refuse(f"calls the collective {func}")
            given = [self.meet(group_in(x)) if is_boxed_group(x) else x for x in args]
            return self._recorded(lambda: made(*given))
        if name in ("wait_tensor", "_wrap_tensor_autograd"):
            return args[0]
        if func.namespace != "_c10d_functional" or name not in _FUNCTIONAL_GROUP:
            self._refuse(f"calls the collective {func}")
        place = _FUNCTIONAL_GROUP[name]
        args[place] = self.meet(group_in(args[place]))
        return self._recorded(lambda: getattr(self, f"_functional_{name.strip('_')}")(name, *args))

    def meet(self, group: Any) -> str:
        """The name of a process group that the step uses, which is to be there in each run."""
        name = name_of_group(group)
        self.guard(asks_for_group(name))
        return name

    def _reduction(self, name: str | None = None) -> str:
        if name is None:
            name = name_of_reduction(self.reductions[-1]) if self.reductions else None
        if name is None:
            self._refuse("reduces with an operation that carries a factor, or calls a process group unseen")
        return name.upper()

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedDistributed(
            what=f"the step {what}", why="programs have no such operator", hint=_HINT, origin=self._origins.here()
        )

    # --- operators of c10d ------------------------------------------------------------------------------------

    def _of_allreduce(self, tensors: Sequence[torch.Tensor], group: str, op: Any, sparse: Any, *_: Any) -> Any:
        if len(tensors) != 1 or sparse is not None:
            self._refuse("reduces several tensors, or a sparse one, in one call")
        ops.ALL_REDUCE(tensors[0], self._reduction(), group)
        return tensors, finished_work(tensors)

    def _of_reduce(self, tensors: Sequence[torch.Tensor], group: str, op: Any, root: int, *_: Any) -> Any:
        ops.REDUCE(tensors[0], root, self._reduction(), group)
        return finished_work(tensors)

    def _of_broadcast(self, tensors: Sequence[torch.Tensor], group: str, root: int, *_: Any) -> Any:
        ops.BROADCAST(tensors[0], root, group)
        return tensors, finished_work(tensors)

    def _of_allgather(self, outs: Sequence[Sequence[torch.Tensor]], parts: Any, group: str, *_: Any) -> Any:
        ops.ALL_GATHER(list(outs[0]), parts[0], group)
        return outs, finished_work(outs[0])

    def _of_allgather_base(self, out: torch.Tensor, part: torch.Tensor, group: str, *_: Any) -> Any:
        if storage_key(part) == storage_key(out) and part.is_contiguous() and out.is_contiguous():
            ops.GATHER_OWN(out, part.storage_offset() - out.storage_offset(), part.numel(), group)
        else:
            ops.GATHER_INTO(out, _apart(part, out), group)
        return out, finished_work([out])

    def _of_reduce_scatter(self, outs: Sequence[torch.Tensor], parts: Any, group: str, *_: Any) -> Any:
        ops.REDUCE_SCATTER(outs[0], list(parts[0]), self._reduction(), group)
        return outs, finished_work()

    def _of_reduce_scatter_base(self, out: torch.Tensor, whole: torch.Tensor, group: str, *_: Any) -> Any:
        _scatter(out, whole, self._reduction(), group)
        return out, finished_work()

    def _of_alltoall(self, outs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], group: str, *_: Any) -> Any:
        ops.ALL_TO_ALL(list(outs), list(parts), group)
        return outs, finished_work(outs)

    def _of_alltoall_base(self, out: torch.Tensor, given: torch.Tensor, group: str, to: Any, of: Any, *_: Any) -> Any:
        ops.EXCHANGE(out, given, list(to), list(of), group)
        return finished_work([out])

    def _of_barrier(self, tensor: torch.Tensor, group: str, *_: Any) -> Any:
        ops.BARRIER(group)
        return finished_work()

    def _of_gather(self, outs: Sequence[Sequence[torch.Tensor]], parts: Any, group: str, root: int, *_: Any) -> Any:
        ops.GATHER(list(outs[0]) if outs else [], parts[0], root, group)
        return finished_work(outs[0] if outs else ())

    def _of_scatter(self, outs: Sequence[torch.Tensor], parts: Any, group: str, root: int, *_: Any) -> Any:
        ops.SCATTER(outs[0], list(parts[0]) if parts else [], root, group)
        return outs, finished_work(outs)

    def _of_send(self, tensors: Sequence[torch.Tensor], group: str, to: int, tag: int) -> Any:
        if is_waiting_for_message():
            messages.SEND(tensors[0], to, tag, group)
            return finished_work()
        token = messages.START_SEND(tensors[0], to, tag, group)
        return self._begun(lambda: messages.END_SEND(token, tensors[0], group))

    def _of_recv(self, tensors: Sequence[torch.Tensor], group: str, of: int, tag: int) -> Any:
        if is_waiting_for_message():
            messages.RECEIVE(tensors[0], of, tag, group)
            return finished_work()
        token = messages.START_RECEIVE(tensors[0], of, tag, group)
        return self._begun(lambda: messages.END_RECEIVE(token, tensors[0], group))

    def _begun(self, end: Callable[[], Any]) -> Any:
        work = new_work()
        self._under_way.append((work, end, self._origins.here()))
        return work.boxed()

    def _waited(self, work: Any) -> None:
        """Code waits for work."""
        ends = [end for begun, end, _ in self._under_way if begun is work]
        self._under_way = [entry for entry in self._under_way if entry[0] is not work]
        for end in ends:  # modes are active here, unlike in an operator
            end()

    # --- functional collectives -------------------------------------------------------------------------------

    def _functional_all_reduce(self, name: str, tensor: torch.Tensor, op: str, group: str) -> torch.Tensor:
        made = tensor if name.endswith("_") else tensor.clone(memory_format=torch.contiguous_format)
        ops.ALL_REDUCE(made, self._reduction(op), group)
        return made

    def _functional_broadcast(self, name: str, tensor: torch.Tensor, root: int, group: str) -> torch.Tensor:
        made = tensor if name.endswith("_") else tensor.clone(memory_format=torch.contiguous_format)
        ops.BROADCAST(made, root, group)
        return made

    def _functional_all_gather_into_tensor(self, _: str, part: torch.Tensor, size: int, group: str) -> Any:
        return self._functional_all_gather_into_tensor_out(_, part, size, group, _larger(part, size))

    def _functional_all_gather_into_tensor_out(self, _: str, part: Any, size: int, group: str, out: Any) -> Any:
        ops.GATHER_INTO(out, part, group)
        return out

    def _functional_reduce_scatter_tensor(self, _: str, whole: Any, op: str, size: int, group: str) -> Any:
        if whole.shape[0] % size:
            self._refuse("scatters a tensor whose first dimension its group does not divide")
        out = whole.new_empty((whole.shape[0] // size, *whole.shape[1:]))
        _scatter(out, whole, self._reduction(op), group)
        return out

    def _functional_all_to_all_single(self, _: str, given: Any, of: Any, to: Any, group: str) -> Any:
        out = given.new_empty((sum(of), *given.shape[1:]))
        ops.EXCHANGE(out, given, list(to), list(of), group)
        return out


def _nothing(_: Any) -> None:
    return None


def _scatter(out: torch.Tensor, whole: torch.Tensor, op: str, group: str) -> None:
    """On the CPU a copy is reduced, which goes where nobody reads the tensor later; gloo would copy it by itself."""
    if whole.device.type == "cpu":
        ops.SCATTER_IN(out, whole.clone(memory_format=torch.contiguous_format), op, group)
    else:
        ops.SCATTER_FROM(out, whole, op, group)


def _apart(part: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """What is sent, on memory of its own: it may lie in what is received, where its rank's part goes."""
    return part.clone() if storage_key(part) == storage_key(out) else part


def _larger(part: torch.Tensor, size: int) -> torch.Tensor:
    return part.new_empty((part.shape[0] * size, *part.shape[1:]))
