"""A file is a ZIP archive that any reader opens, aligned, written at once, and read only where every byte is right."""

from __future__ import annotations

import random
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.artifact import checksums, zip_layout
from dovetail.artifact.checksums import crc32s, joined, sha256s
from dovetail.artifact.container import open_container, write_container
from dovetail.errors import BadArtifact, BadOptionValue, OtherArtifactVersion
from tests.rotation import rotated

MEMBERS = {"program.json": b'{"a":1}', "empty": b"", "deep/data.bin": bytes(range(256)) * 5, "last": b"x"}


def _written(path: Path) -> bytes:
    write_container(path, MEMBERS)
    return path.read_bytes()


@pytest.mark.parametrize("verify", ["fast", "full"])
def test_what_is_written_is_read(tmp_path: Path, verify: str) -> None:
    write_container(tmp_path / "a.dovetail", MEMBERS)
    container = open_container(tmp_path / "a.dovetail", verify=verify)  # type: ignore[arg-type]
    assert container.names == tuple(MEMBERS)
    assert {name: container.read(name) for name in container.names} == MEMBERS
    assert {name: bytes(container.map(name)) for name in container.names} == MEMBERS
    with pytest.raises(BadArtifact, match="member other: it is not in the file"):
        container.read("other")


def test_other_readers_open_it_and_members_are_aligned(tmp_path: Path) -> None:
    write_container(tmp_path / "a.dovetail", MEMBERS)
    content = (tmp_path / "a.dovetail").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.dovetail") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [*MEMBERS, "manifest.json"]
        for name, expected in MEMBERS.items():
            assert archive.read(name) == expected
            at = content.index(expected, archive.getinfo(name).header_offset + 30 + len(name)) if expected else 0
            assert at % 64 == 0
            assert archive.getinfo(name).compress_type == zipfile.ZIP_STORED


def test_equal_contents_make_equal_files(tmp_path: Path) -> None:
    chunks = {name: iter([content[:3], bytearray(content[3:])]) for name, content in MEMBERS.items()}
    write_container(tmp_path / "b.dovetail", chunks)
    assert _written(tmp_path / "a.dovetail") == (tmp_path / "b.dovetail").read_bytes()


def test_zip64_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_layout, "ZIP64_FROM", 1000)
    content = _written(tmp_path / "a.dovetail")
    assert b"PK\6\6" in content
    with zipfile.ZipFile(tmp_path / "a.dovetail") as archive:
        assert archive.testzip() is None
        assert archive.read("deep/data.bin") == MEMBERS["deep/data.bin"]
    container = open_container(tmp_path / "a.dovetail", verify="full")
    assert {name: container.read(name) for name in container.names} == MEMBERS
    for position in rotated(range(len(content)), 8):
        _refused(tmp_path, content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])


def test_a_failure_leaves_the_older_file(tmp_path: Path) -> None:
    before = _written(tmp_path / "a.dovetail")

    def broken() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_container(tmp_path / "a.dovetail", {"x": broken()})
    assert (tmp_path / "a.dovetail").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.dovetail"]


@pytest.mark.parametrize(
    "name", ["", "../x", "/x", "a//b", "a\\b", "é", "a\nb", "a/../b", ".x", "manifest.json", "x" * 300]
)
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"not a name|manifest.json"):
        write_container(tmp_path / "a.dovetail", {name: b""})
    assert not list(tmp_path.iterdir())


def _refused(tmp_path: Path, content: bytes, match: str = "DT-ARTIFACT-00") -> None:
    (tmp_path / "bad.dovetail").write_bytes(content)
    with pytest.raises(BadArtifact, match=match):
        open_container(tmp_path / "bad.dovetail")


def test_files_that_are_refused(tmp_path: Path) -> None:
    content = _written(tmp_path / "a.dovetail")
    _refused(tmp_path, b"", "empty file")
    _refused(tmp_path, b"hello", "too short")
    _refused(tmp_path, b"hello" * 20, "truncated, or not a ZIP file")
    _refused(tmp_path, content + b"\0", "truncated, or not a ZIP file")
    _refused(tmp_path, b"\0" + content, "damaged")
    _refused(tmp_path, content[:2000] + b"\0" + content[2000:], "damaged")
    with pytest.raises(BadArtifact, match="No such file"):
        open_container(tmp_path / "none")
    with pytest.raises(BadArtifact, match="directory"):
        open_container(tmp_path)
    with pytest.raises(BadOptionValue, match='"fast" or "full"'):
        open_container(tmp_path / "a.dovetail", verify="no")  # type: ignore[arg-type]


def test_archives_of_other_programs(tmp_path: Path) -> None:
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "bad.dovetail", "w", compression) as archive:
            for name, content in MEMBERS.items():
                archive.writestr(name, content)
        _refused(tmp_path, (tmp_path / "bad.dovetail").read_bytes(), "damaged")


