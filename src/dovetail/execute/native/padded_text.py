"""LLVM's text of copies of images with padding around, to channels last: whole ones, and lines of them in rooms.

pad      slots: items, pointers (padded, x), images, height, width, channels, rows above, columns before, height and
         width with padding; items are shares of the work
planes   the same, of images whose channels come first

A room is memory for the lines that some pixels of a result read. Each thread takes one for as long as it computes: a
large image with padding around would leave the cache before it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dovetail.execute.native.llvm_function import Function

_MEMORY = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
_ITEMSIZE = 4  # bytes of a `float`
_INTERLEAVED = 4  # channels at most of which vectors are put into order
_LINES = "ptr {}, ptr {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}"


class _Geometry(NamedTuple):
    """Of an image, and of one with padding: rows above, columns before, height and width."""

    height: str
    width: str
    channels: str
    above: str
    before: str
    high: str
    wide: str


def lines_text() -> str:
    """`NAME_lines`, which copies lines of images with channels last, from one to before another one, with padding.
    Lines of all images have numbers, those with padding among them.
    """
    names = ("to", "x", "first", "end", *_Geometry._fields)
    out = Function(f"define internal void @NAME_lines({_LINES.format(*(f'%{name}' for name in names))})")
    geometry = _Geometry(*(f"%{name}" for name in _Geometry._fields))

    def copy(made: str, image: str, y: str) -> None:
        line = out.mul(geometry.width, geometry.channels)
        source = out.mul(out.add(out.mul(image, geometry.height), y), line)
        size, given = out.mul(line, str(_ITEMSIZE)), out.element("float", "%x", source)
        out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {made}, ptr {given}, i64 {size}, i1 false)")

    _padded(out, geometry, ("%to", "%first", "%end"), copy)
    return _MEMORY + out.finished()


def _padded(out: Function, of: _Geometry, lines: tuple[str, str, str], copy: Callable[[str, str, str], None]) -> None:
    """Copy lines of images, with zeros around. lines: where the first of them goes to, its number, and the number
    behind the last one. copy: copies what is inside; it gets where that goes to, the image, and the line of that.
    """
    to, first, end = lines
    left, middle, size = (out.mul(count, of.channels) for count in (of.before, of.width, of.wide))
    behind = out.add(left, middle)
    right = out.set(f"sub i64 {size}, {behind}")
    with out.loop(first, end) as number:
        start = out.element("float", to, out.mul(out.set(f"sub i64 {number}, {first}"), size))
        image, at = (out.set(f"{what} i64 {number}, {of.high}") for what in ("sdiv", "srem"))
        y = out.set(f"sub i64 {at}, {of.above}")
        is_inside = out.set(f"icmp ult i64 {y}, {of.height}")  # as numbers without a sign, those above are large
        with out.when(is_inside):
            _clear(out, start, left)
            copy(out.element("float", start, left), image, y)
            _clear(out, out.element("float", start, behind), right)
        with out.when(out.set(f"xor i1 {is_inside}, true")):
            _clear(out, start, size)


def _clear(out: Function, start: str, count: str) -> None:
    """So many `float` become zero."""
    size = out.mul(count, str(_ITEMSIZE))
    out.line(f"call void @llvm.memset.p0.i64(ptr {start}, i8 0, i64 {size}, i1 false)")


def lines_call(to: str, x: str, first: str, end: str, geometry: tuple[str, ...]) -> str:
    """The call of `NAME_lines`. geometry: height, width, channels, rows above, columns before, height and width with
    padding.
    """
    return f"call void @NAME_lines({_LINES.format(to, x, first, end, *geometry)})"


def pad_text() -> str:
    """The function that copies whole images with channels last."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    x, of, (start, first, end) = _begin(out)
    out.line(lines_call(start, x, first, end, tuple(of)))
    return lines_text() + out.finished()


