"""LLVM's text of convolutions by 3x3 weights with fewer multiplications, over images with channels last.

    slots: as `convolution_text`; `chunk` counts tiles, `lines` says whether the weight is transformed already, `part`
    whether threads share whole chunks, and a room holds what is computed on the way, see `few_products.Tiling`

A tile is 2x2 pixels of the result, which read 4x4 of the image. Both the pixels and the weight are transformed to 16
numbers for each channel; 16 products over the channels follow, whose results are transformed back: 16 multiplications
for 4 pixels, where it takes 36 otherwise. Weights are transformed in each call, which costs little: kept is what
direct convolutions read. A row before does it where there are several chunks; for a single one each panel is
transformed where it is used, into the room.

    slots of that row: items, pointers (room, panels), inputs, outputs

Transforms add and subtract, and an infinity among the terms would become NaN: pixels of which a result is not finite
are computed again, product by product. So are those whose results are all small next to what they are sums of: other
pixels of the tile are much larger, and rounding is relative to them.

Items are shares of the work: chunks, or pairs of a chunk and a panel where there are few, are divided in proportion.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), F(2x2, 3x3).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dovetail.execute.native.convolution_text import Slots
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.padded_text import rooms_text
from dovetail.execute.native.tile_lines import multiplied
from dovetail.execute.native.tile_text import ATTRIBUTES, HALF, Tile, activations_text, declarations
from dovetail.execute.native.vector_activations import CODES
from dovetail.execute.native.winograd_transforms import MADE, transforms_text, weights_apart
from dovetail.ops.few_products import APART, KERNEL, PRODUCTS, STEP
from dovetail.ops.panels import WIDTH


def winograd_text(tile: Tile) -> str:
    """The module, for tiles of products of a size."""
    products = "".join(
        _product_text(tile, rows, range(vectors))
        for vectors in sorted({tile.vectors, tile.vectors // 2})
        for rows in range(1, tile.rows + 1)
    )
    zeros = f"@NAME_zeros = internal constant [{WIDTH} x float] zeroinitializer, align 64\n"
    used = declarations(tile) + zeros + rooms_text() + activations_text(tile, "NAME")
    return used + products + transforms_text(tile) + _function(tile)


def _product_text(tile: Tile, rows: int, vectors: range) -> str:
    """A function: transformed pixels of some tiles by a panel of the transformed weight."""
    v, lanes = f"<{tile.lanes} x float>", tile.lanes
    head = (
        f"define internal void @NAME_tile{rows}_{len(vectors)}(ptr %x, i64 %down, ptr %panel, ptr %out, i64 %inputs)"
        f" noinline {ATTRIBUTES} {{"
    )
    places = [(i, j) for i in range(rows) for j in vectors]
    out = ["entry:"]
    for i in range(rows):
        out += [f"%xo{i} = mul i64 %down, {i}", f"%x{i} = getelementptr float, ptr %x, i64 %xo{i}"]
    out += ["br label %sum", "sum:", "%n = phi i64 [0, %entry], [%n_next, %sum]"]
    out.append("%line = phi ptr [%panel, %entry], [%line_next, %sum]")
    out += [f"%c{i}_{j} = phi {v} [zeroinitializer, %entry], [%d{i}_{j}, %sum]" for i, j in places]
    out += multiplied(rows, vectors, lanes)
    out += ["%is_last = icmp eq i64 %n_next, %inputs", "br i1 %is_last, label %done, label %sum", "done:"]
    for i, j in places:
        out.append(f"%op{i}_{j} = getelementptr float, ptr %out, i64 {i * MADE + j * lanes}")
        out.append(f"store {v} %d{i}_{j}, ptr %op{i}_{j}, align 4")
    return "\n".join([head, *out, "ret void", "}", ""])


def _function(tile: Tile) -> str:
    """The function of a row: chunks of tiles, panels, products, tiles of these, in this order."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    at = Slots(out)
    down, across = (out.parts(at[each], str(STEP)) for each in ("rows", "columns"))
    tiles = out.mul(out.mul(at["images"], down), across)
    chunks = out.parts(tiles, at["chunk"])
    is_whole = at.is_set("part")
    several = out.set(f"select i1 {is_whole}, i64 {at['panels_count']}, i64 1")  # jobs that stay together
    jobs = out.set(f"select i1 {is_whole}, i64 {chunks}, i64 {out.mul(chunks, at['panels_count'])}")
    first, end = (out.mul(edge, several) for edge in out.share(at["items"], jobs))
    taken = f"ptr {at.address('taken')}"
    number = out.set(f"call i64 @NAME_take({taken}, i64 {at['rooms']})")
    chunk = _Chunk(out, tile, at, (down, across), number)
    with out.loop(first, end) as job:
        which, panel = (out.set(f"{what} i64 {job}, {at['panels_count']}") for what in ("sdiv", "srem"))
        start = out.mul(which, at["chunk"])
        count = out.least(at["chunk"], out.set(f"sub i64 {tiles}, {start}"))
        is_first = out.set(f"icmp eq i64 {job}, {first}")
        with out.when(out.set(f"or i1 {out.set(f'icmp eq i64 {panel}, 0')}, {is_first}")):
            chunk.put_pixels(start, count)
        column = out.mul(panel, str(WIDTH))
        columns = out.least(out.set(f"sub i64 {at['outputs']}, {column}"), str(WIDTH))
        size = out.mul(at["inputs"], str(KERNEL * KERNEL * WIDTH))
        weight = out.element("float", at["panels"], out.mul(panel, size))
        chunk.multiply(count, columns, chunk.transformed(panel, weight, columns))
        chunk.put_results(start, count, column, columns, weight)
    out.line(f"call void @NAME_let_go({taken}, i64 {number})")
    return out.finished()


