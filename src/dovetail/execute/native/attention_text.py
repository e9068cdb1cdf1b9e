"""LLVM's text of attention over few keys: scores, mask, softmax and sums of a head, in the cache of one thread.

    slots: items, pointers (result, query, key, value, mask), batch, heads, queries, keys, size of a head, elements from
    one to the next of batch, heads and rows (three each: of the result, query, key, value, mask), whether there is a
    mask, whether it is causal, the scale (`float`)

Items are shares of the work: heads of the batch are divided in proportion. Keys and values of a head are copied to
panels of 32 columns; then some queries at once are multiplied by these, in tiles (`tile_text`). As in torch's kernel,
a row that sees no key is 0, and NaN among its scores makes it NaN. Numbers are added in other orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from dovetail.execute.native.channel_vectors import ChannelVectors
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.tile_text import ATTRIBUTES, Tile, declarations, tiles_text, zeros
from dovetail.execute.native.vector_activations import VectorLines
from dovetail.ops.panels import WIDTH

_NAME = "attention"
_ROWS = 24  # queries at once
_BLOCK, _FEW, _SHORT = 256, 4, 32  # products of a sum that is added to others; of so few rows, shorter ones
_LEAST, _MOST = "0xFFF0000000000000", "0x7FF0000000000000"
_SMALLEST = -87.3  # of which the exponential is a normal number


@cache
def attention_function(tile: Tile) -> int:
    """The address of the function of such rows, in tiles of a size."""
    found = function_of(attention_text(tile), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def attention_text(tile: Tile) -> str:
    """The module, for tiles of a size."""
    head = declarations(tile) + folds_text(tile.lanes) + zeros(tile, _NAME) + tiles_text(tile, _NAME)
    return head + _product_text(tile) + _panels_text(tile.lanes) + softmax_text(_NAME, tile.lanes) + _heads_text()


def folds_text(lanes: int) -> str:
    """Declarations of what makes one number of a vector."""
    kinds = (("fmax", ""), ("fadd", "float, "))
    vector = f"<{lanes} x float>"
    return "".join(
        f"declare float @llvm.vector.reduce.{kind}.v{lanes}f32({before}{vector})\n" for kind, before in kinds
    )


@dataclass(frozen=True, slots=True)
class HeadsRow:
    """What a function reads of its row. pointers, steps: of the result, query, key, value, mask. down: from one row of
    these to the next.
    """

    items: str
    batch: str
    heads: str
    queries: str
    keys: str
    size: str
    pointers: tuple[str, ...]
    steps: tuple[tuple[str, str, str], ...]
    has_mask: str
    is_causal: str
    scale: str

    @classmethod
    def read(cls, out: Function) -> HeadsRow:
        """Read it."""
        pointers = tuple(out.slot("%row", at, "ptr") for at in range(1, 6))
        batch, heads, queries, keys, size = (out.slot("%row", at) for at in range(6, 11))
        a, b, c = ([out.slot("%row", 11 + 3 * each + at) for each in range(5)] for at in range(3))
        has_mask, is_causal = (out.set(f"icmp ne i64 {out.slot('%row', at)}, 0") for at in (26, 27))
        return cls(
            *(out.slot("%row", 0), batch, heads, queries, keys, size),
            pointers,
            tuple(zip(a, b, c, strict=True)),
            *(has_mask, is_causal, out.slot("%row", 28, "float")),
        )

    @property
    def down(self) -> list[str]:
        """Elements from one row to the next."""
        return [step[2] for step in self.steps]

    def of_head(self, out: Function, head: str) -> list[str]:
        """Where the rows of a head begin. head: by its number among those of all the batch."""
        at = [out.set(f"{what} i64 {head}, {self.heads}") for what in ("sdiv", "srem")]
        return [
            out.element("float", start, out.add(out.mul(at[0], step[0]), out.mul(at[1], step[1])))
            for start, step in zip(self.pointers, self.steps, strict=True)
        ]


def _heads_text() -> str:
    """The function of a row: heads, some queries at once."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    told = HeadsRow.read(out)
    queries, keys, size, is_causal = told.queries, told.keys, told.size, told.is_causal
    columns, width = _rounded(out, keys), _rounded(out, size)  # which also fill vectors
    turned, values, scores = (
        out.set(f"alloca float, i64 {count}, align 64")
        for count in (out.mul(columns, width), out.mul(width, keys), out.mul(columns, str(_ROWS)))
    )
    first, end = out.share(told.items, out.mul(told.batch, told.heads))
    with out.loop(first, end) as job:
        made, query, key, value, mask = told.of_head(out, job)
        down = told.down
        out.line(
            f"call void @{_NAME}_turned(ptr {turned}, ptr {key}, i64 {down[2]}, i64 {keys}, i64 {size}, i64 {width})"
        )
        out.line(f"call void @{_NAME}_panels(ptr {values}, ptr {value}, i64 {down[3]}, i64 {keys}, i64 {size})")
        with out.loop("0", queries, str(_ROWS)) as start:
            left = out.set(f"sub i64 {queries}, {start}")
            rows = out.set(f"call i64 @llvm.smin.i64(i64 {left}, i64 {_ROWS})")
            last = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(start, rows)}, i64 {keys})")
            seen = out.set(f"select i1 {is_causal}, i64 {last}, i64 {keys}")
            x, y = (out.element("float", each, out.mul(start, by)) for each, by in ((query, down[1]), (made, down[0])))
            given = f"ptr {x}, i64 {down[1]}, i64 {rows}, ptr {turned}, i64 {width}"
            out.line(f"call void @{_NAME}_product({given}, i64 {size}, ptr {scores}, i64 {columns}, i64 {seen})")
            with out.loop("0", rows) as row:
                place = out.add(start, row)
                known = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(place, '1')}, i64 {seen})")
                known = out.set(f"select i1 {is_causal}, i64 {known}, i64 {seen}")
                line = out.element("float", scores, out.mul(row, columns))
                added = out.element("float", mask, out.mul(place, down[4]))
                given = f"ptr {line}, i64 {known}, i64 {seen}, float {told.scale}, i1 {told.has_mask}, ptr {added}"
                out.line(f"call void @{_NAME}_softmax({given})")
            given = f"ptr {scores}, i64 {columns}, i64 {rows}, ptr {values}, i64 {keys}"
            out.line(f"call void @{_NAME}_product({given}, i64 {seen}, ptr {y}, i64 {down[0]}, i64 {size})")
    return out.finished()


