"""LLVM's text of tiles of convolutions over planes: some outputs by elements that lie side by side, kept in registers
while all taps are summed, and sums of products along planes.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from dovetail.execute.native.plane_geometry import Geometry
from dovetail.execute.native.tile_lines import splat
from dovetail.execute.native.tile_text import ATTRIBUTES

VECTORS = 2  # side by side in a tile


@dataclass(frozen=True, slots=True)
class Shape:
    """Of tiles. lanes: of a vector. rows: outputs of a tile. across: outputs, and taps, of sums along planes."""

    lanes: int
    rows: int
    across: tuple[int, int]

    @property
    def step(self) -> int:
        """Elements that a tile takes side by side."""
        return self.lanes * VECTORS


WIDE, NARROW = Shape(16, 8, (4, 4)), Shape(8, 4, (2, 4))
"""For AVX-512, with 32 registers, and for AVX2, with 16."""


def tiles_text(shape: Shape, outputs: int, down: int, line: int) -> str:
    """The functions of tiles of as many rows as are needed, `NAME_tile8` and so on."""
    sizes = {min(shape.rows, outputs), outputs % shape.rows} - {0}
    return "".join(_tile(shape, rows, down, line) for rows in sorted(sizes))


def _tile(shape: Shape, rows: int, down: int, line: int) -> str:
    """A function: some rows of a weight, so far apart, by two vectors of planes. table: for each product, where its
    number of the weight is, and where the plane is read. start: what the sums of each row start from.
    """
    v, lanes, places = f"<{shape.lanes} x float>", shape.lanes, [(i, j) for i in range(rows) for j in range(VECTORS)]
    out = [
        f"define internal void @NAME_tile{rows}(ptr noalias %w, ptr noalias %b, ptr noalias %table, i64 %taps,"
        f" ptr noalias %start, ptr noalias %out) noinline {ATTRIBUTES} {{",
        "entry:",
    ]
    for i in range(rows):
        out += [f"%w{i} = getelementptr float, ptr %w, i64 {i * down}"]
        out += [f"%sp{i} = getelementptr float, ptr %start, i64 {i}", f"%s{i} = load float, ptr %sp{i}, align 4"]
        out += splat(f"%start{i}", "float", f"%s{i}", lanes)
    out += ["br label %sum", "sum:", "%n = phi i64 [0, %entry], [%n_next, %sum]"]
    out += [f"%c{i}_{j} = phi {v} [%start{i}, %entry], [%d{i}_{j}, %sum]" for i, j in places]
    out += ["%pair = getelementptr [2 x i64], ptr %table, i64 %n", "%wo = load i64, ptr %pair, align 8"]
    out += ["%second = getelementptr i64, ptr %pair, i64 1", "%bo = load i64, ptr %second, align 8"]
    out += ["%line = getelementptr float, ptr %b, i64 %bo"]
    for j in range(VECTORS):
        out += [f"%bp{j} = getelementptr float, ptr %line, i64 {j * lanes}", f"%b{j} = load {v}, ptr %bp{j}, align 4"]
    for i in range(rows):
        out += [f"%wp{i} = getelementptr float, ptr %w{i}, i64 %wo", f"%x{i} = load float, ptr %wp{i}, align 4"]
        out += splat(f"%v{i}", "float", f"%x{i}", lanes)
        for j in range(VECTORS):
            out.append(f"%d{i}_{j} = call {v} @llvm.fma.v{lanes}f32({v} %v{i}, {v} %b{j}, {v} %c{i}_{j})")
    out += ["%n_next = add i64 %n, 1", "%is_last = icmp eq i64 %n_next, %taps"]
    out += ["br i1 %is_last, label %done, label %sum", "done:"]
    for i, j in places:
        out.append(f"%o{i}_{j} = getelementptr float, ptr %out, i64 {i * line + j * lanes}")
        out.append(f"store {v} %d{i}_{j}, ptr %o{i}_{j}, align 4")
    return "\n".join([*out, "ret void", "}", ""])


def corners(shape: Shape, of: Geometry) -> list[tuple[int, int]]:
    """How many outputs and taps sums of products of planes are made for."""
    (rows, across), taps = shape.across, of.channels * prod(of.kernel)
    outputs = {min(rows, of.outputs), of.outputs % rows} - {0}
    return [(a, b) for a in sorted(outputs) for b in sorted({min(across, taps), taps % across} - {0})]


def sums_text(shape: Shape, rows: int, taps: int, of: Geometry) -> str:
    """A function: sums of products of planes of outputs and of the input at some taps, added to a weight's gradient."""
    v, lanes, line = f"<{shape.lanes} x float>", shape.lanes, of.line(shape.step)
    places = [(i, j) for i in range(rows) for j in range(taps)]
    out = [
        f"define internal void @NAME_sums{rows}_{taps}(ptr noalias %g, ptr noalias %x, ptr noalias %table, i64 %count,"
        f" ptr noalias %out) noinline {ATTRIBUTES} {{",
        "entry:",
    ]
    for j in range(taps):
        out += [f"%tp{j} = getelementptr i64, ptr %table, i64 {j}", f"%t{j} = load i64, ptr %tp{j}, align 8"]
        out.append(f"%x{j} = getelementptr float, ptr %x, i64 %t{j}")
    out += [f"%g{i} = getelementptr float, ptr %g, i64 {i * line}" for i in range(rows)]
    out += ["br label %sum", "sum:", "%q = phi i64 [0, %entry], [%q_next, %sum]"]
    out += [f"%c{i}_{j} = phi {v} [zeroinitializer, %entry], [%d{i}_{j}, %sum]" for i, j in places]
    for name, count in (("g", rows), ("x", taps)):
        for i in range(count):
            out.append(f"%{name}p{i} = getelementptr float, ptr %{name}{i}, i64 %q")
            out.append(f"%{name}v{i} = load {v}, ptr %{name}p{i}, align 4")
    out += [f"%d{i}_{j} = call {v} @llvm.fma.v{lanes}f32({v} %gv{i}, {v} %xv{j}, {v} %c{i}_{j})" for i, j in places]
    out += [f"%q_next = add i64 %q, {lanes}", "%goes_on = icmp slt i64 %q_next, %count"]
    out += ["br i1 %goes_on, label %sum, label %done", "done:"]
    for i, j in places:
        whole = f"@llvm.vector.reduce.fadd.v{lanes}f32(float -0.0, {v} %d{i}_{j})"
        out += [f"%h{i}_{j} = call reassoc float {whole}"]
        out.append(f"%op{i}_{j} = getelementptr float, ptr %out, i64 {i * of.channels * prod(of.kernel) + j}")
        out += [f"%o{i}_{j} = load float, ptr %op{i}_{j}, align 4", f"%r{i}_{j} = fadd float %o{i}_{j}, %h{i}_{j}"]
        out.append(f"store float %r{i}_{j}, ptr %op{i}_{j}, align 4")
    return "\n".join([*out, "ret void", "}", ""])


def sum_text(shape: Shape) -> str:
    """A function: the sum of a plane."""
    v, lanes = f"<{shape.lanes} x float>", shape.lanes
    return f"""
define internal float @NAMEsum_text(ptr noalias %g, i64 %count) {ATTRIBUTES} {{
entry:
  br label %sum
sum:
  %q = phi i64 [0, %entry], [%q_next, %sum]
  %c = phi {v} [zeroinitializer, %entry], [%d, %sum]
  %gp = getelementptr float, ptr %g, i64 %q
  %gv = load {v}, ptr %gp, align 4
  %d = fadd {v} %c, %gv
  %q_next = add i64 %q, {lanes}
  %goes_on = icmp slt i64 %q_next, %count
  br i1 %goes_on, label %sum, label %done
done:
  %h = call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(float -0.0, {v} %d)
  ret float %h
}}
"""
