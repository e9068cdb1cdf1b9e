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

One parallel region lasts over many rows: threads look for the next row instead of going back to the pool. Each takes
a part that nobody has taken yet; so a thread that has no processor for now, because others use the machine, holds
nobody up but with the part that it is at. Rows marked `APART` call functions of torch or MKL that share their own work
among the pool's threads: regions end before them. Those marked `SERIAL` have so little to do that a thread's way there
and back would take longer: within a region such functions find that they are in one; elsewhere the pool is made to
look like one thread.

What threads take parts from is one word, `ticket`: the number of the row among those that were shared, how many parts
it has, and how many of them are taken. It changes with each part, so that a thread which has read of a row that is done
by now cannot take anything. -1 ends the region.

Source: the LLVM language reference; `at::parallel_for`; libgomp's ABI for `GOMP_parallel`.
"""

from __future__ import annotations

from dovetail.execute.native.llvm_function import Function

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
_PATIENCE = 512  # looks for something to do, between which a thread lets others have its processor

_UNUSUAL = 57_408  # bits of the processor's mode: it rounds otherwise, or takes tiny numbers for zeros

# words of what threads share; the ticket, the parts that are done, and what is read with the ticket: lines of their own
_PLACE, _AT, _END, _EARLY, _ANSWER, _THREADS, _LAST = range(7)
_TICKET, _DONE, _FUNCTION, _SLOTS, _ITEMS, _SHARE = 8, 16, 24, 25, 26, 27
_WORDS = 32

_DECLARED = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
"""

_OF_POOL = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare i32 @omp_get_max_threads()
declare void @omp_set_num_threads(i32)
declare i32 @sched_yield()
"""


class _Team:
    """Words that threads share, in a function that has got their address as `%team`."""

    def __init__(self, out: Function) -> None:
        self._out = out

    def place(self, word: int) -> str:
        return self._out.element("i64", "%team", str(word))

    def get(self, word: int, kind: str = "i64") -> str:
        return self._out.load(kind, self.place(word), 8)

    def put(self, word: int, value: str, kind: str = "i64") -> None:
        self._out.line(f"store {kind} {value}, ptr {self.place(word)}, align 8")

    def see(self, word: int, order: str, kind: str = "i64") -> str:
        """What a word is that other threads may write."""
        return self._out.set(f"load atomic {kind}, ptr {self.place(word)} {order}, align 8")

    def show(self, word: int, value: str, order: str, kind: str = "i64") -> None:
        """Write a word for others to see."""
        self._out.line(f"store atomic {kind} {value}, ptr {self.place(word)} {order}, align 8")


def _take_text() -> str:
    """`@take`: take a part and do it. -1: the region ends; 0: there was no part to take; 1: there may be more."""
    out = Function("define internal i64 @take(ptr %team)")
    team = _Team(out)
    ticket = team.see(_TICKET, "acquire")
    out.leave(out.set(f"icmp eq i64 {ticket}, -1"), "i64 -1")
    which = out.set(f"and i64 {ticket}, 65535")
    parts = out.set(f"and i64 {out.set(f'lshr i64 {ticket}, 16')}, 65535")
    out.leave(out.set(f"icmp uge i64 {which}, {parts}"), "i64 0")
    function, slots = (team.see(word, "monotonic", "ptr") for word in (_FUNCTION, _SLOTS))
    items, share = (team.see(word, "monotonic") for word in (_ITEMS, _SHARE))
    taken = out.set(
        f"cmpxchg ptr {team.place(_TICKET)}, i64 {ticket}, i64 {out.add(ticket, '1')} acq_rel monotonic, align 8"
    )
    is_mine = out.set(f"extractvalue {{ i64, i1 }} {taken}, 1")
    out.leave(out.set(f"xor i1 {is_mine}, true"), "i64 1")
    start = out.mul(which, share)
    end = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(start, share)}, i64 {items})")
    with out.when(out.set(f"icmp slt i64 {start}, {end}")):
        out.line(f"call void {function}(ptr {slots}, i64 {start}, i64 {end})")
    out.set(f"atomicrmw add ptr {team.place(_DONE)}, i64 1 release, align 8")
    return out.finished("i64 1")


def _rest_text() -> str:
    """`@rest`: wait a little. looks: how often something was looked for in vain."""
    out = Function("define internal void @rest(ptr %looks)")
    out.line("call void @llvm.x86.sse2.pause()")
    looks = out.add(out.load("i64", "%looks", 8), "1")
    out.line(f"store i64 {looks}, ptr %looks, align 8")
    with out.when(out.set(f"icmp eq i64 {out.set(f'and i64 {looks}, {_PATIENCE - 1}')}, 0")):
        out.set("call i32 @sched_yield()")
    return out.finished()


def _share_text() -> str:
    """`@share`: a row's items are done, by all threads of a region. Called by the first of them."""
    head = "define internal void @share(ptr %team, ptr %function, ptr %slots, i64 %items, i64 %parts)"
    out = Function(head)
    team = _Team(out)
    team.show(_FUNCTION, "%function", "monotonic", "ptr")
    team.show(_SLOTS, "%slots", "monotonic", "ptr")
    team.show(_ITEMS, "%items", "monotonic")
    team.show(_SHARE, out.parts("%items", "%parts"), "monotonic")
    team.show(_DONE, "0", "monotonic")
    number = out.set(f"lshr i64 {team.see(_TICKET, 'monotonic')}, 32")
    number = out.set(f"and i64 {out.add(number, '1')}, {0x7FFF_FFFF}")
    ticket = out.set(f"or i64 {out.set(f'shl i64 {number}, 32')}, {out.set('shl i64 %parts, 16')}")
    team.show(_TICKET, ticket, "release")
    with out.until() as stop:
        stop(out.set(f"icmp eq i64 {out.set('call i64 @take(ptr %team)')}, 0"))
    looks = out.variable("i64", "0")
    with out.until() as stop:
        stop(out.set(f"icmp eq i64 {team.see(_DONE, 'acquire')}, %parts"))
        out.line(f"call void @rest(ptr {looks})")
    return out.finished()


