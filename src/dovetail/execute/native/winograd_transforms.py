"""LLVM's text of the transforms of convolutions by 3x3 weights with fewer multiplications: see `winograd_text`.

Functions of a module: `NAME_weight`, `NAME_pixels`, `NAME_result`, and `NAME_again`, which computes a pixel product by
product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from dovetail.execute.native.channel_vectors import ChannelVectors
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.tile_text import ATTRIBUTES, Tile, declarations
from dovetail.ops.few_products import APART, KERNEL, PRODUCTS, READ, STEP
from dovetail.ops.panels import WIDTH

MADE = PRODUCTS * WIDTH
"""Elements from the products of a tile to those of the next one."""

_AT_ONCE = 8  # sums of a pixel that is computed again; they divide the inputs
_SMALL = "6.25e-02"  # of the largest product: so many bits may be lost


def winograd_weight_text(tile: Tile) -> str:
    """The module of the row that transforms a weight. Items are shares of the work: panels' lines are divided."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    items, inputs, outputs = (out.slot("%row", at) for at in (0, 3, 4))
    room, panels = (out.slot("%row", at, "ptr") for at in (1, 2))
    count = out.parts(outputs, str(WIDTH))
    first, end = out.share(items, out.mul(count, inputs))
    apart = weights_apart(out, inputs)
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
        for at, made in enumerate(vectors.both(vectors.weight, square)):
            vectors.store(made, "%to", out.add(out.mul("%apart", str(at)), place))
    return out.finished()


def weights_apart(out: Function, inputs: str) -> str:
    """Elements from the transformed weight of a product to that of the next one."""
    return out.add(out.mul(inputs, str(WIDTH)), str(APART))


def transforms_text(tile: Tile) -> str:
    """The functions for tiles, besides what `tile_text.declarations` has."""
    v = f"<{tile.lanes} x float>"
    declared = f"declare {v} @llvm.fabs.v{tile.lanes}f32({v})\n"
    return declared + _pixels_text(tile) + _weight_text(tile) + _again_text(tile) + _result_text(tile)


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

    def both(self, one: Callable[[Sequence[str]], list[str]], square: Sequence[Sequence[str]]) -> list[str]:
        """A transform of both sides: of columns, then of rows; rows one after the other."""
        columns = [one(column) for column in zip(*square, strict=True)]
        return [each for row in zip(*columns, strict=True) for each in one(row)]


_IMAGE = "ptr %x, i64 %y, i64 %across, i64 %height, i64 %width, i64 %inputs"


def _pixel(out: Function, i: str, j: str) -> tuple[str, str]:
    """Whether a pixel behind the first one that is read is inside the image, and where it would be."""
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
    vectors, masked, line = _Vectors(out, tile.lanes), ChannelVectors(out, tile.lanes), out.mul("%width", "%inputs")
    lines = [out.add("%y", str(i)) for i in range(READ)]
    rows = [vectors.mask(out.set(f"icmp ult i64 {y}, %height")) for y in lines]
    starts = [out.element("float", "%x", out.mul(y, line)) for y in lines]
    with out.loop("0", "%inputs", str(tile.lanes)) as c:

        def column(number: str) -> list[str]:
            is_there = vectors.mask(out.set(f"icmp ult i64 {number}, %width"))
            place = out.add(out.mul(number, "%inputs"), c)
            read = [
                masked.load(out.element("float", start, place), out.set(f"and {vectors.masks} {row}, {is_there}"))
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
        given = out.add(out.mul(at, str(MADE)), j)
        square = [
            [vectors.load("%given", out.add(given, str((READ * i + k) * WIDTH))) for k in range(READ)]
            for i in range(READ)
        ]
        made, bias = vectors.both(vectors.result, square), vectors.load("%bias", j)
        largest = vectors.largest([each for row in square for each in row])
        small = out.set(f"fmul {vectors.kind} {largest}, splat (float {_SMALL})")
        odd = [vectors.less(each, each) for each in made]  # zero, or NaN where a number is not finite
        some = vectors.add(vectors.add(odd[0], odd[1]), vectors.add(odd[2], odd[3]))
        is_finite = vectors.are_all(out.set(f"fcmp ord {vectors.kind} {some}, {some}"))
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
