"""The file `.dovetail`: members by name in a ZIP archive, each aligned to 64 bytes, uncompressed, and checked.

    manifest.json    {"format": "dovetail artifact", "version": 1, "members": {name: {"bytes", "sha256"}}}

Any ZIP reader opens such a file. This one reads no other: it compares all bytes between the members with what the
layout says (`zip_layout`), and the checksum of each member, before anything is returned; so one flipped bit anywhere
in a file is detected. A checksum is not a signature: anyone can write a file with correct checksums.

Members are mapped into memory, privately: processes that read one file share its pages, and a write to mapped
memory reaches neither the file nor other processes. The file must not be changed in place while it is mapped.
`write_container` never does that; it replaces the whole file.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, TypeVar

from dovetail.artifact import zip_layout
from dovetail.artifact.checksums import crc32s, sha256s
from dovetail.artifact.json_text import json_bytes, read_json
from dovetail.artifact.regular_file import open_regular
from dovetail.artifact.replaced_file import replaced
from dovetail.artifact.zip_layout import Member
from dovetail.errors import BadArtifact, BadOptionValue, DovetailError, OtherArtifactVersion

FORMAT = "dovetail artifact"
VERSION = 1
MANIFEST = "manifest.json"

Chunk: TypeAlias = "bytes | bytearray | memoryview"
T = TypeVar("T")

_EXPECTED = "a .dovetail file"
_LONGEST_REASON = 400
_HINT = "save it again with dovetail, or copy it again from where it was saved"


def write_container(path: str | Path, members: Mapping[str, Chunk | Iterable[Chunk]]) -> None:
    """Write a file of these members, in this order, and put it in the place of an older one at once.

    A member is bytes, or chunks of bytes that are asked for one after the other, so that large members are never whole
    in memory. A failure leaves no file behind, and an older one as it was.

    Raises: ValueError for a name that is none, or `manifest.json`, which is written here; OSError of the file system.
    Cost: two checksums over all bytes.
    """
    for name in members:
        zip_layout.check_name(name)
    if MANIFEST in members or len(members) >= zip_layout.MAX_MEMBERS:
        raise ValueError(f"{len(members)} members, or one of them is called {MANIFEST}")
    with replaced(path) as file:
        _write_members(file, members)


def _write_members(file: IO[bytes], members: Mapping[str, Chunk | Iterable[Chunk]]) -> None:
    written: list[Member] = []
    listed: dict[str, object] = {}
    for name, content in members.items():
        member, digest = _write_member(file, name, content, written[-1].end if written else 0)
        written.append(member)
        listed[name] = {"bytes": member.size, "sha256": digest}
    manifest = json_bytes({"format": FORMAT, "version": VERSION, "members": listed})
    written.append(_write_member(file, MANIFEST, manifest, written[-1].end if written else 0)[0])
    file.write(zip_layout.directory(written))


def _write_member(file: IO[bytes], name: str, content: Chunk | Iterable[Chunk], start: int) -> tuple[Member, str]:
    crc = size = 0
    digest = hashlib.sha256()
    file.write(bytes(zip_layout.data_start(start, name) - start))
    for chunk in (content,) if isinstance(content, bytes | bytearray | memoryview) else content:
        view = memoryview(chunk).cast("B")
        crc = zlib.crc32(view, crc)
        digest.update(view)
        size += len(view)
        file.write(view)
    member = Member(name, size, crc, start)
    file.seek(start)
    file.write(zip_layout.header(member))
    file.seek(member.end)
    return member, digest.hexdigest()


def open_container(path: str | Path, *, verify: Literal["fast", "full"] = "fast") -> Container:
    """Map a file into memory after all of it was checked.

    fast: every byte between members, and the CRC-32 of each member. full: the SHA-256 of each member as well, which
    finds damage of any kind, but no forgery.

    Raises: BadArtifact for a file that is missing, damaged, or written by anything else; OtherArtifactVersion for one
    that another dovetail wrote; BadOptionValue for another `verify`.
    Cost: one pass over the file (about 0.25 s for 400 MB on two cores), two for `full`.
    """
    if verify not in ("fast", "full"):
        reason, expected = "there are two ways to check a file", '"fast" or "full"'
        raise BadOptionValue(option="verify", value=verify, reason=reason, expected=expected)
    path = Path(path)
    try:
        with open_regular(path) as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if hasattr(mmap, "MADV_WILLNEED"):
            with contextlib.suppress(OSError):  # advice that some file systems do not take
                mapping.madvise(mmap.MADV_WILLNEED)
        whole = memoryview(mapping)
        members = {member.name: member for member in zip_layout.read_layout(whole)}
        views = {name: whole[member.data : member.end] for name, member in members.items()}
        for member, crc in zip(members.values(), crc32s(list(views.values())), strict=True):
            if crc != member.crc:
                raise ValueError(f"{member.name} is damaged")
        _check_manifest(path, views, verify == "full")
    except (OSError, ValueError) as error:
        raise _refusal(path, str(error)) from error
    del views[MANIFEST]
    return Container(path, views)


def _check_manifest(path: Path, views: Mapping[str, memoryview], is_full: bool) -> None:
    if MANIFEST not in views:
        raise ValueError(f"it has no {MANIFEST}")
    content = bytes(views[MANIFEST])
    data = read_json(content)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'its {MANIFEST} does not say "format": "{FORMAT}"')
    version = data.get("version")
    if version != VERSION or isinstance(version, bool):
        raise OtherArtifactVersion(path=path, found=version, known=VERSION)
    others = {name: view for name, view in views.items() if name != MANIFEST}
    listed = data.get("members")
    if not isinstance(listed, dict) or list(listed) != list(others):
        raise ValueError(f"its members are not the ones that its {MANIFEST} lists")
    digests = sha256s(list(others.values())) if is_full else [_digest_of(entry) for entry in listed.values()]
    right = {name: {"bytes": len(view), "sha256": d} for (name, view), d in zip(others.items(), digests, strict=True)}
    if json_bytes({"format": FORMAT, "version": VERSION, "members": right}) != content:
        raise ValueError(f"its {MANIFEST} contradicts its members")


def _digest_of(entry: object) -> str:
    digest = entry.get("sha256") if isinstance(entry, dict) else None
    if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError(f"its {MANIFEST} has no checksum for a member")
    return digest


class Container:
    """The members of a file that was checked; made by `open_container`. Memory stays mapped while something uses it."""

    def __init__(self, path: Path, views: Mapping[str, memoryview]) -> None:
        self.path = path
        self._views = dict(views)

    @property
    def names(self) -> tuple[str, ...]:
        """The members, in the order in which they were written; without the manifest."""
        return tuple(self._views)

    def read(self, name: str) -> bytes:
        """A copy of a member. Raises: BadArtifact when there is none of that name."""
        return bytes(self.map(name))

    def map(self, name: str) -> memoryview:
        """A member where it is mapped, aligned to 64 bytes. Writes stay in this process.

        Raises: BadArtifact when there is none of that name.
        """
        if name not in self._views:
            raise self.refusal(name, "it is not in the file")
        return self._views[name]

    def decode(self, name: str, reader: Callable[[Any], T]) -> T:
        """What `reader` makes of a member that is JSON.

        Raises: BadArtifact when there is none of that name, or the reader refuses it (ValueError).
        """
        try:
            return reader(read_json(self.read(name)))
        except DovetailError:
            raise
        except (ValueError, RuntimeError, ArithmeticError) as error:  # also of operators that are tried on descriptions
            raise self.refusal(name, error) from error

    def refusal(self, name: str, reason: object) -> BadArtifact:
        """The error that a member is not what it should be."""
        return _refusal(self.path, f"member {name}: {reason}")

    def __repr__(self) -> str:
        return f"Container({str(self.path)!r}: {', '.join(self._views)})"


def _refusal(path: Path, reason: str) -> BadArtifact:
    short = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."  # it may quote the file
    return BadArtifact(path=path, expected=_EXPECTED, reason=short, hint=_HINT)
