"""Only regular files are read, whoever reads them; nothing waits for a FIFO or reads a device to its end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.artifact.call import load_call
from dovetail.artifact.json_text import read_json
from dovetail.artifact.regular_file import open_regular, read_regular
from dovetail.errors import BadArtifact
from dovetail.inspect.bisect import bisect
from dovetail.inspect.dump_folder import read_dump, read_step
from dovetail.inspect.minify_files import read_source
from dovetail.inspect.replay import replay

_READERS: dict[str, Callable[[Path], Any]] = {
    "load": dovetail.load,
    "call": load_call,
    "step": read_step,
    "dump": read_dump,
    "replay": replay,
    "bisect": bisect,
    "minify": read_source,
}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Things that are not files, by what they are."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to the fifo").symlink_to(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "other loop")
    (tmp_path / "other loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        yield {
            **{name: tmp_path / name for name in ("fifo", "to the fifo", "loop", "folder", "s", "nothing")},
            "zero": Path("/dev/zero"),
            "null": Path("/dev/null"),
            "bad name": tmp_path / "a\0b",
        }


@pytest.mark.parametrize("reader", list(_READERS))
def test_what_is_no_file_is_refused_at_once(places: dict[str, Path], reader: str) -> None:
    for place in places.values():
        with pytest.raises(BadArtifact, match="DT-ARTIFACT-002"):
            _READERS[reader](place)


@pytest.mark.parametrize("reader", ["dump", "replay", "bisect", "minify"])
def test_what_is_no_file_in_a_folder_is_refused_at_once(tmp_path: Path, reader: str) -> None:
    for name in ("000-recorded.json", "forward.inputs.safetensors"):
        folder = tmp_path / name / "000-f"
        folder.mkdir(parents=True)
        (folder / "000-recorded.json").write_text('{"not_serializable": "x", "nodes": 0}')
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        with pytest.raises(BadArtifact):
            _READERS[reader](tmp_path / name)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(ValueError, match="5 bytes, and at most 4 are"):
        read_regular(tmp_path / "file", 4)
    with open_regular(tmp_path / "file") as file:
        assert file.read(1) == b"1"


@pytest.mark.parametrize(
    "text",
    [
        *(b"[" * 200_000, b'{"a":' * 200_000 + b"1", b"[" * 121 + b"]" * 121, b"1" * 5000, b"-" + b"1" * 1001),
        *(b"1e999", b"-1e999", b"NaN", b"Infinity", b'{"a":1,"a":2}', b'"\\ud800"', b'{"\\udfff":1}', b"\xff", b""),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_json_that_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_json_that_is_read() -> None:
    assert read_json(b'"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"
    assert read_json(b"[" * 119 + b"]" * 119)
    assert read_json(b'[1e300, {"a": -12345678901234567890}]') == [1e300, {"a": -12345678901234567890}]
