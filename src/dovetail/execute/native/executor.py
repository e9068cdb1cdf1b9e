"""The executor that runs clusters of pointwise nodes as machine code.

By itself it claims nothing; bound to a program it claims the nodes of that program's clusters. The code of a cluster is
one call. Behind it stand the calls of its nodes, for when it cannot run: a mode of torch wants to see each operator, a
number is not one that a kernel takes, memory has run out, or the processor was told to round differently.
"""

from __future__ import annotations

import struct
from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from dovetail.errors import BadOptionValue
from dovetail.execute.executors.bindings import cheapest_call
from dovetail.execute.native.cache import most_bytes
from dovetail.execute.native.call_text import Work, cluster_call
from dovetail.execute.native.claims import is_exact
from dovetail.execute.native.clusters import Cluster, clusters_of
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.int8_rows import multiplies_int8_panels
from dovetail.execute.native.machine import address_of_driver, listing_of, unavailable
from dovetail.execute.native.own_threads import leaves_pool_alone
from dovetail.execute.native.panel_calls import call_of, has_kernel
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.probes import distance_from, is_near
from dovetail.execute.native.rows import Address, Count, ReadyRow
from dovetail.execute.native.table_text import counter, places_of
from dovetail.execute.partly_run import PartlyRun
from dovetail.ir.draft import free_name
from dovetail.ir.node_groups import NodeGroup
from dovetail.ir.program import Node, Operand, Program, Value
from dovetail.ir.text import Names
from dovetail.torch_compat.native_symbols import no_mode_watches

_MOST = torch.finfo(torch.float32).max
_SHORT = 1 << 14  # elements that nodes touch: some ten microseconds, products included
_LATER = struct.pack("q", 1)  # an address that an earlier row writes: none, which the driver would refuse, is 0


@dataclass(frozen=True, slots=True)
class NativeExecutor:
    """See `execute.protocol.GroupingExecutor`. groups: of the program that it is bound to, by their first nodes.

    rounds: whether results may differ from torch's by rounding.

    Raises: BadOptionValue where no machine code can be made, or the size of its cache is none.
    """

    groups: Mapping[int, NodeGroup] = field(default_factory=dict)
    nodes: frozenset[Node] = frozenset()
    rounds: bool = False

    def __post_init__(self) -> None:
        reason = unavailable()
        if reason:
            expected = 'executors without "native"'
            expected += ", or install it: pip install llvmlite" if "llvmlite" in reason else ""
            raise BadOptionValue(option="executors", value="native", reason=reason, expected=expected)
        most_bytes()

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return "native"

    def with_rounding(self) -> NativeExecutor:
        """The same where results may differ by rounding."""
        return replace(self, rounds=True)

    def made_for_speed(self) -> NativeExecutor:
        """The same, for programs that differ by rounding as it is."""
        return self.with_rounding()

    @property
    def multiplies_panels(self) -> bool:
        """Whether it can claim products by weights in panels."""
        return multiplies_panels()

    @property
    def multiplies_int8_panels(self) -> bool:
        """Whether it can claim products of 8-bit integers by panels."""
        return multiplies_int8_panels()

    def claim(self, node: Node) -> bool:
        """Whether the node is part of a cluster, or reads panels."""
        return node in self.nodes or has_kernel(node.target)

    def call(self, names: Names, node: Node) -> str:
        """The call of the node by itself: of what reads panels, or for when its cluster does not run."""
        return call_of(names, node) if has_kernel(node.target) else cheapest_call(names, node)

    def bound_to(
        self, program: Program, is_free: Callable[[Node], bool], dying: Collection[int] | None = None
    ) -> NativeExecutor:
        """The executor for a program. is_free: whether a node may be part of a cluster, as far as the caller knows.
        dying: numbers of inputs that nobody else holds; None if it may be any.
        """
        clusters = clusters_of(program, is_free, dying, rounds=self.rounds)
        nodes = frozenset(node for cluster in clusters for node in cluster.nodes)
        own = leaves_pool_alone(program, nodes, [row for cluster in clusters for row in cluster.rows])
        groups = {cluster.first: _group(cluster, at == 0, own=own) for at, cluster in enumerate(clusters)}
        return NativeExecutor(groups, nodes, self.rounds)


def exact(number: object) -> float:
    """A number as a double that a kernel treats as torch treats the number. Raises: TypeError for any other."""
    if (type(number) is float or type(number) is int) and is_exact(number):
        return number
    raise TypeError


