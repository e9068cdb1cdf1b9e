"""LLVM's text of the rows of products: a call of BLAS, after a copy of what is added.

    slots: 1, pointers (result, first, second, start), turned (two), sizes (three), leading dimensions (three), alpha,
    beta; with a start: the result's sizes, the start's strides

BLAS takes the addresses of its numbers, so it is given those of the slots.

Source: the reference BLAS (`sgemm`, `dgemm`).
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.machine import function_of

SYMBOLS = {"float": "sgemm_", "double": "dgemm_"}
_BYTES = {"float": 4, "double": 8}


@cache
def product_function(element: str, has_start: bool) -> int | None:
    """The address of the function of such rows; None where this torch has no BLAS to call."""
    name = f"product_{element}{'_with_start' if has_start else ''}"
    return function_of(_text(name, element, has_start), name, (SYMBOLS[element],))


def _text(name: str, element: str, has_start: bool) -> str:
    pointers = 4 if has_start else 3
    out: list[str] = []

    def slot(at: int) -> str:
        out.append(f"  %s{at} = getelementptr i64, ptr %row, i64 {at}")
        return f"%s{at}"

    def loaded(at: int, kind: str = "i64") -> str:
        out.append(f"  %v{at} = load {kind}, ptr {slot(at)}")
        return f"%v{at}"

    result, first, second = (loaded(at, "ptr") for at in (1, 2, 3))
    told = [slot(pointers + 1 + at) for at in range(10)]
    if has_start:
        start = loaded(4, "ptr")
        rows, columns, down, across = (loaded(15 + at) for at in range(4))
        given = ", ".join([f"ptr {result}", f"ptr {start}", *(f"i64 {v}" for v in (rows, columns, down, across))])
        out.append(f"  call void @{name}_copy({given})")
    turned, sizes, leading, (alpha, beta) = told[:2], told[2:5], told[5:8], told[8:]
    arguments = [*turned, *sizes, alpha, first, leading[0], second, leading[1], beta, result, leading[2]]
    out.append(f"  call void @{SYMBOLS[element]}({', '.join(f'ptr {each}' for each in arguments)})")
    text = f"declare void @{SYMBOLS[element]}({', '.join(['ptr'] * 13)})\n"
    text += f"define void @{name}(ptr %row, i64 %from, i64 %to) {{\n" + "\n".join(out) + "\n  ret void\n}\n"
    return text + (
        _COPY.replace("NAME", name).replace("ELEMENT", element).replace("BYTES", str(_BYTES[element])) * has_start
    )


_COPY = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @NAME_copy(ptr %into, ptr %start, i64 %rows, i64 %columns, i64 %down, i64 %across) {
entry:
  %bytes = mul i64 %columns, BYTES
  %whole = icmp eq i64 %across, 1
  br label %row

row:
  %r = phi i64 [0, %entry], [%r1, %next]
  %behind = mul i64 %r, %columns
  %to = getelementptr ELEMENT, ptr %into, i64 %behind
  %offset = mul i64 %r, %down
  %from = getelementptr ELEMENT, ptr %start, i64 %offset
  br i1 %whole, label %at_once, label %single

at_once:
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  br label %next

single:
  %c = phi i64 [0, %row], [%c1, %single]
  %step = mul i64 %c, %across
  %p = getelementptr ELEMENT, ptr %from, i64 %step
  %x = load ELEMENT, ptr %p
  %q = getelementptr ELEMENT, ptr %to, i64 %c
  store ELEMENT %x, ptr %q
  %c1 = add i64 %c, 1
  %last = icmp sge i64 %c1, %columns
  br i1 %last, label %next, label %single

next:
  %r1 = add i64 %r, 1
  %done = icmp sge i64 %r1, %rows
  br i1 %done, label %end, label %row

end:
  ret void
}
"""
