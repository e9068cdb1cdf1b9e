"""LLVM's text of the driver: machine code that runs a table.

    define i32 @drive(ptr %table, i64 %rows, i64 %threads)

A table is rows of eight-byte slots: the address of a function, how many pointers it takes, how many slots follow, and
these: how many items of work there are, then the pointers, then what else the function reads. A function

    void function(ptr %slots, i64 %from, i64 %to)

does the items from one number to another. Where there are many, they are shared by the threads that run torch's own
operators: the pool of the OpenMP library that torch has loaded. Each gets the same items as from torch, for the last
ones of each share may be computed in another way (`formula.is_rest`).

Source: the LLVM language reference; `at::parallel_for`; libgomp's ABI for `GOMP_parallel`.
"""

from __future__ import annotations

THREADED = 32_768
"""From this many items on a row is shared by several threads, where there are: torch does so too (GRAIN_SIZE)."""

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

_DRIVE = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare i64 @llvm.smin.i64(i64, i64)

define i32 @drive(ptr %table, i64 %rows, i64 %threads) {
entry:
  %flags = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %flags)
  %mode = load i32, ptr %flags
  %other = and i32 %mode, 57408
  %unusual = icmp ne i32 %other, 0
  br i1 %unusual, label %refused, label %check

check:
  %k = phi i64 [0, %entry], [%k1, %checked]
  %row = phi ptr [%table, %entry], [%row1, %checked]
  %ps = getelementptr i64, ptr %row, i64 1
  %p = load i64, ptr %ps
  %ss = getelementptr i64, ptr %row, i64 2
  %s = load i64, ptr %ss
  %ns = getelementptr i64, ptr %row, i64 3
  %n = load i64, ptr %ns
  %empty = icmp sle i64 %n, 0
  br i1 %empty, label %checked, label %pointers

pointers:
  %j = phi i64 [0, %check], [%j1, %more]
  %all = icmp sge i64 %j, %p
  br i1 %all, label %checked, label %more

more:
  %at = add i64 %j, 4
  %as = getelementptr i64, ptr %row, i64 %at
  %a = load i64, ptr %as
  %null = icmp eq i64 %a, 0
  %j1 = add i64 %j, 1
  br i1 %null, label %refused, label %pointers

checked:
  %skip = add i64 %s, 3
  %row1 = getelementptr i64, ptr %row, i64 %skip
  %k1 = add i64 %k, 1
  %checked_all = icmp sge i64 %k1, %rows
  br i1 %checked_all, label %run, label %check

run:
  %r = phi i64 [0, %checked], [%r1, %ran]
  %at_row = phi ptr [%table, %checked], [%next_row, %ran]
  %f = load ptr, ptr %at_row
  %zs = getelementptr i64, ptr %at_row, i64 2
  %z = load i64, ptr %zs
  %slots = getelementptr i64, ptr %at_row, i64 3
  %items = load i64, ptr %slots
  %many = icmp sge i64 %items, MANY
  br i1 %many, label %sharing, label %whole

whole:
  call void %f(ptr %slots, i64 0, i64 %items)
  br label %ran

sharing:
  call void @share(ptr %slots, ptr %f, i64 %items, i64 %threads)
  br label %ran

ran:
  %step = add i64 %z, 3
  %next_row = getelementptr i64, ptr %at_row, i64 %step
  %r1 = add i64 %r, 1
  %done = icmp sge i64 %r1, %rows
  br i1 %done, label %finished, label %run

finished:
  ret i32 0

refused:
  ret i32 1
}
"""


def driver_text(has_pool: bool) -> str:
    """A module with the driver. has_pool: whether what `POOL` lists is there; if not, each row is done by one thread.

    Nothing has run where the driver returns 1: a pointer is null (the tensor has no memory: it is fake, say), or the
    processor does not round as usual, or treats tiny numbers as zeros.
    """
    text = (_SHARED if has_pool else _ALONE) + _DRIVE
    return text.replace("MANY_LESS_ONE", str(THREADED - 1)).replace("MANY", str(THREADED))
