"""What convolutions of images with channels last find in their rows.

    slots: items, pointers (result, x, panels, bias, addend, rooms), images, rows and columns of the result, outputs,
    panels, inputs, height and width of the image and of the weight, strides (two), padding (two), pixels of a chunk,
    lines of the weight and elements of a line that are summed at a time, height and width of the image without padding,
    how many rooms there are, elements of a room, which are taken (0), whether there is a bias, and an addend, the least
    and the largest result (two `float`), the activation

Where there are rooms, the image has padding around only in them (`padded_text`): height and width are with padding, and
`x` is without.
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
    " height width rooms room_size taken"
)
_NAMES = ("items", *["out", "x", "panels", "bias", "addend", "room"], *_SIZES.split(), "biased", "added")
_POINTERS = range(1, 7)
HEAD = f"""
  %items = load i64, ptr %row
{_loaded("out x panels bias addend room", 1, "ptr")}
{_loaded(f"{_SIZES} biased added", 7)}
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

    def address(self, name: str) -> str:
        """Where a number is."""
        return self._out.element("i64", "%row", str(_NAMES.index(name)))

    def is_set(self, name: str) -> str:
        """Whether a number is not zero."""
        return self._out.set(f"icmp ne i64 {self[name]}, 0")