def _rounded(out: Function, count: str) -> str:
    """A number of columns that fill panels."""
    return out.mul(out.set(f"sdiv i64 {out.add(count, str(WIDTH - 1))}, {WIDTH}"), str(WIDTH))


def _product_text(tile: Tile) -> str:
    """Rows by panels. lines: of a panel; products: of each sum."""
    given = (
        "ptr %x, i64 %down, i64 %rows, ptr %panels, i64 %lines, i64 %products, ptr %out, i64 %out_down, i64 %columns"
    )
    out = Function(f"define internal void @{_NAME}_product({given}) noinline {ATTRIBUTES}")
    is_few = out.set(f"icmp sle i64 %rows, {_FEW}")
    block = out.set(f"select i1 {is_few}, i64 {_SHORT}, i64 {_BLOCK}")
    with out.loop("0", "%columns", str(WIDTH)) as column, out.loop("0", "%products", block) as product:
        left = out.set(f"sub i64 %columns, {column}")
        line = out.add(out.mul(column, "%lines"), out.mul(product, str(WIDTH)))
        panel, made = out.element("float", "%panels", line), out.element("float", "%out", column)
        is_half = out.set(f"icmp sle i64 {left}, {WIDTH // 2}")
        is_first = out.set(f"icmp eq i64 {product}, 0")
        sums = out.set(f"call i64 @llvm.smin.i64(i64 {out.set(f'sub i64 %products, {product}')}, i64 {block})")
        start_down = out.set(f"select i1 {is_first}, i64 0, i64 %out_down")
        with out.loop("0", "%rows", str(tile.rows)) as row:
            rest = out.set(f"sub i64 %rows, {row}")
            rows = out.set(f"call i64 @llvm.smin.i64(i64 {rest}, i64 {tile.rows})")
            x = out.element("float", "%x", out.add(out.mul(row, "%down"), product))
            y = out.element("float", made, out.mul(row, "%out_down"))
            start = out.set(f"select i1 {is_first}, ptr @{_NAME}_zeros, ptr {y}")
            arguments = (
                f"ptr {x}, i64 %down, ptr {panel}, ptr {start}, i64 {start_down}, ptr {y}, i64 %out_down, i64 {sums},"
                f" i64 {left}, float {_LEAST}, float {_MOST}, ptr {panel}, i64 0, i64 0"
            )
            which = out.add(rows, out.set(f"select i1 {is_half}, i64 {tile.rows}, i64 0"))
            cases = {
                count + tile.rows * half: f"call void @{_NAME}_tile{count}_{tile.vectors >> half}({arguments})"
                for half in (0, 1)
                for count in range(1, tile.rows + 1)
            }
            out.switch(which, cases)
    return out.finished()


