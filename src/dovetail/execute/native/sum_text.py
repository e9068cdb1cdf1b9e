"""LLVM's text of the rows of sums: elements are added in the order in which torch's kernels add them.

    slots: 1, pointers (result, operand), rows, columns, divisor; the operand is a matrix of rows, one after the other

Of a squared error there are two operands, and what is added is the square of a difference: `load` reads both. The
second one lies `apart` bytes behind the first.

A cascade adds sixteen rows, adds what it got to a sum of the next level, and goes on from zero; four chains of
additions run side by side. Vectors are of 32 bytes: torch compiles these kernels for AVX2 also where there is more.

Source: torch's `SumKernel.cpp` (`multi_row_sum`, `row_sum`, `vectorized_inner_sum`, `vectorized_outer_sum`).
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.machine import function_of

_BYTES = {"float": 4, "double": 8}
_VECTOR = 32  # bytes
_CHAINS, _LEVELS, _STEP = 4, 4, 16


@cache
def sum_function(element: str, is_outer: bool, is_error: bool = False) -> int | None:
    """The address of the function of such rows. is_outer: whether it adds the rows up, not the elements of each row.
    is_error: whether it adds squared differences.
    """
    name = f"sum_{element}_{'outer' if is_outer else 'inner'}{'_error' if is_error else ''}"
    return function_of(_text(name, element, is_outer, is_error), name, ())


def _text(name: str, element: str, is_outer: bool, is_error: bool) -> str:
    width = _VECTOR // _BYTES[element]
    vector = f"<{width} x {element}>"
    parts = [_chain_text(name, element, "one"), _chain_text(name, vector, "many")]
    parts += [_load_text(name, kind, which, is_error) for kind, which in ((element, "one"), (vector, "many"))]
    parts.append(_OUTER if is_outer else _INNER)
    filled = "\n".join([*parts, _ENTRY])
    known = {"NAME": name, "ELEMENT": element, "VECTOR": vector, "WIDTH": str(width), "BYTES": str(_BYTES[element])}
    known["PARTS"] = _last_additions(element, vector, width) if not is_outer else ""
    known |= {"APART": _APART if is_error else _NOT_APART, "AT": "4" if is_error else "3"}
    known |= {"WIDE": str(_VECTOR), "LAST": str(width - 1), "FOUR": str(_CHAINS * width)}
    for word, text in sorted(known.items(), key=lambda item: -len(item[0])):
        filled = filled.replace(f"${word}", text)
    return filled


def _load_text(name: str, kind: str, which: str, is_error: bool) -> str:
    """What is added: an element or a vector, or the square of a difference of two."""
    head = f"define internal {kind} @{name}_load_{which}(ptr %p, i64 %apart) alwaysinline {{\n"
    head += f"  %x = load {kind}, ptr %p, align 4\n"
    if not is_error:
        return f"{head}  ret {kind} %x\n}}\n"
    lines = ["%q = getelementptr i8, ptr %p, i64 %apart", f"%y = load {kind}, ptr %q, align 4"]
    lines += [f"%d = fsub {kind} %x, %y", f"%s = fmul {kind} %d, %d", f"ret {kind} %s"]
    return head + "".join(f"  {line}\n" for line in lines) + "}\n"


def _last_additions(element: str, vector: str, width: int) -> str:
    """The elements of a vector, added to a sum one by one."""
    lines, total = [], "%rest"
    for at in range(width):
        lines.append(f"  %e{at} = extractelement {vector} %all, i64 {at}")
        lines.append(f"  %t{at} = fadd {element} {total}, %e{at}")
        total = f"%t{at}"
    return "\n".join(lines)


def _chain_text(name: str, kind: str, which: str) -> str:
    """`chains`: four chains of additions along rows, as a cascade. `row`: one row, as four chains that are added."""
    lines: list[str] = []

    def accumulator(level: int, chain: int) -> str:
        return f"%a{level}_{chain}"

    out = lines.append
    zero = "0.0" if not kind.startswith("<") else "zeroinitializer"
    given = "ptr %in, i64 %apart, i64 %down, i64 %across, i64 %size, ptr %out"
    out(f"define internal void @{name}_chains_{which}({given}) {{")
    out("entry:")
    for level in range(_LEVELS):
        for chain in range(_CHAINS):
            out(f"  {accumulator(level, chain)} = alloca {kind}, align 32")
            out(f"  store {kind} {zero}, ptr {accumulator(level, chain)}, align 32")
    out("  br label %block\nblock:")
    out("  %i = phi i64 [0, %entry], [%end, %added]")
    out(f"  %end = add i64 %i, {_STEP}")
    out("  %fits = icmp sle i64 %end, %size")
    out("  br i1 %fits, label %add, label %tail\nadd:")
    out("  %j = phi i64 [%i, %block], [%j1, %add]")
    lines += _one_row(name, kind, which, "%j", "b")
    out("  %j1 = add i64 %j, 1\n  %more = icmp slt i64 %j1, %end")
    out("  br i1 %more, label %add, label %level1")
    for level in range(1, _LEVELS):
        out(f"level{level}:")
        for chain in range(_CHAINS):
            low, high, at = accumulator(level - 1, chain), accumulator(level, chain), f"{level}_{chain}"
            out(f"  %x{at} = load {kind}, ptr {low}, align 32\n  %y{at} = load {kind}, ptr {high}, align 32")
            out(f"  %z{at} = fadd {kind} %y{at}, %x{at}\n  store {kind} %z{at}, ptr {high}, align 32")
            out(f"  store {kind} {zero}, ptr {low}, align 32")
        following = f"level{level + 1}" if level + 1 < _LEVELS else "added"
        out(f"  %m{level} = and i64 %end, {(_STEP - 1) << (4 * level)}\n  %stop{level} = icmp ne i64 %m{level}, 0")
        out(f"  br i1 %stop{level}, label %added, label %{following}")
    out("added:\n  br label %block\ntail:\n  br label %rest\nrest:")
    out("  %k = phi i64 [%i, %tail], [%k1, %single]")
    out("  %left = icmp slt i64 %k, %size\n  br i1 %left, label %single, label %close\nsingle:")
    lines += _one_row(name, kind, which, "%k", "s")
    out("  %k1 = add i64 %k, 1\n  br label %rest\nclose:")
    for chain in range(_CHAINS):
        out(f"  %r0_{chain} = load {kind}, ptr {accumulator(0, chain)}, align 32")
        for level in range(1, _LEVELS):
            out(f"  %h{level}_{chain} = load {kind}, ptr {accumulator(level, chain)}, align 32")
            out(f"  %r{level}_{chain} = fadd {kind} %r{level - 1}_{chain}, %h{level}_{chain}")
        out(f"  %o{chain} = getelementptr {kind}, ptr %out, i64 {chain}")
        out(f"  store {kind} %r{_LEVELS - 1}_{chain}, ptr %o{chain}, align 32")
    out("  ret void\n}\n")
    return "\n".join(lines) + _ROW.replace("$KIND", kind).replace("$WHICH", which)


def _one_row(name: str, kind: str, which: str, at: str, prefix: str) -> list[str]:
    """Each chain's element of a row is added to it."""
    lines = [f"  %{prefix}row = mul i64 {at}, %down"]
    for chain in range(_CHAINS):
        n = f"{prefix}{chain}"
        lines += [
            f"  %{n}col = mul i64 {chain}, %across",
            f"  %{n}off = add i64 %{prefix}row, %{n}col",
            f"  %{n}p = getelementptr i8, ptr %in, i64 %{n}off",
            f"  %{n}x = call {kind} @{name}_load_{which}(ptr %{n}p, i64 %apart)",
            f"  %{n}a = load {kind}, ptr %a0_{chain}, align 32",
            f"  %{n}s = fadd {kind} %{n}a, %{n}x",
            f"  store {kind} %{n}s, ptr %a0_{chain}, align 32",
        ]
    return lines


