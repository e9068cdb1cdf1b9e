"""LLVM's text of direct convolutions of images with channels last, by panels of outputs.

    slots: as `convolution_text`

Pixels of the result are taken in chunks, in whatever rows of an image they lie, so that tiles are full in narrow
images, too. For each chunk and panel, the products of a pixel are summed in passes: some lines of the weight, whose
taps lie side by side, or a part of one. Each part of a panel is read from memory once for a chunk, and what the pixels
of a chunk read stays in the cache while all panels pass.

Items are shares of the work: pairs of a chunk and a panel are divided in proportion.

Source: Zhang et al., "High Performance Zero-Memory Overhead Direct Convolutions" (2018); Dukhan, "The Indirect
Convolution Algorithm" (2019), for offsets of pixels; `panel_text` for tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.execute.native.convolution_text import Slots
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.padded_text import lines_call, lines_text, rooms_text
from dovetail.execute.native.tile_lines import multiplied
from dovetail.execute.native.tile_text import ATTRIBUTES, HALF, Tile, activations_text, declarations, stored
from dovetail.execute.native.vector_activations import CODES
from dovetail.ops.panels import WIDTH

MOST_PIXELS = 1024
"""Of a chunk."""

_STREAMS = 2  # of the next block that a tile fetches side by side: a single one keeps too few lines in flight
_LINE = WIDTH * 4  # bytes of a line of a panel
_INFINITY = ("0xFFF0000000000000", "0x7FF0000000000000")


def direct_text(tile: Tile) -> str:
    """The module, for tiles of a size."""
    tiles = "".join(
        _tile(tile, rows, range(vectors))
        for vectors in sorted({tile.vectors, tile.vectors // 2})
        for rows in range(1, tile.rows + 1)
    )
    zeros = f"@NAME_zeros = internal constant [{WIDTH} x float] zeroinitializer, align 64\n"
    copies = lines_text() + rooms_text()
    return declarations(tile) + zeros + tiles + activations_text(tile, "NAME") + copies + _function(tile)


def _tile(tile: Tile, rows: int, vectors: range) -> str:
    """A function: some pixels by some lines of a panel, added to the bias or to what is in the result. offsets: of the
    pixels in x. block: products of a line. addend: what is added at the end, where `added` says so.
    """
    v, lanes = f"<{tile.lanes} x float>", tile.lanes
    head = (
        f"define internal void @NAME_tile{rows}_{len(vectors)}(ptr %offsets, ptr %x, i64 %lines, i64 %line_size,"
        " ptr %panel, ptr %start, i64 %start_down, ptr %out, i64 %out_down, ptr %addend, i1 %added, i64 %block,"
        " i64 %columns, float %least, float %most, ptr %fetch, i64 %fetch_step, i64 %fetch_apart)"
        f" noinline {ATTRIBUTES} {{"
    )
    out = ["entry:"]
    for i in range(rows):
        out.append(f"%xo{i} = getelementptr i64, ptr %offsets, i64 {i}")
        out.append(f"%xa{i} = load i64, ptr %xo{i}, align 8")
        out.append(f"%x{i} = getelementptr float, ptr %x, i64 %xa{i}")
    places = [(i, j) for i in range(rows) for j in vectors]
    out += ["br label %each", "each:"]
    out += ["%k = phi i64 [0, %entry], [%k_next, %next]", "%first = phi i64 [0, %entry], [%first_next, %next]"]
    out += ["%from = phi ptr [%panel, %entry], [%line_next, %next]"]
    out += ["%fetch_from = phi ptr [%fetch, %entry], [%fetch_next, %next]"]
    out += [f"%s{i}_{j} = phi {v} [zeroinitializer, %entry], [%d{i}_{j}, %next]" for i, j in places]
    out += ["%end = add i64 %first, %block", "br label %sum", "sum:"]
    out += ["%n = phi i64 [%first, %each], [%n_next, %sum]", "%line = phi ptr [%from, %each], [%line_next, %sum]"]
    out += ["%fetched = phi ptr [%fetch_from, %each], [%fetch_next, %sum]"]
    out += [f"%c{i}_{j} = phi {v} [%s{i}_{j}, %each], [%d{i}_{j}, %sum]" for i, j in places]
    out.append("%fetch_next = getelementptr i8, ptr %fetched, i64 %fetch_step")
    for j in range(_STREAMS if len(vectors) == tile.vectors else 0):  # of few products, each load counts
        out.append(f"%far{j} = mul i64 %fetch_apart, {j}")
        out.append(f"%ahead{j} = getelementptr i8, ptr %fetched, i64 %far{j}")
        out.append(f"call void @llvm.prefetch.p0(ptr %ahead{j}, i32 0, i32 2, i32 1)")
    out += multiplied(rows, vectors, lanes)
    out += ["%is_last = icmp eq i64 %n_next, %end", "br i1 %is_last, label %next, label %sum", "next:"]
    out += ["%k_next = add i64 %k, 1", "%first_next = add i64 %first, %line_size"]
    out += ["%is_all = icmp eq i64 %k_next, %lines", "br i1 %is_all, label %done, label %each", "done:"]
    return "\n".join([head, *out, *stored(tile, rows, vectors, adds=True), "ret void", "}", ""])


def _function(tile: Tile) -> str:
    """The function of a row: chunks of pixels, panels, passes, tiles, in this order."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    at = Slots(out)
    offsets = out.memory(f"[{MOST_PIXELS} x i64]", 64)
    a_map = out.mul(at["rows"], at["columns"])
    pixels = out.mul(at["images"], a_map)
    line_size = out.mul(at["wide"], at["inputs"])
    line = out.mul(at["broad"], at["inputs"])
    panel_size = out.set(f"mul i64 {out.mul(line, at['tall'])}, {WIDTH}")
    chunks = out.parts(pixels, at["chunk"])
    jobs = out.mul(chunks, at["panels_count"])
    first, end = out.share(at["items"], jobs)
    image = out.variable("ptr", at["x"])  # where the line of number 0 is, or would be
    has_rooms, room = at.is_set("rooms"), out.variable("i64", "0")
    taken = f"ptr {at.address('taken')}"
    with out.when(has_rooms):
        number = out.set(f"call i64 @NAME_take({taken}, i64 {at['rooms']})")
        out.line(f"store i64 {number}, ptr {room}, align 8")
    with out.loop(first, end) as job:
        which = out.set(f"sdiv i64 {job}, {at['panels_count']}")
        panel = out.set(f"srem i64 {job}, {at['panels_count']}")
        start = out.mul(which, at["chunk"])
        count = out.least(at["chunk"], out.set(f"sub i64 {pixels}, {start}"))
        is_new = out.set(f"or i1 {out.set(f'icmp eq i64 {panel}, 0')}, {out.set(f'icmp eq i64 {job}, {first}')}")
        with out.when(is_new), out.loop("0", count) as i:
            _put_offset(out, at, offsets, i, out.set(f"add i64 {start}, {i}"), a_map, line_size)
        with out.when(out.set(f"and i1 {is_new}, {has_rooms}")):
            _put_lines(out, at, image, out.load("i64", room, 8), (start, count), a_map)
        column = out.mul(panel, str(WIDTH))
        valid = out.least(out.set(f"sub i64 {at['outputs']}, {column}"), str(WIDTH))
        place = out.set(f"add i64 {out.mul(start, at['outputs'])}, {column}")
        made, addend = out.element("float", at["out"], place), out.element("float", at["addend"], place)
        weights = out.element("float", at["panels"], out.mul(panel, panel_size))
        _passes(
            out,
            tile,
            at,
            (image, line, line_size),
            (weights, column),
            _Made(offsets, made, at["outputs"], addend, count, valid),
        )
        for name, code in CODES.items():
            with out.when(out.set(f"icmp eq i64 {at['activation']}, {code}")):
                out.line(f"call void @NAME_{name}(ptr {made}, i64 {count}, i64 {at['outputs']}, i64 {valid})")
    with out.when(has_rooms):
        out.line(f"call void @NAME_let_go({taken}, i64 {out.load('i64', room, 8)})")
    return out.finished()


