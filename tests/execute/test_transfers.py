"""Transfers of a program: in which order they use the file, and whose file it is."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dovetail.errors import InvalidProgram, OffloadUnavailable
from dovetail.execute import spill_file
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.protocol import ExecutorList
from dovetail.execute.spill_file import Speed, UnnamedFile, keep_speed, speed_of
from dovetail.execute.transfers import PIECE_BYTES, TransferExecutor, Transfers, spilled_values
from dovetail.ir.program import Node, Program, Stage, TensorMeta, Value
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ops.transfers import FETCH, FETCHED, SPILL, SPILLED, token_meta

aten = torch.ops.aten
_PIECES = 3
_COUNT = _PIECES * PIECE_BYTES // 4


def _meta(storage: int) -> TensorMeta:
    return TensorMeta((_COUNT,), (1,), 0, torch.float32, torch.device("cpu"), storage)


def _program() -> Program:
    """a leaves; b leaves, and is waited for before a; both come back, b first."""
    x, a, b, a_back, b_back, result = (
        Value(name, _meta(storage)) for storage, name in enumerate(("x", "a", "b", "a_back", "b_back", "result"))
    )
    tokens = [Value(f"t{k}", token_meta(10 + k)) for k in range(6)]
    layout = ([_COUNT], [1], torch.float32)
    nodes = (
        Node(aten.add.Tensor, (x, 1), outputs=(a,)),
        Node(SPILL, (a,), outputs=(tokens[0],)),
        Node(aten.mul.Tensor, (x, 3), outputs=(b,)),
        Node(SPILL, (b,), outputs=(tokens[1],)),
        Node(SPILLED, (b, tokens[1]), outputs=(tokens[2],)),
        Node(FETCH, (tokens[2], *layout), outputs=(b_back,)),
        Node(FETCHED, (b_back, tokens[2]), outputs=(tokens[3],)),
        Node(SPILLED, (a, tokens[0]), outputs=(tokens[4],)),
        Node(FETCH, (tokens[4], *layout), outputs=(a_back,)),
        Node(FETCHED, (a_back, tokens[4]), outputs=(tokens[5],)),
        Node(aten.sub.Tensor, (a_back, b_back), outputs=(result,)),
    )
    return Program("moving", Stage.IN_PLACE, (x,), nodes, (result,), Signature((UserInput(0),), (UserOutput(0),)))


class _Watched(UnnamedFile):
    """A file that notes what is asked of it, and is held up until it may go on."""

    made: list[_Watched]

    def __init__(self, folder: str, size_bytes: int) -> None:
        super().__init__(folder, size_bytes)
        self.asked: list[tuple[str, int]] = []
        self.may_go_on = threading.Event()
        self.began = threading.Event()
        self.made.append(self)

    def write(self, contents: memoryview, at: int) -> None:
        """Note it, and wait."""
        self.asked.append(("write", at))
        self.began.set()
        assert self.may_go_on.wait(30)
        super().write(contents, at)

    def read(self, memory: memoryview, at: int) -> None:
        """Note it."""
        self.asked.append(("read", at))
        super().read(memory, at)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[_Watched]:
    """Files that are watched."""
    monkeypatch.setattr(_Watched, "made", [], raising=False)
    return _Watched


def _compiled(program: Program, transfers: Transfers) -> CompiledProgram:
    return CompiledProgram(program, ExecutorList((TransferExecutor(transfers.calls), AtenExecutor())))


def _run(transfers: Transfers, code: CompiledProgram, x: Tensor) -> Tensor:
    with transfers.run():
        (result,) = code([x])
    assert isinstance(result, Tensor)
    return result


def test_what_is_waited_for_first_goes_first(tmp_path: Path, watched: type[_Watched]) -> None:
    """The first value has begun to leave when the second one does, which is needed before it, and so is its return."""
    program = _program()
    transfers = Transfers(program, str(tmp_path), len(program.nodes), watched)
    code = _compiled(program, transfers)
    x = torch.randn(_COUNT)
    (file,) = watched.made
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(_run(transfers, code, x)))
    thread.start()
    assert file.began.wait(30)
    while len(transfers.values) < 2 or transfers.under_way() < 2:  # the program waits for the second one
        assert thread.is_alive()
    file.may_go_on.set()
    thread.join()
    assert torch.equal(found[0], (x + 1) - x * 3)
    first, second = (value.place for value in transfers.values)
    places = [range(place, place + _PIECES * PIECE_BYTES, PIECE_BYTES) for place in (first, second)]
    expected = [("write", places[0][0])]  # it was under way
    expected += [("write", at) for at in places[1]]
    assert file.asked[: len(expected)] == expected
    reads = [at for action, at in file.asked if action == "read"]
    assert reads == [*places[1], *places[0]]
    assert len(file.asked) == 4 * _PIECES


def test_each_run_has_a_file_of_its_own(tmp_path: Path, watched: type[_Watched]) -> None:
    program = _program()
    transfers = Transfers(program, str(tmp_path), len(program.nodes), watched)
    code = _compiled(program, transfers)
    xs = [torch.randn(_COUNT) for _ in range(3)]
    found: dict[int, Tensor] = {}

    def call(which: int) -> None:
        found[which] = _run(transfers, code, xs[which])

    threads = [threading.Thread(target=call, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    while sum(file.began.is_set() for file in watched.made) < 3:
        assert any(thread.is_alive() for thread in threads)
    for file in watched.made:
        file.may_go_on.set()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[k], (x + 1) - x * 3) for k, x in enumerate(xs))
    assert len(watched.made) == 3
    assert os.listdir(tmp_path) == []
    assert threading.active_count() == len({t.ident for t in threading.enumerate()})
    assert not [t for t in threading.enumerate() if t.name == "dovetail-transfers"]


def test_another_process_makes_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transfers = Transfers(_program(), str(tmp_path), 99)
    own = transfers._taken()
    transfers._files.append((os.getpid(), own))
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork
    assert transfers._taken() is not own


def test_values_that_are_away_at_one_time_have_places_of_their_own() -> None:
    program = _program()
    first, second = spilled_values(program)
    assert abs(first.place - second.place) >= first.size_bytes
    later = tuple(program.nodes[k] for k in (0, 1, 7, 8, 9, 2, 3, 4, 5, 6, 10))  # one comes back before the other goes
    first, second = spilled_values(replace(program, nodes=later))
    assert first.place == second.place


def test_contents_that_would_come_back_otherwise_are_refused(tmp_path: Path) -> None:
    program = _program()
    fetch = program.nodes[5]
    other = replace(fetch, args=(fetch.args[0], [_COUNT // 2, 2], [2, 1], torch.float32))
    nodes = tuple(other if node is fetch else node for node in program.nodes)
    with pytest.raises(InvalidProgram, match="the layout in which they left"):
        Transfers(replace(program, nodes=nodes), str(tmp_path), 99)


def test_without_an_executor_contents_stay_in_memory() -> None:
    x = torch.randn(_COUNT)
    (result,) = CompiledProgram(_program(), ExecutorList((AtenExecutor(),)))([x])
    assert torch.equal(result, (x + 1) - x * 3)


def test_a_folder_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_file, "_PROBE_BYTES", PIECE_BYTES)
    try:
        found = speed_of(str(tmp_path))
        assert min(found.write_rate, found.read_rate, found.flop_rate) > 0
        assert speed_of(f"{tmp_path}/.") is found
        assert os.listdir(tmp_path) == []
        keep_speed(str(tmp_path), Speed(1.0, 2.0, 3.0))
        assert speed_of(str(tmp_path)).read_rate == 2.0
    finally:
        keep_speed(str(tmp_path), None)
    with pytest.raises(OffloadUnavailable):
        speed_of(str(tmp_path / "missing"))
