"""LLVM's text of activations on vectors of `float`, in place, for kernels that round otherwise than eager all the same.

NaN stays NaN, and infinities become what eager makes of them, but that GELU of infinity is infinity, of which some of
torch's kernels make NaN. Errors are like those of torch's kernels: at most 1.1e-6
for GELU and 1.3e-6 for SiLU where |x| <= 20.

Source: Eigen's rational approximations of the error function and of the hyperbolic tangent; Moshier, Cephes (`expf`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

CODES = {"gelu": 1, "gelu_tanh": 2, "silu": 3, "sigmoid": 4, "hardswish": 5, "hardsigmoid": 6, "tanh": 7}
"""What a table says for each activation; 0 stands for none."""

ERF_ABOVE = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
ERF_BELOW = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    *(-7.37332916720468e-03, -1.42647390514189e-02),
)
ERF_END = 4.0  # it is 1 from here on
TANH_ABOVE = (
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
    *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
TANH_END = 7.90531110763549805  # it is nearer to 1 than to any other number from here on
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_RANGE = (-87.3, 89.0)  # to the least normal number, and to infinity
SCALED = 16
"""Lanes of vectors that one instruction multiplies by powers of two."""
_SCALE = "@llvm.x86.avx512.mask.scalef.ps.512"
_VECTOR = f"<{SCALED} x float>"
DECLARED = f"declare {_VECTOR} {_SCALE}({_VECTOR}, {_VECTOR}, {_VECTOR}, i16, i32)\n"
"""What `VectorLines.exp` calls over such vectors, besides fma and rounding."""
LN2, LN2_REST = 0.693359375, -2.12194440e-4
LOG2_E, _SQRT_HALF, _TANH_FACTOR, _TANH_CUBE = 1.44269504088896341, 0.70710678118654752, 1.5957691216057308, 0.044715


class VectorLines:
    """Instructions over vectors of `float`."""

    def __init__(self, lanes: int) -> None:
        self.vector, self.lanes = f"<{lanes} x float>", lanes
        self.lines: list[str] = []

    def set(self, text: str) -> str:
        name = f"%a{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def number(self, number: float) -> str:
        """A vector of a number as `float` rounds it."""
        return f"splat (float {_hexadecimal(number)})"

    def two(self, operator: str, a: str, b: str) -> str:
        return self.set(f"{operator} {self.vector} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        v = self.vector
        return self.set(f"call {v} @llvm.fma.v{self.lanes}f32({v} {a}, {v} {b}, {v} {c})")

    def clamped(self, x: str, least: float, most: float) -> str:
        low, high, mask = self.number(least), self.number(most), f"<{self.lanes} x i1>"
        under = self.set(f"fcmp olt {self.vector} {x}, {low}")
        raised = self.set(f"select {mask} {under}, {self.vector} {low}, {self.vector} {x}")
        over = self.set(f"fcmp ogt {self.vector} {raised}, {high}")
        return self.set(f"select {mask} {over}, {self.vector} {high}, {self.vector} {raised}")

    def polynomial(self, factors: Sequence[float], x: str) -> str:
        made = self.number(factors[0])
        for factor in factors[1:]:
            made = self.fma(made, x, self.number(factor))
        return made

    def exp(self, x: str) -> str:
        x = self.clamped(x, *_EXP_RANGE)
        v, whole = self.vector, f"<{self.lanes} x i32>"
        scaled = self.two("fmul", x, self.number(LOG2_E))
        n = self.set(f"call {v} @llvm.roundeven.v{self.lanes}f32({v} {scaled})")
        rest = self.fma(n, self.number(-LN2), x)
        rest = self.fma(n, self.number(-LN2_REST), rest)
        square = self.two("fmul", rest, rest)
        grown = self.fma(self.polynomial(EXP, rest), square, rest)
        mantissa = self.two("fadd", grown, self.number(1.0))
        if self.lanes == SCALED:  # AVX-512 has an instruction for it
            return self.set(f"call {v} {_SCALE}({v} {mantissa}, {v} {n}, {v} zeroinitializer, i16 -1, i32 4)")
        is_number = self.set(f"fcmp ord {v} {n}, {n}")
        known = self.set(f"select <{self.lanes} x i1> {is_number}, {v} {n}, {v} zeroinitializer")
        exponent = self.set(f"fptosi {v} {known} to {whole}")
        biased = self.set(f"add {whole} {exponent}, splat (i32 127)")
        shifted = self.set(f"shl {whole} {biased}, splat (i32 23)")
        power = self.set(f"bitcast {whole} {shifted} to {v}")
        return self.two("fmul", mantissa, power)

    def over_one_plus_exp(self, above: str, x: str) -> str:
        """`above / (1 + exp(-x))`."""
        grown = self.exp(self.set(f"fneg {self.vector} {x}"))
        return self.two("fdiv", above, self.two("fadd", grown, self.number(1.0)))

    def sigmoid(self, x: str) -> str:
        return self.over_one_plus_exp(self.number(1.0), x)

    def tanh(self, x: str) -> str:
        x = self.clamped(x, -TANH_END, TANH_END)
        square = self.two("fmul", x, x)
        above = self.two("fmul", x, self.polynomial(TANH_ABOVE, square))
        return self.two("fdiv", above, self.polynomial(TANH_BELOW, square))

    def erf(self, x: str) -> str:
        x = self.clamped(x, -ERF_END, ERF_END)
        square = self.two("fmul", x, x)
        above = self.two("fmul", x, self.polynomial(ERF_ABOVE, square))
        return self.two("fdiv", above, self.polynomial(ERF_BELOW, square))


def _hexadecimal(number: float) -> str:
    """A number that `float` holds, as LLVM reads it: the bits of the double that equals it."""
    (single,) = struct.unpack("f", struct.pack("f", number))
    return f"0x{struct.pack('>d', single).hex().upper()}"


def _applied(out: VectorLines, activation: str, x: str) -> str:
    if activation == "gelu":
        grown = out.two("fadd", out.erf(out.two("fmul", x, out.number(_SQRT_HALF))), out.number(1.0))
        return out.two("fmul", out.two("fmul", x, out.number(0.5)), grown)
    if activation == "gelu_tanh":
        square = out.two("fmul", x, x)
        inner = out.fma(square, out.number(_TANH_CUBE), out.number(1.0))
        return out.over_one_plus_exp(x, out.two("fmul", out.two("fmul", x, out.number(_TANH_FACTOR)), inner))
    if activation == "silu":
        return out.over_one_plus_exp(x, x)
    if activation == "sigmoid":
        return out.sigmoid(x)
    if activation == "tanh":
        return out.tanh(x)
    part = out.clamped(out.two("fadd", x, out.number(3.0)), 0.0, 6.0)
    above = part if activation == "hardsigmoid" else out.two("fmul", x, part)
    return out.two("fdiv", above, out.number(6.0))


def activation_text(name: str, activation: str, lanes: int, attributes: str) -> str:
    """A function `name(out, rows, down, columns)`, for rows of `columns` elements at a distance of `down`.

    The module declares masked loads and stores, and what `exp` calls (`DECLARED`), of such vectors.
    """
    chosen = f"""