def _packed(members: dict[str, bytes]) -> bytes:
    """A file of exactly these members, the manifest included or not."""
    content, written = b"", []
    for name, data in members.items():
        member = zip_layout.Member(name, len(data), zlib.crc32(data), len(content))
        content += zip_layout.header(member) + data
        written.append(member)
    return content + zip_layout.directory(written)


@pytest.mark.parametrize(
    ("manifest", "match"),
    [
        (b"", "Expecting value"),
        (b"[]", 'does not say "format"'),
        (b'{"format":"dovetail artifact","version":1,"members":{}}', "not the ones that its manifest.json lists"),
        (b'{"format":"dovetail artifact","version":1,"members":{"x":[]}}', "no checksum"),
        (b'{"format":"dovetail artifact","version":1,"members":{"x":{"bytes":9,"sha256":"%s"}}}', "contradicts"),
        (b'{"format":"dovetail artifact","version":1,"version":1,"members":{}}', "a duplicate key"),
        (b'{"format":"dovetail artifact","version":2,"more":0}', "format version 2; this dovetail reads version 1"),
        (b"[" * 100_000, "nested"),
        (b'{"format":NaN}', "NaN is not JSON"),
        (b"\xff", "codec"),
    ],
)
def test_manifests_that_are_refused(tmp_path: Path, manifest: bytes, match: str) -> None:
    manifest = manifest.replace(b"%s", b"0" * 64)
    _refused(tmp_path, _packed({"x": b"abc", "manifest.json": manifest}), match)


def test_no_manifest_and_doubled_members(tmp_path: Path) -> None:
    _refused(tmp_path, _packed({"x": b"abc"}), "it has no manifest.json")
    _refused(tmp_path, _packed({}), "it has no manifest.json")
    twice = [zip_layout.Member("x", 0, 0, 0)]
    twice.append(zip_layout.Member("x", 0, 0, twice[0].end))
    content = zip_layout.header(twice[0]) + zip_layout.header(twice[1]) + zip_layout.directory(twice)
    _refused(tmp_path, content, "two members have one name")


def test_another_version_is_an_error_of_its_own(tmp_path: Path) -> None:
    manifest = b'{"format":"dovetail artifact","version":7}'
    (tmp_path / "a").write_bytes(_packed({"manifest.json": manifest}))
    with pytest.raises(OtherArtifactVersion, match="DT-ARTIFACT-003") as caught:
        open_container(tmp_path / "a")
    assert caught.value.facts["found"] == 7


def test_full_verification_finds_what_the_fast_one_cannot(tmp_path: Path) -> None:
    write_container(tmp_path / "a", {"x": b"abc"})
    manifest = zipfile.ZipFile(tmp_path / "a").read("manifest.json")
    (tmp_path / "b").write_bytes(_packed({"x": b"abd", "manifest.json": manifest}))
    assert open_container(tmp_path / "b").read("x") == b"abd"
    with pytest.raises(BadArtifact, match="contradicts its members"):
        open_container(tmp_path / "b", verify="full")


def test_writes_to_mapped_memory_stay_here(tmp_path: Path) -> None:
    before = _written(tmp_path / "a")
    container, other = open_container(tmp_path / "a"), open_container(tmp_path / "a")
    view = container.map("deep/data.bin")
    view[0] = 77
    assert container.read("deep/data.bin")[0] == 77
    assert other.read("deep/data.bin")[0] == 0
    assert (tmp_path / "a").read_bytes() == before


def test_checksums_of_pieces_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(0)
    buffers = [choose.randbytes(size) for size in (0, 1, 7, 4096, 100_003)]
    for first in buffers:
        for second in buffers:
            assert joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
    monkeypatch.setattr(checksums, "PIECE", 1000)
    assert crc32s([memoryview(b) for b in buffers]) == [zlib.crc32(b) for b in buffers]
    assert len(set(sha256s([memoryview(b) for b in buffers]))) == len(buffers)


_READER = """
import sys
from dovetail.artifact.container import open_container
container = open_container(sys.argv[1])
total = sum(container.map("big")[::4096])
found, here = {}, False
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0] and ":" not in line.split()[0]:
        here = sys.argv[1] in line
    elif here and line.split()[0] in ("Rss:", "Private_Dirty:", "Shared_Clean:"):
        found[line.split()[0]] = found.get(line.split()[0], 0) + int(line.split()[1])
print(found["Rss:"], found["Private_Dirty:"], found["Shared_Clean:"])
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells which pages are shared")
def test_two_processes_share_the_pages(tmp_path: Path) -> None:
    path = tmp_path / "big.dovetail"
    write_container(path, {"big": (bytes([k]) * (1 << 20) for k in range(16))})
    command = [sys.executable, "-c", _READER, str(path)]
    here = open_container(path).map("big")
    assert sum(here[::4096]) == 256 * sum(range(16))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert sum(here[::4096]) == 256 * sum(range(16)), "mapped until the other process has looked"
    resident, dirty, shared = map(int, done.stdout.split())
    assert resident >= 16 << 10
    assert dirty < 0.05 * resident
    assert shared > 0.9 * resident