def planes_text(lanes: int) -> str:
    """The function that copies images of planes to ones with channels last, with padding around. lanes: of a vector."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    x, of, lines = _begin(out)
    plane = out.mul(of.height, of.width)

    def copy(made: str, image: str, y: str) -> None:
        given = out.element("float", x, out.add(out.mul(out.mul(image, of.channels), plane), out.mul(y, of.width)))
        out.line(f"call void @NAME_line(ptr {made}, ptr {given}, i64 {of.width}, i64 {plane}, i64 {of.channels})")

    _padded(out, of, lines, copy)
    return _MEMORY + _line_text(lanes) + out.finished()


def _begin(out: Function) -> tuple[str, _Geometry, tuple[str, str, str]]:
    """What a row's slots hold: the image, its geometry, and the lines of a share of the work: see `_padded`."""
    items, padded, x = out.slot("%row", 0), out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    images, *sizes = (out.slot("%row", at) for at in range(3, 11))
    of = _Geometry(*sizes)
    lines = out.mul(images, of.high)
    first, end = (out.set(f"sdiv i64 {out.mul(bound, lines)}, {items}") for bound in ("%from", "%to"))
    return x, of, (out.element("float", padded, out.mul(first, out.mul(of.wide, of.channels))), first, end)


def _line_text(lanes: int) -> str:
    """`NAME_line`, which copies a line of each plane to pixels with channels last, by vectors for few channels."""
    out = Function("define internal void @NAME_line(ptr %to, ptr %x, i64 %width, i64 %plane, i64 %channels)")
    whole = out.variable("i64", "0")  # pixels that are done
    for count in range(1, _INTERLEAVED + 1):
        with out.when(out.set(f"icmp eq i64 %channels, {count}")):
            vectors = out.mul(out.set(f"sdiv i64 %width, {lanes}"), str(lanes))
            with out.loop("0", vectors, str(lanes)) as at:
                starts = [out.element("float", "%x", out.add(out.mul("%plane", str(c)), at)) for c in range(count)]
                loaded = [out.load(f"<{lanes} x float>", start) for start in starts]
                to = out.element("float", "%to", out.mul(at, str(count)))
                out.line(f"store <{count * lanes} x float> {_interleaved(out, loaded, lanes)}, ptr {to}, align 4")
            out.line(f"store i64 {vectors}, ptr {whole}, align 8")
    done = out.load("i64", whole, 8)
    with out.loop("0", "%channels") as c:
        given = out.element("float", "%x", out.mul(c, "%plane"))
        with out.loop(done, "%width") as at:
            number = out.load("float", out.element("float", given, at))
            to = out.element("float", "%to", out.add(out.mul(at, "%channels"), c))
            out.line(f"store float {number}, ptr {to}, align 4")
    return out.finished()


def _interleaved(out: Function, vectors: list[str], lanes: int) -> str:
    """The first elements of some vectors, then the second ones, and so on."""

    def beside(pair: list[str], size: int, mask: list[int]) -> str:
        a, b = [*pair, "poison"][:2]
        kind, places = f"<{size} x float>", ", ".join(f"i32 {place}" for place in mask)
        return out.set(f"shufflevector {kind} {a}, {kind} {b}, <{len(mask)} x i32> <{places}>")

    if len(vectors) == 1:
        return vectors[0]
    halves = [beside(vectors[at : at + 2], lanes, [*range(2 * lanes)]) for at in range(0, len(vectors), 2)]
    return beside(halves, 2 * lanes, [c * lanes + at for at in range(lanes) for c in range(len(vectors))])


def rooms_text() -> str:
    """`NAME_take`, which takes a room and gives its number, and waits while there is none, and `NAME_let_go`. Both get
    the address of the number that says which are taken.
    """
    return """
declare i64 @llvm.cttz.i64(i64, i1)
declare void @llvm.x86.sse2.pause()

define internal i64 @NAME_take(ptr %taken, i64 %rooms) {
entry:
  br label %look

look:
  %seen = load atomic i64, ptr %taken monotonic, align 8
  %free = xor i64 %seen, -1
  %which = call i64 @llvm.cttz.i64(i64 %free, i1 false)
  %is_free = icmp ult i64 %which, %rooms
  br i1 %is_free, label %claim, label %wait

wait:
  call void @llvm.x86.sse2.pause()
  br label %look

claim:
  %bit = shl i64 1, %which
  %more = or i64 %seen, %bit
  %pair = cmpxchg ptr %taken, i64 %seen, i64 %more acquire monotonic, align 8
  %is_mine = extractvalue { i64, i1 } %pair, 1
  br i1 %is_mine, label %done, label %look

done:
  ret i64 %which
}

define internal void @NAME_let_go(ptr %taken, i64 %which) {
entry:
  %bit = shl i64 1, %which
  %others = xor i64 %bit, -1
  %before = atomicrmw and ptr %taken, i64 %others release, align 8
  ret void
}
"""
