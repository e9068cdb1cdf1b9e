"""The verdicts of a search, kept in a file, so that an interrupted search can resume.

A file of lines of JSON: what is searched (digests of the program, its inputs and the name of the check), then one line
per candidate: the digest of its text, and how it failed. The search is deterministic: started again, it asks for the
same candidates in the same order, and the file answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dovetail.artifact.limits import MAX_JSON_BYTES
from dovetail.artifact.regular_file import read_regular
from dovetail.errors import BadArtifact, OtherSearch
from dovetail.inspect.minify_failure import Failure
from dovetail.ir.program import Program
from dovetail.ir.text import emit, plain_call

_FORMAT = 1


def program_digest(program: Program) -> str:
    """A digest of all that a program's text says: its inputs with their layouts, its nodes, its outputs."""
    lines = [f"{value.name}: {value.meta!r}" for value in program.inputs]
    lines += [emit(program, plain_call, {}).text, *map(str, program.signature.inputs)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def inputs_digest(inputs: Sequence[Any]) -> str:
    """A digest of what inputs hold and where in their memory they lie; not of who shares memory."""
    digest = hashlib.sha256()
    for item in inputs:
        if not isinstance(item, torch.Tensor):
            digest.update(repr(item).encode())
            continue
        digest.update(f"{item.dtype} {tuple(item.shape)} {item.stride()} {item.storage_offset()}".encode())
        flat = torch.empty(0, dtype=torch.uint8, device=item.device).set_(item.untyped_storage())
        digest.update(flat.cpu().numpy().tobytes())
    return digest.hexdigest()


class Verdicts:
    """What is known of candidates. asked: how often the check was run; answered: how often it needed not.

    Raises: OtherSearch when the file belongs to another program, other inputs, or another check.
    """

    def __init__(self, path: Path | None, program: Program, inputs: Sequence[Any], check: str) -> None:
        self.asked = 0
        self.answered = 0
        self._path = path
        self._known: dict[str, Failure | None] = {}
        self._met: set[str] = set()
        header = {"format": _FORMAT, "check": check}
        if path is not None:
            header |= {"program": program_digest(program), "inputs": inputs_digest(inputs)}
            self._open(path, header)

    def get(self, digest: str) -> tuple[Failure | None] | None:
        """The verdict on a candidate, in a tuple; None when there is none."""
        if digest not in self._known:
            return None
        if digest not in self._met:
            self._met.add(digest)
            self.answered += 1
        return (self._known[digest],)

    def put(self, digest: str, failure: Failure | None) -> None:
        """Keep a verdict."""
        self.asked += 1
        self._met.add(digest)
        self._known[digest] = failure
        self._append({"candidate": digest, "failure": None if failure is None else failure.to_json()})

    def _open(self, path: Path, header: dict[str, object]) -> None:
        try:
            lines = read_regular(path, MAX_JSON_BYTES).split(b"\n") if path.exists() else []
        except (OSError, ValueError) as error:
            hint = "give another file; it is created if it does not exist"
            raise BadArtifact(path=path, expected="the verdicts of a search", reason=error, hint=hint) from error
        whole = lines[:-1]  # what follows the last line break was being written when the search was killed
        if not whole:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            self._append(header)
            return
        try:
            self._read(path, whole, header)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise OtherSearch(path=path, what="its format (it holds no verdicts)") from error
        if lines[-1]:
            path.write_bytes(b"\n".join(whole) + b"\n")

    def _read(self, path: Path, lines: list[bytes], header: dict[str, object]) -> None:
        first = json.loads(lines[0])
        for what, expected in header.items():
            if first[what] != expected:
                raise OtherSearch(path=path, what=f"the {what}")
        for line in lines[1:]:
            entry = json.loads(line)
            failure = entry["failure"]
            self._known[entry["candidate"]] = None if failure is None else Failure.from_json(failure)

    def _append(self, entry: dict[str, object]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
