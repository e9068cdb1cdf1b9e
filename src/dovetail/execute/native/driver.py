"""LLVM's text of the driver: machine code that runs a table.

    define i32 @drive(ptr %table, i64 %rows, i64 %threads, i64 %early)

A table is rows of eight-byte slots: the address of a function, how many pointers it takes (and marks, see below), how
many slots follow, and these: how many items of work there are, then the pointers, then what else the function reads. A
function

    void function(ptr %slots, i64 %from, i64 %to)

does the items from one number to another. Where there are many, they are shared by the threads that run torch's own
operators: the pool of the OpenMP library that torch has loaded. Work is cut as torch cuts it, for the last items of
each part may be computed in another way (`formula.is_rest`), but for rows marked `LOOSE`, of which there are smaller
parts. A function that fails sets the number of items in its row to -1.

Threads stay with a table over many rows (`team_text`). Each takes a part that has not been taken; so a thread that has
no processor for now, because others use the machine, delays others by the part that it is at, and by nothing else.
Rows marked `APART` call functions of torch or MKL that share their own work among the pool's threads: a parallel region
ends before them. Those marked `SERIAL` have so little to do that a thread's way there and back would take longer: such
functions find a pool of one thread.

threads: at most so many; less than 0: as many, of dovetail's own, for which nobody waits at the end of a region. They
would get in the way of the pool's, which look for work for some milliseconds after each region: so they are for tables
of programs that leave the pool alone. Rows are cut in the same way.

Source: the LLVM language reference; `at::parallel_for`; libgomp's ABI for `GOMP_parallel`.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.team_text import (
    ANSWER,
    AT,
    EARLY,
    END,
    LAST,
    PLACE,
    SLEEPERS,
    THREADS,
    WORDS,
    Team,
    team_text,
)

THREADED = 32_768
"""From this many items on a row is shared by several threads, where there are: torch does so too (GRAIN_SIZE)."""

HEAD = 3
"""Slots of a row before those that its function gets."""

APART, LOOSE, SERIAL = 1 << 32, 1 << 33, 1 << 34
"""Marks in the second slot of a row: its function uses the pool itself; its items may be cut into parts anywhere; its
function would use the pool, and is told not to.
"""

POOL = (
    "GOMP_parallel",
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_get_max_threads",
    "omp_set_num_threads",
    "sched_yield",
)
"""What the driver needs of the OpenMP library, and of the system."""

_POINTERS = 0xFFFF_FFFF
_PARTS_OF_THREAD = 4  # of loose rows
_MOST_THREADS = 0xFFFF // _PARTS_OF_THREAD  # a ticket counts parts in 16 bits

_UNUSUAL = 57_408  # bits of the processor's mode: it rounds otherwise, or takes tiny numbers for zeros

_DECLARED = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.abs.i64(i64, i1)
"""

_OF_POOL = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare i32 @omp_get_max_threads()
declare void @omp_set_num_threads(i32)
declare i32 @sched_yield()
"""


def _member_text() -> str:
    """`@member`: what a thread of a region does. The first one goes through the table, the others take parts."""
    out = Function("define internal void @member(ptr %team)")
    team = Team(out)
    number = out.set(f"sext i32 {out.set('call i32 @omp_get_thread_num()')} to i64")
    with out.when(out.set(f"icmp eq i64 {number}, 0")):
        team.put(THREADS, out.set(f"sext i32 {out.set('call i32 @omp_get_num_threads()')} to i64"))
        out.line("call void @go_on(ptr %team, i1 true)")
        team.show_tickets("-1", "release")
    looks = out.variable("i64", "0")
    with out.until() as stop:
        found = out.set(f"call i64 @take(ptr %team, i64 {number})")
        stop(out.set(f"icmp slt i64 {found}, 0"))
        with out.when(out.set(f"icmp eq i64 {found}, 0")):
            out.line(f"call void @rest(ptr {looks})")
    return out.finished()


def _alone_text(has_pool: bool) -> str:
    """`@alone`: one thread does a row's items. told: the function is to find a pool of one thread."""
    out = Function("define internal void @alone(ptr %function, ptr %slots, i64 %items, i1 %told)")
    call = "call void %function(ptr %slots, i64 0, i64 %items)"
    if has_pool:
        with out.when("%told"):
            threads = out.set("call i32 @omp_get_max_threads()")
            out.line("call void @omp_set_num_threads(i32 1)")
            out.line(call)
            out.line(f"call void @omp_set_num_threads(i32 {threads})")
        with out.when(out.set("xor i1 %told, true")):
            out.line(call)
    else:
        out.line(call)
    return out.finished()