def _panels_text(lanes: int) -> str:
    """Copies of rows into panels: rows as columns, in squares, and rows as lines. What is behind the last is zeros."""
    given = "ptr %panels, ptr %x, i64 %down, i64 %keys, i64 %size"
    out = Function(f"define internal void @{_NAME}_turned({given}, i64 %lines) noinline {ATTRIBUTES}")
    vectors = ChannelVectors(out, lanes)
    with out.loop("0", _rounded(out, "%keys"), str(lanes)) as key:
        number, column = (out.set(f"{what} i64 {key}, {WIDTH}") for what in ("sdiv", "srem"))
        panel = out.element("float", "%panels", out.add(out.mul(out.mul(number, "%lines"), str(WIDTH)), column))
        with out.loop("0", "%lines", str(lanes)) as at:
            left, square = out.set(f"sub i64 %size, {at}"), list[str]()
            for line in range(lanes):
                place = out.add(key, str(line))
                is_there = out.set(f"icmp slt i64 {place}, %keys")
                there = vectors.mask(out.set(f"select i1 {is_there}, i64 {left}, i64 0"))
                square.append(vectors.load(out.element("float", "%x", out.add(out.mul(place, "%down"), at)), there))
            for line, column_ in enumerate(_transposed(out, square)):
                to = out.element("float", panel, out.mul(out.add(at, str(line)), str(WIDTH)))
                out.line(f"store {vectors.kind} {column_}, ptr {to}, align 4")
    text = out.finished()
    out = Function(f"define internal void @{_NAME}_panels({given}) noinline {ATTRIBUTES}")
    vectors = ChannelVectors(out, lanes)
    with out.loop("0", _rounded(out, "%size"), str(lanes)) as at:
        number, column = (out.set(f"{what} i64 {at}, {WIDTH}") for what in ("sdiv", "srem"))
        to = out.element("float", "%panels", out.add(out.mul(out.mul(number, "%keys"), str(WIDTH)), column))
        there = vectors.mask(out.set(f"sub i64 %size, {at}"))
        with out.loop("0", "%keys") as key:
            one = vectors.load(out.element("float", "%x", out.add(out.mul(key, "%down"), at)), there)
            line_ = out.element("float", to, out.mul(key, str(WIDTH)))
            out.line(f"store {vectors.kind} {one}, ptr {line_}, align 4")
    return text + out.finished()


def _transposed(out: Function, square: list[str]) -> list[str]:
    """The columns of as many vectors as each has lanes."""
    lanes = len(square)
    v, lines, far = f"<{lanes} x float>", list(square), lanes // 2
    while far:  # two lines that are so far apart exchange parts of that size
        for first in [line for line in range(lanes) if not line & far]:
            a, b = lines[first], lines[first + far]
            low = ", ".join(f"i32 {n if not n & far else lanes + n - far}" for n in range(lanes))
            high = ", ".join(f"i32 {n + far if not n & far else lanes + n}" for n in range(lanes))
            lines[first], lines[first + far] = (
                out.set(f"shufflevector {v} {a}, {v} {b}, <{lanes} x i32> <{order}>") for order in (low, high)
            )
        far //= 2
    return lines


