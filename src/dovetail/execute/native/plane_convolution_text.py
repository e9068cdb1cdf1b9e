"""LLVM's text of convolutions over planes: the result, the gradient of the images, that of the weight and of the bias.

    slots: items, pointers (see `POINTERS`; the last one is to the rooms), images, rooms, which of them are taken (0)

Products of a weight by planes (`plane_geometry`) run in tiles of outputs by elements that lie side by side, which stay
in registers while all taps are summed. The gradient of the images is such a product over the planes of the result's;
the gradient of the weight sums products of two planes along them. Items are shares of the work: chunks of images, or
blocks of outputs for the gradient of the weight, whatever the number of threads. Each thread works in a room.

Elements between lines are multiplied by zeros, which would make NaN of what is infinite: where there is such a number,
products are summed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dovetail.execute.native.llvm_function import MARKS, NOT_UNROLLED, Function
from dovetail.execute.native.padded_text import rooms_text
from dovetail.execute.native.plane_geometry import Geometry
from dovetail.execute.native.plane_text import (
    DECLARED,
    cut_text,
    exact_text,
    finite_text,
    gathered_text,
    joined_text,
    spread_text,
    zeros,
)
from dovetail.execute.native.plane_tiles import Shape, corners, sum_text, sums_text, tiles_text

POINTERS = {
    "forward": ("result", "x", "weight", "bias"),
    "unbiased": ("result", "x", "weight"),
    "images": ("x", "gradient", "weight"),
    "weight": ("weight", "bias", "gradient", "x"),
}
"""What each kind takes; of `weight`, the first two are written."""


def room_elements(kind: str, of: Geometry, shape: Shape) -> int:
    """Elements of a room."""
    line = of.line(shape.step)
    cut, spread = len(of.phases) * of.channels * line, of.outputs * line
    return _front(of, shape) + spread + of.channels * line if kind == "images" else cut + spread


def _front(of: Geometry, shape: Shape) -> int:
    """Elements before planes that are read from behind."""
    return -(-of.furthest // shape.step) * shape.step


def jobs_of(kind: str, of: Geometry, shape: Shape, images: int) -> int:
    """Into how many parts the work is cut."""
    return -(-of.outputs // shape.across[0]) if kind == "weight" else -(-images // of.chunk(shape.step))


def plane_text(kind: str, of: Geometry, shape: Shape) -> str:
    """The module of a kind of row."""
    return _functions(kind, of, shape) + MARKS


def _functions(kind: str, of: Geometry, shape: Shape) -> str:
    line, v = of.line(shape.step), f"<{shape.lanes} x float>"
    declared = DECLARED + rooms_text() + finite_text()
    declared += f"declare {v} @llvm.fma.v{shape.lanes}f32({v}, {v}, {v})\ndeclare i64 @llvm.smin.i64(i64, i64)\n"
    declared += f"declare float @llvm.vector.reduce.fadd.v{shape.lanes}f32(float, {v})\n"
    cut, spread = cut_text(of, line), spread_text(of, line)
    if kind in ("forward", "unbiased"):
        tables = _table("taps", list(enumerate(of.inner_offsets(line)))) + _none(of.outputs)
        tiles = tiles_text(shape, of.outputs, of.channels * prod(of.kernel), line)
        copies = cut + gathered_text(of, line) + exact_text(of, "result")
        return declared + tables + tiles + copies + _forward(kind, of, shape)
    if kind == "images":
        tables = "".join(_table(f"taps{at}", of.outer_offsets(phase, line)) for at, phase in enumerate(of.phases))
        tiles = tiles_text(shape, of.channels, prod(of.kernel), line)
        copies = spread + joined_text(of, line) + exact_text(of, "image")
        return declared + tables + _none(of.channels) + tiles + copies + _images(of, shape)
    tables = _table("taps", [(offset,) for offset in of.inner_offsets(line)])
    sums = "".join(sums_text(shape, rows, taps, of) for rows, taps in corners(shape, of)) + sum_text(shape)
    return declared + tables + sums + cut + spread + exact_text(of, "weight") + _weight(of, shape)


def _none(count: int) -> str:
    return f"@NAME_none = internal constant [{count} x float] zeroinitializer\n"


def _table(name: str, rows: Sequence[tuple[int, ...]]) -> str:
    numbers = ", ".join(f"i64 {number}" for row in rows for number in row)
    return f"@NAME_{name} = internal constant [{len(rows) * len(rows[0])} x i64] [{numbers}], align 64\n"


def _product(
    out: Function, shape: Shape, sizes: tuple[int, int, int], given: tuple[str, str, str, str], made: str, total: str
) -> None:
    """All tiles of a product. sizes: rows, how far they lie apart, elements of a line of the result. given: the weight,
    planes, the table and what sums start from. total: elements of a line that are needed.
    """
    (rows, down, line), (w, planes, table, start) = sizes, given
    taps = table.rpartition(" ")[2]

    def tile(count: int, first: str, at: str) -> None:
        weight = out.element("float", w, out.mul(first, str(down)))
        to = out.element("float", made, out.add(out.mul(first, str(line)), at))
        begin, from_ = out.element("float", start, first), out.element("float", planes, at)
        name = table.partition(" ")[0]
        out.line(
            f"call void @NAME_tile{count}(ptr {weight}, ptr {from_}, ptr {name}, i64 {taps}, ptr {begin}, ptr {to})"
        )

    with out.loop("0", total, str(shape.step)) as at:
        whole = rows // shape.rows * shape.rows
        if whole:
            with out.loop("0", str(whole), str(shape.rows)) as first:
                tile(shape.rows, first, at)
        if rows > whole:
            tile(rows - whole, str(whole), at)


def _head(kind: str, of: Geometry, shape: Shape) -> tuple[Function, dict[str, str], tuple[str, str], str]:
    """A function of a row that has begun: what its slots hold by name, from which to which job it goes, its room."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    names = POINTERS[kind]
    at = {name: out.slot("%row", place, "ptr") for place, name in enumerate((*names, "rooms"), 1)}
    items, images, rooms = (out.slot("%row", place) for place in (0, len(names) + 2, len(names) + 3))
    at["taken"] = out.element("i64", "%row", str(len(names) + 4))
    at["images"] = images
    jobs = str(jobs_of(kind, of, shape, 0)) if kind == "weight" else _over(out, images, of.chunk(shape.step))
    first, end = (
        out.set(f"sdiv i64 {out.add(out.mul(bound, jobs), out.set(f'sub i64 {items}, 1'))}, {items}")
        for bound in ("%from", "%to")
    )
    number = out.set(f"call i64 @NAME_take(ptr {at['taken']}, i64 {rooms})")
    at["room"] = number
    room = out.element("float", at["rooms"], out.mul(number, str(room_elements(kind, of, shape))))
    return out, at, (first, end), room


