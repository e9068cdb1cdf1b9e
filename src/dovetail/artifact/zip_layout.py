"""The position of each byte of a `.dovetail` file: a ZIP archive of stored members with exactly one possible layout.

The layout is a function of the members' names, sizes and checksums, in order. Members follow each other without gaps;
the data of each begins at a multiple of 64 bytes, after an extra field of zeros (the field that Android's `zipalign`
writes). Dates are those of no day, so that equal contents make equal files. Sizes above 4 GiB use the zip64 fields.

A reader therefore takes only names, sizes and checksums from the directory, reconstructs the layout, and compares:
every byte that is not data has one correct value.

Source: APPNOTE.TXT of the ZIP format, https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
# From this size on, a number moves to a field of eight bytes; what is left in its place is `_ELSEWHERE`.
ZIP64_FROM = 0xFFFFFFFF
MAX_MEMBERS = 0xFFFE

_ELSEWHERE = 0xFFFFFFFF
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_MAX_NAME = 200
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_PAD = struct.Struct("<3H")
_ZIP64_FIELD, _PAD_FIELD = 0x0001, 0xD935
_LARGEST_ZIP64 = 4 + 16
_NO_TIME, _NO_DAY = 0, 0x21  # 1980-01-01, the first that the format can say
_VERSION, _VERSION64, _UNIX = 20, 45, 3 << 8
_PERMISSIONS = 0o100644 << 16


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its header begins at `start`, its `size` bytes of data at `data`."""

    name: str
    size: int
    crc: int
    start: int

    @property
    def data(self) -> int:
        """Where its data begins: the same for all sizes, so that it can be written before the size is known."""
        return data_start(self.start, self.name)

    @property
    def end(self) -> int:
        """Where its data ends and the next header begins."""
        return self.data + self.size


def check_name(name: str) -> None:
    """Raise ValueError unless this may name a member: a short relative path in plain letters, without `..`."""
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is not a name for a member")


def data_start(start: int, name: str) -> int:
    """Where the data of a member begins whose header begins at `start`."""
    least = start + _LOCAL.size + len(name) + _LARGEST_ZIP64 + _PAD.size
    return -(-least // ALIGNMENT) * ALIGNMENT


def header(member: Member) -> bytes:
    """All bytes from `member.start` to `member.data`."""
    is_big = member.size >= ZIP64_FROM
    size = _ELSEWHERE if is_big else member.size
    room = member.data - member.start - _LOCAL.size - len(member.name)
    extra = struct.pack("<2H2Q", _ZIP64_FIELD, 16, member.size, member.size) if is_big else b""
    extra += _PAD.pack(_PAD_FIELD, room - len(extra) - 4, ALIGNMENT)
    version = _VERSION64 if is_big else _VERSION
    fixed = (b"PK\3\4", version, 0, 0, _NO_TIME, _NO_DAY, member.crc, size, size, len(member.name), room)
    return _LOCAL.pack(*fixed) + member.name.encode("ascii") + extra.ljust(room, b"\0")


def directory(members: Sequence[Member]) -> bytes:
    """All bytes that follow the data of the last member."""
    start = members[-1].end if members else 0
    entries = b"".join(map(_entry, members))
    count, size = len(members), len(entries)
    end = b""
    is_big = size >= ZIP64_FROM or start >= ZIP64_FROM
    if is_big:
        versions = (_VERSION64 | _UNIX, _VERSION64)
        end = _END64.pack(b"PK\6\6", _END64.size - 12, *versions, 0, 0, count, count, size, start)
        end += _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
        size = start = _ELSEWHERE
    return entries + end + _END.pack(b"PK\5\6", 0, 0, count, count, size, start, 0)


def _entry(member: Member) -> bytes:
    size, start, wide = member.size, member.start, b""
    if size >= ZIP64_FROM:
        wide += struct.pack("<2Q", size, size)
        size = _ELSEWHERE
    if start >= ZIP64_FROM:
        wide += struct.pack("<Q", start)
        start = _ELSEWHERE
    extra = struct.pack("<2H", _ZIP64_FIELD, len(wide)) + wide if wide else b""
    version = _VERSION64 if wide else _VERSION
    fixed = (b"PK\1\2", version | _UNIX, version, 0, 0, _NO_TIME, _NO_DAY, member.crc, size, size)
    lengths = (len(member.name), len(extra), 0, 0, 0)
    return _CENTRAL.pack(*fixed, *lengths, _PERMISSIONS, start) + member.name.encode("ascii") + extra


def read_layout(file: memoryview) -> tuple[Member, ...]:
    """The members of a file, after every byte of it that is not data was compared with what is written for them.

    Raises: ValueError that says what is wrong. The data itself is not read. Cost: linear in the number of members.
    """
    members = _listed(file)
    names = {member.name for member in members}
    if len(names) < len(members):
        raise ValueError("two members have one name")
    end = members[-1].end if members else 0
    if end > len(file) or file[end:] != directory(members):
        raise ValueError("its directory is damaged, or the file was cut off, added to, or written by another program")
    for member in members:
        if file[member.start : member.data] != header(member):
            raise ValueError(f"the header of {member.name} is damaged, or was written by another program")
    return members


def _listed(file: memoryview) -> tuple[Member, ...]:
    """The members that the directory lists, each placed where the layout puts it."""
    end = len(file) - _END.size
    if end < 0:
        raise ValueError("it is too short")
    signature, _, _, _, count, _, at, _ = _END.unpack_from(file, end)
    if signature != b"PK\5\6":
        raise ValueError("it has no end of central directory: it is truncated, or not a ZIP file")
    wide = end - _LOCATOR.size - _END64.size
    if at == _ELSEWHERE and wide >= 0:
        at = _END64.unpack_from(file, wide)[-1]
    members: list[Member] = []
    start = 0
    for _ in range(count):
        if at + _CENTRAL.size > end or bytes(file[at : at + 4]) != b"PK\1\2":
            raise ValueError("its directory is damaged, or not where it should be")
        fields = _CENTRAL.unpack_from(file, at)
        crc, size, name_length, extra_length = fields[7], fields[9], fields[10], fields[11]
        at += _CENTRAL.size
        name = bytes(file[at : at + name_length]).decode("ascii", "replace")
        check_name(name)
        at += name_length
        if size == _ELSEWHERE and at + _LARGEST_ZIP64 <= end:
            size = struct.unpack_from("<Q", file, at + 4)[0]
        at += extra_length
        members.append(Member(name, size, crc, start))
        start = members[-1].end
    return tuple(members)