def _go_on_text(has_pool: bool) -> str:
    """`@go_on`: run rows from `AT` on. within: in a region, to its last shared row, or to one that is apart; else to
    the next row that is shared.
    """
    out = Function("define internal void @go_on(ptr %team, i1 %within)")
    team = Team(out)
    threads, last = team.get(THREADS), team.get(LAST)
    with out.until() as stop:
        at = team.get(AT)
        stop(out.set(f"icmp sge i64 {at}, {team.get(END)}"))
        row = team.get(PLACE, "ptr")
        function, items, slots = out.slot(row, 0, "ptr"), out.slot(row, HEAD), out.element("i64", row, str(HEAD))
        if has_pool:
            marks = out.slot(row, 1)
            is_apart, is_outside = _has(out, marks, APART), out.set("xor i1 %within, true")
            is_behind = out.set(f"icmp sgt i64 {at}, {last}")
            stop(out.set(f"and i1 %within, {out.set(f'or i1 {is_apart}, {is_behind}')}"))
            is_shared = out.set(f"and i1 {_is_large(out, items)}, {out.set(f'icmp sgt i64 {threads}, 1')}")
            is_shared = out.set(f"and i1 {is_shared}, {out.set(f'xor i1 {is_apart}, true')}")
            stop(out.set(f"and i1 {is_shared}, {is_outside}"))
            with out.when(is_shared):
                factor = out.set(f"select i1 {_has(out, marks, LOOSE)}, i64 {_PARTS_OF_THREAD}, i64 1")
                most, whole = out.mul(threads, factor), out.parts(items, str(THREADED))
                parts = out.set(f"call i64 @llvm.smin.i64(i64 {most}, i64 {whole})")
                given = f"ptr %team, ptr {function}, ptr {slots}, i64 {items}, i64 {parts}"
                out.line(f"call void @share({given})")
        with out.when(out.set(f"xor i1 {is_shared}, true") if has_pool else "true"):
            is_told = _has(out, marks, SERIAL) if has_pool else "false"
            out.line(f"call void @alone(ptr {function}, ptr {slots}, i64 {items}, i1 {is_told})")
        team.put(PLACE, _behind(out, row), "ptr")
        team.put(AT, out.add(at, "1"))
        has_failed = out.set(f"icmp slt i64 {out.slot(row, HEAD)}, 0")
        with out.when(has_failed):
            is_early = out.set(f"icmp slt i64 {at}, {team.get(EARLY)}")
            team.put(ANSWER, out.set(f"select i1 {is_early}, i64 1, i64 2"))
        stop(has_failed)
    return out.finished()


def _has(out: Function, marks: str, mark: int) -> str:
    return out.set(f"icmp ne i64 {out.set(f'and i64 {marks}, {mark}')}, 0")


def _is_large(out: Function, items: str) -> str:
    return out.set(f"icmp sgt i64 {items}, {THREADED}")


def _behind(out: Function, row: str) -> str:
    """Where the next row begins."""
    return out.element("i64", row, out.set(f"add i64 {out.slot(row, 2)}, {HEAD}"))


def _drive_text(has_pool: bool, has_own: bool) -> str:
    out = Function("define i32 @drive(ptr %table, i64 %rows, i64 %threads, i64 %early)")
    if has_own:
        with out.when(out.set("icmp slt i64 %rows, 0")):
            out.line("call void @forget()")
    mode = out.memory("i32", 4)
    out.line(f"call void @llvm.x86.sse.stmxcsr(ptr {mode})")
    unusual = out.set(f"and i32 {out.load('i32', mode)}, {_UNUSUAL}")
    out.leave(out.set(f"icmp ne i32 {unusual}, 0"), "i32 1")
    place, last, most = out.variable("ptr", "%table"), out.variable("i64", "-1"), out.variable("i64", "0")
    with out.loop("0", "%rows") as at:
        row = out.load("ptr", place)
        items = out.slot(row, HEAD)
        pointers = out.set(f"and i64 {out.slot(row, 1)}, {_POINTERS}")
        with out.when(out.set(f"icmp sgt i64 {items}, 0")), out.loop("0", pointers) as index:
            pointer = out.load("i64", out.element("i64", row, out.set(f"add i64 {index}, {HEAD + 1}")))
            out.leave(out.set(f"icmp eq i64 {pointer}, 0"), "i32 1")
        with out.when(_is_large(out, items)):
            out.line(f"store i64 {at}, ptr {last}, align 8")
            more = f"i64 {out.load('i64', most, 8)}, i64 {out.parts(items, str(THREADED))}"
            out.line(f"store i64 {out.set(f'call i64 @llvm.smax.i64({more})')}, ptr {most}, align 8")
        out.line(f"store ptr {_behind(out, row)}, ptr {place}, align 8")
    started = (out.load("i64", last, 8), out.load("i64", most, 8))
    own = out.memory(f"[{WORDS} x i64]", 64)
    if has_own:
        _drive_by_own_threads(out, own, *started)
    team = Team(out, own)
    threads = out.set("call i64 @llvm.abs.i64(i64 %threads, i1 false)") if has_pool else "1"
    threads = out.set(f"call i64 @llvm.smin.i64(i64 {threads}, i64 {_MOST_THREADS})")
    _begin(team, threads, "-1")
    team.put(SLEEPERS, "0")
    with out.until() as stop:
        out.line(f"call void @go_on(ptr {own}, i1 false)")
        at = _stop_at_end(out, team, stop)
        if has_pool:  # a row comes that is shared
            team.put(LAST, out.set(f"call i64 @llvm.smax.i64(i64 {started[0]}, i64 {at})"))
            team.show_tickets("0", "monotonic")
            parts = out.set(f"call i64 @llvm.smax.i64(i64 {started[1]}, i64 2)")
            size = out.set(f"trunc i64 {out.set(f'call i64 @llvm.smin.i64(i64 {parts}, i64 {threads})')} to i32")
            out.line(f"call void @GOMP_parallel(ptr @member, ptr {own}, i32 {size}, i32 0)")
            team.put(THREADS, threads)
    return out.finished(f"i32 {out.set(f'trunc i64 {team.get(ANSWER)} to i32')}")


