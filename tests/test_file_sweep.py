"""The search over forged files: a short slice of it, and that each of its watchers sees what it is there for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import file_trial
from tests.file_corpus import Subject, corpus
from tests.file_forgeries import Forgery, forgery
from tests.file_text import FrozenText
from tests.file_trial import Bench, Finding
from tests.file_watch import SECRET, Folder, Watch, forbid_system_calls, process_state

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="files are tried in forked processes")
_FILES = 40


def test_a_slice_of_the_search_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.file_sweep", "--programs", str(_FILES), "--minutes", "5", "--only", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command += ["--failures", str(tmp_path / "failures"), "--state", str(tmp_path / "state.json")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    assert f"{_FILES} files" in found.stdout


@pytest.fixture(scope="module")
def subjects() -> list[Subject]:
    return corpus(1)


def test_equal_seeds_make_equal_forgeries(subjects: list[Subject]) -> None:
    made = [forgery(subjects, seed) for seed in range(200)]
    assert made == [forgery(subjects, seed) for seed in range(200)]
    changed = [one for one in made if one.packed is not None or one.members != one.subject.members]
    assert len(changed) > 190


@pytest.fixture
def bench(subjects: list[Subject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return Bench(subjects, tmp_path)


def _honest(subjects: list[Subject]) -> Forgery:
    return Forgery(subjects[0], ("nothing",), subjects[0].members)


def test_an_honest_file_is_equal(bench: Bench, subjects: list[Subject]) -> None:
    assert bench._tried(_honest(subjects), 0) == file_trial.EQUAL


def test_other_bits_are_a_finding(bench: Bench, subjects: list[Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    by_text = FrozenText.call
    monkeypatch.setattr(FrozenText, "call", lambda *given: [by_text(*given)[0].nextafter(torch.tensor(9.0))])
    with pytest.raises(Finding, match="a result 0 is"):
        bench._tried(_honest(subjects), 0)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), SystemExit(1), RecursionError("x")])
def test_another_error_is_a_finding(
    bench: Bench, subjects: list[Subject], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(file_trial.dovetail, "load", load)
    with pytest.raises(Finding, match=f"load raises {type(error).__name__}"):
        bench._tried(_honest(subjects), 0)


def test_a_changed_process_is_a_finding(bench: Bench) -> None:
    bench._state = process_state()  # pytest has changed the environment since
    bench._look_around()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(Finding, match=r"process: .*dtype"):
            bench._look_around()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "touch",
    [
        lambda folder: torch.from_file(str(folder / SECRET), size=4),
        lambda folder: (folder / SECRET).read_bytes(),
        lambda folder: (folder / "new").touch(),
        lambda folder: (folder / SECRET).unlink(),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of files that are read")
def test_a_touched_file_is_seen(tmp_path: Path, touch: Callable[[Path], Any]) -> None:
    folder = Folder(tmp_path / "here")
    assert folder.changes() == []
    touch(tmp_path / "here")
    assert folder.changes()
    assert folder.changes() == []


def _ending(call: Callable[[], Any]) -> int:
    """How a process ends that does something after system calls were forbidden; 77 where they cannot be."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 77 if not forbid_system_calls() else 0
            if not status:
                call()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("call", "is_allowed"),
    [
        (lambda: Path("/proc/self/status").read_bytes(), True),
        (lambda: torch.ones(3).sum(), True),
        (lambda: Path(tempfile.gettempdir(), "dovetail-forbidden").write_bytes(b""), False),
        (lambda: torch.from_file(str(Path(tempfile.gettempdir(), "dovetail-forbidden")), shared=True, size=4), False),
        (lambda: os.posix_spawn("/bin/true", ["true"], {}), False),
        (lambda: os.execv("/bin/true", ["true"]), False),
        (os.fork, False),
        (socket.socket, False),
        (lambda: os.unlink("/nowhere"), False),
        (lambda: os.mkdir("/nowhere/x"), False),
        (lambda: os.rename("/nowhere", "/nowhere/x"), False),
    ],
)
def test_forbidden_system_calls_end_the_process(call: Callable[[], Any], is_allowed: bool) -> None:
    ending = _ending(call)
    if ending == 77:
        pytest.skip("this system does not let processes forbid system calls")
    assert ending == (0 if is_allowed else -signal.SIGSYS)


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/hostname')",
        "import os; os.system('true')",
        "import subprocess; subprocess.run(['true'])",
        "eval('__import__(1)')",
        "compile('import os', '<dovetail>', 'exec')",
        "compile('def run(x): return x.__class__', '<dovetail>', 'exec')",
        "import socket; socket.socket()",
        "import pickle; pickle.loads(b'cos\\nsystem\\n.')",
        "import not_there",
    ],
)
def test_audit_events_are_seen(code: str) -> None:
    def watched() -> None:
        watch = Watch([sys.executable])
        source = compile(code, "<test>", "exec")
        with watch.on():
            Path(sys.executable).open("rb").close()
            compile("def run(args):\n    return torch.ops.aten.add.Tensor(*args)", "<dovetail>", "exec")
        assert watch.seen == []
        with watch.on(), suppress(Exception):
            exec(source)
        assert [event for event in watch.seen if "<test>" not in event]

    child = os.fork()
    if not child:
        with suppress(Exception):
            watched()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_empty_forgery_is_a_forgery(subjects: list[Subject], bench: Bench) -> None:
    empty = replace(_honest(subjects), packed=b"")
    assert bench._tried(empty, 1) == file_trial.REFUSED
