"""LLVM's text of copies between images whose channels come first and planes (`plane_geometry`).

Sizes are constants of the text: a kernel is made for each convolution, and LLVM makes vectors of its short lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from dovetail.execute.native.llvm_function import NOT_UNROLLED, Function
from dovetail.execute.native.plane_geometry import Geometry

DECLARED = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
_FLOAT = 4
_EXPONENT = 0x7F800000


def zeros(out: Function, start: str, count: str) -> None:
    """Put zeros at some elements from one on."""
    size = out.mul(count, str(_FLOAT))
    out.line(f"call void @llvm.memset.p0.i64(ptr {start}, i8 0, i64 {size}, i1 false)")


def cut_text(of: Geometry, line: int) -> str:
    """`NAME_cut(x, planes, count)`: the planes of some images, with zeros around and behind them."""
    out = Function("define internal void @NAME_cut(ptr noalias %x, ptr noalias %planes, i64 %count)")
    (rows, columns), (height, width) = of.lines, of.size
    for number, (down, across) in enumerate(of.phases):
        first, end = of.reached(1, across)
        start = first * of.stride[1] + across - of.padding[1]
        with out.loop("0", str(of.channels), mark=NOT_UNROLLED) as c:
            plane = out.element("float", "%planes", out.mul(out.add(c, str(number * of.channels)), str(line)))
            with _each_image(out, of, line, plane) as (n, to):
                place = out.mul(out.add(out.mul(n, str(of.channels)), c), str(height * width))
                image = out.element("float", "%x", place)
                with out.loop("0", str(rows), mark=NOT_UNROLLED) as y:
                    made = out.element("float", to, out.mul(y, str(columns)))
                    at = out.add(out.mul(y, str(of.stride[0])), str(down - of.padding[0]))
                    is_inside = out.set(f"icmp ult i64 {at}, {height}")  # those above are large without a sign
                    with out.when(out.set(f"xor i1 {is_inside}, true")):
                        zeros(out, made, str(columns))
                    with out.when(is_inside):
                        given = out.element("float", image, out.add(out.mul(at, str(width)), str(start)))
                        _line(out, given, made, (first, end, columns), of.stride[1])
    return out.finished()


@contextmanager
def _each_image(out: Function, of: Geometry, line: int, plane: str) -> Iterator[tuple[str, str]]:
    """Lines for each of `%count` images, and where it lies in a plane. Zeros are behind all."""
    behind = out.mul("%count", str(of.plane))
    zeros(out, out.element("float", plane, behind), out.set(f"sub i64 {line}, {behind}"))
    with out.loop("0", "%count") as n:
        yield n, out.element("float", plane, out.mul(n, str(of.plane)))


def _line(out: Function, given: str, made: str, bounds: tuple[int, int, int], step: int) -> None:
    """A line of a plane: zeros, every so many elements from one on, zeros."""
    first, end, columns = bounds
    if first:
        zeros(out, made, str(first))
    with out.loop("0", str(end - first)) as x:
        number = out.load("float", out.element("float", given, out.mul(x, str(step))))
        out.line(f"store float {number}, ptr {out.element('float', made, out.add(x, str(first)))}, align 4")
    if end < columns:
        zeros(out, out.element("float", made, str(end)), str(columns - end))


def spread_text(of: Geometry, line: int) -> str:
    """`NAME_spread(g, planes, first, end, count)`: a gradient of some outputs in the lines of planes, zeros between
    them.
    """
    out = Function(
        "define internal void @NAME_spread(ptr noalias %g, ptr noalias %planes, i64 %first, i64 %end, i64 %count)"
    )
    (rows, columns), (made_rows, made_columns) = of.lines, of.made
    with out.loop("%first", "%end") as o:
        plane = out.element("float", "%planes", out.mul(o, str(line)))
        with _each_image(out, of, line, plane) as (n, to):
            place = out.mul(out.add(out.mul(n, str(of.outputs)), o), str(made_rows * made_columns))
            given = out.element("float", "%g", place)
            with out.loop("0", str(made_rows), mark=NOT_UNROLLED) as y:
                made = out.element("float", to, out.mul(y, str(columns)))
                _line(
                    out, out.element("float", given, out.mul(y, str(made_columns))), made, (0, made_columns, columns), 1
                )
            rest = (rows - made_rows) * columns
            if rest:
                zeros(out, out.element("float", to, str(made_rows * columns)), str(rest))
    return out.finished()


def gathered_text(of: Geometry, line: int) -> str:
    """`NAME_gather(planes, result, count)`: the results of some images without what lies between lines."""
    out = Function("define internal void @NAME_gather(ptr noalias %planes, ptr noalias %result, i64 %count)")
    columns, (made_rows, made_columns) = of.lines[1], of.made
    with out.loop("0", "%count") as n, out.loop("0", str(of.outputs), mark=NOT_UNROLLED) as o:
        place = out.mul(out.add(out.mul(n, str(of.outputs)), o), str(made_rows * made_columns))
        to = out.element("float", "%result", place)
        plane = out.element("float", "%planes", out.add(out.mul(o, str(line)), out.mul(n, str(of.plane))))
        with out.loop("0", str(made_rows), mark=NOT_UNROLLED) as y:
            given = out.element("float", plane, out.mul(y, str(columns)))
            made = out.element("float", to, out.mul(y, str(made_columns)))
            _line(out, given, made, (0, made_columns, made_columns), 1)
    return out.finished()


def joined_text(of: Geometry, line: int) -> str:
    """`NAME_join0(planes, x, count)` and so on: the plane of each phase where it lies in some images."""
    return "".join(_joined(of, line, number) for number in range(len(of.phases)))


def _joined(of: Geometry, line: int, number: int) -> str:
    out = Function(f"define internal void @NAME_join{number}(ptr noalias %planes, ptr noalias %x, i64 %count)")
    (down, across), (height, width) = of.phases[number], of.size
    (top, bottom), (first, end) = of.reached(0, down), of.reached(1, across)
    start = (top * of.stride[0] + down - of.padding[0]) * width + first * of.stride[1] + across - of.padding[1]
    with out.loop("0", str(of.channels), mark=NOT_UNROLLED) as c, out.loop("0", "%count") as n:
        place = out.mul(out.add(out.mul(n, str(of.channels)), c), str(height * width))
        to = out.element("float", "%x", out.add(place, str(start)))
        from_ = out.add(out.mul(c, str(line)), out.mul(n, str(of.plane)))
        plane = out.element("float", "%planes", out.add(from_, str(top * of.lines[1] + first)))
        with out.loop("0", str(bottom - top), mark=NOT_UNROLLED) as y, out.loop("0", str(end - first)) as x:
            given = out.element("float", plane, out.add(out.mul(y, str(of.lines[1])), x))
            at = out.add(out.mul(y, str(of.stride[0] * width)), out.mul(x, str(of.stride[1])))
            out.line(f"store float {out.load('float', given)}, ptr {out.element('float', to, at)}, align 4")
    return out.finished()


def finite_text() -> str:
    """`NAME_finite(x, count)`: whether no element is infinite or NaN."""
    out = Function("define internal i1 @NAME_finite(ptr noalias %x, i64 %count)")
    found = out.variable("i32", "0", 4)
    with out.loop("0", "%count") as at:
        bits = out.set(f"and i32 {out.load('i32', out.element('i32', '%x', at))}, {_EXPONENT}")
        is_one = out.set(f"zext i1 {out.set(f'icmp eq i32 {bits}, {_EXPONENT}')} to i32")
        more = out.set(f"or i32 {out.load('i32', found)}, {is_one}")
        out.line(f"store i32 {more}, ptr {found}, align 4")
    none = out.set(f"icmp eq i32 {out.load('i32', found)}, 0")
    return out.finished(f"i1 {none}")


def exact_text(of: Geometry, made: str) -> str:
    """`NAME_exact(result, weight, x, images, first, end)`: each product of some images and outputs by itself, added to
    one of the three. made: which.
    """
    head = "define internal void @NAME_exact(ptr %result, ptr %weight, ptr %image, i64 %images, i64 %first, i64 %end)"
    out = Function(f"{head} noinline optnone")  # it is hardly ever called, and takes LLVM seconds else
    with _each_product(out, of, "%images", ("%first", "%end")) as places:
        at = {name: out.element("float", f"%{name}", place) for name, place in places.items()}
        a, b = (out.load("float", pointer) for name, pointer in at.items() if name != made)
        total = out.set(f"fadd float {out.load('float', at[made])}, {out.set(f'fmul float {a}, {b}')}")
        out.line(f"store float {total}, ptr {at[made]}, align 4")
    return out.finished()


@contextmanager
def _each_product(out: Function, of: Geometry, images: str, outputs: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Lines for each product of a convolution: where the elements of the result, the weight and the image are."""
    (rows, columns), (height, width), (tall, broad) = of.made, of.size, of.kernel
    with ExitStack() as loops:

        def each(start: str, end: str) -> str:
            return loops.enter_context(out.loop(start, end))

        n, o = each("0", images), each(*outputs)
        y, x = each("0", str(rows)), each("0", str(columns))
        c, row, column = each("0", str(of.channels)), each("0", str(tall)), each("0", str(broad))
        at, over = (
            out.add(out.add(out.mul(place, str(step)), out.mul(tap, str(apart))), str(-pad))
            for place, tap, step, apart, pad in zip(
                (y, x), (row, column), of.stride, of.dilation, of.padding, strict=True
            )
        )
        inside = [out.set(f"icmp ult i64 {each}, {size}") for each, size in ((at, height), (over, width))]
        loops.enter_context(out.when(out.set(f"and i1 {inside[0]}, {inside[1]}")))

        def place(*steps: tuple[str, int]) -> str:
            found = "0"
            for index, size in steps:
                found = out.add(out.mul(found, str(size)), index)
            return found

        yield {
            "result": place((n, 0), (o, of.outputs), (y, rows), (x, columns)),
            "weight": place((o, 0), (c, of.channels), (row, tall), (column, broad)),
            "image": place((n, 0), (c, of.channels), (at, height), (over, width)),
        }
