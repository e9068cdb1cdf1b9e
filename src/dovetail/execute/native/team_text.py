"""LLVM's text of what threads share that do a table's rows together, and of threads of dovetail's own.

A team is words of memory. What threads take parts of a row from is one of them, `TICKET`: the number of the row among
those that were shared, how many parts it has, and how many of them are taken. It changes with each part, so that a
thread which has read of a row that is done by now cannot take anything. -1 ends a region of OpenMP's.

There are two kinds of threads: those of a region of OpenMP's, which go back to their pool when it ends, and threads of
dovetail's own, which stay with one team of the process, `@pool`. Nobody waits for one of these but for the part that it
has taken. They look for more to do for some 0.1 ms, and sleep until a bell rings. One call uses them at a time; others
that run meanwhile do their parts alone, cut as if they were several.

Source: the LLVM language reference; futex(2); pthreads(7).
"""

from __future__ import annotations

import signal

from dovetail.execute.native.llvm_function import Function

WORDS = 48
"""Of a team, which begins at a line of the cache. Lines that several threads write are apart from others."""

PLACE, AT, END, EARLY, ANSWER, THREADS, LAST = range(7)
"""Where the first thread is in the table, and where rows end, and early ones; what the driver answers; how many threads
do a row; the last row that is shared.
"""

TICKET, DONE, FUNCTION, SLOTS, ITEMS, SHARE = 8, 16, 24, 25, 26, 27
"""See above; how many parts of the row are done; the row, and how many items a part has."""

_BELL, SLEEPERS, _BUSY, _WORKERS = 32, 33, 40, 41

SYSTEM = ("pthread_create", "pthread_detach", "pthread_sigmask", "syscall")
"""What own threads need of the C library."""

_FUTEX, _WAIT, _WAKE = 202, 128, 129  # a system call of Linux on x86-64, and what it is to do, within one process
_SIGNALS = 16  # words of a set of them
_OF_THREAD = ("SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGPROF")
_PATIENCE = 128  # looks for something to do, between which a thread lets others have its processor
_AWAKE = 250_000  # cycles of the processor's clock without anything to do, after which a thread sleeps

_DECLARED = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i64 @syscall(i64, ...)
declare i64 @llvm.readcyclecounter()

@pool = internal global [WORDS x i64] zeroinitializer, align 64
"""


class Team:
    """The words of a team, in a function."""

    def __init__(self, out: Function, start: str = "%team") -> None:
        self._out, self._start = out, start

    def place(self, word: int) -> str:
        """The address of a word."""
        return self._out.element("i64", self._start, str(word))

    def get(self, word: int, kind: str = "i64") -> str:
        """A word that other threads only read."""
        return self._out.load(kind, self.place(word), 8)

    def put(self, word: int, value: str, kind: str = "i64") -> None:
        """Write it."""
        self._out.line(f"store {kind} {value}, ptr {self.place(word)}, align 8")

    def see(self, word: int, order: str, kind: str = "i64") -> str:
        """A word that other threads write."""
        return self._out.set(f"load atomic {kind}, ptr {self.place(word)} {order}, align 8")

    def show(self, word: int, value: str, order: str, kind: str = "i64") -> None:
        """Write a word for others to see."""
        self._out.line(f"store atomic {kind} {value}, ptr {self.place(word)} {order}, align 8")

    def add(self, word: int, value: str, order: str, kind: str = "i64") -> None:
        """Add to a word that other threads write."""
        self._out.set(f"atomicrmw add ptr {self.place(word)}, {kind} {value} {order}, align 8")

    def exchange(self, word: int, before: str, after: str, order: str) -> str:
        """Write a word if it is what one thinks: whether it was."""
        pair = self._out.set(f"cmpxchg ptr {self.place(word)}, i64 {before}, i64 {after} {order} monotonic, align 8")
        return self._out.set(f"extractvalue {{ i64, i1 }} {pair}, 1")


def team_text(has_own: bool) -> str:
    """Functions of threads. has_own: whether there are any of dovetail's own."""
    own = [_DECLARED.replace("WORDS", str(WORDS)), _wake_text(), _sleep_text(), _worker_text()] if has_own else []
    return "".join([*own, _take_text(), _rest_text(), _share_text(has_own), _acquire_text() if has_own else ""])


