"""Numbers that a cluster computes: those that depend on what it writes, such as an optimizer's bias corrections, which
depend on the step that it counts.

They are computed before anything is written, so that the nodes can run one by one where a number is none that kernels
take. A number that is read from a tensor (`item()`) is read from a copy, on which the nodes that write the tensor
before run first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch

from dovetail.execute.native.memory_text import copy_function
from dovetail.execute.native.number_text import READ_DOUBLE, READ_FLOAT, STEPS, numbers_function
from dovetail.execute.native.rows import Address, ReadyRow, RowClaim
from dovetail.ir.program import Node, Operand, Value

ITEM = torch.ops.aten._local_scalar_dense.default

_READS = {torch.float32: READ_FLOAT, torch.float64: READ_DOUBLE}
_MOST = 1 << 53  # whole numbers up to here are doubles


def is_step(node: Node, computed: Collection[Value]) -> bool:
    """Whether a node is a function of numbers that can be computed, some of which are."""
    if node.target not in STEPS or node.kwargs or len(node.results()) != 1 or numbers_function() is None:
        return False
    return all(_is_number(operand) for operand in node.args) and any(value in computed for value in node.operands())


def _is_number(operand: Operand) -> bool:
    if isinstance(operand, Value):
        return not operand.is_tensor
    return type(operand) is float or (type(operand) is int and abs(operand) <= _MOST)


def is_read(node: Node, claims: Sequence[RowClaim], written: Collection[int], computed: Collection[Value]) -> bool:
    """Whether a node reads a number from a tensor that some claims write, and copies tell what it will be.

    claims: those of a run before the node. written: storages that they write. computed: numbers that are.
    """
    if node.target is not ITEM or numbers_function() is None:
        return False
    (of,) = (value for value in node.operands() if value.is_tensor)
    if of.tensor.dtype not in _READS:
        return False
    writers = _writers(of, claims)
    return (
        bool(writers)
        and writers[0].into is not None
        and all(_is_alone(each, of, written, computed) for each in writers)
    )


def _writers(of: Value, claims: Sequence[RowClaim]) -> list[RowClaim]:
    return [claim for claim in claims if claim.written.tensor.storage == of.tensor.storage]


def _is_alone(claim: RowClaim, of: Value, written: Collection[int], computed: Collection[Value]) -> bool:
    """Whether a claim writes one element, from that and what no claim writes."""
    tensors = [value.tensor for value in claim.operands if isinstance(value, Value) and value.is_tensor]
    own = [meta for meta in (*tensors, claim.written.tensor) if meta.storage == of.tensor.storage]
    if claim.layout is None or any(value in computed for value in claim.operands if isinstance(value, Value)):
        return False
    is_one = all(meta.numel() == 1 and (meta.offset, meta.dtype) == (of.tensor.offset, of.tensor.dtype) for meta in own)
    return is_one and all(meta.storage not in written or meta in own for meta in tensors)


def computing_rows(
    nodes: Sequence[Node],
    claims: Sequence[RowClaim],
    row_of: Callable[[RowClaim, Mapping[Value, Address]], ReadyRow | None],
    addresses: Mapping[Value, Address],
) -> list[ReadyRow]:
    """The rows that compute the numbers of some nodes, in order.

    claims: of the cluster. row_of: the row of a claim, given where values lie. addresses: where they lie otherwise.
    """
    rows: list[ReadyRow] = []
    places: dict[int, Address] = {}
    for node in nodes:
        if node.target is not ITEM:
            continue
        (of,) = (value for value in node.operands() if value.is_tensor)
        writers = _writers(of, claims)
        first = writers[0].into
        assert first is not None, "see `is_read`"
        if of.tensor.storage in places:
            continue
        storage, room = of.tensor.storage, Value(f"copy_of_{of.name}", replace(of.tensor, storage=-1))
        places[storage] = Address(room)
        size = struct.pack("2q", of.tensor.dtype.itemsize, 0)
        source = addresses.get(first, Address(first))
        rows.append(ReadyRow(copy_function(), 1, (source,), more=size, defines=room))
        for claim in writers:
            own = [value for value in (*claim.operands, claim.written, claim.result) if isinstance(value, Value)]
            here = {value: Address(room) for value in own if value.is_tensor and value.tensor.storage == storage}
            row = row_of(claim, {**addresses, **here})
            assert row is not None, "what is written is stored"
            rows.append(row)
    return [*rows, _numbers_row(nodes, places)]


def _numbers_row(nodes: Sequence[Node], places: Mapping[int, Address]) -> ReadyRow:
    """The row that computes numbers. places: where the copies are."""
    made = {value for node in nodes for value in node.results()}
    pointers = list(places.values())
    given = list(dict.fromkeys(v for n in nodes for v in n.operands() if not v.is_tensor and v not in made))
    known = [x for n in nodes if n.target is not ITEM for x in n.args if not isinstance(x, Value)]
    constants = list(dict.fromkeys(map(_bits, known)))
    head = 1 + len(pointers) + len(given)
    registers = head + 2 + 4 * len(nodes)
    slots: dict[Value | bytes, int] = {value: 1 + len(pointers) + at for at, value in enumerate(given)}
    slots.update({number: registers + at for at, number in enumerate(constants)})
    results: dict[Value | bytes, int] = {
        node.results()[0]: registers + len(constants) + at for at, node in enumerate(nodes)
    }
    slots.update(results)
    steps: list[int] = []
    for node in nodes:
        result = results[node.results()[0]]
        if node.target is ITEM:
            (of,) = (value for value in node.operands() if value.is_tensor)
            steps += [_READS[of.tensor.dtype], result, 1 + pointers.index(places[of.tensor.storage]), head]
        else:
            x, y = (*node.args, *node.args)[:2]
            steps += [STEPS[node.target], result, *(slots[o if isinstance(o, Value) else _bits(o)] for o in (x, y))]
    more = struct.pack(f"{2 + len(steps)}q", len(nodes), len(constants) + len(results), *steps)
    more += b"".join(constants) + bytes(8 * len(results))
    function = numbers_function()
    assert function is not None, "see `is_step`"
    numbers = tuple((value, None) for value in given)
    kept = tuple((value, at) for value, at in results.items() if isinstance(value, Value))
    return ReadyRow(function, 1 + len(given), tuple(pointers), numbers, more, registers=kept)


def _bits(number: Operand) -> bytes:
    """A number as a double: zeros of either sign are two."""
    assert isinstance(number, float | int), "see `is_step`"
    return struct.pack("d", number)
