"""LLVM's text of the driver: machine code that runs a table.

    define i32 @drive(ptr %table, i64 %rows, i64 %threads, i64 %early)

A table is rows of eight-byte slots: the address of a function, how many pointers it takes, how many slots follow, and
these: how many items of work there are, then the pointers, then what else the function reads. A function

    void function(ptr %slots, i64 %from, i64 %to)

does the items from one number to another. Where there are many, they are shared by the threads that run torch's own
operators: the pool of the OpenMP library that torch has loaded. Each gets the same items as from torch, for the last
ones of each share may be computed in another way (`formula.is_rest`). A function that fails sets the number of items in
its row to -1.

Source: the LLVM language reference; `at::parallel_for`; libgomp's ABI for `GOMP_parallel`.
"""

from __future__ import annotations

from dovetail.execute.native.llvm_function import Function

THREADED = 32_768
"""From this many items on a row is shared by several threads, where there are: torch does so too (GRAIN_SIZE)."""

HEAD = 3
"""Slots of a row before those that its function gets."""

POOL = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
"""What the driver needs of the OpenMP library."""

_ALONE = """
define internal void @share(ptr %slots, ptr %function, i64 %items, i64 %threads) {
  call void %function(ptr %slots, i64 0, i64 %items)
  ret void
}
"""

_SHARED = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

%work = type { ptr, ptr, i64 }

define internal void @share(ptr %slots, ptr %function, i64 %items, i64 %threads) {
entry:
  %up = add i64 %items, MANY_LESS_ONE
  %parts = sdiv i64 %up, MANY
  %wanted = call i64 @llvm.smin.i64(i64 %parts, i64 %threads)
  %several = icmp sgt i64 %wanted, 1
  br i1 %several, label %together, label %alone

alone:
  call void %function(ptr %slots, i64 0, i64 %items)
  ret void

together:
  %given = alloca %work
  %p0 = getelementptr %work, ptr %given, i32 0, i32 0
  store ptr %slots, ptr %p0
  %p1 = getelementptr %work, ptr %given, i32 0, i32 1
  store ptr %function, ptr %p1
  %p2 = getelementptr %work, ptr %given, i32 0, i32 2
  store i64 %items, ptr %p2
  %count = trunc i64 %wanted to i32
  call void @GOMP_parallel(ptr @part, ptr %given, i32 %count, i32 0)
  ret void
}

define internal void @part(ptr %given) {
entry:
  %p0 = getelementptr %work, ptr %given, i32 0, i32 0
  %slots = load ptr, ptr %p0
  %p1 = getelementptr %work, ptr %given, i32 0, i32 1
  %function = load ptr, ptr %p1
  %p2 = getelementptr %work, ptr %given, i32 0, i32 2
  %items = load i64, ptr %p2
  %team = call i32 @omp_get_num_threads()
  %me = call i32 @omp_get_thread_num()
  %all = sext i32 %team to i64
  %which = sext i32 %me to i64
  %most = add i64 %all, -1
  %up = add i64 %items, %most
  %share = sdiv i64 %up, %all
  %from = mul i64 %which, %share
  %end = add i64 %from, %share
  %to = call i64 @llvm.smin.i64(i64 %end, i64 %items)
  %some = icmp slt i64 %from, %to
  br i1 %some, label %run, label %done

run:
  call void %function(ptr %slots, i64 %from, i64 %to)
  br label %done

done:
  ret void
}
"""

_UNUSUAL = 57_408  # bits of the processor's mode: it rounds otherwise, or takes tiny numbers for zeros


def _drive_text() -> str:
    out = Function("define i32 @drive(ptr %table, i64 %rows, i64 %threads, i64 %early)")
    mode = out.memory("i32", 4)
    out.line(f"call void @llvm.x86.sse.stmxcsr(ptr {mode})")
    unusual = out.set(f"and i32 {out.load('i32', mode)}, {_UNUSUAL}")
    out.leave(out.set(f"icmp ne i32 {unusual}, 0"), "i32 1")
    place = out.variable("ptr", "%table")

    def go_on(row: str) -> None:
        behind = out.set(f"add i64 {out.slot(row, 2)}, {HEAD}")
        out.line(f"store ptr {out.element('i64', row, behind)}, ptr {place}, align 8")

    with out.loop("0", "%rows"):
        row = out.load("ptr", place)
        with out.when(out.set(f"icmp sgt i64 {out.slot(row, HEAD)}, 0")), out.loop("0", out.slot(row, 1)) as index:
            pointer = out.load("i64", out.element("i64", row, out.set(f"add i64 {index}, {HEAD + 1}")))
            out.leave(out.set(f"icmp eq i64 {pointer}, 0"), "i32 1")
        go_on(row)
    out.line(f"store ptr %table, ptr {place}, align 8")
    with out.loop("0", "%rows") as at:
        row = out.load("ptr", place)
        is_early = out.set(f"icmp slt i64 {at}, %early")
        answer = f"i32 {out.set(f'select i1 {is_early}, i32 1, i32 2')}"
        function, items, slots = out.slot(row, 0, "ptr"), out.slot(row, HEAD), out.element("i64", row, str(HEAD))
        is_large = out.set(f"icmp sge i64 {items}, {THREADED}")
        with out.when(out.set(f"xor i1 {is_large}, true")):
            out.line(f"call void {function}(ptr {slots}, i64 0, i64 {items})")
            out.leave(out.set(f"icmp slt i64 {out.slot(row, HEAD)}, 0"), answer)
        with out.when(is_large):
            out.line(f"call void @share(ptr {slots}, ptr {function}, i64 {items}, i64 %threads)")
        go_on(row)
    return "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare i64 @llvm.smin.i64(i64, i64)\n" + out.finished("i32 0")


def driver_text(has_pool: bool) -> str:
    """A module with the driver. has_pool: whether what `POOL` lists is there; if not, each row is done by one thread.

    Nothing has run where the driver returns 1: a pointer is null (the tensor has no memory: it is fake, say), or the
    processor does not round as usual, or treats tiny numbers as zeros, or one of the early rows has failed, which write
    nothing but to the table. Where it returns 2, a later row has failed, and those before it have run.
    """
    text = _SHARED if has_pool else _ALONE
    text = text.replace("MANY_LESS_ONE", str(THREADED - 1)).replace("MANY", str(THREADED))
    return text + _drive_text()