def _parts_of(out: Function, ticket: str) -> tuple[str, str]:
    """How many parts are taken, and how many there are."""
    return out.set(f"and i64 {ticket}, 65535"), out.set(f"and i64 {out.set(f'lshr i64 {ticket}, 16')}, 65535")


def _take_text() -> str:
    """`@take`: take a part and do it. -1: the region ends; 0: there was no part to take; 1: there may be more."""
    out = Function("define internal i64 @take(ptr %team)")
    team = Team(out)
    ticket = team.see(TICKET, "acquire")
    out.leave(out.set(f"icmp eq i64 {ticket}, -1"), "i64 -1")
    which, parts = _parts_of(out, ticket)
    out.leave(out.set(f"icmp uge i64 {which}, {parts}"), "i64 0")
    function, slots = (team.see(word, "monotonic", "ptr") for word in (FUNCTION, SLOTS))
    items, share = (team.see(word, "monotonic") for word in (ITEMS, SHARE))
    is_mine = team.exchange(TICKET, ticket, out.add(ticket, "1"), "acq_rel")
    out.leave(out.set(f"xor i1 {is_mine}, true"), "i64 1")
    start = out.mul(which, share)
    end = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(start, share)}, i64 {items})")
    with out.when(out.set(f"icmp slt i64 {start}, {end}")):
        out.line(f"call void {function}(ptr {slots}, i64 {start}, i64 {end})")
    team.add(DONE, "1", "release")
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


def _share_text(has_own: bool) -> str:
    """`@share`: a row's items are done, by all threads of a team. Called by the first of them."""
    head = "define internal void @share(ptr %team, ptr %function, ptr %slots, i64 %items, i64 %parts)"
    out = Function(head)
    team = Team(out)
    team.show(FUNCTION, "%function", "monotonic", "ptr")
    team.show(SLOTS, "%slots", "monotonic", "ptr")
    team.show(ITEMS, "%items", "monotonic")
    team.show(SHARE, out.parts("%items", "%parts"), "monotonic")
    team.show(DONE, "0", "monotonic")
    number = out.set(f"lshr i64 {team.see(TICKET, 'monotonic')}, 32")
    number = out.set(f"and i64 {out.add(number, '1')}, {0x7FFF_FFFF}")
    ticket = out.set(f"or i64 {out.set(f'shl i64 {number}, 32')}, {out.set('shl i64 %parts, 16')}")
    team.show(TICKET, ticket, "seq_cst")  # before sleepers are looked for, who look for parts before they sleep
    if has_own:
        with out.when(out.set(f"icmp sgt i64 {team.see(SLEEPERS, 'seq_cst')}, 0")):
            out.line("call void @wake(i64 %parts)")
    with out.until() as stop:
        stop(out.set(f"icmp eq i64 {out.set('call i64 @take(ptr %team)')}, 0"))
    looks = out.variable("i64", "0")
    with out.until() as stop:
        stop(out.set(f"icmp eq i64 {team.see(DONE, 'acquire')}, %parts"))
        out.line(f"call void @rest(ptr {looks})")
    return out.finished()


def _wake_text() -> str:
    """`@wake`: ring the bell for as many own threads as there are parts besides the first.

    For all of them where the call asks for fewer threads than there are, as some of these would not answer.
    """
    out = Function("define internal void @wake(i64 %parts)")
    team = Team(out, "@pool")
    team.add(_BELL, "1", "seq_cst", "i32")
    fits = out.set(f"icmp slt i64 {team.get(_WORKERS)}, {team.see(THREADS, 'monotonic')}")
    count = out.set(f"select i1 {fits}, i64 {out.add('%parts', '-1')}, i64 {0x7FFF_FFFF}")
    count = out.set(f"trunc i64 {count} to i32")
    out.set(f"call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr {team.place(_BELL)}, i32 {_WAKE}, i32 {count}, ptr null)")
    return out.finished()


