"""A file is replaced at once; what a killed process left behind is removed, what another one writes is not."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dovetail
from dovetail.artifact.container import open_container, write_container
from dovetail.artifact.replaced_file import replaced
from dovetail.errors import BadSavePath

pytest.importorskip("fcntl", reason="files are locked by it")


class _Writer:
    """A process that has written half of a file, and waits."""

    def __init__(self, path: Path, letter: bytes) -> None:
        here, self._go = os.pipe()
        told, there = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(self._go)

            def chunks() -> Iterator[bytes]:
                yield bytes(1 << 16)
                os.write(there, b"half")
                os.read(here, 1)
                yield letter * (1 << 16)

            try:
                write_container(path, {"data": chunks()})
                os._exit(0)
            finally:
                os._exit(1)
        os.close(here)
        os.close(there)
        assert os.read(told, 4) == b"half"
        os.close(told)

    def finish(self) -> int:
        """Let it go on. Returns: its exit status."""
        os.write(self._go, b"g")
        os.close(self._go)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])

    def kill(self) -> None:
        """End it where it is."""
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        os.close(self._go)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_parts_of_a_killed_process_go_with_the_next_save_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    path = tmp_path / "model.dovetail"
    write_container(path, {"data": b"old"})
    (tmp_path / ".model.dovetail.txt.0123456789abcdef.part").write_bytes(b"of another file")
    (tmp_path / ".model.dovetail.part").write_bytes(b"of the user")
    killed, living = _Writer(path, b"k"), _Writer(path, b"l")
    killed.kill()
    assert open_container(path).read("data") == b"old"
    assert len(_names(tmp_path)) == 5
    write_container(path, {"data": b"new"})
    assert open_container(path).read("data") == b"new"
    assert len(_names(tmp_path)) == 4  # that of the living one is there
    assert living.finish() == 0
    assert open_container(path, verify="full").read("data").endswith(b"l")
    write_container(path, {"data": b"last"})
    assert _names(tmp_path) == [".model.dovetail.part", ".model.dovetail.txt.0123456789abcdef.part", "model.dovetail"]


def test_concurrent_saves_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "model.dovetail"
    writers = [_Writer(path, letter) for letter in (b"a", b"b", b"c")]
    assert [writer.finish() for writer in reversed(writers)] == [0, 0, 0]
    assert open_container(path, verify="full").read("data").endswith(b"a")
    assert _names(tmp_path) == ["model.dovetail"]


def test_a_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "model.dovetail"
    write_container(path, {"data": b"old"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_container(path, {"data": bytes(1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert _names(tmp_path) == ["model.dovetail"]
    assert open_container(path).read("data") == b"old"


def test_links_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real / "model")
    for content in (b"one", b"two"):
        write_container(tmp_path / "link", {"data": content})
        assert (tmp_path / "link").is_symlink()
        assert open_container(real / "model").read("data") == content
    assert _names(tmp_path) == ["link", "real"]


def test_long_names(tmp_path: Path) -> None:
    for name in ("x" * 250, "\u00e9" * 120):
        write_container(tmp_path / name, {"data": b"long"})
        assert open_container(tmp_path / name).read("data") == b"long"
    assert len(_names(tmp_path)) == 2


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_container(tmp_path / "new", {"data": broken()})
    assert _names(tmp_path) == []


def test_where_no_file_can_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    model = dovetail.freeze(torch.nn.Linear(2, 2).eval(), (torch.randn(1, 2),), dynamic_shapes="static")
    before = _names(tmp_path)
    places = [tmp_path, tmp_path / "fifo", tmp_path / "s", tmp_path / "loop", tmp_path / "no" / "x", Path("/dev/null")]
    with server:
        for place in [*places, tmp_path / "a\0b", tmp_path / "fifo" / "x", tmp_path / ("x" * 300), Path("/proc/x")]:
            with pytest.raises(BadSavePath, match="DT-ARTIFACT-005"):
                model.save(place)
            with pytest.raises(BadSavePath), replaced(place):
                pytest.fail("it was opened")
    assert _names(tmp_path) == before
    assert (tmp_path / "fifo").is_fifo()