def _drive_by_own_threads(out: Function, own: str, last: str, most: str) -> None:
    """Lines of the driver: run the table with threads of dovetail's own, if it asks for them, and return. own: words of
    a team. last, most: the last row that is large, as far as is known, and how many parts the largest one has.
    """
    with out.when(out.set("icmp slt i64 %threads, -1")):
        threads = out.set(f"call i64 @llvm.smin.i64(i64 {out.set('sub i64 0, %threads')}, i64 {_MOST_THREADS})")
        has_them = out.variable("i1", "false", 1)
        with out.when(out.set(f"icmp sge i64 {last}, 0")):
            needed = out.set(f"call i64 @llvm.smin.i64(i64 {threads}, i64 {most})")
            out.line(f"store i1 {out.set(f'call i1 @acquire(i64 {needed})')}, ptr {has_them}, align 1")
        is_acquired = out.load("i1", has_them, 1)
        chosen = out.set(f"select i1 {is_acquired}, ptr @pool, ptr {own}")
        team = Team(out, chosen)
        with out.when(out.set(f"xor i1 {is_acquired}, true")):
            team.put(SLEEPERS, "0")
            team.show_tickets("0", "monotonic")
        _begin(team, threads, "%rows")
        with out.until() as stop:
            for within in ("true", "false"):
                out.line(f"call void @go_on(ptr {chosen}, i1 {within})")
                _stop_at_end(out, team, stop)
        answer = out.set(f"trunc i64 {team.get(ANSWER)} to i32")
        with out.when(is_acquired):
            out.line("call void @release()")
        out.leave("true", f"i32 {answer}")


def _begin(team: Team, threads: str, last: str) -> None:
    """The words of a team that begins."""
    team.put(PLACE, "%table", "ptr")
    for word, value in ((AT, "0"), (END, "%rows"), (EARLY, "%early"), (ANSWER, "0"), (LAST, last)):
        team.put(word, value)
    team.show(THREADS, threads, "monotonic")


def _stop_at_end(out: Function, team: Team, stop: Callable[[str], None]) -> str:
    """Stop where all rows have run, or one has failed. The row that is next."""
    at = team.get(AT)
    stop(out.set(f"icmp sge i64 {at}, %rows"))
    stop(out.set(f"icmp ne i64 {team.get(ANSWER)}, 0"))
    return at


def driver_text(has_pool: bool, has_own: bool) -> str:
    """A module with the driver. has_pool: whether what `POOL` lists is there; if not, each row is done by one thread.
    has_own: whether there may be threads of dovetail's own, for which `SYSTEM` is there as well.

    Nothing has run where the driver returns 1: a pointer is null (the tensor has no memory: it is fake, say), or the
    processor does not round as usual, or treats tiny numbers as zeros, or one of the early rows has failed, which write
    nothing but to the table. Where it returns 2, a later row has failed, and those before it have run. A table of -1
    rows forgets own threads: there are none in a process that was forked.
    """
    of_pool = [_OF_POOL, team_text(has_own), _member_text()] if has_pool else []
    return "".join([_DECLARED, *of_pool, _alone_text(has_pool), _go_on_text(has_pool), _drive_text(has_pool, has_own)])
