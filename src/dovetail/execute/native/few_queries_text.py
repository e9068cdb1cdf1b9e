"""LLVM's text of attention of few queries over many keys, as of a text that is generated: keys and values are read
where they lie, and nothing is copied.

    slots: as in `attention_text`

Items are shares of the work: heads of the batch are divided in proportion. Keys are taken in blocks that stay in the
nearest cache while all queries read them; scores of a query are sums in a vector, four at a time, and results are added
up in blocks of keys. As in torch's kernel, a row that sees no key is 0, and NaN among its scores makes it NaN.
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.attention_text import HeadsRow, folds_text, softmax_text
from dovetail.execute.native.channel_vectors import ChannelVectors
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.tile_text import ATTRIBUTES, Tile, declarations

_NAME = "few_queries"
_BLOCK = 64  # keys
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
    lanes, low = tile.lanes, "declare i64 @llvm.smax.i64(i64, i64)\n"
    head = declarations(tile) + low + folds_text(lanes) + softmax_text(_NAME, lanes)
    return head + _scores_text(lanes, size) + _sums_text(lanes, size) + _rows_text(lanes)


def _rows_text(lanes: int) -> str:
    """The function of a row."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    told = HeadsRow.read(out)
    queries, keys, down = told.queries, told.keys, told.down
    columns = out.mul(out.parts(keys, str(lanes)), str(lanes))
    lines = out.set(f"alloca float, i64 {out.mul(columns, queries)}, align 64")

    def known(query: str) -> str:
        """How many keys a query sees."""
        causal = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(query, '1')}, i64 {keys})")
        return out.set(f"select i1 {told.is_causal}, i64 {causal}, i64 {keys}")

    def of_block(query: str, block: str) -> tuple[str, str]:
        """The scores of a query for a block of keys, and how many there are."""
        left = out.set(f"call i64 @llvm.smax.i64(i64 {out.set(f'sub i64 {known(query)}, {block}')}, i64 0)")
        count = out.set(f"call i64 @llvm.smin.i64(i64 {left}, i64 {_BLOCK})")
        return out.element("float", lines, out.add(out.mul(query, columns), block)), count

    first, end = out.share(told.items, out.mul(told.batch, told.heads))
    with out.loop(first, end) as job:
        made, x, key, value, mask = told.of_head(out, job)
        with out.loop("0", keys, str(_BLOCK)) as block:
            start = out.element("float", key, out.mul(block, down[2]))
            with out.loop("0", queries) as query:
                (line, count), read = of_block(query, block), out.element("float", x, out.mul(query, down[1]))
                given = f"ptr {read}, ptr {start}, i64 {down[2]}, i64 {count}, ptr {line}"
                out.line(f"call void @{_NAME}_scores({given})")
        with out.loop("0", queries) as query:
            seen, line = known(query), out.element("float", lines, out.mul(query, columns))
            added = out.element("float", mask, out.mul(query, down[4]))
            given = f"ptr {line}, i64 {seen}, i64 {seen}, float {told.scale}, i1 {told.has_mask}, ptr {added}"
            out.line(f"call void @{_NAME}_softmax({given})")
        with out.loop("0", keys, str(_BLOCK)) as block:
            start = out.element("float", value, out.mul(block, down[3]))
            is_first = out.set(f"icmp eq i64 {block}, 0")
            with out.loop("0", queries) as query:
                (line, count), to = of_block(query, block), out.element("float", made, out.mul(query, down[0]))
                given = f"ptr {line}, ptr {start}, i64 {down[3]}, i64 {count}, ptr {to}, i1 {is_first}"
                out.line(f"call void @{_NAME}_sums({given})")
    return out.finished()


class _Head:
    """Vectors of the elements of a head, of which the last may not be full."""

    def __init__(self, out: Function, lanes: int, size: int) -> None:
        self.out, self.lanes, self.places = out, lanes, range(0, size, lanes)
        self._vectors = ChannelVectors(out, lanes)
        self._rest = self._vectors.mask(str(size % lanes)) if size % lanes else ""

    def load(self, start: str) -> list[str]:
        """The vectors of a row."""
        found = []
        for at in self.places:
            pointer = self.out.element("float", start, str(at))
            is_part = self._rest and at == self.places[-1]
            part = self._vectors.load(pointer, self._rest) if is_part else self.out.load(self._vectors.kind, pointer)
            found.append(part)
        return found

    def store(self, values: list[str], start: str) -> None:
        """Write the vectors of a row."""
        for at, value in zip(self.places, values, strict=True):
            pointer = self.out.element("float", start, str(at))
            if self._rest and at == self.places[-1]:
                self._vectors.store(value, pointer, self._rest)
            else:
                self.out.line(f"store {self._vectors.kind} {value}, ptr {pointer}, align 4")


