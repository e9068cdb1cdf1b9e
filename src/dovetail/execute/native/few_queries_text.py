"""LLVM's text of attention of few queries over many keys, as a text that is generated has: keys and values are read
where they lie, once for each query.

    slots: as in `attention_text`

Items are shares of the work: queries of all heads are divided in proportion. A score is a sum in a vector, and a result
is added up in blocks of keys. As in torch's kernel, a row that sees no key is 0, and NaN among its scores makes it NaN.
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.attention_text import HeadsRow, folds_text, softmax_text
from dovetail.execute.native.channel_vectors import ChannelVectors, share
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.tile_text import ATTRIBUTES, Tile, declarations

_NAME = "few_queries"
_BLOCK = 64  # keys whose values are added up before they are added to others
_TOGETHER = 4  # keys whose scores are computed at a time
_MOST_SUMS = 8  # vectors of sums that are added to by turns, so that none waits for the one before


@cache
def few_queries_function(tile: Tile, size: int) -> int:
    """The address of the function of such rows, for heads of a size. tile: its lanes count."""
    found = function_of(few_queries_text(tile, size), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def few_queries_text(tile: Tile, size: int) -> str:
    """The module."""
    head = declarations(tile) + folds_text(tile.lanes) + softmax_text(_NAME, tile.lanes)
    return head + _scores_text(tile.lanes, size) + _sums_text(tile.lanes, size) + _rows_text(tile.lanes)


def _rows_text(lanes: int) -> str:
    """The function of a row."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    told = HeadsRow.read(out)
    queries, keys = told.queries, told.keys
    line = out.set(f"alloca float, i64 {out.mul(out.parts(keys, str(lanes)), str(lanes))}, align 64")
    first, end = share(out, told.items, out.mul(out.mul(told.batch, told.heads), queries))
    with out.loop(first, end) as job:
        query = out.set(f"srem i64 {job}, {queries}")
        made, x, key, value, mask = told.of_head(out, out.set(f"sdiv i64 {job}, {queries}"))
        down = told.down
        y, x, added = (
            out.element("float", each, out.mul(query, by))
            for each, by in ((made, down[0]), (x, down[1]), (mask, down[4]))
        )
        known = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(query, '1')}, i64 {keys})")
        known = out.set(f"select i1 {told.is_causal}, i64 {known}, i64 {keys}")
        out.line(f"call void @{_NAME}_scores(ptr {x}, ptr {key}, i64 {down[2]}, i64 {known}, ptr {line})")
        given = f"ptr {line}, i64 {known}, i64 {known}, float {told.scale}, i1 {told.has_mask}, ptr {added}"
        out.line(f"call void @{_NAME}_softmax({given})")
        out.line(f"call void @{_NAME}_sums(ptr {line}, ptr {value}, i64 {down[3]}, i64 {known}, ptr {y})")
    return out.finished()


class _Head:
    """Vectors of the elements of a head, of which the last may not be full."""

    def __init__(self, out: Function, lanes: int, size: int) -> None:
        self.out, self.lanes, self.places = out, lanes, range(0, size, lanes)
        self.vector, self._all = ChannelVectors(out, lanes), ChannelVectors(out, lanes).kind
        self._rest = self.vector.mask(str(size % lanes)) if size % lanes else ""

    def load(self, start: str) -> list[str]:
        """The vectors of a row."""
        return [self._load(self.out.element("float", start, str(at)), at) for at in self.places]

    def _load(self, pointer: str, at: int) -> str:
        is_last = self._rest and at == self.places[-1]
        return self.vector.load(pointer, self._rest) if is_last else self.out.load(self._all, pointer)

    def store(self, values: list[str], start: str) -> None:
        """Write the vectors of a row."""
        for at, value in zip(self.places, values, strict=True):
            pointer = self.out.element("float", start, str(at))
            if self._rest and at == self.places[-1]:
                self.vector.store(value, pointer, self._rest)
            else:
                self.out.line(f"store {self._all} {value}, ptr {pointer}, align 4")


def _scores_text(lanes: int, size: int) -> str:
    """A query by each key."""
    given = "ptr %x, ptr %keys, i64 %down, i64 %count, ptr %line"
    out = Function(f"define internal void @{_NAME}_scores({given}) noinline {ATTRIBUTES}")
    head, v = _Head(out, lanes, size), f"<{lanes} x float>"
    query = head.load("%x")
    whole = out.mul(out.set(f"sdiv i64 %count, {_TOGETHER}"), str(_TOGETHER))
    for start, end, step in (("0", whole, _TOGETHER), (whole, "%count", 1)):
        with out.loop(start, end, str(step)) as key:
            places = [out.add(key, str(at)) for at in range(step)]
            for place in places:
                sums = "zeroinitializer"
                row = head.load(out.element("float", "%keys", out.mul(place, "%down")))
                for a, b in zip(query, row, strict=True):
                    sums = out.set(f"call {v} @llvm.fma.v{lanes}f32({v} {a}, {v} {b}, {v} {sums})")
                score = out.set(f"call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(float -0.0, {v} {sums})")
                out.line(f"store float {score}, ptr {out.element('float', '%line', place)}, align 4")
    return out.finished()


def _sums_text(lanes: int, size: int) -> str:
    """Values by the parts of each key, in blocks of keys."""
    given = "ptr %line, ptr %values, i64 %down, i64 %count, ptr %out"
    out = Function(f"define internal void @{_NAME}_sums({given}) noinline {ATTRIBUTES}")
    head, v = _Head(out, lanes, size), f"<{lanes} x float>"
    count = len(head.places)
    turns = max(1, _MOST_SUMS // count)
    totals = [out.variable(v, "zeroinitializer", 64) for _ in range(count)]
    sums = [[out.memory(v, 64) for _ in range(count)] for _ in range(turns)]
    with out.loop("0", "%count", str(_BLOCK)) as block:
        for each in (pointer for turn in sums for pointer in turn):
            out.line(f"store {v} zeroinitializer, ptr {each}, align 64")
        end = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(block, str(_BLOCK))}, i64 %count)")
        whole = out.add(block, out.mul(out.set(f"sdiv i64 {out.set(f'sub i64 {end}, {block}')}, {turns}"), str(turns)))
        for start, last, step in ((block, whole, turns), (whole, end, 1)):
            with out.loop(start, last, str(step)) as key:
                for turn in sums[:step]:
                    place = out.add(key, str(sums.index(turn)))
                    part = out.spread("float", out.load("float", out.element("float", "%line", place)), lanes)
                    row = head.load(out.element("float", "%values", out.mul(place, "%down")))
                    for pointer, value in zip(turn, row, strict=True):
                        former = out.load(v, pointer, 64)
                        more = out.set(f"call {v} @llvm.fma.v{lanes}f32({v} {part}, {v} {value}, {v} {former})")
                        out.line(f"store {v} {more}, ptr {pointer}, align 64")
        for turn in sums:
            for total, pointer in zip(totals, turn, strict=True):
                more = out.set(f"fadd {v} {out.load(v, total, 64)}, {out.load(v, pointer, 64)}")
                out.line(f"store {v} {more}, ptr {total}, align 64")
    head.store([out.load(v, total, 64) for total in totals], "%out")
    return out.finished()