class _Chunk:
    """Lines for a chunk of tiles. tiles: of an image, down and across. room: the number of the one that is taken."""

    def __init__(self, out: Function, tile: Tile, at: Slots, tiles: tuple[str, str], room: str) -> None:
        self._out, self._tile, self._at, self._tiles = out, tile, at, tiles
        inputs = at["inputs"]
        self._weights_apart = weights_apart(out, inputs)
        self._panel_size = out.mul(self._weights_apart, str(PRODUCTS))
        self._is_given = at.is_set("lines")
        before = out.set(f"select i1 {self._is_given}, i64 {out.mul(self._panel_size, at['panels_count'])}, i64 0")
        self._pixels = out.element("float", at["room"], out.add(before, out.mul(room, at["room_size"])))
        self._pixels_apart = out.add(out.mul(at["chunk"], inputs), str(APART))
        self._made = out.element("float", self._pixels, out.mul(self._pixels_apart, str(PRODUCTS)))

    def put_pixels(self, start: str, count: str) -> None:
        """Transform what tiles read."""
        out = self._out
        with self._runs(start, count) as run:
            to = out.element("float", self._pixels, out.mul(run.first, self._at["inputs"]))
            out.line(f"call void @NAME_pixels({run.image}, i64 {run.count}, ptr {to}, i64 {self._pixels_apart})")

    def transformed(self, panel: str, weight: str, columns: str) -> str:
        """Where a panel of the transformed weight is, of which there are so many columns. weight: the panel itself."""
        out, inputs = self._out, self._at["inputs"]
        own = out.element("float", self._made, out.mul(self._at["chunk"], str(MADE)))
        with out.when(out.set(f"xor i1 {self._is_given}, true")):
            given = f"ptr {weight}, i64 {inputs}, i64 0, i64 {inputs}, i64 {columns}, ptr {own}"
            out.line(f"call void @NAME_weight({given}, i64 {self._weights_apart})")
        before = out.element("float", self._at["room"], out.mul(panel, self._panel_size))
        return out.set(f"select i1 {self._is_given}, ptr {before}, ptr {own}")

    def multiply(self, count: str, columns: str, weight: str) -> None:
        """All products of the chunk by a transformed panel of so many columns, in about equally large tiles."""
        out, tile, inputs = self._out, self._tile, self._at["inputs"]
        parts = out.parts(count, str(tile.rows))
        is_half = out.set(f"icmp sle i64 {columns}, {WIDTH // 2}")
        more = out.set(f"select i1 {is_half}, i64 {HALF}, i64 0")
        with out.loop("0", str(PRODUCTS)) as which:
            given = out.element("float", self._pixels, out.mul(which, self._pixels_apart))
            lines = out.element("float", weight, out.mul(which, self._weights_apart))
            made = out.element("float", self._made, out.mul(which, str(WIDTH)))
            with out.loop("0", parts) as part:
                edges = [out.set(f"sdiv i64 {out.mul(each, count)}, {parts}") for each in (part, out.add(part, "1"))]
                rows = out.set(f"sub i64 {edges[1]}, {edges[0]}")
                x = out.element("float", given, out.mul(edges[0], inputs))
                to = out.element("float", made, out.mul(edges[0], str(MADE)))
                arguments = f"ptr {x}, i64 {inputs}, ptr {lines}, ptr {to}, i64 {inputs}"
                cases = {
                    rows_ + more_: f"call void @NAME_tile{rows_}_{vectors}({arguments})"
                    for more_, vectors in ((0, tile.vectors), (HALF, tile.vectors // 2))
                    for rows_ in range(1, tile.rows + 1)
                }
                out.switch(out.add(rows, more), cases)

    def put_results(self, start: str, count: str, column: str, columns: str, weight: str) -> None:
        """Transform products back, and finish them."""
        out, at = self._out, self._at
        bias = out.element("float", at["bias"], column)
        bias = out.set(f"select i1 {at.is_set('biased')}, ptr {bias}, ptr @NAME_zeros")
        down = out.mul(at["columns"], at["outputs"])
        with self._runs(start, count) as run:
            place = out.add(out.mul(run.row, down), out.mul(run.column, at["outputs"]))
            place = out.add(place, column)
            to, addend = out.element("float", at["out"], place), out.element("float", at["addend"], place)
            given = out.element("float", self._made, out.mul(run.first, str(MADE)))
            out.line(
                f"call void @NAME_result({run.image}, i64 {run.count}, ptr {given}, ptr {weight}, ptr {bias},"
                f" ptr {addend}, i1 {at.is_set('added')}, ptr {to}, i64 {down}, i64 {at['outputs']},"
                f" i64 {run.rows_left}, i64 {run.columns_left}, i64 {columns}, float {at['least']}, float {at['most']})"
            )
            with out.when(out.set(f"icmp ne i64 {at['activation']}, 0")):
                pixels = out.least(run.columns_left, out.mul(run.count, str(STEP)))
                with out.loop("0", out.least(run.rows_left, str(STEP))) as row:
                    line = out.element("float", to, out.mul(row, down))
                    arguments = f"ptr {line}, i64 {pixels}, i64 {at['outputs']}, i64 {columns}"
                    calls = {code: f"call void @NAME_{name}({arguments})" for name, code in CODES.items()}
                    out.switch(at["activation"], calls)

    @contextmanager
    def _runs(self, start: str, count: str) -> Iterator[_Run]:
        """Lines for each run of tiles."""
        out, at, (down, across) = self._out, self._at, self._tiles
        done = out.variable("i64", "0")
        with out.until() as stop:
            first = out.load("i64", done, 8)
            stop(out.set(f"icmp sge i64 {first}, {count}"))
            number = out.add(start, first)
            line, column = (out.set(f"{what} i64 {number}, {across}") for what in ("sdiv", "srem"))
            image, row = (out.set(f"{what} i64 {line}, {down}") for what in ("sdiv", "srem"))
            here = out.least(*(out.set(f"sub i64 {a}, {b}") for a, b in ((across, column), (count, first))))
            y, x = (out.mul(each, str(STEP)) for each in (row, column))
            size = out.mul(out.mul(at["height"], at["width"]), at["inputs"])
            read = [out.set(f"sub i64 {each}, {at[pad]}") for each, pad in ((y, "above"), (x, "before"))]
            given = f"ptr {out.element('float', at['x'], out.mul(image, size))}, i64 {read[0]}, i64 {read[1]}"
            given += f", i64 {at['height']}, i64 {at['width']}, i64 {at['inputs']}"
            lefts = [out.set(f"sub i64 {at[size]}, {each}") for each, size in ((y, "rows"), (x, "columns"))]
            yield _Run(first, here, given, out.add(out.mul(image, at["rows"]), y), x, lefts[0], lefts[1])
            out.line(f"store i64 {out.add(first, here)}, ptr {done}, align 8")


@dataclass(frozen=True, slots=True)
class _Run:
    """Names of values of tiles side by side: the number of the first one in its chunk; how many there are; arguments
    that say what it reads; the row, of all images, and the column of its first result; how many there are from there.
    """

    first: str
    count: str
    image: str
    row: str
    column: str
    rows_left: str
    columns_left: str