def _scores_text(lanes: int, size: int) -> str:
    """A query by each key."""
    given = "ptr %x, ptr %keys, i64 %down, i64 %count, ptr %line"
    out = Function(f"define internal void @{_NAME}_scores({given}) noinline {ATTRIBUTES}")
    head, v = _Head(out, lanes, size), f"<{lanes} x float>"
    query = head.load("%x")
    whole = out.mul(out.set(f"sdiv i64 %count, {_TOGETHER}"), str(_TOGETHER))

    def products(place: str) -> str:
        """A vector whose sum is a score."""
        sums = "zeroinitializer"
        row = head.load(out.element("float", "%keys", out.mul(place, "%down")))
        for a, b in zip(query, row, strict=True):
            sums = out.set(f"call {v} @llvm.fma.v{lanes}f32({v} {a}, {v} {b}, {v} {sums})")
        return sums

    with out.loop("0", whole, str(_TOGETHER)) as key:
        four = _four_sums(out, lanes, [products(out.add(key, str(at))) for at in range(_TOGETHER)])
        out.line(f"store <4 x float> {four}, ptr {out.element('float', '%line', key)}, align 4")
    with out.loop(whole, "%count") as key:
        sums = products(key)
        score = out.set(f"call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(float -0.0, {v} {sums})")
        out.line(f"store float {score}, ptr {out.element('float', '%line', key)}, align 4")
    return out.finished()


def _four_sums(out: Function, lanes: int, vectors: list[str]) -> str:
    """The sums of four vectors, side by side: halves are added while vectors are put together."""
    v = f"<{lanes} x float>"

    def shuffled(a: str, b: str, places: list[int], kind: str = v) -> str:
        order = ", ".join(f"i32 {place}" for place in places)
        return out.set(f"shufflevector {kind} {a}, {kind} {b}, <{len(places)} x i32> <{order}>")

    width = lanes // 2  # of what is left of each vector
    while len(vectors) > 1:
        kept = lanes // (2 * width)  # vectors that one holds
        low = [at * 2 * width + n for at in range(kept) for n in range(width)]
        low += [lanes + place for place in low]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [
            out.set(f"fadd {v} {shuffled(a, b, low)}, {shuffled(a, b, [place + width for place in low])}")
            for a, b in pairs
        ]
        width //= 2
    (found,) = vectors
    while width:  # what is left lies in groups of twice as many
        moved = shuffled(found, "poison", [(place + width) % lanes for place in range(lanes)])
        found, width = out.set(f"fadd {v} {found}, {moved}"), width // 2
    return shuffled(found, "poison", [at * lanes // 4 for at in range(4)])


def _sums_text(lanes: int, size: int) -> str:
    """Values by the parts of each key of a block, added to a result, or the first of it."""
    given = "ptr %line, ptr %values, i64 %down, i64 %count, ptr %out, i1 %is_first"
    out = Function(f"define internal void @{_NAME}_sums({given}) noinline {ATTRIBUTES}")
    head, v = _Head(out, lanes, size), f"<{lanes} x float>"
    turns = max(1, _MOST_SUMS // len(head.places))
    sums = [[out.variable(v, "zeroinitializer", 64) for _ in head.places] for _ in range(turns)]
    whole = out.mul(out.set(f"sdiv i64 %count, {turns}"), str(turns))
    for start, last, step in (("0", whole, turns), (whole, "%count", 1)):
        with out.loop(start, last, str(step)) as key:
            for number, turn in enumerate(sums[:step]):
                place = out.add(key, str(number))
                part = out.spread("float", out.load("float", out.element("float", "%line", place)), lanes)
                row = head.load(out.element("float", "%values", out.mul(place, "%down")))
                for pointer, value in zip(turn, row, strict=True):
                    former = out.load(v, pointer, 64)
                    more = out.set(f"call {v} @llvm.fma.v{lanes}f32({v} {part}, {v} {value}, {v} {former})")
                    out.line(f"store {v} {more}, ptr {pointer}, align 64")
    totals = [out.load(v, pointer, 64) for pointer in sums[0]]
    for turn in sums[1:]:
        others = [out.load(v, pointer, 64) for pointer in turn]
        totals = [out.set(f"fadd {v} {a}, {b}") for a, b in zip(totals, others, strict=True)]
    with out.when("%is_first"):
        head.store(["zeroinitializer" for _ in totals], "%out")
    before = head.load("%out")
    head.store([out.set(f"fadd {v} {a}, {b}") for a, b in zip(before, totals, strict=True)], "%out")
    return out.finished()