def _over(out: Function, count: str, size: int) -> str:
    return out.set(f"sdiv i64 {out.add(count, str(size - 1))}, {size}")


def _finished(out: Function, at: dict[str, str]) -> str:
    out.line(f"call void @NAME_let_go(ptr {at['taken']}, i64 {at['room']})")
    return out.finished()


def _forward(kind: str, of: Geometry, shape: Shape) -> str:
    """The function of the result."""
    out, at, (first, end), room = _head(kind, of, shape)
    at.setdefault("bias", "@NAME_none")
    chunk, line, taps = of.chunk(shape.step), of.line(shape.step), of.channels * prod(of.kernel)
    made = out.element("float", room, str(len(of.phases) * of.channels * line))
    is_plain = "true"
    if any(of.padding):
        is_plain = out.set(f"call i1 @NAME_finite(ptr {at['weight']}, i64 {of.outputs * taps})")
    is_else = out.set(f"xor i1 {is_plain}, true")
    with out.loop(first, end) as job:
        count, x, result = _chunk(out, of, job, chunk, (at["images"], at["x"], at["result"]))
        with out.when(is_plain):
            out.line(f"call void @NAME_cut(ptr {x}, ptr {room}, i64 {count})")
            given = (at["weight"], room, f"@NAME_taps {taps}", at["bias"])
            _product(out, shape, (of.outputs, taps, line), given, made, out.mul(count, str(of.plane)))
            out.line(f"call void @NAME_gather(ptr {made}, ptr {result}, i64 {count})")
        with out.when(is_else):
            with out.loop("0", count) as i, out.loop("0", str(of.outputs), mark=NOT_UNROLLED) as o:
                number = out.load("float", out.element("float", at["bias"], o))
                place = out.mul(out.add(out.mul(i, str(of.outputs)), o), str(prod(of.made)))
                with out.loop("0", str(prod(of.made)), mark=NOT_UNROLLED) as p:
                    out.line(f"store float {number}, ptr {out.element('float', result, out.add(place, p))}, align 4")
            out.line(_exact_call(result, at["weight"], x, count, ("0", str(of.outputs))))
    return _finished(out, at)


