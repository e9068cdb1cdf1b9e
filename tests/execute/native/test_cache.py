"""What is kept on disk between processes: what is read again, what is refused, and what a second process still does."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dovetail.errors import BadOptionValue
from dovetail.execute.native import cache, probes
from dovetail.execute.native.cache_folder import CacheFolder
from dovetail.execute.native.formula import operand
from dovetail.execute.native.probes import ARRAY, Question, formula_of
from tests.execute.native.programs import aten
from tests.searching import ON_PATH

NAME, OTHER = "a" * 64, "b" * 64
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="nothing is kept elsewhere")
pytestmark = LINUX

_SECOND = """
import sys, torch, dovetail
from dovetail.execute.native import machine, probes
done = []
for module, name in ((probes, "_try_all"), (machine, "_object_code")):
    def noted(*args, real=getattr(module, name), name=name):
        done.append(name)
        return real(*args)
    setattr(module, name, noted)
torch.manual_seed(0)
x = torch.randn(1000)
f = lambda x: (x.mul(0.3).exp() + x).tanh().mul(x)
assert torch.equal(dovetail.compile(f, executors=("native", "aten"))(x), f(x))
print(len(done))
"""


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / "native", 1 << 20)


def _file(folder: CacheFolder, name: str = NAME) -> Path:
    return folder.path / f"{name}.entry"


def _keep(folder: CacheFolder, name: str = NAME, payload: bytes = b"bytes\n\0of code") -> None:
    folder.write(name, "kernel", "a loop", "here", payload)


def test_what_is_written_is_read_again(folder: CacheFolder) -> None:
    assert folder.read(NAME) is None
    _keep(folder)
    assert folder.read(NAME) == b"bytes\n\0of code"
    assert folder.read(OTHER) is None
    [entry] = folder.entries()
    assert (entry.name, entry.kind, entry.what, entry.made_for) == (NAME, "kernel", "a loop", "here")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(_file(folder).stat().st_mode) == 0o600
    assert folder.clear() == 1
    assert folder.entries() == []


def test_what_was_changed_is_not_read(folder: CacheFolder) -> None:
    _keep(folder)
    whole = _file(folder).read_bytes()
    for at in range(len(whole)):
        _file(folder).write_bytes(whole[:at])
        assert folder.read(NAME) is None
        _file(folder).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert folder.read(NAME) is None
    _file(folder).write_bytes(whole + b"\0")
    assert folder.read(NAME) is None
    assert folder.entries() == []
    _file(folder).write_bytes(whole)
    assert folder.read(NAME) is not None


def test_an_entry_under_another_name_is_not_read(folder: CacheFolder) -> None:
    _keep(folder)
    _file(folder).rename(_file(folder, OTHER))
    assert folder.read(OTHER) is None


def test_files_that_others_may_write_are_not_read(folder: CacheFolder) -> None:
    _keep(folder)
    for mode in (0o620, 0o602, 0o666):
        _file(folder).chmod(mode)
        assert folder.read(NAME) is None
    _file(folder).chmod(0o644)
    assert folder.read(NAME) is not None
    outside = folder.path.parent / "outside"
    _file(folder).rename(outside)
    _file(folder).symlink_to(outside)
    assert folder.read(NAME) is None


def test_folders_that_others_may_write_are_not_used(folder: CacheFolder) -> None:
    _keep(folder)
    for mode in (0o770, 0o707, 0o1777):
        folder.path.chmod(mode)
        assert folder.read(NAME) is None
        assert "others" in folder.problem()
        _keep(folder, OTHER)
        assert not _file(folder, OTHER).exists()
        assert folder.entries() == []
        assert folder.clear() == 0
    folder.path.chmod(0o755)
    assert folder.read(NAME) is not None
    moved = folder.path.rename(folder.path.parent / "moved")
    folder.path.symlink_to(moved)
    assert folder.read(NAME) is None


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root may give files away")
def test_what_belongs_to_others_is_not_read(folder: CacheFolder) -> None:
    _keep(folder)
    os.chown(_file(folder), 12_345, -1)
    assert folder.read(NAME) is None
    os.chown(_file(folder), 0, -1)
    os.chown(folder.path, 12_345, -1)
    assert folder.read(NAME) is None
    assert "another user" in folder.problem()


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = CacheFolder(tmp_path / "file" / "native", 1 << 20)
    _keep(folder)
    assert (folder.read(NAME), folder.entries(), folder.clear()) == (None, [], 0)
    assert folder.problem()


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "native", 20_000)
    names = [f"{at:064d}" for at in range(8)]
    for at, name in enumerate(names):
        _keep(folder, name, bytes(4000))
        os.utime(_file(folder, name), (at, at))
    assert folder.read(names[0]) is not None  # now it was used last
    _keep(CacheFolder(tmp_path / "native", 20_000), OTHER, bytes(4000))
    kept = {entry.name for entry in folder.entries()}
    assert kept == {OTHER, names[0], names[7], names[6]}
    _keep(CacheFolder(tmp_path / "native", 20_000), NAME, bytes(30_000))
    assert NAME not in {entry.name for entry in folder.entries()}


def test_files_that_were_never_finished_go(folder: CacheFolder) -> None:
    _keep(folder)
    old, new = folder.path / "1-old.part", folder.path / "2-new.part"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))
    _keep(CacheFolder(folder.path, 1 << 20), OTHER)
    assert not old.exists()
    assert new.exists()


def test_many_processes_at_once(folder: CacheFolder) -> None:
    code = (
        "import sys; from pathlib import Path; from dovetail.execute.native.cache_folder import CacheFolder\n"
        "for n in range(300):\n"
        "    folder = CacheFolder(Path(sys.argv[1]), 30_000)\n"
        "    name = f'{n % 7:064d}'\n"
        "    found = folder.read(name)\n"
        "    assert found is None or found == name.encode() * 100, found\n"
        "    folder.write(name, 'kernel', '', '', name.encode() * 100)\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(folder.path)], env=ON_PATH) for _ in range(3)]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    assert sum(entry.size for entry in folder.entries()) <= 30_000
    assert not list(folder.path.glob("*.part"))


def _question(again: str) -> Question:
    return Question(aten.neg.default, (operand(0), -operand(0)), torch.float32, (("self", ARRAY),), (), "", (), again)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("llvmlite")
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    monkeypatch.setattr(probes, "_FOUND", {})
    return tmp_path / "native"


def test_what_probes_found_is_read_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert formula_of(_question("kept")) == -operand(0)
    assert any(fresh.iterdir())
    monkeypatch.setattr(probes, "_FOUND", {})
    monkeypatch.setattr(probes, "_try_all", lambda _: pytest.fail("it is on disk"))
    assert formula_of(_question("kept")) == -operand(0)


@pytest.mark.parametrize("name", ["made_for", "threads"])
def test_what_was_found_elsewhere_is_found_anew(name: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    formula_of(_question("elsewhere"))
    monkeypatch.setattr(probes, "_FOUND", {})
    tried: list[Question] = []
    monkeypatch.setattr(probes, "_try_all", lambda question: tried.append(question) or 0)
    if name == "made_for":
        monkeypatch.setattr(cache, "made_for", lambda: "another processor")
    else:
        torch.set_num_threads(2 if threads == 1 else 1)
    try:
        assert formula_of(_question("elsewhere")) == operand(0)
    finally:
        torch.set_num_threads(threads)
    assert len(tried) == 1


def test_nothing_is_kept_of_kernels_of_other_libraries(fresh: Path) -> None:
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("pinverse", torch.neg, "CPU")
        pinverse = aten.pinverse.default
        question = Question(pinverse, (-operand(0),), torch.float32, (("self", ARRAY),), (), "", (), "other")
        assert formula_of(question) == -operand(0)
    assert not any(entry.kind == "probe" for entry in CacheFolder(fresh, 1).entries())


def test_nothing_is_kept_while_tiny_numbers_are_zeros(fresh: Path) -> None:
    formula_of(_question("warm"))
    if not torch.set_flush_denormal(True):
        pytest.skip("not on this processor")
    try:
        assert formula_of(_question("flushed")) is None
    finally:
        torch.set_flush_denormal(False)
    assert formula_of(_question("flushed")) == -operand(0)


def _run(folder: Path | str) -> int:
    environment = {**ON_PATH, cache.FOLDER: str(folder)}
    done = subprocess.run([sys.executable, "-c", _SECOND], capture_output=True, text=True, check=False, env=environment)
    assert not done.returncode, done.stderr
    return int(done.stdout)


def test_a_second_process_neither_probes_nor_compiles(fresh: Path, tmp_path: Path) -> None:
    first = _run(tmp_path)
    assert first > 5
    assert _run(tmp_path) == 0
    for path in fresh.iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    assert _run(tmp_path) == first
    assert _run(tmp_path) == 0
    assert _run("") == first


def test_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, size in (("1000", 1000), ("2 kB", 2000), ("1.5MiB", 3 << 19), ("9" * 400, int("9" * 400)), ("0", 0)):
        monkeypatch.setenv(cache.SIZE, text)
        assert cache.most_bytes() == size
    assert cache.cache_folder() is None
    assert "DOVETAIL_CACHE_SIZE is 0" in cache.state()
    for text in ("much", "-1", "1 mb", ""):
        monkeypatch.setenv(cache.SIZE, text)
        with pytest.raises(BadOptionValue, match="DOVETAIL_CACHE_SIZE"):
            cache.most_bytes()


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    assert cache.folder_path() == tmp_path / "native"
    monkeypatch.setenv(cache.FOLDER, "")
    assert cache.folder_path() is None
    assert "off" in cache.state()
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder_path() == tmp_path / "dovetail" / "native"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache.folder_path() == Path("/home/somebody/.cache/dovetail/native")
