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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

from dovetail.execute.native.convolution_text import Slots
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.padded_text import rooms_text
from dovetail.execute.native.tile_text import ATTRIBUTES, HALF, Tile, activations_text, declarations, splat
from dovetail.execute.native.vector_activations import CODES
from dovetail.ops.few_products import APART, KERNEL, MOST_INPUTS, PRODUCTS, READ, STEP
from dovetail.ops.panels import WIDTH

_AT_ONCE = 8  # sums of a pixel that is computed again; they divide the inputs
_SMALL = "6.25e-02"  # of the largest product: so many bits may be lost
_RANGED = 16
"""Lanes of vectors of which one instruction finds the larger absolute values."""
_RANGE, _LARGER = "@llvm.x86.avx512.mask.range.ps.512", 0b1011  # without a sign
_MADE = PRODUCTS * WIDTH  # elements from the products of a tile to those of the next one


def winograd_weight_text(tile: Tile) -> str:
    """The module of the row that transforms a weight. Items are shares of the work: panels' lines are divided."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    items, inputs, outputs = (out.slot("%row", at) for at in (0, 3, 4))
    room, panels = (out.slot("%row", at, "ptr") for at in (1, 2))
    count = out.parts(outputs, str(WIDTH))
    lines = out.mul(count, inputs)
    first, end = (out.parts(out.mul(bound, lines), items) for bound in ("%from", "%to"))
    apart = _weights_apart(out, inputs)
    with out.loop("0", count) as panel:
        start = out.mul(panel, inputs)
        edges = [out.least(inputs, out.set(f"sub i64 {edge}, {start}")) for edge in (first, end)]
        given = out.element("float", panels, out.mul(panel, out.mul(inputs, str(KERNEL * KERNEL * WIDTH))))
        to = out.element("float", room, out.mul(panel, out.mul(apart, str(PRODUCTS))))
        columns = out.least(out.set(f"sub i64 {outputs}, {out.mul(panel, str(WIDTH))}"), str(WIDTH))
        begin = out.set(f"call i64 @llvm.smax.i64(i64 {edges[0]}, i64 0)")
        arguments = f"ptr {given}, i64 {inputs}, i64 {begin}, i64 {edges[1]}, i64 {columns}, ptr {to}, i64 {apart}"
        out.line(f"call void @NAME_weight({arguments})")
    used = declarations(tile) + "declare i64 @llvm.smax.i64(i64, i64)\n"
    return used + _weight_text(tile) + out.finished()


def _weight_text(tile: Tile) -> str:
    """`NAME_weight`: transform a panel's lines, from one to before another one, as many columns as there are."""
    head = "ptr %panel, i64 %inputs, i64 %first, i64 %end, i64 %columns, ptr %to, i64 %apart"
    out = Function(f"define internal void @NAME_weight({head}) noinline {ATTRIBUTES}")
    vectors, line = _Vectors(out, tile.lanes), out.mul("%inputs", str(WIDTH))
    with out.loop("%first", "%end") as c, out.loop("0", "%columns", str(tile.lanes)) as j:
        place = out.add(out.mul(c, str(WIDTH)), j)
        taps = [vectors.load("%panel", out.add(out.mul(line, str(at)), place)) for at in range(KERNEL * KERNEL)]
        square = [taps[at : at + KERNEL] for at in range(0, len(taps), KERNEL)]
        for at, made in enumerate(vectors.both("weight", square)):
            vectors.store(made, "%to", out.add(out.mul("%apart", str(at)), place))
    return out.finished()


def _weights_apart(out: Function, inputs: str) -> str:
    """Elements from the transformed weight of a product to that of the next one."""
    return out.add(out.mul(inputs, str(WIDTH)), str(APART))


def _declared(tile: Tile) -> str:
    v = f"<{tile.lanes} x float>"
    larger = f"declare {v} {_RANGE}({v}, {v}, i32, {v}, i16, i32)\n" if tile.lanes == _RANGED else ""
    return f"declare {v} @llvm.fabs.v{tile.lanes}f32({v})\n{larger}"


