"""LLVM's text of copies of images with padding around, to channels last: whole ones, and lines of them in rooms.

pad      slots: items, pointers (padded, x), images, height, width, channels, rows above, columns before, height and
         width with padding; items are shares of the work
planes   the same with 1 in the place of items, of an image whose channels come first

A room is memory for the lines that some pixels of a result read. Each thread takes one for as long as it computes: a
large image with padding around would leave the cache before it is read.
"""

from __future__ import annotations

from dovetail.execute.native.llvm_function import Function

MOST_ROOMS = 64
"""Bits of the number that says which are taken."""

_MEMORY = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
_LINES = "ptr {}, ptr {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}, i64 {}"
_GEOMETRY = ("height", "width", "channels", "above", "before", "high", "wide")


def lines_text() -> str:
    """`NAME_lines`, which copies lines of images with channels last, from one to before another one, with padding.
    Lines of all images have numbers, those with padding among them.
    """
    names = ("to", "x", "first", "end", *_GEOMETRY)
    head = f"define internal void @NAME_lines({_LINES.format(*(f'%{name}' for name in names))})"
    out = Function(head)
    pixel = out.set("mul i64 %channels, 4")
    line, size = (out.set(f"mul i64 {count}, {pixel}") for count in ("%width", "%wide"))
    left = out.set(f"mul i64 %before, {pixel}")
    behind = out.set(f"add i64 {left}, {line}")
    right = out.set(f"sub i64 {size}, {behind}")
    with out.loop("%first", "%end") as number:
        place = out.set(f"mul i64 {out.set(f'sub i64 {number}, %first')}, {size}")
        start = out.element("i8", "%to", place)
        image, at = (out.set(f"{what} i64 {number}, %high") for what in ("sdiv", "srem"))
        y = out.set(f"sub i64 {at}, %above")
        is_inside = out.set(f"icmp ult i64 {y}, %height")  # as numbers without a sign, those above are large
        with out.when(is_inside):
            source = out.set(f"add i64 {out.set(f'mul i64 {image}, %height')}, {y}")
            given = out.element("i8", "%x", out.set(f"mul i64 {source}, {line}"))
            out.line(f"call void @llvm.memset.p0.i64(ptr {start}, i8 0, i64 {left}, i1 false)")
            middle = out.element("i8", start, left)
            out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {middle}, ptr {given}, i64 {line}, i1 false)")
            end = out.element("i8", start, behind)
            out.line(f"call void @llvm.memset.p0.i64(ptr {end}, i8 0, i64 {right}, i1 false)")
        with out.when(out.set(f"xor i1 {is_inside}, true")):
            out.line(f"call void @llvm.memset.p0.i64(ptr {start}, i8 0, i64 {size}, i1 false)")
    return _MEMORY + out.finished()


def lines_call(to: str, x: str, first: str, end: str, geometry: tuple[str, ...]) -> str:
    """The call of `NAME_lines`. geometry: height, width, channels, rows above, columns before, height and width with
    padding.
    """
    return f"call void @NAME_lines({_LINES.format(to, x, first, end, *geometry)})"


def pad_text() -> str:
    """The function that copies whole images with channels last."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    items, padded, x = out.slot("%row", 0), out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    images, *sizes = (out.slot("%row", at) for at in range(3, 11))
    channels, high, wide = sizes[2], sizes[5], sizes[6]
    lines = out.set(f"mul i64 {images}, {high}")
    first, end = (out.set(f"sdiv i64 {out.set(f'mul i64 {bound}, {lines}')}, {items}") for bound in ("%from", "%to"))
    line = out.set(f"mul i64 {wide}, {channels}")
    start = out.element("float", padded, out.set(f"mul i64 {first}, {line}"))
    out.line(lines_call(start, x, first, end, tuple(sizes)))
    return lines_text() + out.finished()


def planes_text() -> str:
    """The function that copies an image of planes to one with channels last, with padding around."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    padded, x = (out.slot("%row", at, "ptr") for at in (1, 2))
    images, height, width, channels, above, before, high, wide = (out.slot("%row", at) for at in range(3, 11))

    def times(a: str, b: str) -> str:
        return out.set(f"mul i64 {a}, {b}")

    def plus(a: str, b: str) -> str:
        return out.set(f"add i64 {a}, {b}")

    line = times(wide, channels)
    size = times(times(times(images, high), line), "4")
    with out.when(out.set(f"icmp ne i64 {times(high, wide)}, {times(height, width)}")):
        out.line(f"call void @llvm.memset.p0.i64(ptr {padded}, i8 0, i64 {size}, i1 false)")
    with out.loop("0", images) as n, out.loop("0", height) as y:
        row = times(plus(plus(times(n, high), above), y), line)
        start = out.element("float", padded, plus(row, times(before, channels)))
        with out.loop("0", channels) as c:
            plane = times(plus(times(plus(times(n, channels), c), height), y), width)
            given, made = out.element("float", x, plane), out.element("float", start, c)
            with out.loop("0", width) as at:
                number = out.load("float", out.element("float", given, at))
                out.line(f"store float {number}, ptr {out.element('float', made, times(at, channels))}, align 4")
    return _MEMORY + out.finished()


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