def _passes(
    out: Function, tile: Tile, at: Slots, sizes: tuple[str, str, str], panel: tuple[str, str], made: _Made
) -> None:
    """The passes of a chunk by a panel. sizes: where the image is, elements of a line of the weight and of the image.
    panel: its start, and its first output.
    """
    (image, line, line_size), (weights, column) = sizes, panel
    bias = out.element("float", at["bias"], column)
    begin = out.set(f"select i1 {at.is_set('biased')}, ptr {bias}, ptr @NAME_zeros")
    with out.loop("0", at["tall"], at["lines"]) as k, out.loop("0", line, at["part"]) as p:
        lines = out.least(at["lines"], out.set(f"sub i64 {at['tall']}, {k}"))
        block = out.least(at["part"], out.set(f"sub i64 {line}, {p}"))
        done = out.set(f"add i64 {out.mul(k, line)}, {p}")
        is_first = out.set(f"icmp eq i64 {done}, 0")
        k_end, p_end = out.set(f"add i64 {k}, {lines}"), out.set(f"add i64 {p}, {block}")
        ends = (out.set(f"icmp eq i64 {k_end}, {at['tall']}"), out.set(f"icmp eq i64 {p_end}, {line}"))
        is_last = out.set(f"and i1 {ends[0]}, {ends[1]}")
        shift = out.set(f"add i64 {out.mul(k, line_size)}, {p}")
        x = out.element("float", out.load("ptr", image, 8), shift)
        w = out.element("float", weights, out.mul(done, str(WIDTH)))
        low, high = (
            out.set(f"select i1 {is_last}, float {at[clamp]}, float {number}")
            for clamp, number in zip(("least", "most"), _INFINITY, strict=True)
        )
        added = out.set(f"and i1 {is_last}, {at.is_set('added')}")
        down = out.set(f"select i1 {is_first}, i64 0, i64 {at['outputs']}")
        summed = _Pass(x, w, lines, line_size, block, is_first, begin, down)
        _tiles(out, tile, summed, made, (added, low, high))


