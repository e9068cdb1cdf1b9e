"""Checks of `torch_compat.collectives`, in a process group of this process alone, which is gone afterwards.

Where there is a group already, only what sends nothing is looked at.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dovetail.torch_compat import collectives
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.dispatch import PlainMode, schema_of

_KEPT: list[Any] = []


@contextmanager
def group_of_one(*, computes: bool = False) -> Iterator[Any]:
    """The default process group, of this process alone; None where it is another one, or none can be made.

    It is one of torch's own tests, which does nothing. computes: one of gloo, which stays until the process ends. When
    it is freed it waits for its threads; if a module of data parallel training held it last, it does so with Python's
    lock, and a thread that frees a tensor waits for that lock.
    """
    if not collectives.is_available or dist.is_initialized() or (computes and not dist.is_gloo_available()):
        yield None
        return
    if computes:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        _KEPT.append(dist.group.WORLD)
    else:
        fakes = importlib.import_module("torch.testing._internal.distributed.fake_pg")  # which makes the kind known
        dist.init_process_group("fake", store=fakes.FakeStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


class _Noted(PlainMode):
    """arrived: operators of groups with their operands. reductions: names of those under way when they arrived."""

    def __init__(self, under_way: Sequence[Any] = ()) -> None:
        super().__init__()
        self.arrived: list[tuple[Any, Sequence[Any]]] = []
        self.reductions: list[str | None] = []
        self._under_way = under_way

    def __torch_dispatch__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func.namespace in collectives.NAMESPACES:
            self.arrived.append((func, args))
            self.reductions.extend(map(collectives.name_of_reduction, self._under_way))
        return func(*args, **(kwargs or {}))


def _arrived(group: Any) -> list[tuple[Any, Sequence[Any]]]:
    with _Noted() as noted:
        dist.all_reduce(torch.ones(2), group=group)
        dist.barrier(group)
        begun = torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", group.group_name)
    torch.ops._c10d_functional.wait_tensor(begun)
    return noted.arrived


def check_group_in() -> str | None:
    """Operators get their group boxed, or by its name."""
    with group_of_one() as group:
        if group is None:
            return None
        boxed = next(x for x in _arrived(group)[0][1] if collectives.is_boxed_group(x))
        found = [collectives.group_in(x) is group for x in (boxed, group, group.group_name)]
    return first_difference(("found", found, [True] * 3))


def check_is_boxed_group() -> str | None:
    """Of what an operator gets, one thing is a process group."""
    with group_of_one() as group:
        counts = [] if group is None else [sum(map(collectives.is_boxed_group, x)) for _, x in _arrived(group)]
    return first_difference(("groups", counts, [] if group is None else [1, 1, 0]))


def check_group_of_operator() -> str | None:
    """Each operator tells its group."""
    with group_of_one() as group:
        if group is None:
            return None
        found = [collectives.group_of_operator(func, args) for func, args in _arrived(group)]
        names = [group.group_name] * 3
    return first_difference(("groups", found, names))


class _Waits(_Noted):
    """waits: whether messages were waited for when they arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.waits.append(collectives.is_waiting_for_message())
        self.arrived.append((func, args))
        work = collectives.finished_work()
        return work if len(schema_of(func).returns) == 1 else (args[0], work)


def check_is_waiting_for_message() -> str | None:
    """Functions that wait are told from those that do not."""
    message = torch.ones(2)
    with group_of_one() as group, _Waits() as noted:
        if group is None:
            return None
        group.recv([message], 0, 0).wait()
        with suppress(ValueError):  # where it is refused, as this rank is the only one
            dist.recv(message, 0)
    return first_difference(("waits", noted.waits, [False, True]))


def check_group_of_message() -> str | None:
    """Messages tell their group, and what all ranks do together does not."""
    message = torch.ones(2)
    with group_of_one() as group, _Waits() as noted:
        if group is None:
            return None
        group.recv([message], 0, 0).wait()
        group.allreduce([message]).wait()
        found = [collectives.group_of_message(func, args) is group for func, args in noted.arrived]
    return first_difference(("messages", found, [True, False]))


def check_end_messages() -> str | None:
    """A receiver that nobody answers is given up at once, and nothing is raised."""
    if not collectives.is_available or dist.is_initialized():
        return None
    fakes = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=fakes.FakeStore(), rank=0, world_size=2)
    try:
        with _Waits() as noted:
            collectives.end_messages(dist.group.WORLD, 1, 5)
    finally:
        dist.destroy_process_group()
    return first_difference(("receives", len(noted.waits), 1))