def _sleep_text() -> str:
    """`@sleep`: an own thread sleeps until the bell rings, unless there is something to do."""
    out = Function("define internal void @sleep()")
    team = Team(out, "@pool")
    rung = team.see(_BELL, "seq_cst", "i32")
    team.add(SLEEPERS, "1", "seq_cst")
    which, parts = _parts_of(out, team.see(TICKET, "seq_cst"))
    with out.when(out.set(f"icmp uge i64 {which}, {parts}")):
        bell = team.place(_BELL)
        out.set(f"call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr {bell}, i32 {_WAIT}, i32 {rung}, ptr null)")
    team.add(SLEEPERS, "-1", "seq_cst")
    return out.finished()


def _worker_text() -> str:
    """`@worker`: what an own thread does, to the end of the process. index: its number, as a pointer. Threads behind
    those that a call asks for leave it alone. Signals are for others, but for those that a thread raises itself.
    """
    out = Function("define internal ptr @worker(ptr %index)")
    team = Team(out, "@pool")
    signals = out.memory(f"[{_SIGNALS} x i64]")
    with out.loop("0", str(_SIGNALS)) as at:
        out.line(f"store i64 -1, ptr {out.element('i64', signals, at)}, align 8")
    blocked = -1 - sum(1 << (getattr(signal, name) - 1) for name in _OF_THREAD)
    out.line(f"store i64 {blocked}, ptr {signals}, align 8")
    out.set(f"call i32 @pthread_sigmask(i32 0, ptr {signals}, ptr null)")
    number = out.set("ptrtoint ptr %index to i64")
    looks, since = out.variable("i64", "0"), out.variable("i64", out.set("call i64 @llvm.readcyclecounter()"))
    with out.until() as stop:
        stop("false")
        found = out.variable("i64", "0")
        with out.when(out.set(f"icmp slt i64 {number}, {team.see(THREADS, 'monotonic')}")):
            out.line(f"store i64 {out.set('call i64 @take(ptr @pool)')}, ptr {found}, align 8")
        is_idle = out.set(f"icmp eq i64 {out.load('i64', found, 8)}, 0")
        with out.when(is_idle):
            out.line(f"call void @rest(ptr {looks})")
        now = out.set("call i64 @llvm.readcyclecounter()")
        idle = out.set(f"sub i64 {now}, {out.load('i64', since, 8)}")
        is_late = out.set(f"icmp ugt i64 {idle}, {_AWAKE}")
        with out.when(out.set(f"and i1 {is_idle}, {is_late}")):
            out.line("call void @sleep()")
        ends = out.set(f"or i1 {is_late}, {out.set(f'xor i1 {is_idle}, true')}")
        with out.when(ends):
            out.line(f"store i64 {out.set('call i64 @llvm.readcyclecounter()')}, ptr {since}, align 8")
    return out.finished("ptr null")


def _acquire_text() -> str:
    """`@acquire`: whether a call gets the own threads, of which there are enough then, if the system makes them.
    `@release` gives them back, and `@forget` does so after a fork, where there are none.
    """
    out = Function("define internal i1 @acquire(i64 %threads)")
    team = Team(out, "@pool")
    out.leave(out.set(f"xor i1 {team.exchange(_BUSY, '0', '1', 'acq_rel')}, true"), "i1 false")
    made = out.memory("i64")
    with out.until() as stop:
        count = team.get(_WORKERS)
        number = out.add(count, "1")
        stop(out.set(f"icmp sge i64 {number}, %threads"))
        index = out.set(f"inttoptr i64 {number} to ptr")
        failed = out.set(f"call i32 @pthread_create(ptr {made}, ptr null, ptr @worker, ptr {index})")
        stop(out.set(f"icmp ne i32 {failed}, 0"))
        out.set(f"call i32 @pthread_detach(i64 {out.load('i64', made, 8)})")
        team.put(_WORKERS, number)
    acquire = out.finished("i1 true")
    out = Function("define internal void @release()")
    Team(out, "@pool").show(_BUSY, "0", "release")
    release = out.finished()
    out = Function("define internal void @forget()")
    team = Team(out, "@pool")
    for word in (TICKET, SLEEPERS, _WORKERS, _BUSY):
        team.put(word, "0")
    return acquire + release + out.finished()