def exact_unless(number: object, avoided: float) -> float:
    """See `exact`. Raises: TypeError for a number that is rounded to the avoided one as well."""
    found = exact(number)
    if is_near(found, avoided):
        raise TypeError
    return found


def _group(cluster: Cluster, is_first: bool, *, own: bool) -> NodeGroup:
    """own: rows are shared by threads of dovetail's own."""
    return NodeGroup(
        first=cluster.first,
        last=cluster.last,
        condition=lambda names: _condition(cluster, is_first, names),
        before=cluster.before,
        run=lambda names: _lines(cluster, names, own=own),
        then=lambda names: _counts(cluster.counted, names),
        after=cluster.after,
        unbound=cluster.unbound,
        restored=cluster.restored,
        reads=cluster.reads,
        fatal=_fatal if cluster.handles or any(row.may_fail for row in cluster.rows) else None,
        listing=lambda: _listing(cluster),
        taken=(*cluster.results, *(value for value, _ in cluster.made)),
        own_bytes=cluster.own_bytes,
    )


def _listing(cluster: Cluster) -> str:
    """The nodes of a cluster with their lines, and the functions that run them, each once."""
    nodes = [f"; {node.target}   {node.origin}".rstrip() for node in cluster.nodes]
    functions = dict.fromkeys(row.function for row in cluster.rows)
    return "\n".join([*nodes, "", *map(listing_of, functions)])


def _condition(cluster: Cluster, is_first: bool, names: Names) -> str:
    """Whether the call may be tried."""
    may_run = free_name("may_run", names.taken)
    conditions = dict.fromkeys(row.condition for row in cluster.rows if row.condition is not None)
    own = [f"{names.constant(each, each.__name__)}()" for each in conditions]
    if is_first:
        watches = names.constant(no_mode_watches, no_mode_watches.__name__)
        may_run = f"({may_run} := {watches}())"
    return " and ".join([may_run, *own])


def _lines(cluster: Cluster, names: Names, *, own: bool) -> list[str]:
    """The call, and what is done before. It raises where nothing was done."""
    lines = []
    shared = _shared_numbers(cluster, names)  # before memory is taken: the nodes run instead where one is refused
    lines += [f"{local} = {text}" for text, local in shared.items()]
    for value, like in cluster.made:
        dtype = "" if like.tensor.dtype is value.tensor.dtype else f", dtype={value.tensor.dtype}"
        lines.append(f"{value.name} = torch.empty_like({like.name}{dtype})")
    made = "".join(f"{value.name}, " for value in cluster.results)
    lines.append(f"{made}{'= ' if made else ''}{_call(cluster, names, shared, own=own)}")
    return lines


def _counts(written: Sequence[Value], names: Names) -> list[str]:
    """What moves the version counters of tensors, once for each time that they are named."""
    if not written:
        return []
    return [f"{names.constant(counter(), 'count_writes')}({', '.join(value.name for value in written)})"]


def _fatal(names: Names) -> str:
    return names.constant(PartlyRun, PartlyRun.__name__)


def _may_be_shared(row: ReadyRow) -> bool:
    """Whether several threads may run a row."""
    return not isinstance(row.items, int) or row.items >= THREADED


def _shared_numbers(cluster: Cluster, names: Names) -> dict[str, str]:
    """The numbers that rows take: what they are, and the local variables that hold them."""
    uses: dict[str, None] = {}
    for row in cluster.rows:
        for operand, avoided in row.numbers:
            if isinstance(operand, Value) and not row.is_strict:
                uses[_number(operand, avoided, names)] = None
    shared: dict[str, str] = {}
    for text in uses:
        shared[text] = free_name("native_number", {*names.taken, *shared.values()})
    return shared