def _images(of: Geometry, shape: Shape) -> str:
    """The function of the gradient of the images."""
    out, at, (first, end), room = _head("images", of, shape)
    chunk, line, taps = of.chunk(shape.step), of.line(shape.step), prod(of.kernel)
    front = _front(of, shape)
    if front:
        zeros(out, room, str(front))
    planes = out.element("float", room, str(front))
    made = out.element("float", planes, str(of.outputs * line))
    is_plain = out.set(f"call i1 @NAME_finite(ptr {at['weight']}, i64 {of.outputs * of.channels * taps})")
    is_else = out.set(f"xor i1 {is_plain}, true")
    with out.loop(first, end) as job:
        count, x, gradient = _chunk(out, of, job, chunk, (at["images"], at["x"], at["gradient"]))
        zeros(out, x, out.mul(count, str(of.channels * prod(of.size))))
        with out.when(is_plain):
            out.line(f"call void @NAME_spread(ptr {gradient}, ptr {planes}, i64 0, i64 {of.outputs}, i64 {count})")
            for number, phase in enumerate(of.phases):
                products = len(of.outer_offsets(phase, line))
                given = (at["weight"], planes, f"@NAME_taps{number} {products}", "@NAME_none")
                _product(out, shape, (of.channels, taps, line), given, made, out.mul(count, str(of.plane)))
                out.line(f"call void @NAME_join{number}(ptr {made}, ptr {x}, i64 {count})")
        with out.when(is_else):
            out.line(_exact_call(gradient, at["weight"], x, count, ("0", str(of.outputs))))
    return _finished(out, at)


def _chunk(out: Function, of: Geometry, job: str, chunk: int, given: tuple[str, str, str]) -> tuple[str, str, str]:
    """How many images a job has, and where they and what is made of them begin. given: how many there are, and where
    all begin.
    """
    images, x, made = given
    n = out.mul(job, str(chunk))
    count = out.set(f"call i64 @llvm.smin.i64(i64 {chunk}, i64 {out.set(f'sub i64 {images}, {n}')})")
    sizes = of.channels * prod(of.size), of.outputs * prod(of.made)
    starts = [out.element("float", start, out.mul(n, str(size))) for start, size in zip((x, made), sizes, strict=True)]
    return count, starts[0], starts[1]


def _exact_call(result: str, weight: str, x: str, images: str, outputs: tuple[str, str]) -> str:
    """The call of `NAME_exact`. outputs: from which to before which one."""
    first, end = outputs
    return f"call void @NAME_exact(ptr {result}, ptr {weight}, ptr {x}, i64 {images}, i64 {first}, i64 {end})"


def _increase(out: Function, to: str, number: str) -> None:
    total = out.set(f"fadd float {out.load('float', to)}, {number}")
    out.line(f"store float {total}, ptr {to}, align 4")


