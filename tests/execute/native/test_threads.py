"""Clusters where torch has several threads: large rows are shared by them, and bits are the same."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.execute.native import claims, clusters, machine, probes
from dovetail.execute.native.driver import APART, LOOSE, SERIAL, THREADED
from dovetail.torch_compat.native_symbols import library_function
from tests.execute.native.programs import Drafted, aten, calls_counted, compiled, outcome

pytest.importorskip("llvmlite")

THREADS = pytest.mark.parametrize("threads", [1, 2, 5], indirect=True)
SIZES = (0, 1, 32_767, 32_768, 65_537, 100_003)


def _program(count: int) -> tuple[Drafted, Any]:
    draft = Drafted()
    x, y, factor = draft.base(torch.randn(count)), draft.base(torch.randn(count)), draft.base(torch.tensor(0.3))
    z = draft.add(aten.tanh.default, draft.add(aten.add.Tensor, x, y, alpha=0.3))
    truth = draft.add(aten.lt.Tensor, z, y)
    draft.add(aten.mul_.Tensor, x, factor)
    return draft, draft.program([truth, draft.add(aten.where.self, truth, x, z)])


@THREADS
@pytest.mark.parametrize("count", SIZES)
def test_bits_do_not_depend_on_threads(count: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft, program = _program(count)
    code = compiled(program)
    expected = outcome(compiled(program, native=False), draft.arguments())
    assert outcome(code, draft.arguments()) == expected
    assert answers == [0]
    torch.set_num_threads(3)  # asked in each call
    assert outcome(code, draft.arguments()) == expected


@THREADS
@pytest.mark.parametrize("count", [31, 32_767, 65_537, 100_003, 163_849])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_elements_of_each_share(count: int, dtype: torch.dtype, threads: int) -> None:
    """Torch computes those that fill no vectors one by one, with other functions; each thread has some."""
    draft = Drafted()
    x, y = draft.base(torch.randn(count, dtype=dtype)), draft.base(torch.randn(count, dtype=dtype))
    zero, minus = draft.base(torch.zeros(count, dtype=dtype)), draft.base(-torch.zeros(count, dtype=dtype))
    names = ("sigmoid", "silu", "softplus", "elu", "mish", "sinh", "expm1", "log1p", "log2", "hardswish", "round")
    made = [draft.add(getattr(aten, name).default, x) for name in names]
    made += [draft.add(aten.gelu.default, x, approximate=how) for how in ("none", "tanh")]
    made += [draft.add(aten.gelu_backward.default, x, y, approximate=how) for how in ("none", "tanh")]
    made += [draft.add(getattr(aten, name).default, x, y) for name in ("silu_backward", "maximum")]
    made += [draft.add(getattr(aten, name).default, zero, minus) for name in ("maximum", "minimum")]
    program = draft.program(made)
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_number_of_threads_decides_no_probe(count: int) -> None:
    """Torch shares gelu out otherwise than all else, from a size on for which it is left to torch: nothing is tried."""
    draft, former = Drafted(), torch.get_num_threads()
    x = draft.base(torch.randn(100))
    draft.add(aten.gelu.default, x, approximate="tanh")
    claim = claims.claim_of(draft.nodes[0])
    assert claim is not None
    torch.set_num_threads(count)
    try:
        assert probes._try_all(claim.question) == 0
    finally:
        torch.set_num_threads(former)


def test_without_a_pool_places_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    for module in (claims, clusters):
        monkeypatch.setattr(module, "has_pool", lambda: False)
    try:
        for count, operators in ((32_767, ("silu", "maximum")), (32_768, ())):
            draft = Drafted()
            x = draft.base(torch.randn(count))
            y = draft.add(aten.maximum.default, draft.add(aten.silu.default, x), x)
            code = compiled(draft.program([y]))
            owned = [node for node in code.program.nodes if code.executors.owner(node).name == "native"]
            found = tuple(node.target.name().partition("::")[2].partition(".")[0] for node in owned)
            assert found == operators or torch.backends.cpu.get_cpu_capability() not in ("AVX512", "AVX2")
    finally:
        torch.set_num_threads(former)


@THREADS
def test_sizes_that_are_not_known(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y * 0.5).exp() - x

    made = dovetail.compile(function, executors=("native", "aten"), dynamic=True)
    for count in (7, 32_768, 90_001, 1, 3):
        x, y = torch.randn(count, 1), torch.randn(count, 1)
        assert torch.equal(made(x, y), function(x, y))
    assert answers == [0] * 5


@THREADS
def test_large_updates(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    states = []
    for is_native in (False, True):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(300, 200))
        optimizer = torch.optim.AdamW([weight], 0.01)
        step: Any = optimizer.step
        if is_native:

            def run(optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()

            step = dovetail.compile_step(run, executors=("native", "aten"))
        for _ in range(4):
            weight.grad = torch.randn(300, 200)
            step()
        states.append(weight.detach())
    assert torch.equal(*states)
    assert answers
    assert set(answers) == {0}


@THREADS
def test_two_callers_share_the_pool(threads: int) -> None:
    draft, program = _program(100_003)
    code = compiled(program)
    expected = outcome(code, draft.arguments())
    found: list[bool] = []

    def run() -> None:
        found.extend(outcome(code, draft.arguments()) == expected for _ in range(5))

    callers = [threading.Thread(target=run) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [True] * 10


@THREADS
def test_without_a_pool_several_threads_are_left_to_torch(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "has_pool", lambda: False)
    for count in (32_767, 32_768):
        _, program = _program(count)
        assert bool(compiled(program).executors.groups) is (threads == 1 or count < 32_768)


@pytest.mark.parametrize("has_pool", [True, False])
@pytest.mark.parametrize("items", [*SIZES, 131_072])
def test_each_item_is_done_once(has_pool: bool, items: int) -> None:
    """The driver calls a function in Python, by each of its threads, with parts that make up the whole."""
    parts: list[tuple[int, int]] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function = kind(lambda _, start, end: parts.append((start, end)))
    address = ctypes.cast(function, ctypes.c_void_p).value
    drive = machine.driver() if has_pool else machine.made_driver(has_pool=False)
    assert drive(struct.pack("4q", address, 0, 1, items), 1, 4, 0) == 0
    numbers = sorted(n for start, end in parts for n in range(start, end))
    assert numbers == list(range(items))
    assert len(parts) == (min(4, -(-items // 32_768)) if has_pool and items else 1)


_ROW = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64)


def _row(function: Any, items: int, marks: int = 0) -> bytes:
    return struct.pack("4q", ctypes.cast(function, ctypes.c_void_p).value or 0, marks, 1, items)


def test_rows_run_in_order_and_each_item_once() -> None:
    """A region is over many rows, and ends before those that are apart. Loose rows are cut into smaller parts."""
    seen: list[tuple[int, int, int, bool]] = []

    def made(number: int) -> Any:
        return _ROW(lambda _, start, end: seen.append((number, start, end, bool(_asked("omp_in_parallel")))))

    sizes = [5, 131_072, 40_000, 7, 32_768, 200_001, 3, 90_000, 1]
    marks = [0, 0, LOOSE, 0, 0, LOOSE, APART, 0, 0]
    functions = [made(number) for number in range(len(sizes))]
    table = b"".join(map(_row, functions, sizes, marks))
    for threads in (1, 2, 4):
        seen.clear()
        assert machine.driver()(table, len(sizes), threads, 0) == 0
        assert [number for number, *_ in seen] == sorted(number for number, *_ in seen)
        for number, size in enumerate(sizes):
            parts = sorted(seen_part[1:3] for seen_part in seen if seen_part[0] == number)
            assert [item for start, end in parts for item in (start, end)] == _bounds(len(parts), size)
            most = threads * (4 if marks[number] == LOOSE and threads > 1 else 1)
            assert len(parts) == (1 if marks[number] == APART else min(most, -(-size // THREADED)))
        assert not any(is_inside for number, _, _, is_inside in seen if marks[number] == APART)


def _bounds(parts: int, size: int) -> list[int]:
    share = -(-size // parts)
    return [bound for at in range(parts) for bound in (at * share, min((at + 1) * share, size))]


def _asked(name: str) -> int:
    """What a function of the OpenMP library says."""
    function: Any = library_function(name)
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(function)())


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_that_fails_ends_the_table(threads: int) -> None:
    seen: list[int] = []

    def fail(slots: Any, start: int, end: int) -> None:
        slots[0] = -1

    def made(number: int) -> Any:
        return _ROW(lambda _, start, end: seen.append(number))

    functions = [made(0), _ROW(fail), made(2)]
    for size, early, answer in ((100_000, 0, 2), (3, 0, 2), (3, 2, 1)):
        seen.clear()
        table = ctypes.create_string_buffer(b"".join(map(_row, functions, (100_000, size, 100_000))))
        assert machine.driver()(table, 3, threads, early) == answer  # type: ignore[arg-type]
        assert set(seen) == {0}


def test_a_thread_without_a_processor_holds_nobody_up() -> None:
    """Whoever comes first takes the next part; the second one of two threads comes late here."""
    first, parts = threading.get_ident(), defaultdict[int, int](int)

    def run(_: Any, start: int, end: int) -> None:
        parts[threading.get_ident()] += 1
        if threading.get_ident() != first:
            time.sleep(0.2)

    function = _ROW(run)
    assert machine.driver()(_row(function, 2 * 4 * THREADED, LOOSE) * 3, 3, 2, 0) == 0
    assert sum(parts.values()) == 3 * 8
    assert parts[first] >= 3 * 8 - 6


@pytest.mark.parametrize("sign", [1, -1])
def test_each_thread_begins_with_the_part_that_was_its_own_before(sign: int) -> None:
    """Parts lie in order: what a thread wrote in a row is in its cache in the next one."""
    if sign < 0 and not machine.has_own_threads():
        pytest.skip("there are none here")
    begun = defaultdict[tuple[int, int], list[int]](list)

    def made(number: int) -> Any:
        def run(_: Any, start: int, end: int) -> None:
            begun[number, threading.get_ident()].append(start)
            time.sleep(0.02)  # the other thread has time to come

        return _ROW(run)

    functions = [made(number) for number in range(6)]
    table = b"".join(_row(function, 2 * 4 * THREADED, LOOSE) for function in functions)
    assert machine.driver()(table, 6, 2 * sign, 0) == 0
    middle, first = 4 * THREADED, threading.get_ident()
    of_first = [starts[0] for (_, ident), starts in begun.items() if ident == first]
    of_other = [starts[0] for (_, ident), starts in begun.items() if ident != first]
    assert of_first == [0] * 6
    assert of_other.count(middle) >= 4, of_other  # it may come late to the first


def test_a_serial_row_finds_one_thread_and_torch_gets_its_threads_back() -> None:
    seen: list[bool] = []
    serial = _ROW(lambda *_: seen.append(bool(_asked("omp_in_parallel")) or _asked("omp_get_max_threads") == 1))
    shared = _ROW(lambda *_: None)
    former = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        table = _row(serial, 1, SERIAL) + _row(shared, 100_000) + _row(serial, 1, SERIAL) + _row(shared, 100_000)
        for threads in (1, 3):
            assert machine.driver()(table, 4, threads, 0) == 0
            assert _asked("omp_get_max_threads") == torch.get_num_threads() == 3
        assert seen == [True] * 4, "also where rows are shared by nobody"
    finally:
        torch.set_num_threads(former)


@THREADS
def test_small_kernels_of_torch_run_on_one_thread(threads: int) -> None:
    draft = Drafted()
    x = draft.base(torch.randn(40, 96))
    y = draft.add(aten._softmax.default, draft.add(aten.exp.default, x), -1, half_to_float=False)
    program = draft.program([draft.add(aten.add.Tensor, y, x)])
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert torch.get_num_threads() == threads


def _marked(marks: int, *sizes: int) -> tuple[list[Any], bytes, list[tuple[int, int, int]]]:
    seen: list[tuple[int, int, int]] = []

    def made(number: int) -> Any:
        return _ROW(lambda _, start, end: seen.append((number, start, end)))

    functions = [made(number) for number in range(len(sizes))]
    return functions, b"".join(_row(each, size, marks) for each, size in zip(functions, sizes, strict=True)), seen


@pytest.mark.parametrize("marks", [0, LOOSE, APART])
def test_own_threads_do_what_torchs_do(marks: int) -> None:
    """Rows are cut in the same way. Rows that are apart run all the same, though there should be none."""
    sizes = (5, 131_072, 40_000, 7, 900_001, 1)
    _functions, table, seen = _marked(marks, *sizes)
    for threads in (2, 3, 5, 2, 11, 3):  # also more of them than tickets
        assert machine.driver()(table, len(sizes), threads, 0) == 0
        by_torch = sorted(seen)
        seen.clear()
        for _ in range(20):
            assert machine.driver()(table, len(sizes), -threads, 0) == 0
            assert [number for number, *_ in seen] == sorted(number for number, *_ in seen)
            assert sorted(seen) == by_torch
            seen.clear()


@pytest.mark.skipif(not machine.has_own_threads(), reason="there are none here")
def test_own_threads_sleep_and_wake_and_block_signals() -> None:
    workers = set[int]()

    def run(*_: Any) -> None:
        if threading.get_ident() != first:
            workers.add(threading.get_native_id())
        time.sleep(0.002)

    first, function = threading.get_ident(), _ROW(run)
    for attempt in range(100):
        time.sleep(0.05 * (attempt % 2))
        assert machine.driver()(_row(function, 6 * THREADED), 1, -3, 0) == 0
        if workers and attempt > 3:
            break
    assert len(workers) in (1, 2), "the same ones each time"
    for worker in workers:
        blocked = Path(f"/proc/self/task/{worker}/status").read_text().partition("SigBlk:\t")[2].split()[0]
        assert int(blocked, 16) >> (signal.SIGINT - 1) & 1
        assert not int(blocked, 16) >> (signal.SIGSEGV - 1) & 1


@pytest.mark.skipif(not machine.has_own_threads(), reason="there are none here")
def test_callers_beside_one_that_has_the_own_threads_run_alone() -> None:
    _functions, table, seen = _marked(0, 131_072, 131_072)
    inner = machine.driver()
    answers: list[int] = []
    outer = _ROW(lambda *_: answers.append(inner(table, 2, -2, 0)))
    assert inner(_row(outer, 65_537), 1, -2, 0) == 0
    assert answers == [0] * 2
    assert sorted(seen) == sorted([(0, 0, 65_536), (0, 65_536, 131_072), (1, 0, 65_536), (1, 65_536, 131_072)] * 2)


@pytest.mark.skipif(not machine.has_own_threads() or not hasattr(os, "fork"), reason="there are none here")
def test_own_threads_after_a_fork() -> None:
    _functions, table, seen = _marked(LOOSE, 300_000, 200_000)
    assert machine.driver()(table, 2, -3, 0) == 0
    expected = sorted(seen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        seen.clear()
        is_right = machine.driver()(table, 2, -3, 0) == 0 and sorted(seen) == expected
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