_ROW = """
define internal $KIND @$NAME_row_$WHICH(ptr %in, i64 %apart, i64 %stride, i64 %size) {
entry:
  %four = alloca [4 x $KIND], align 32
  %quarter = sdiv i64 %size, 4
  %down = mul i64 %stride, 4
  call void @$NAME_chains_$WHICH(ptr %in, i64 %apart, i64 %down, i64 %stride, i64 %quarter, ptr %four)
  %first = load $KIND, ptr %four, align 32
  %start = mul i64 %quarter, 4
  br label %rest

rest:
  %i = phi i64 [%start, %entry], [%i1, %single]
  %sum = phi $KIND [%first, %entry], [%next, %single]
  %left = icmp slt i64 %i, %size
  br i1 %left, label %single, label %close

single:
  %off = mul i64 %i, %stride
  %p = getelementptr i8, ptr %in, i64 %off
  %x = call $KIND @$NAME_load_$WHICH(ptr %p, i64 %apart)
  %next = fadd $KIND %sum, %x
  %i1 = add i64 %i, 1
  br label %rest

close:
  %p1 = getelementptr $KIND, ptr %four, i64 1
  %x1 = load $KIND, ptr %p1, align 4
  %s1 = fadd $KIND %sum, %x1
  %p2 = getelementptr $KIND, ptr %four, i64 2
  %x2 = load $KIND, ptr %p2, align 4
  %s2 = fadd $KIND %s1, %x2
  %p3 = getelementptr $KIND, ptr %four, i64 3
  %x3 = load $KIND, ptr %p3, align 4
  %s3 = fadd $KIND %s2, %x3
  ret $KIND %s3
}
"""