# --- the gradient of the weight ---------------------------------------------------------------------------------------


def _weight(of: Geometry, shape: Shape) -> str:
    """The function of the gradients of the weight and of the bias."""
    out, at, (first, end), room = _head("weight", of, shape)
    rows, taps, line, chunk = (
        shape.across[0],
        of.channels * prod(of.kernel),
        of.line(shape.step),
        of.chunk(shape.step),
    )
    planes = out.element("float", room, str(len(of.phases) * of.channels * line))
    low, high = (
        out.set(f"call i64 @llvm.smin.i64(i64 {out.mul(bound, str(rows))}, i64 {of.outputs})") for bound in (first, end)
    )
    some = out.set(f"sub i64 {high}, {low}")
    zeros(out, out.element("float", at["weight"], out.mul(low, str(taps))), out.mul(some, str(taps)))
    zeros(out, out.element("float", at["bias"], low), some)
    elements = {"x": of.channels * prod(of.size), "gradient": of.outputs * prod(of.made)}
    are_plain = [
        out.set(f"call i1 @NAME_finite(ptr {at[name]}, i64 {out.mul(at['images'], str(count))})")
        for name, count in elements.items()
    ]
    is_plain = out.set(f"and i1 {are_plain[0]}, {are_plain[1]}")
    with out.when(is_plain), out.loop("0", _over(out, at["images"], chunk)) as job:
        count, x, gradient = _chunk(out, of, job, chunk, (at["images"], at["x"], at["gradient"]))
        out.line(f"call void @NAME_cut(ptr {x}, ptr {room}, i64 {count})")
        out.line(f"call void @NAME_spread(ptr {gradient}, ptr {planes}, i64 {low}, i64 {high}, i64 {count})")
        total = out.mul(count, str(of.plane))
        with out.loop(low, high, str(rows)) as o:
            _add_sums(out, shape, of, (planes, room, at["weight"]), o, total)
        with out.loop(low, high) as o:
            plane = out.element("float", planes, out.mul(o, str(line)))
            sum_ = out.set(f"call float @NAMEsum_text(ptr {plane}, i64 {total})")
            _increase(out, out.element("float", at["bias"], o), sum_)
    with out.when(out.set(f"xor i1 {is_plain}, true")):
        out.line(_exact_call(at["gradient"], at["weight"], at["x"], at["images"], (low, high)))
        with out.loop("0", at["images"]) as n, out.loop(low, high) as o, out.loop("0", str(prod(of.made))) as p:
            place = out.add(out.mul(out.add(out.mul(n, str(of.outputs)), o), str(prod(of.made))), p)
            number = out.load("float", out.element("float", at["gradient"], place))
            _increase(out, out.element("float", at["bias"], o), number)
    return _finished(out, at)


def _add_sums(out: Function, shape: Shape, of: Geometry, pointers: tuple[str, str, str], o: str, total: str) -> None:
    """Sums of a block of outputs, for all taps. pointers: planes of the gradient and of the input, the result."""
    (rows, across), taps, line = shape.across, of.channels * prod(of.kernel), of.line(shape.step)
    planes, x, made = pointers
    left = out.set(f"call i64 @llvm.smin.i64(i64 {rows}, i64 {out.set(f'sub i64 {of.outputs}, {o}')})")
    g = out.element("float", planes, out.mul(o, str(line)))
    to = out.element("float", made, out.mul(o, str(taps)))

    def block(count: int, t: str) -> None:
        table, result = out.element("i64", "@NAME_taps", t), out.element("float", to, t)
        given = f"ptr {g}, ptr {x}, ptr {table}, i64 {total}, ptr {result}"
        cases = {
            size: f"call void @NAME_sums{size}_{count}({given})" for size, each in corners(shape, of) if each == count
        }
        out.switch(left, cases)

    whole = taps // across * across
    if whole:
        with out.loop("0", str(whole), str(across)) as t:
            block(across, t)
    if taps > whole:
        block(taps - whole, str(whole))
