"""LLVM's text of what threads share that do a table's rows together, and of threads of dovetail's own.

A team is words of memory. What threads take parts of a row from are some of them, tickets: the number of the row among
those that were shared, how many of its parts belong to the ticket, and how many of these are taken. It changes with
each part, so that a thread which has read of a row that is done by now cannot take anything. -1 ends a region of
OpenMP's.

Each thread has a ticket from which it takes first, and then from those of others. Parts lie in order: so a thread finds
in its own cache what it wrote in the rows before, where rows go through their operands in the same order.

There are two kinds of threads: those of a region of OpenMP's, which go back to their pool when it ends, and threads of
dovetail's own, which stay with one team of the process, `@pool`. Nobody waits for one of these but for the part that it
has taken. They look for more to do for some 0.1 ms, and sleep until a bell rings. One call uses them at a time; others
that run meanwhile do their parts alone, cut as if they were several.

Source: the LLVM language reference; futex(2); pthreads(7).
"""

from __future__ import annotations

import signal

from dovetail.execute.native.llvm_function import Function

TICKETS = 8
"""Of a team; more threads share them."""

WORDS = 48 + 8 * TICKETS
"""Of a team, which begins at a line of the cache. Lines that several threads write are apart from others."""

PLACE, AT, END, EARLY, ANSWER, THREADS, LAST = range(7)
"""Where the first thread is in the table, and where rows end, and early ones; what the driver answers; how many threads
do a row; the last row that is shared.
"""

DONE, FUNCTION, SLOTS, ITEMS, SHARE, _PARTS, _USED = 16, 24, 25, 26, 27, 28, 29
"""How many parts of the row are done; the row, how many items a part has, how many parts there are, and how many
tickets they belong to.
"""

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

    def show_tickets(self, value: str, order: str) -> None:
        """Write all tickets, of which a row has not said yet how many it uses."""
        self.show(_USED, str(TICKETS), "monotonic")
        for at in range(TICKETS):
            self.show(_ticket(at), value, order)

    def exchange(self, word: int, before: str, after: str, order: str) -> str:
        """Write a word if it is what one thinks: whether it was."""
        pair = self._out.set(f"cmpxchg ptr {self.place(word)}, i64 {before}, i64 {after} {order} monotonic, align 8")
        return self._out.set(f"extractvalue {{ i64, i1 }} {pair}, 1")


def _ticket(at: int) -> int:
    """The word of a ticket; each has a line of the cache."""
    return 48 + 8 * at


def _edge(out: Function, ticket: str, parts: str, tickets: str) -> str:
    """The first part of a ticket."""
    return out.set(f"sdiv i64 {out.mul(ticket, parts)}, {tickets}")


def team_text(has_own: bool) -> str:
    """Functions of threads. has_own: whether there are any of dovetail's own."""
    own = [_DECLARED.replace("WORDS", str(WORDS)), _wake_text(), _sleep_text(), _worker_text()] if has_own else []
    return "".join([*own, _take_text(), _rest_text(), _share_text(has_own), _acquire_text() if has_own else ""])


def _parts_of(out: Function, ticket: str) -> tuple[str, str]:
    """How many parts are taken, and how many there are."""
    return out.set(f"and i64 {ticket}, 65535"), out.set(f"and i64 {out.set(f'lshr i64 {ticket}, 16')}, 65535")