def softmax_text(name: str, lanes: int) -> str:
    """A module's function that makes parts of 1 of a query's scores, in place. known: how many keys it sees; those
    behind, up to `seen`, become 0, and so does what follows to the end of a vector.
    """
    given = "ptr %line, i64 %known, i64 %seen, float %scale, i1 %has_mask, ptr %mask"
    out = Function(f"define internal void @{name}_softmax({given}) noinline {ATTRIBUTES}")
    vectors, v, kept = ChannelVectors(out, lanes), f"<{lanes} x float>", f"<{lanes} x i1>"
    by, lowest = out.spread("float", "%scale", lanes), f"splat (float {_LEAST})"
    most, total = out.variable(v, lowest, 64), out.variable(v, "zeroinitializer", 64)
    end = out.mul(out.set(f"sdiv i64 {out.add('%seen', str(lanes - 1))}, {lanes}"), str(lanes))
    with out.loop("0", end, str(lanes)) as at:
        place = out.element("float", "%line", at)
        score = out.set(f"fmul {v} {out.load(v, place)}, {by}")
        out.line(f"store {v} {score}, ptr {place}, align 4")
    with out.loop("%known", end) as at:
        out.line(f"store float {_LEAST}, ptr {out.element('float', '%line', at)}, align 4")
    with out.when("%has_mask"), out.loop("0", "%known", str(lanes)) as at:
        place, there = out.element("float", "%line", at), vectors.mask(out.set(f"sub i64 %known, {at}"))
        added = vectors.load(out.element("float", "%mask", at), there)
        out.line(f"store {v} {out.set(f'fadd {v} {out.load(v, place)}, {added}')}, ptr {place}, align 4")
    with out.loop("0", end, str(lanes)) as at:
        score, former = out.load(v, out.element("float", "%line", at)), out.load(v, most, 64)
        is_more = out.set(f"fcmp ogt {v} {score}, {former}")
        larger = out.set(f"select {kept} {is_more}, {v} {score}, {v} {former}")
        out.line(f"store {v} {larger}, ptr {most}, align 64")
    top = out.set(f"call float @llvm.vector.reduce.fmax.v{lanes}f32({v} {out.load(v, most, 64)})")
    sees_none = out.set(f"fcmp oeq float {top}, {_LEAST}")
    top = out.spread("float", out.set(f"select i1 {sees_none}, float 0.0, float {top}"), lanes)
    with out.loop("0", end, str(lanes)) as at:
        place = out.element("float", "%line", at)
        power = _power(out, lanes, out.set(f"fsub {v} {out.load(v, place)}, {top}"))
        out.line(f"store {v} {power}, ptr {place}, align 4")
        more = out.set(f"fadd {v} {out.load(v, total, 64)}, {power}")
        out.line(f"store {v} {more}, ptr {total}, align 64")
    all_ = out.set(f"call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(float 0.0, {v} {out.load(v, total, 64)})")
    is_none = out.set(f"fcmp oeq float {all_}, 0.0")
    part = out.set(f"fdiv float 1.0, {out.set(f'select i1 {is_none}, float 1.0, float {all_}')}")
    parts = out.spread("float", part, lanes)
    with out.loop("0", end, str(lanes)) as at:
        place = out.element("float", "%line", at)
        out.line(f"store {v} {out.set(f'fmul {v} {out.load(v, place)}, {parts}')}, ptr {place}, align 4")
    return out.finished()


def _power(out: Function, lanes: int, x: str) -> str:
    """The exponential, 0 where it would be no normal number."""
    lines = VectorLines(lanes)
    power = lines.exp(x)
    for line in lines.lines:
        out.line(line.strip())
    is_least = out.set(f"fcmp olt {lines.vector} {x}, {lines.number(_SMALLEST)}")
    return out.set(f"select <{lanes} x i1> {is_least}, {lines.vector} zeroinitializer, {lines.vector} {power}")


def usual_scale(size: int) -> float:
    """What scores are multiplied with where nothing else is said."""
    return 1.0 / math.sqrt(size)