def winograd_text(tile: Tile) -> str:
    """The module, for tiles of products of a size."""
    products = "".join(
        _product_text(tile, rows, range(vectors))
        for vectors in sorted({tile.vectors, tile.vectors // 2})
        for rows in range(1, tile.rows + 1)
    )
    most = max(MOST_INPUTS, WIDTH)
    zeros = f"@NAME_zeros = internal constant [{most} x float] zeroinitializer, align 64\n"
    parts = _pixels_text(tile) + _weight_text(tile) + _again_text(tile) + _result_text(tile)
    used = declarations(tile) + _declared(tile) + zeros + rooms_text() + activations_text(tile, "NAME")
    return used + products + parts + _function(tile)


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Instructions over vectors in a function."""

    out: Function
    lanes: int

    @property
    def kind(self) -> str:
        return f"<{self.lanes} x float>"

    def load(self, start: str, index: str) -> str:
        return self.out.load(self.kind, self.out.element("float", start, index))

    @property
    def masks(self) -> str:
        return f"<{self.lanes} x i1>"

    def mask(self, condition: str) -> str:
        """One truth value, so many times."""
        return self.out.spread("i1", condition, self.lanes)

    def load_if(self, mask: str, start: str, index: str) -> str:
        """What is in memory where the mask holds, and zeros."""
        given = (
            f"ptr {self.out.element('float', start, index)}, i32 4, {self.masks} {mask}, {self.kind} zeroinitializer"
        )
        return self.out.set(f"call {self.kind} @llvm.masked.load.v{self.lanes}f32.p0({given})")

    def store(self, vector: str, start: str, index: str) -> None:
        self.out.line(f"store {self.kind} {vector}, ptr {self.out.element('float', start, index)}, align 4")

    def add(self, a: str, b: str) -> str:
        return self.out.set(f"fadd {self.kind} {a}, {b}")

    def less(self, a: str, b: str) -> str:
        return self.out.set(f"fsub {self.kind} {a}, {b}")

    def half(self, a: str) -> str:
        return self.out.set(f"fmul {self.kind} {a}, splat (float 5.0e-01)")

    def fma(self, a: str, b: str, c: str) -> str:
        v = self.kind
        return self.out.set(f"call {v} @llvm.fma.v{self.lanes}f32({v} {a}, {v} {b}, {v} {c})")

    def absolute(self, a: str) -> str:
        return self.out.set(f"call {self.kind} @llvm.fabs.v{self.lanes}f32({self.kind} {a})")

    def largest(self, given: Sequence[str]) -> str:
        """The largest of their absolute values."""
        found = self.absolute(given[0])
        for each in given[1:]:
            if self.lanes == _RANGED:
                v = self.kind
                found = self.out.set(
                    f"call {v} {_RANGE}({v} {found}, {v} {each}, i32 {_LARGER}, {v} {found}, i16 -1, i32 4)"
                )
                continue
            size = self.absolute(each)
            is_more = self.out.set(f"fcmp ogt {self.kind} {size}, {found}")
            found = self.out.set(f"select {self.masks} {is_more}, {self.kind} {size}, {self.kind} {found}")
        return found

    def are_all(self, condition: str) -> str:
        """Whether all of some truth values hold."""
        bits = self.out.set(f"bitcast {self.masks} {condition} to i{self.lanes}")
        return self.out.set(f"icmp eq i{self.lanes} {bits}, -1")

    def within(self, a: str, least: str, most: str) -> str:
        """Clamped; NaN stays NaN."""
        low, high = (self.out.spread("float", each, self.lanes) for each in (least, most))
        mask, v = self.masks, self.kind
        under = self.out.set(f"fcmp olt {v} {a}, {low}")
        raised = self.out.set(f"select {mask} {under}, {v} {low}, {v} {a}")
        over = self.out.set(f"fcmp ogt {v} {raised}, {high}")
        return self.out.set(f"select {mask} {over}, {v} {high}, {v} {raised}")

    # The three transforms, of one side each.

    def pixels(self, d: Sequence[str]) -> list[str]:
        return [self.less(d[0], d[2]), self.add(d[1], d[2]), self.less(d[2], d[1]), self.less(d[1], d[3])]

    def weight(self, g: Sequence[str]) -> list[str]:
        outer = self.add(g[0], g[2])
        return [g[0], self.half(self.add(outer, g[1])), self.half(self.less(outer, g[1])), g[2]]

    def result(self, m: Sequence[str]) -> list[str]:
        return [self.add(self.add(m[0], m[1]), m[2]), self.less(self.less(m[1], m[2]), m[3])]

    def both(self, transform: str, square: Sequence[Sequence[str]]) -> list[str]:
        """A transform of both sides: of columns, then of rows; rows one after the other."""
        one = getattr(self, transform)
        columns = [one(column) for column in zip(*square, strict=True)]
        return [each for row in zip(*columns, strict=True) for each in one(row)]


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
    for j in vectors:
        out.append(f"%wp{j} = getelementptr float, ptr %line, i64 {j * lanes}")
        out.append(f"%w{j} = load {v}, ptr %wp{j}, align 4")
    for i in range(rows):
        out += [f"%xp{i} = getelementptr float, ptr %x{i}, i64 %n", f"%s{i} = load float, ptr %xp{i}, align 4"]
        out += splat(f"%v{i}", "float", f"%s{i}", lanes)
        for j in vectors:
            out.append(f"%d{i}_{j} = call {v} @llvm.fma.v{lanes}f32({v} %v{i}, {v} %w{j}, {v} %c{i}_{j})")
    out += [f"%line_next = getelementptr float, ptr %line, i64 {WIDTH}", "%n_next = add i64 %n, 1"]
    out += ["%is_last = icmp eq i64 %n_next, %inputs", "br i1 %is_last, label %done, label %sum", "done:"]
    for i, j in places:
        out.append(f"%op{i}_{j} = getelementptr float, ptr %out, i64 {i * _MADE + j * lanes}")
        out.append(f"store {v} %d{i}_{j}, ptr %op{i}_{j}, align 4")
    return "\n".join([head, *out, "ret void", "}", ""])


_IMAGE = "ptr %x, i64 %y, i64 %across, i64 %height, i64 %width, i64 %inputs"


def _pixel(out: Function, i: str, j: str) -> tuple[str, str]:
    """Whether a pixel behind the first one that is read is inside of the image, and where it would be."""
    y, x = out.add("%y", i), out.add("%across", j)
    inside = [out.set(f"icmp ult i64 {at}, {size}") for at, size in ((y, "%height"), (x, "%width"))]
    place = out.mul(out.add(out.mul(y, "%width"), x), "%inputs")
    return out.set(f"and i1 {inside[0]}, {inside[1]}"), out.element("float", "%x", place)


def _pixels_text(tile: Tile) -> str:
    """`NAME_pixels`: transform what some tiles side by side read, from a pixel on, which may lie outside. The columns
    that two tiles share are read once.
    """
    head = f"{_IMAGE}, i64 %count, ptr %to, i64 %apart"
    out = Function(f"define internal void @NAME_pixels({head}) noinline {ATTRIBUTES}")
    vectors, line = _Vectors(out, tile.lanes), out.mul("%width", "%inputs")
    lines = [out.add("%y", str(i)) for i in range(READ)]
    rows = [vectors.mask(out.set(f"icmp ult i64 {y}, %height")) for y in lines]
    starts = [out.element("float", "%x", out.mul(y, line)) for y in lines]
    with out.loop("0", "%inputs", str(tile.lanes)) as c:

        def column(number: str) -> list[str]:
            is_there = vectors.mask(out.set(f"icmp ult i64 {number}, %width"))
            place = out.add(out.mul(number, "%inputs"), c)
            read = [
                vectors.load_if(out.set(f"and {vectors.masks} {row}, {is_there}"), start, place)
                for row, start in zip(rows, starts, strict=True)
            ]
            return vectors.pixels(read)

        def put(columns: list[list[str]]) -> None:
            for variable, vector in zip(kept, [*columns[0], *columns[1]], strict=True):
                out.line(f"store {vectors.kind} {vector}, ptr {variable}, align 64")

        kept = [out.memory(vectors.kind, 64) for _ in range(2 * READ)]
        put([column(out.add("%across", str(j))) for j in range(2)])
        with out.loop("0", "%count") as at:
            number = out.add("%across", out.mul(at, str(STEP)))
            before = [out.load(vectors.kind, variable, 64) for variable in kept]
            behind = [column(out.add(number, str(j))) for j in range(STEP, READ)]
            columns = [before[:READ], before[READ:], *behind]
            to = out.element("float", "%to", out.add(out.mul(at, "%inputs"), c))
            made = [each for row in zip(*columns, strict=True) for each in vectors.pixels(row)]
            for which, vector in enumerate(made):
                vectors.store(vector, to, out.mul("%apart", str(which)))
            put(behind)
    return out.finished()


def _again_text(tile: Tile) -> str:
    """`NAME_again`: a vector of one pixel's results, product by product. y, across: of the first pixel that is read."""
    head = f"{_IMAGE}, ptr %panel, ptr %bias, ptr %addend, i1 %added, ptr %to, float %least, float %most"
    out = Function(f"define internal void @NAME_again({head}) noinline {ATTRIBUTES}")
    vectors = _Vectors(out, tile.lanes)
    sums = [out.variable(vectors.kind, "zeroinitializer", 64) for _ in range(_AT_ONCE)]
    with out.loop("0", str(KERNEL)) as i, out.loop("0", str(KERNEL)) as j:
        is_inside, pixel = _pixel(out, i, j)
        tap = out.mul(out.add(out.mul(i, str(KERNEL)), j), out.mul("%inputs", str(WIDTH)))
        with out.when(is_inside), out.loop("0", "%inputs", str(_AT_ONCE)) as c:
            for at, one in enumerate(sums):
                place = out.add(c, str(at))
                number = out.spread("float", out.load("float", out.element("float", pixel, place)), tile.lanes)
                weight = vectors.load("%panel", out.add(tap, out.mul(place, str(WIDTH))))
                made = vectors.fma(number, weight, out.load(vectors.kind, one, 64))
                out.line(f"store {vectors.kind} {made}, ptr {one}, align 64")
    all_ = vectors.load("%bias", "0")
    for one in sums:
        all_ = vectors.add(all_, out.load(vectors.kind, one, 64))
    total = out.variable(vectors.kind, all_, 64)
    with out.when("%added"):
        made = vectors.add(out.load(vectors.kind, total, 64), vectors.load("%addend", "0"))
        out.line(f"store {vectors.kind} {made}, ptr {total}, align 64")
    vectors.store(vectors.within(out.load(vectors.kind, total, 64), "%least", "%most"), "%to", "0")
    return out.finished()


def _result_text(tile: Tile) -> str:
    """`NAME_result`: the results of some tiles side by side by a panel. given: products. rows_left, columns_left: of
    the result, from the first pixel on. down, outputs: elements from a row of the result, or a pixel, to the next.
    """
    head = (
        f"{_IMAGE}, i64 %count, ptr %given, ptr %panel, ptr %bias, ptr %addend, i1 %added, ptr %to, i64 %down,"
        " i64 %outputs, i64 %rows_left, i64 %columns_left, i64 %columns, float %least, float %most"
    )
    out = Function(f"define internal void @NAME_result({head}) noinline {ATTRIBUTES}")
    vectors, corners, lanes = _Vectors(out, tile.lanes), [*product(range(STEP), repeat=2)], tile.lanes
    with out.loop("0", "%columns", str(lanes)) as j, out.loop("0", "%count") as at:
        pixel = out.mul(at, str(STEP))
        start = out.add(out.mul(pixel, "%outputs"), j)
        given = out.add(out.mul(at, str(_MADE)), j)
        square = [
            [vectors.load("%given", out.add(given, str((READ * i + k) * WIDTH))) for k in range(READ)]
            for i in range(READ)
        ]
        made, bias = vectors.both("result", square), vectors.load("%bias", j)
        largest = vectors.largest([each for row in square for each in row])
        small = out.set(f"fmul {vectors.kind} {largest}, splat (float {_SMALL})")
        odd = [vectors.less(each, each) for each in made]  # zero, or NaN where a number is not finite
        some = vectors.add(vectors.add(odd[0], odd[1]), vectors.add(odd[2], odd[3]))
        bits = out.set(f"bitcast {vectors.masks} {out.set(f'fcmp uno {vectors.kind} {some}, {some}')} to i{lanes}")
        is_finite = out.set(f"icmp eq i{lanes} {bits}, 0")
        for (a, b), each in zip(corners, made, strict=True):
            counts = ((str(a), "%rows_left"), (out.add(pixel, str(b)), "%columns_left"))
            inside = [out.set(f"icmp slt i64 {number}, {left}") for number, left in counts]
            is_there = out.set(f"and i1 {inside[0]}, {inside[1]}")
            place = out.add(start, out.add(out.mul("%down", str(a)), out.mul("%outputs", str(b))))
            to, addend = out.element("float", "%to", place), out.element("float", "%addend", place)
            below = out.set(f"fcmp olt {vectors.kind} {vectors.absolute(each)}, {small}")
            is_fine = out.set(f"and i1 {is_finite}, {out.set(f'xor i1 {vectors.are_all(below)}, true')}")
            with out.when(out.set(f"and i1 {is_there}, {is_fine}")):
                total = out.variable(vectors.kind, vectors.add(each, bias), 64)
                with out.when("%added"):
                    summed = vectors.add(out.load(vectors.kind, total, 64), vectors.load(addend, "0"))
                    out.line(f"store {vectors.kind} {summed}, ptr {total}, align 64")
                vectors.store(vectors.within(out.load(vectors.kind, total, 64), "%least", "%most"), to, "0")
            with out.when(out.set(f"and i1 {is_there}, {out.set(f'xor i1 {is_fine}, true')}")):
                x = out.add("%across", out.add(pixel, str(b)))
                panel, begin = (out.element("float", each, j) for each in ("%panel", "%bias"))
                out.line(
                    f"call void @NAME_again(ptr %x, i64 {out.add('%y', str(a))}, i64 {x}, i64 %height, i64 %width,"
                    f" i64 %inputs, ptr {panel}, ptr {begin}, ptr {addend}, i1 %added, ptr {to}, float %least,"
                    " float %most)"
                )
    return out.finished()


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
    first, end = (out.mul(out.parts(out.mul(bound, jobs), at["items"]), several) for bound in ("%from", "%to"))
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
        self._weights_apart = _weights_apart(out, inputs)
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
        own = out.element("float", self._made, out.mul(self._at["chunk"], str(_MADE)))
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
                to = out.element("float", made, out.mul(edges[0], str(_MADE)))
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
            given = out.element("float", self._made, out.mul(run.first, str(_MADE)))
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