def _take_text() -> str:
    """`@take`: take a part and do it. number: of the thread. -1: the region ends; 0: there was no part to take; 1:
    there may be more.
    """
    out = Function("define internal i64 @take(ptr %team, i64 %number)")
    team = Team(out)
    looked_at = team.see(_USED, "monotonic")  # of this row, or of another one
    looked_at = out.set(f"call i64 @llvm.smax.i64(i64 {looked_at}, i64 1)")
    row = out.variable("i64", "-1")  # the number of the row that its own ticket is of
    with out.loop("0", looked_at) as turn:
        at = out.set(f"srem i64 {out.add('%number', turn)}, {looked_at}")
        place = out.element("i64", "%team", out.add(out.mul(at, str(_ticket(1) - _ticket(0))), str(_ticket(0))))
        ticket = out.set(f"load atomic i64, ptr {place} acquire, align 8")
        out.leave(out.set(f"icmp eq i64 {ticket}, -1"), "i64 -1")
        which, own = _parts_of(out, ticket)
        number = out.set(f"lshr i64 {ticket}, 32")
        with out.when(out.set(f"icmp eq i64 {turn}, 0")):
            out.line(f"store i64 {number}, ptr {row}, align 8")
        is_same = out.set(f"icmp eq i64 {number}, {out.load('i64', row, 8)}")  # or the own one is about to come
        with out.when(out.set(f"and i1 {out.set(f'icmp ult i64 {which}, {own}')}, {is_same}")):
            function, slots = (team.see(word, "monotonic", "ptr") for word in (FUNCTION, SLOTS))
            items, share, parts, tickets = (team.see(word, "monotonic") for word in (ITEMS, SHARE, _PARTS, _USED))
            part = out.add(_edge(out, at, parts, tickets), which)
            pair = f"cmpxchg ptr {place}, i64 {ticket}, i64 {out.add(ticket, '1')} acq_rel monotonic, align 8"
            is_mine = out.set(f"extractvalue {{ i64, i1 }} {out.set(pair)}, 1")
            out.leave(out.set(f"xor i1 {is_mine}, true"), "i64 1")
            start = out.mul(part, share)
            end = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(start, share)}, i64 {items})")
            with out.when(out.set(f"icmp slt i64 {start}, {end}")):
                out.line(f"call void {function}(ptr {slots}, i64 {start}, i64 {end})")
            team.add(DONE, "1", "release")
            out.leave("true", "i64 1")
    return out.finished("i64 0")


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
    team.show(_PARTS, "%parts", "monotonic")
    team.show(DONE, "0", "monotonic")
    number = out.set(f"lshr i64 {team.see(_ticket(0), 'monotonic')}, 32")
    number = out.set(f"and i64 {out.add(number, '1')}, {0x7FFF_FFFF}")
    number = out.set(f"shl i64 {number}, 32")
    tickets = out.set(f"call i64 @llvm.smin.i64(i64 {team.get(THREADS)}, i64 {TICKETS})")
    team.show(_USED, tickets, "monotonic")
    with out.loop("0", tickets) as at:
        first, end = (_edge(out, each, "%parts", tickets) for each in (at, out.add(at, "1")))
        own = out.set(f"shl i64 {out.set(f'sub i64 {end}, {first}')}, 16")
        place = out.element("i64", "%team", out.add(out.mul(at, str(_ticket(1) - _ticket(0))), str(_ticket(0))))
        # before sleepers are looked for, who look for parts before they sleep
        out.line(f"store atomic i64 {out.set(f'or i64 {number}, {own}')}, ptr {place} seq_cst, align 8")
    if has_own:
        with out.when(out.set(f"icmp sgt i64 {team.see(SLEEPERS, 'seq_cst')}, 0")):
            out.line("call void @wake(i64 %parts)")
    with out.until() as stop:
        stop(out.set(f"icmp eq i64 {out.set('call i64 @take(ptr %team, i64 0)')}, 0"))
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
    is_idle = "true"
    for at in range(TICKETS):
        which, parts = _parts_of(out, team.see(_ticket(at), "seq_cst"))
        is_idle = out.set(f"and i1 {is_idle}, {out.set(f'icmp uge i64 {which}, {parts}')}")
    with out.when(is_idle):
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
            out.line(f"store i64 {out.set(f'call i64 @take(ptr @pool, i64 {number})')}, ptr {found}, align 8")
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
    for word in (SLEEPERS, _WORKERS, _BUSY):
        team.put(word, "0")
    team.show_tickets("0", "monotonic")
    return acquire + release + out.finished()
