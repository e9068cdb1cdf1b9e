"""What convolutions of images with channels last find in their rows, and LLVM's text of the copies of images.

pad         slots: 1, pointers (padded, x), images, height, width, channels, rows above, columns before, height and
            width with padding
planes      the same, of an image whose channels come first
direct, depthwise
            slots: items, pointers (result, x, panels, bias, addend), images, rows and columns of the result,
            outputs, panels, inputs, height and width of the image and of the weight, strides (two), padding (two),
            pixels of a chunk, lines of the weight and elements of a line that are summed at a time, whether there
            is a bias, and an addend, the least and the largest result (two `float`), the activation
"""

from __future__ import annotations

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.vector_activations import CODES


def _loaded(names: str, start: int = 1, kind: str = "i64") -> str:
    """Values of slots, one after the other."""
    lines = []
    for at, name in enumerate(names.split(), start):
        lines.append(f"  %at_{name} = getelementptr i64, ptr %row, i64 {at}")
        lines.append(f"  %{name} = load {kind}, ptr %at_{name}")
    return "\n".join(lines)


_SIZES = (
    "images rows columns outputs panels_count inputs high wide tall broad down across above before chunk lines part"
)
_NAMES = ("items", *["out", "x", "panels", "bias", "addend"], *_SIZES.split(), "biased", "added")
_POINTERS = range(1, 6)
HEAD = f"""
  %items = load i64, ptr %row
{_loaded("out x panels bias addend", 1, "ptr")}
{_loaded(f"{_SIZES} biased added", 6)}
  %at_least = getelementptr i64, ptr %row, i64 {len(_NAMES)}
  %least = load float, ptr %at_least
  %at_most = getelementptr float, ptr %at_least, i64 1
  %most = load float, ptr %at_most
{_loaded("activation", len(_NAMES) + 1)}
  %has_bias = icmp ne i64 %biased, 0
  %all_rows = mul i64 %images, %rows
  %items_less = sub i64 %items, 1
  %f0 = mul i64 %from, %all_rows
  %f1 = add i64 %f0, %items_less
  %first = sdiv i64 %f1, %items
  %t0 = mul i64 %to, %all_rows
  %t1 = add i64 %t0, %items_less
  %end = sdiv i64 %t1, %items
  %some = icmp slt i64 %first, %end
"""
# The first pixel that a row of results reads, and the row itself.
RESULT_ROW = """
  %image = sdiv i64 %r, %rows
  %r_first = mul i64 %image, %rows
  %r_in = sub i64 %r, %r_first
  %y = mul i64 %r_in, %down
  %y_image = mul i64 %image, %high
  %line_size = mul i64 %wide, %inputs
  %out_size = mul i64 %columns, %outputs
  %out_offset = mul i64 %r, %out_size
  %out_row = getelementptr float, ptr %out, i64 %out_offset
"""


def activated(rows: str, columns: str, then: str, out: str) -> str:
    """Apply the activation to what is written, and go on."""
    cases = " ".join(f"i64 {code}, label %{name}" for name, code in CODES.items())
    calls = "\n".join(
        f"{name}:\n  call void @NAME_{name}(ptr {out}, i64 {rows}, i64 %outputs, i64 {columns})\n  br label %{then}"
        for name in CODES
    )
    return f"  switch i64 %activation, label %{then} [{cases}]\n{calls}"


NEXT_ROW = """next_row:
  %r_next = add i64 %r, 1
  %no_row = icmp eq i64 %r_next, %end
  br i1 %no_row, label %leave, label %each_row

leave:
  ret void
}
"""


class Slots:
    """What a function finds in its row, by name."""

    def __init__(self, out: Function) -> None:
        self._out = out
        self._found = {
            name: out.slot("%row", at, "ptr" if at in _POINTERS else "i64") for at, name in enumerate(_NAMES)
        }
        clamps = out.element("i64", "%row", str(len(_NAMES)))
        self._found["least"] = out.load("float", clamps)
        self._found["most"] = out.load("float", out.element("float", clamps, "1"))
        self._found["activation"] = out.slot("%row", len(_NAMES) + 1)

    def __getitem__(self, name: str) -> str:
        return self._found[name]

    def is_set(self, name: str) -> str:
        """Whether a number is not zero."""
        return self._out.set(f"icmp ne i64 {self[name]}, 0")


PAD = f"""
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @NAME(ptr %row, i64 %from, i64 %to) {{
entry:
{_loaded("padded x", 1, "ptr")}
{_loaded("images height width channels above before high wide", 3)}
  %pixel = mul i64 %channels, 4
  %line = mul i64 %width, %pixel
  %padded_line = mul i64 %wide, %pixel
  %left = mul i64 %before, %pixel
  %ends = add i64 %left, %line
  %right = sub i64 %padded_line, %ends
  %end_above = add i64 %above, %height
  br label %image

image:
  %n = phi i64 [0, %entry], [%n_next, %next_image]
  %n_lines = mul i64 %n, %high
  %n_source = mul i64 %n, %height
  br label %each

each:
  %y = phi i64 [0, %image], [%y_next, %next]
  %y_to = add i64 %n_lines, %y
  %to_offset = mul i64 %y_to, %padded_line
  %to_line = getelementptr i8, ptr %padded, i64 %to_offset
  %is_below = icmp sge i64 %y, %above
  %is_above = icmp slt i64 %y, %end_above
  %is_inside = and i1 %is_below, %is_above
  br i1 %is_inside, label %inside, label %outside

inside:
  %y_in = sub i64 %y, %above
  %y_from = add i64 %n_source, %y_in
  %from_offset = mul i64 %y_from, %line
  %from_line = getelementptr i8, ptr %x, i64 %from_offset
  call void @llvm.memset.p0.i64(ptr %to_line, i8 0, i64 %left, i1 false)
  %to_middle = getelementptr i8, ptr %to_line, i64 %left
  call void @llvm.memcpy.p0.p0.i64(ptr %to_middle, ptr %from_line, i64 %line, i1 false)
  %to_right = getelementptr i8, ptr %to_line, i64 %ends
  call void @llvm.memset.p0.i64(ptr %to_right, i8 0, i64 %right, i1 false)
  br label %next

outside:
  call void @llvm.memset.p0.i64(ptr %to_line, i8 0, i64 %padded_line, i1 false)
  br label %next

next:
  %y_next = add i64 %y, 1
  %no_line = icmp eq i64 %y_next, %high
  br i1 %no_line, label %next_image, label %each

next_image:
  %n_next = add i64 %n, 1
  %no_image = icmp eq i64 %n_next, %images
  br i1 %no_image, label %leave, label %image

leave:
  ret void
}}
"""


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
    with out.when(out.set(f"icmp sgt i64 {plus(above, before)}, 0")):
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
    return "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n" + out.finished()
