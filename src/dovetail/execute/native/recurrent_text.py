"""LLVM's text of recurrent layers over weights in panels: products of the inputs of some time steps, then step by step
the products of the hidden state, and the gates while sums are in the cache.

    slots: items, pointers (out, h, c, sums, x, h0, c0, then for each of two directions the weights of the inputs and
    of the hidden state; then their biases), time steps, batch, inputs, hidden, directions, whether there are biases,
    elements from step to step and from row to row of x, time steps of a part

Items are shares of the batch. `sums` has room for the inputs of a part, (steps of a part, batch, gates), and for the
hidden state, (batch, gates). Sums are of blocks of products, added one after the other, so that a row's bits do not
depend on other rows.

Source: torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN; Appleyard et al., "Optimizing Performance of Recurrent Neural
Networks on GPUs" (2016), for one product of the inputs of many time steps.
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.tile_text import (
    ATTRIBUTES,
    PanelLoop,
    Tile,
    declarations,
    group_sizes,
    groups_text,
    panel_loop,
    tiles_text,
    zeros,
)
from dovetail.execute.native.vector_activations import VectorLines
from dovetail.ops.panels import GATES, WIDTH

POINTERS = 15
NUMBERS = 9
"""Slots behind those of pointers."""

_WEIGHTS, _BIASES = 7, 11  # numbers of the first pointers to them
_LEAST, _MOST = "0xFFF0000000000000", "0x7FF0000000000000"  # infinities
_BLOCK = 128  # products of a sum that is added to others
_NAME = "recurrent"


@cache
def recurrent_function(kind: str, tile: Tile) -> int:
    """The address of the function of such rows. kind: of `ops.panels.GATES`."""
    found = function_of(recurrent_text(kind, tile), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def recurrent_text(kind: str, tile: Tile) -> str:
    """The module for layers of a kind, in tiles of a size."""
    parts = (
        declarations(tile),
        tiles_text(tile, _NAME),
        groups_text(tile, _NAME),
        _product(tile),
        _gates(kind, tile),
        _MEMCPY,
        _layer(kind),
    )
    return "\n".join(parts)


_MEMCPY = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"


def _product(tile: Tile) -> str:
    """A function: rows by panels, with a bias or without."""
    loop = PanelLoop(
        x="%x",
        down="%down",
        rows="%rows",
        out="%out",
        out_down="%out_down",
        panels=str(max(group_sizes(tile))),  # as many are there as there are columns
        sums=str(_BLOCK),
        least=_LEAST,
        most=_MOST,
        after="next_panel",
    )
    text = _PRODUCT.replace("LOOP", panel_loop(tile, _NAME, loop)).replace("ATTRIBUTES", ATTRIBUTES)
    for name, number in {"WIDTH": WIDTH, "MOST_LESS": tile.rows - 1, "MOST": tile.rows}.items():
        text = text.replace(name, str(number))
    return zeros(tile, _NAME) + text.replace("NAME", _NAME)


_PRODUCT = """
define internal void @NAME_product(ptr %x, i64 %down, ptr %panels, i64 %inputs, i64 %outputs, ptr %bias, i1 %has_bias,
    ptr %out, i64 %out_down, i64 %rows) noinline ATTRIBUTES {
entry:
  %tiles_up = add i64 %rows, MOST_LESS
  %tiles = sdiv i64 %tiles_up, MOST
  %size = mul i64 %inputs, WIDTH
  br label %panel

panel:
  %column = phi i64 [0, %entry], [%column_next, %next_panel]
  %wp = phi ptr [%panels, %entry], [%wp_next, %next_panel]
  %columns_left = sub i64 %outputs, %column
LOOP
next_panel:
  %column_next = add i64 %column, %columns_most
  %size_read = mul i64 %size, %taken
  %wp_next = getelementptr float, ptr %wp, i64 %size_read
  %no_panel = icmp sge i64 %column_next, %outputs
  br i1 %no_panel, label %leave, label %panel

leave:
  ret void
}
"""


def _gates(kind: str, tile: Tile) -> str:
    """A function: what a time step makes of its sums; `ours` are those of inputs, `theirs` of the hidden state."""
    lanes = tile.lanes
    v, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    lines = VectorLines(lanes)

    def read(place: str, at: str) -> str:
        pointer = lines.set(f"getelementptr float, ptr {place}, i64 {at}")
        arguments = f"ptr {pointer}, i32 4, {mask} %mask, {v} zeroinitializer"
        return lines.set(f"call {v} @llvm.masked.load.v{lanes}f32.p0({arguments})")

    def write(value: str, place: str) -> None:
        pointer = lines.set(f"getelementptr float, ptr {place}, i64 %j")
        lines.lines.append(
            f"  call void @llvm.masked.store.v{lanes}f32.p0({v} {value}, ptr {pointer}, i32 4, {mask} %mask)"
        )

    at = ["%j"]
    for _ in range(GATES[kind] - 1):
        at.append(lines.set(f"add i64 {at[-1]}, %hidden"))
    given, held = [read("%our", place) for place in at], [read("%their", place) for place in at]
    sums = [lines.two("fadd", a, b) for a, b in zip(given, held, strict=True)]
    if kind == "lstm":
        into, kept, out = (lines.sigmoid(sums[gate]) for gate in (0, 1, 3))
        added = lines.two("fmul", into, lines.tanh(sums[2]))
        cell = lines.fma(kept, read("%cell", "%j"), added)
        write(cell, "%cell")
        write(lines.two("fmul", out, lines.tanh(cell)), "%to")
    elif kind == "gru":
        reset, kept = lines.sigmoid(sums[0]), lines.sigmoid(sums[1])
        new = lines.tanh(lines.fma(reset, held[2], given[2]))
        change = lines.two("fsub", read("%state", "%j"), new)
        write(lines.fma(kept, change, new), "%to")
    elif kind == "rnn_tanh":
        write(lines.tanh(sums[0]), "%to")
    else:
        write(lines.clamped(sums[0], 0.0, float("inf")), "%to")
    numbers = ", ".join(f"i32 {n}" for n in range(lanes))
    text = _GATES.replace("BODY", "\n".join(lines.lines)).replace("ATTRIBUTES", ATTRIBUTES).replace("NUMBERS", numbers)
    return text.replace("GATES", str(GATES[kind])).replace("LANES", str(lanes)).replace("NAME", _NAME)


_GATES = """
define internal void @NAME_gates(ptr %ours, ptr %theirs, ptr %cells, ptr %states, i64 %states_down, ptr %out,
    i64 %out_down, i64 %rows, i64 %hidden) noinline ATTRIBUTES {
entry:
  %sums = mul i64 %hidden, GATES
  br label %row
row:
  %i = phi i64 [0, %entry], [%i_next, %next]
  %sums_at = mul i64 %i, %sums
  %our = getelementptr float, ptr %ours, i64 %sums_at
  %their = getelementptr float, ptr %theirs, i64 %sums_at
  %cell_at = mul i64 %i, %hidden
  %cell = getelementptr float, ptr %cells, i64 %cell_at
  %state_at = mul i64 %i, %states_down
  %state = getelementptr float, ptr %states, i64 %state_at
  %to_at = mul i64 %i, %out_down
  %to = getelementptr float, ptr %out, i64 %to_at
  br label %part
part:
  %j = phi i64 [0, %row], [%j_next, %part]
  %left64 = sub i64 %hidden, %j
  %left = trunc i64 %left64 to i32
  %left_one = insertelement <LANES x i32> poison, i32 %left, i64 0
  %lefts = shufflevector <LANES x i32> %left_one, <LANES x i32> poison, <LANES x i32> zeroinitializer
  %mask = icmp slt <LANES x i32> <NUMBERS>, %lefts
BODY
  %j_next = add i64 %j, LANES
  %more = icmp slt i64 %j_next, %hidden
  br i1 %more, label %part, label %next
next:
  %i_next = add i64 %i, 1
  %done = icmp eq i64 %i_next, %rows
  br i1 %done, label %leave, label %row
leave:
  ret void
}
"""


def _layer(kind: str) -> str:
    """The function of a row: directions, parts of the sequence, time steps, in this order."""
    layer = _Layer(kind)
    with layer.out.loop("0", layer.directions) as direction:
        layer.direction(direction)
    return layer.out.finished()


class _Layer:
    """The lines of the function of a row. A name stands for a register of the function, whatever it holds."""

    def __init__(self, kind: str) -> None:
        self.out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to)")
        self._has_cells = kind == "lstm"
        numbers = [self.out.slot("%row", 1 + POINTERS + at) for at in range(NUMBERS)]
        self._steps, batch, self._inputs, self._hidden, self.directions, *numbers = numbers
        biased, self._down, self._across, self._most_steps = numbers
        self._has_bias = self.out.set(f"icmp ne i64 {biased}, 0")
        items = self.out.slot("%row", 0)
        self._first, end = self._share("%from", batch, items), self._share("%to", batch, items)
        self._rows = self._two("sub", end, self._first)
        self.out.leave(self.out.set(f"icmp sle i64 {self._rows}, 0"), "void")
        self._batch = batch
        self._gates = self._two("mul", self._hidden, str(GATES[kind]))
        self._width = self._two("mul", self._hidden, self.directions)
        self._step_of_sums = self._two("mul", batch, self._gates)
        self._step_of_results = self._two("mul", batch, self._width)
        self._bytes = self._two("mul", self._hidden, "4")
        sums, of_first = self._pointer(3), self._two("mul", self._first, self._gates)
        self._ours = self._at(sums, of_first)
        self._theirs = self._at(sums, self._two("mul", self._most_steps, self._step_of_sums), of_first)

    def direction(self, number: str) -> None:
        """One direction, from its first step to its last."""
        is_ahead = self.out.set(f"icmp eq i64 {number}, 0")
        before = self._two("add", self._two("mul", number, self._batch), self._first)
        of_state = self._two("mul", before, self._hidden)
        last, cells, state = (self._at(self._pointer(place), of_state) for place in (1, 2, 5))
        results = self._at(self._pointer(0), self._two("mul", self._first, self._width))
        made = self._at(results, self._two("mul", number, self._hidden))
        if self._has_cells:
            given = self._at(self._pointer(6), of_state)
            self._copy(given, cells, self._two("mul", self._rows, self._bytes))
        pair = self._two("mul", number, "2")
        weight, held_weight, bias, held_bias = (
            self.out.load("ptr", self.out.element("i64", "%row", self._two("add", pair, str(1 + place))))
            for place in (_WEIGHTS, _WEIGHTS + 1, _BIASES, _BIASES + 1)
        )
        with self.out.loop("0", self._steps, self._most_steps) as done:
            left = self._two("sub", self._steps, done)
            count = self.out.set(f"call i64 @llvm.smin.i64(i64 {left}, i64 {self._most_steps})")
            lowest = self._choose(is_ahead, done, self._two("sub", left, count))
            self._inputs_of(lowest, count, weight, bias)
            with self.out.loop("0", count) as at:
                step = self._two("add", done, at)
                is_first = self.out.set(f"icmp eq i64 {step}, 0")
                time = self._time(step, is_ahead)
                former_time = self._two("add", time, self._choose(is_ahead, "-1", "1"))
                former = self._at(made, self._two("mul", former_time, self._step_of_results))
                former = self._choose(is_first, state, former, "ptr")
                down = self._choose(is_first, self._hidden, self._width)
                self._product(former, down, held_weight, self._hidden, held_bias, self._theirs, self._gates, self._rows)
                mine = self._at(self._ours, self._two("mul", self._two("sub", time, lowest), self._step_of_sums))
                to = self._at(made, self._two("mul", time, self._step_of_results))
                arguments = f"ptr {mine}, ptr {self._theirs}, ptr {cells}, ptr {former}, i64 {down}, ptr {to}"
                sizes = f"i64 {self._width}, i64 {self._rows}, i64 {self._hidden}"
                self.out.line(f"call void @{_NAME}_gates({arguments}, {sizes})")
        end = self._time(self._two("sub", self._steps, "1"), is_ahead)
        final = self._at(made, self._two("mul", end, self._step_of_results))
        with self.out.loop("0", self._rows) as row:
            source = self._at(final, self._two("mul", row, self._width))
            self._copy(source, self._at(last, self._two("mul", row, self._hidden)), self._bytes)

    def _inputs_of(self, lowest: str, count: str, weight: str, bias: str) -> None:
        """The products of some time steps' inputs, in rows of one step or of one row of the batch: the longer ones."""
        by_batch = self.out.set(f"icmp sge i64 {self._rows}, {count}")

        def both(one: str, other: str) -> tuple[str, str]:
            return self._choose(by_batch, one, other), self._choose(by_batch, other, one)

        rows, times = both(self._rows, count)
        down, from_part = both(self._across, self._down)
        sums_down, sums_from_part = both(self._gates, self._step_of_sums)
        of_first = self._two("mul", self._first, self._across)
        start = self._at(self._pointer(4), self._two("mul", lowest, self._down), of_first)
        with self.out.loop("0", times) as part:
            given = self._at(start, self._two("mul", part, from_part))
            to = self._at(self._ours, self._two("mul", part, sums_from_part))
            self._product(given, down, weight, self._inputs, bias, to, sums_down, rows)

    def _product(
        self, given: str, down: str, weight: str, inputs: str, bias: str, to: str, to_down: str, rows: str
    ) -> None:
        sizes = f"i64 {inputs}, i64 {self._gates}"
        arguments = f"ptr {given}, i64 {down}, ptr {weight}, {sizes}, ptr {bias}, i1 {self._has_bias}"
        self.out.line(f"call void @{_NAME}_product({arguments}, ptr {to}, i64 {to_down}, i64 {rows})")

    def _time(self, step: str, is_ahead: str) -> str:
        """When a step is, from the front."""
        return self._choose(is_ahead, step, self._two("sub", self._two("sub", self._steps, "1"), step))

    def _share(self, items_before: str, batch: str, items: str) -> str:
        up = self._two("add", self._two("mul", items_before, batch), self._two("sub", items, "1"))
        return self._two("sdiv", up, items)

    def _pointer(self, number: int) -> str:
        return self.out.slot("%row", 1 + number, "ptr")

    def _two(self, operator: str, a: str, b: str) -> str:
        return self.out.set(f"{operator} i64 {a}, {b}")

    def _choose(self, condition: str, a: str, b: str, of: str = "i64") -> str:
        return self.out.set(f"select i1 {condition}, {of} {a}, {of} {b}")

    def _at(self, start: str, *indices: str) -> str:
        for index in indices:
            start = self.out.element("float", start, index)
        return start

    def _copy(self, source: str, to: str, size: str) -> None:
        self.out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {size}, i1 false)")