_INNER = """
define internal void @$NAME_all(ptr %into, ptr %in, i64 %apart, i64 %rows, i64 %columns, $ELEMENT %by) {
entry:
  %whole = sdiv i64 %columns, $WIDTH
  %start = mul i64 %whole, $WIDTH
  %wide = icmp sge i64 %columns, $WIDTH
  %length = mul i64 %columns, $BYTES
  br label %row

row:
  %r = phi i64 [0, %entry], [%r1, %store]
  %behind = mul i64 %r, %length
  %p = getelementptr i8, ptr %in, i64 %behind
  br i1 %wide, label %vectors, label %scalars

scalars:
  %plain = call $ELEMENT @$NAME_row_one(ptr %p, i64 %apart, i64 $BYTES, i64 %columns)
  br label %store

vectors:
  %all = call $VECTOR @$NAME_row_many(ptr %p, i64 %apart, i64 $WIDE, i64 %whole)
  br label %rests

rests:
  %i = phi i64 [%start, %vectors], [%i1, %single]
  %rest = phi $ELEMENT [0.0, %vectors], [%more, %single]
  %left = icmp slt i64 %i, %columns
  br i1 %left, label %single, label %parts

single:
  %q = getelementptr $ELEMENT, ptr %p, i64 %i
  %x = call $ELEMENT @$NAME_load_one(ptr %q, i64 %apart)
  %more = fadd $ELEMENT %rest, %x
  %i1 = add i64 %i, 1
  br label %rests

parts:
$PARTS
  br label %store

store:
  %sum = phi $ELEMENT [%plain, %scalars], [%t$LAST, %parts]
  %mean = fdiv $ELEMENT %sum, %by
  %o = getelementptr $ELEMENT, ptr %into, i64 %r
  store $ELEMENT %mean, ptr %o
  %r1 = add i64 %r, 1
  %done = icmp sge i64 %r1, %rows
  br i1 %done, label %end, label %row

end:
  ret void
}
"""