def check_default_group() -> str | None:
    """There is a default group between its making and its end."""
    with group_of_one() as group:
        if group is None:
            return None
        within = collectives.default_group() is group
    return first_difference(("within, after", (within, collectives.default_group()), (True, None)))


def check_find_group() -> str | None:
    """A group is found by its name, also a second time."""
    with group_of_one() as group:
        if group is None:
            return None
        found = [collectives.find_group(group.group_name) is group for _ in range(2)]
    return first_difference(("found", found, [True, True]))


def check_asks_for_group() -> str | None:
    """A group that nobody has made, or that has ended, is not there."""
    with group_of_one() as group:
        name = "dovetail-no-such-group" if group is None else group.group_name
        within = collectives.asks_for_group(name)() is group
    return first_difference(
        ("within", within, True),
        ("after", None if group is None else collectives.asks_for_group(name)(), None),
    )


def check_name_of_group() -> str | None:
    """A name is a text, which tells groups apart."""
    with group_of_one() as group:
        if group is None:
            return None
        names = {collectives.name_of_group(group), collectives.name_of_group(dist.new_group([0]))}
    return first_difference(("names", [type(name) for name in names], [str, str]))


def check_start_to_gather() -> str | None:
    """Every rank is heard."""
    with group_of_one() as group:
        if group is None:
            return None
        work, read = collectives.start_to_gather([7, 2], group)
        work.wait()
        found = read()
    return first_difference(("numbers", found, [[7, 2]]))


def check_start_to_scatter_sums() -> str | None:
    """The sum of one rank is its own part, once the work has been waited for."""
    out, whole = torch.zeros(4), torch.arange(4.0)
    with group_of_one() as group:
        if group is None:
            return None
        collectives.start_to_scatter_sums(out, whole, "SUM", group).wait()
    return first_difference(("part", out.tolist(), [0.0, 1.0, 2.0, 3.0]))


def check_done_within() -> str | None:
    """Work that does not end is not done, and can be waited for again."""
    future: Any = torch.futures.Future()
    work = torch._C._distributed_c10d._create_work_from_future(future)
    found = [collectives.done_within(work, 0.001)]
    future.set_result([])
    found.append(collectives.done_within(work, 1.0))
    return first_difference(("done", found, [False, True]))


def check_groups_of_process() -> str | None:
    """They are those that were made, and not destroyed."""
    with group_of_one() as group:
        if group is None:
            return None
        found = [x is group for x in collectives.groups_of_process()]
    return first_difference(("groups", any(found), True))


def check_rank_in() -> str | None:
    """The first rank is 0."""
    with group_of_one() as group:
        found = 0 if group is None else collectives.rank_in(group)
    return first_difference(("rank", found, 0))


def check_notes_of_group() -> str | None:
    """A note is found by its key, and changes in one step."""
    with group_of_one() as group:
        notes = None if group is None else collectives.notes_of_group(group)
        if notes is None:
            return None
        found = [notes.check(["a"])]
        found += [collectives.add_note_of_group(notes, "a", before, to) for before, to in (("", "x"), ("", "y"))]
        found += [collectives.add_note_of_group(notes, "a", before, to) for before, to in (("y", "z"), ("x", "z"))]
        found += [notes.check(["a"]), notes.get("a")]
    return first_difference(("notes", found, [False, "x", "x", "x", "z", True, b"z"]))


def check_add_note_of_group() -> str | None:
    """See `check_notes_of_group`."""
    return check_notes_of_group()


def check_gathered_objects() -> str | None:
    """Every rank is heard."""
    with group_of_one() as group:
        found = [["a"]] if group is None else collectives.gathered_objects(["a"], group)
    return first_difference(("objects", found, [["a"]]))


def check_gather_parts() -> str | None:
    """The operator gets the tensor that is written, then the part of this rank."""
    return _takes(collectives.gather_parts)


def check_scatter_sums() -> str | None:
    """The operator gets the tensor that is written, then what is summed, and how."""
    return _takes(collectives.scatter_sums, "MAX")