define internal void @{name}(ptr %out, i64 %rows, i64 %down, i64 %columns) {attributes} {{
  %rest = and i64 %columns, {lanes - 1}
  %is_whole = icmp eq i64 %rest, 0
  br i1 %is_whole, label %whole, label %some
whole:
  call void @{name}_whole(ptr %out, i64 %rows, i64 %down, i64 %columns)
  ret void
some:
  call void @{name}_some(ptr %out, i64 %rows, i64 %down, i64 %columns)
  ret void
}}
"""
    both = (
        _loop_text(f"{name}_{form}", activation, lanes, attributes, is_masked=form == "some")
        for form in ("whole", "some")
    )
    return "".join([*both, chosen])


def _loop_text(name: str, activation: str, lanes: int, attributes: str, *, is_masked: bool) -> str:
    """The function for columns that fill vectors, or for any."""
    lines = VectorLines(lanes)
    result = _applied(lines, activation, "%x")
    numbers = ", ".join(f"i32 {n}" for n in range(lanes))
    v, mask = lines.vector, f"<{lanes} x i1>"
    load, store = f"%x = load {v}, ptr %place, align 4", f"store {v} {result}, ptr %place, align 4"
    if is_masked:
        load = f"""%left64 = sub i64 %columns, %j
  %left = trunc i64 %left64 to i32
  %left_one = insertelement <{lanes} x i32> poison, i32 %left, i64 0
  %lefts = shufflevector <{lanes} x i32> %left_one, <{lanes} x i32> poison, <{lanes} x i32> zeroinitializer
  %mask = icmp slt <{lanes} x i32> <{numbers}>, %lefts
  %x = call {v} @llvm.masked.load.v{lanes}f32.p0(ptr %place, i32 4, {mask} %mask, {v} zeroinitializer)"""
        arguments = f"{v} {result}, ptr %place, i32 4, {mask} %mask"
        store = f"call void @llvm.masked.store.v{lanes}f32.p0({arguments})"
    return f"""
define internal void @{name}(ptr %out, i64 %rows, i64 %down, i64 %columns) noinline {attributes} {{
entry:
  br label %row
row:
  %i = phi i64 [0, %entry], [%i_next, %next]
  %offset = mul i64 %i, %down
  %start = getelementptr float, ptr %out, i64 %offset
  br label %part
part:
  %j = phi i64 [0, %row], [%j_next, %part]
  %place = getelementptr float, ptr %start, i64 %j
  {load}
{chr(10).join(lines.lines)}
  {store}
  %j_next = add i64 %j, {lanes}
  %more = icmp slt i64 %j_next, %columns
  br i1 %more, label %part, label %next
next:
  %i_next = add i64 %i, 1
  %done = icmp eq i64 %i_next, %rows
  br i1 %done, label %leave, label %row
leave:
  ret void
}}
"""