def _call(cluster: Cluster, names: Names, shared: Mapping[str, str], *, own: bool) -> str:
    """The call of a cluster's rows: see `native.call_text`. shared: variables of numbers, by what they hold."""
    given, addresses, numbers = (
        bytearray(),
        defaultdict[Value, list[tuple[int, int]]](list),
        list[tuple[int, str, str]](),
    )
    for row in cluster.rows:
        for slot in _slots_of(row, names, shared):
            at = len(given) // 8
            if isinstance(slot, bytes):
                given += slot
                continue
            given += bytes(8)
            if isinstance(slot, Address):
                addresses[slot.value].append((at, slot.behind))
            else:
                numbers.append((at, *slot))
    written = {value: None for value in cluster.counted if value in cluster.given and value in addresses}
    tensors = [*written, *(value for value in addresses if value not in written)]
    places = places_of([addresses[value] for value in tensors], len(written), [at for at, _, _ in numbers])
    packed = "b''"
    if numbers:
        packed = _packed([(kind, text) for _, kind, text in numbers], names)
    work = Work(
        tensors=len(tensors),
        rows=len(cluster.rows),
        early=cluster.early,
        last=cluster.last,
        results=len(cluster.results),
        is_short=_is_short(cluster),
    )
    call = cluster_call(bytes(given), places, cluster.handles, address_of_driver(), work)
    threads = f"{'-' * own}torch.get_num_threads()" if any(map(_may_be_shared, cluster.rows)) else "1"
    arguments = [*(value.name for value in tensors), packed, threads]
    return f"{names.constant(call, 'native_call')}({', '.join(arguments)})"


def _packed(numbers: Sequence[tuple[str, str]], names: Names) -> str:
    """What gives numbers as bytes, from kinds of `struct`, and texts. Literals are packed now."""
    form = struct.Struct("".join(kind for kind, _ in numbers))
    texts = [text for _, text in numbers]
    try:
        return repr(form.pack(*map(literal_eval, texts)))
    except (ValueError, OverflowError, struct.error):  # not literals, or none that fit: the call is refused
        return f"{names.constant(form.pack, 'pack')}({', '.join(texts)})"


def _is_short(cluster: Cluster) -> bool:
    """Whether it takes less time than others who wait for the GIL would gain."""
    touched = [value for node in cluster.nodes for value in (*node.operands(), *node.results()) if value.is_tensor]
    counts = [value.tensor.numel() for value in touched]
    return sum(count if isinstance(count, int) else _SHORT + 1 for count in counts) <= _SHORT


def _slots_of(row: ReadyRow, names: Names, shared: Mapping[str, str]) -> Iterator[bytes | Address | tuple[str, str]]:
    """What is in a row: bytes that are the same in each call, addresses, or a kind of `struct` and a text."""
    yield struct.pack("3q", row.function, len(row.pointers) | row.marks, row.slots)
    yield struct.pack("q", row.items) if isinstance(row.items, int) else ("q", f"{row.items.name}.numel()")
    for address in row.pointers:
        yield _LATER if address is None else address
    for operand, avoided in row.numbers:
        if operand is None:
            yield bytes(8)
        elif row.is_strict:
            yield "d", _strict(operand, names)
        else:
            text = _number(operand, avoided, names)
            yield "d", shared.get(text, text)
    for count in row.counts:
        yield struct.pack("q", count) if isinstance(count, int) else ("q", _count(count, row))
    yield row.more


def _count(count: Count, row: ReadyRow) -> str:
    size = " * ".join(f"{count.value.name}.size({dim})" for dim in count.dims)
    if not count.divides:
        return size
    items = row.items if isinstance(row.items, int) else f"{row.items.name}.numel()"
    return f"{items} // max({size}, 1)"


def _strict(operand: Operand, names: Names) -> str:
    """A number that others are computed with, each of them with a `float`, which makes one of a whole number, too."""
    assert isinstance(operand, Value), "others are constants"
    return f"{operand.name} if {operand.name}.__class__ is float else {names.constant(whole, 'whole')}({operand.name})"


def whole(number: object) -> int:
    """A number if it is a whole one, and a double. Raises: TypeError for any other."""
    if type(number) is int and is_exact(number):
        return number
    raise TypeError


def _number(operand: object, avoided: float | None, names: Names) -> str:
    """A number that is handed in: as it is where it is an ordinary one, which costs less than a call to find out."""
    if not isinstance(operand, Value):
        return names.text(operand)
    name = operand.name
    if avoided is None:
        allowed, careful = f"{-_MOST!r} <= {name} <= {_MOST!r}", f"{names.constant(exact, 'exact')}({name})"
    else:
        low, high = distance_from(avoided)
        allowed = f"({-_MOST!r} <= {name} < {low!r} or {high!r} < {name} <= {_MOST!r})"
        careful = f"{names.constant(exact_unless, 'exact_unless')}({name}, {avoided!r})"
    return f"{name} if {name}.__class__ is float and {allowed} else {careful}"