@dataclass(frozen=True, slots=True)
class _Pass:
    """Names of values of a pass: the first tap in x and in the panel; lines, their distance in x, and elements of each;
    whether it is the first pass; what sums start from then, and how far that of the next pixel is.
    """

    x: str
    panel: str
    lines: str
    line_size: str
    block: str
    is_first: str
    begin: str
    down: str


@dataclass(frozen=True, slots=True)
class _Made:
    """Names of values of a chunk's results by a panel: offsets of its pixels, where results are, how far the next
    pixel's is, what may be added, how many pixels and outputs there are.
    """

    offsets: str
    start: str
    outputs: str
    addend: str
    count: str
    valid: str


def _tiles(out: Function, tile: Tile, summed: _Pass, made: _Made, ends: tuple[str, str, str]) -> None:
    """The tiles of a chunk, for one pass. Tiles are about equally large. ends: whether the addend is added, and what
    results are clamped to.
    """
    (added, low, high), count = ends, made.count
    tiles = out.parts(count, str(tile.rows))
    size = out.mul(out.mul(summed.lines, summed.block), str(_LINE))
    with out.loop("0", tiles) as number:
        i, i_end = (
            out.set(f"sdiv i64 {out.mul(each, count)}, {tiles}") for each in (number, out.set(f"add i64 {number}, 1"))
        )
        rows = out.set(f"sub i64 {i_end}, {i}")
        place = out.mul(i, made.outputs)
        to, addend = out.element("float", made.start, place), out.element("float", made.addend, place)
        start = out.set(f"select i1 {summed.is_first}, ptr {summed.begin}, ptr {to}")
        offsets = out.element("i64", made.offsets, i)
        part = out.set(f"sdiv i64 {size}, {tiles}")  # what each tile fetches of the block that follows
        fetch = out.element("i8", summed.panel, out.set(f"add i64 {size}, {out.mul(number, part)}"))
        apart = out.set(f"sdiv i64 {part}, {_STREAMS}")
        step = out.set(f"sdiv i64 {_LINE // _STREAMS}, {tiles}")
        is_half = out.set(f"icmp sle i64 {made.valid}, {WIDTH // 2}")
        which = out.set(f"add i64 {rows}, {out.set(f'select i1 {is_half}, i64 {HALF}, i64 0')}")
        arguments = (
            f"ptr {offsets}, ptr {summed.x}, i64 {summed.lines}, i64 {summed.line_size}, ptr {summed.panel},"
            f" ptr {start}, i64 {summed.down}, ptr {to}, i64 {made.outputs}, ptr {addend}, i1 {added},"
            f" i64 {summed.block}, i64 {made.valid}, float {low}, float {high},"
            f" ptr {fetch}, i64 {step}, i64 {apart}"
        )
        cases = {
            rows + more: f"call void @NAME_tile{rows}_{vectors}({arguments})"
            for more, vectors in ((0, tile.vectors), (HALF, tile.vectors // 2))
            for rows in range(1, tile.rows + 1)
        }
        out.switch(which, cases)


def _put_offset(out: Function, at: Slots, offsets: str, i: str, pixel: str, a_map: str, line_size: str) -> None:
    """Where the first tap of a pixel is read."""
    column = out.set(f"srem i64 {out.set(f'srem i64 {pixel}, {a_map}')}, {at['columns']}")
    x = out.mul(column, out.mul(at["across"], at["inputs"]))
    offset = out.set(f"add i64 {out.mul(_first_line(out, at, pixel, a_map), line_size)}, {x}")
    out.line(f"store i64 {offset}, ptr {out.element('i64', offsets, i)}, align 8")


def _first_line(out: Function, at: Slots, pixel: str, a_map: str) -> str:
    """The number of the first line that a pixel reads."""
    image, inside = out.set(f"sdiv i64 {pixel}, {a_map}"), out.set(f"srem i64 {pixel}, {a_map}")
    row = out.set(f"sdiv i64 {inside}, {at['columns']}")
    return out.set(f"add i64 {out.mul(image, at['high'])}, {out.mul(row, at['down'])}")


def _put_lines(out: Function, at: Slots, image: str, room: str, pixels: tuple[str, str], a_map: str) -> None:
    """Copy the lines that pixels read, of which there are some from a first one on, into a room."""
    start, count = pixels
    last = out.set(f"sub i64 {out.set(f'add i64 {start}, {count}')}, 1")
    first, last = (_first_line(out, at, pixel, a_map) for pixel in (start, last))
    end = out.set(f"add i64 {last}, {at['tall']}")
    to = out.element("float", at["room"], out.mul(room, at["room_size"]))
    names = ("height", "width", "inputs", "above", "before", "high", "wide")
    out.line(lines_call(to, at["x"], first, end, tuple(at[name] for name in names)))
    skipped = out.mul(first, out.mul(at["wide"], at["inputs"]))
    out.line(f"store ptr {out.element('float', to, out.set(f'sub i64 0, {skipped}'))}, ptr {image}, align 8")