def _takes(function: Callable[[], Callable[..., Any]], *reductions: str) -> str | None:
    """What arrives at an operator: the group that does nothing computes nothing in some versions."""
    made, whole = torch.zeros(2), torch.tensor([1.0, 2.0])
    with group_of_one() as group, collectives.reductions_noted() as under_way, _Noted(under_way) as noted:
        if group is None:
            return None
        function()(made, whole, *map(collectives.reduction, reductions), group)
    tensors = [x for x in noted.arrived[0][1] if isinstance(x, torch.Tensor)]
    return first_difference(
        ("written and read", [x is y for x, y in zip(tensors, (made, whole), strict=True)], [True, True]),
        ("reductions", noted.reductions, list(reductions)),
    )


def check_finished_work() -> str | None:
    """Work that is done is handed on by operators, says that it is done, and to wait for it takes no time."""
    if not collectives.is_available:
        return None
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([])
    work = torch._C._distributed_c10d._create_work_from_future(future)
    return first_difference(
        ("done", (work.is_completed(), work.wait()), (True, True)),
        ("boxed", isinstance(collectives.finished_work(), torch.ScriptObject), True),
    )


def check_new_work() -> str | None:
    """Whoever calls an operator gets the work that it hands back."""

    class Handing(PlainMode):
        def __torch_dispatch__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
            made.append(collectives.new_work())
            return made[-1].boxed()

    made, message = list[Any](), torch.ones(2)
    with group_of_one() as group, Handing():
        if group is None:
            return None
        found = [group.recv([message], 0, 0) is made[-1], group.send([message], 0, 0) is made[-1]]
    results = collectives.new_work([message]).get_future().wait()
    return first_difference(("same", found, [True, True]), ("results", results[0] is message, True))


def check_pickling_replaced() -> str | None:
    """Collectives of objects ask before they send anything."""
    found: list[Any] = [None]
    asked = [False]

    def refuse() -> Any:
        asked[0] = True
        raise LookupError

    with group_of_one() as group:
        if group is None:
            return None
        with suppress(LookupError), collectives.pickling_replaced(refuse):
            dist.all_gather_object(found, "item")
    return first_difference(("asked", asked + found, [True, None]))


def check_waits_noted() -> str | None:
    """It is noted that work is waited for; then nothing is."""
    noted: list[Any] = []
    if not collectives.is_available:
        return None
    first, second = collectives.new_work(), collectives.new_work()
    with collectives.waits_noted(noted.append):
        first.wait()
        first.wait(timedelta(0))  # without an end, as no other is implemented
    second.wait()
    return first_difference(("noted", [x is first for x in noted], [True, True]))


def check_reductions_noted() -> str | None:
    """A reduction is seen while its call is under way; the methods of groups are themselves again afterwards."""
    if not collectives.is_available:
        return None
    before = dict(vars(dist.ProcessGroup))
    with group_of_one() as group, collectives.reductions_noted() as under_way, _Noted(under_way) as noted:
        if group is not None:
            dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX)
    return first_difference(
        ("seen", noted.reductions, [] if group is None else ["MAX"]),
        ("methods", dict(vars(dist.ProcessGroup)) == before, True),
    )


def check_reduction() -> str | None:
    """There is one of each name."""
    names = collectives.REDUCTIONS if collectives.is_available else ()
    return first_difference(("reductions", len({int(collectives.reduction(name)) for name in names}), len(names)))


def check_name_of_reduction() -> str | None:
    """Reductions are known by name."""
    names = collectives.REDUCTIONS if collectives.is_available else ()
    found = [collectives.name_of_reduction(collectives.reduction(name)) for name in names]
    return first_difference(("names", found, list(names)))


CHECKS = (
    check_default_group,
    check_group_in,
    check_is_boxed_group,
    check_name_of_group,
    check_group_of_operator,
    check_is_waiting_for_message,
    check_group_of_message,
    check_end_messages,
    check_add_note_of_group,
    check_done_within,
    check_groups_of_process,
    check_notes_of_group,
    check_rank_in,
    check_start_to_gather,
    check_start_to_scatter_sums,
    check_gathered_objects,
    check_find_group,
    check_asks_for_group,
    check_reductions_noted,
    check_name_of_reduction,
    check_reduction,
    check_scatter_sums,
    check_gather_parts,
    check_finished_work,
    check_new_work,
    check_pickling_replaced,
    check_waits_noted,
)