def _member_text() -> str:
    """`@member`: what a thread of a region does. The first one goes through the table, the others take parts."""
    out = Function("define internal void @member(ptr %team)")
    team = _Team(out)
    with out.when(out.set(f"icmp eq i32 {out.set('call i32 @omp_get_thread_num()')}, 0")):
        out.line("call void @go_on(ptr %team, i1 true)")
        team.show(_TICKET, "-1", "release")
    looks = out.variable("i64", "0")
    with out.until() as stop:
        found = out.set("call i64 @take(ptr %team)")
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
    """`@go_on`: run rows from `_AT` on. within: in a region, to its last shared row, or to one that is apart; else to
    the next row that is shared.
    """
    out = Function("define internal void @go_on(ptr %team, i1 %within)")
    team = _Team(out)
    threads = team.get(_THREADS)
    if has_pool:
        size = out.set(f"sext i32 {out.set('call i32 @omp_get_num_threads()')} to i64")
        threads = out.set(f"select i1 %within, i64 {size}, i64 {threads}")
    last = team.get(_LAST)
    with out.until() as stop:
        at = team.get(_AT)
        stop(out.set(f"icmp sge i64 {at}, {team.get(_END)}"))
        row = team.get(_PLACE, "ptr")
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
            is_told = out.set(f"and i1 {_has(out, marks, SERIAL)}, {is_outside}") if has_pool else "false"
            out.line(f"call void @alone(ptr {function}, ptr {slots}, i64 {items}, i1 {is_told})")
        team.put(_PLACE, _behind(out, row), "ptr")
        team.put(_AT, out.add(at, "1"))
        has_failed = out.set(f"icmp slt i64 {out.slot(row, HEAD)}, 0")
        with out.when(has_failed):
            is_early = out.set(f"icmp slt i64 {at}, {team.get(_EARLY)}")
            team.put(_ANSWER, out.set(f"select i1 {is_early}, i64 1, i64 2"))
        stop(has_failed)
    return out.finished()


def _has(out: Function, marks: str, mark: int) -> str:
    return out.set(f"icmp ne i64 {out.set(f'and i64 {marks}, {mark}')}, 0")


def _is_large(out: Function, items: str) -> str:
    return out.set(f"icmp sgt i64 {items}, {THREADED}")


def _behind(out: Function, row: str) -> str:
    """Where the next row begins."""
    return out.element("i64", row, out.set(f"add i64 {out.slot(row, 2)}, {HEAD}"))


def _drive_text(has_pool: bool) -> str:
    out = Function("define i32 @drive(ptr %table, i64 %rows, i64 %threads, i64 %early)")
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
    made = out.memory(f"[{_WORDS} x i64]", 64)
    out.line(f"%team = getelementptr i64, ptr {made}, i64 0")
    team = _Team(out)
    team.put(_PLACE, "%table", "ptr")
    threads = out.set(f"call i64 @llvm.smin.i64(i64 %threads, i64 {_MOST_THREADS})") if has_pool else "1"
    for word, value in (
        (_AT, "0"),
        (_END, "%rows"),
        (_EARLY, "%early"),
        (_ANSWER, "0"),
        (_THREADS, threads),
        (_LAST, "-1"),
    ):
        team.put(word, value)
    with out.until() as stop:
        out.line("call void @go_on(ptr %team, i1 false)")
        at = team.get(_AT)
        stop(out.set(f"icmp sge i64 {at}, %rows"))
        stop(out.set(f"icmp ne i64 {team.get(_ANSWER)}, 0"))
        if has_pool:  # a row comes that is shared
            team.put(_LAST, out.set(f"call i64 @llvm.smax.i64(i64 {out.load('i64', last, 8)}, i64 {at})"))
            team.show(_TICKET, "0", "monotonic")
            parts = out.set(f"call i64 @llvm.smax.i64(i64 {out.load('i64', most, 8)}, i64 2)")
            size = out.set(f"call i64 @llvm.smin.i64(i64 {parts}, i64 {threads})")
            size = out.set(f"trunc i64 {size} to i32")
            out.line(f"call void @GOMP_parallel(ptr @member, ptr %team, i32 {size}, i32 0)")
    return out.finished(f"i32 {out.set(f'trunc i64 {team.get(_ANSWER)} to i32')}")


def driver_text(has_pool: bool) -> str:
    """A module with the driver. has_pool: whether what `POOL` lists is there; if not, each row is done by one thread.

    Nothing has run where the driver returns 1: a pointer is null (the tensor has no memory: it is fake, say), or the
    processor does not round as usual, or treats tiny numbers as zeros, or one of the early rows has failed, which write
    nothing but to the table. Where it returns 2, a later row has failed, and those before it have run.
    """
    of_pool = [_OF_POOL, _take_text(), _rest_text(), _share_text(), _member_text()] if has_pool else []
    return "".join([_DECLARED, *of_pool, _alone_text(has_pool), _go_on_text(has_pool), _drive_text(has_pool)])