_OUTER = """
define internal void @$NAME_all(ptr %into, ptr %in, i64 %apart, i64 %rows, i64 %columns, $ELEMENT %by) {
entry:
  %four = alloca [4 x $VECTOR], align 32
  %length = mul i64 %columns, $BYTES
  %broad = icmp sge i64 %columns, $WIDTH
  br i1 %broad, label %blocks, label %fours

blocks:
  %b = phi i64 [0, %entry], [%b1, %block]
  %b1 = add i64 %b, $FOUR
  %fits = icmp sle i64 %b1, %columns
  br i1 %fits, label %block, label %vectors

block:
  %bp = getelementptr $ELEMENT, ptr %in, i64 %b
  call void @$NAME_chains_many(ptr %bp, i64 %apart, i64 %length, i64 $WIDE, i64 %rows, ptr %four)
  call void @$NAME_put(ptr %into, i64 %b, ptr %four, i64 $FOUR, $ELEMENT %by)
  br label %blocks

vectors:
  %v = phi i64 [%b, %blocks], [%v1, %vector]
  %v1 = add i64 %v, $WIDTH
  %one = icmp sle i64 %v1, %columns
  br i1 %one, label %vector, label %singles

vector:
  %vp = getelementptr $ELEMENT, ptr %in, i64 %v
  %sum = call $VECTOR @$NAME_row_many(ptr %vp, i64 %apart, i64 %length, i64 %rows)
  store $VECTOR %sum, ptr %four
  call void @$NAME_put(ptr %into, i64 %v, ptr %four, i64 $WIDTH, $ELEMENT %by)
  br label %vectors

fours:
  %f = phi i64 [0, %entry], [%f1, %quad]
  %f1 = add i64 %f, 4
  %quads = icmp sle i64 %f1, %columns
  br i1 %quads, label %quad, label %singles

quad:
  %fp = getelementptr $ELEMENT, ptr %in, i64 %f
  call void @$NAME_chains_one(ptr %fp, i64 %apart, i64 %length, i64 $BYTES, i64 %rows, ptr %four)
  call void @$NAME_put(ptr %into, i64 %f, ptr %four, i64 4, $ELEMENT %by)
  br label %fours

singles:
  %s = phi i64 [%v, %vectors], [%f, %fours], [%s1, %single]
  %left = icmp slt i64 %s, %columns
  br i1 %left, label %single, label %end

single:
  %sp = getelementptr $ELEMENT, ptr %in, i64 %s
  %x = call $ELEMENT @$NAME_row_one(ptr %sp, i64 %apart, i64 %length, i64 %rows)
  store $ELEMENT %x, ptr %four
  call void @$NAME_put(ptr %into, i64 %s, ptr %four, i64 1, $ELEMENT %by)
  %s1 = add i64 %s, 1
  br label %singles

end:
  ret void
}

define internal void @$NAME_put(ptr %into, i64 %at, ptr %sums, i64 %count, $ELEMENT %by) {
entry:
  %o = getelementptr $ELEMENT, ptr %into, i64 %at
  br label %next

next:
  %i = phi i64 [0, %entry], [%i1, %next]
  %p = getelementptr $ELEMENT, ptr %sums, i64 %i
  %x = load $ELEMENT, ptr %p
  %mean = fdiv $ELEMENT %x, %by
  %q = getelementptr $ELEMENT, ptr %o, i64 %i
  store $ELEMENT %mean, ptr %q
  %i1 = add i64 %i, 1
  %done = icmp sge i64 %i1, %count
  br i1 %done, label %end, label %next

end:
  ret void
}
"""

_ENTRY = """
define void @$NAME(ptr %row, i64 %from, i64 %to) {
  %s1 = getelementptr i64, ptr %row, i64 1
  %into = load ptr, ptr %s1
  %s2 = getelementptr i64, ptr %row, i64 2
  %in = load ptr, ptr %s2
$APART
  %s3 = getelementptr i64, ptr %row, i64 $AT
  %rows = load i64, ptr %s3
  %s4 = getelementptr i64, ptr %s3, i64 1
  %columns = load i64, ptr %s4
  %s5 = getelementptr i64, ptr %s3, i64 2
  %by = load $ELEMENT, ptr %s5
  call void @$NAME_all(ptr %into, ptr %in, i64 %apart, i64 %rows, i64 %columns, $ELEMENT %by)
  ret void
}
"""

_NOT_APART = "  %apart = add i64 0, 0"

_APART = """
  %so = getelementptr i64, ptr %row, i64 3
  %other = load i64, ptr %so
  %start = ptrtoint ptr %in to i64
  %apart = sub i64 %other, %start
"""
