"""A search that was broken off goes on, and one that is done answers from its file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.errors import BadArtifact, OtherSearch
from dovetail.inspect.minify import minify
from dovetail.inspect.minify_files import Verdicts, inputs_digest, program_digest
from dovetail.inspect.minify_oracles import Agrees, CheckFile, Compiles, Failure
from dovetail.ir.program import Program
from tests.inspect.planted import BROKEN, Contains, long_program

aten = torch.ops.aten
FAULT = "aten.erf.default({a})"


class _Killed(BaseException):
    pass


class _Mortal(Contains):
    """Ends the search at its n-th call."""

    def __init__(self, *targets: object, at: int) -> None:
        super().__init__(*targets)
        self.at = at

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        if self.calls == self.at:
            raise _Killed
        return super().__call__(program, inputs)


def test_a_second_search_asks_nothing(tmp_path: Path) -> None:
    program, inputs = long_program(0, 200, FAULT, 90, writes=True)
    state = tmp_path / "deep" / "state.jsonl"
    first, again = Contains(BROKEN, aten.t.default), Contains(BROKEN, aten.t.default)
    found = minify(program, inputs, first, state=state)
    text = state.read_bytes()
    repeated = minify(program, inputs, again, state=state)
    assert again.calls == repeated.asked == 0
    assert repeated.answered == found.asked == first.calls
    assert program_digest(repeated.program) == program_digest(found.program)
    assert inputs_digest(repeated.inputs) == inputs_digest(found.inputs)
    assert state.read_bytes() == text


@pytest.mark.parametrize("at", [0, 1, 2, 7, 15])
def test_a_search_that_was_killed_goes_on(at: int, tmp_path: Path) -> None:
    program, inputs = long_program(0, 200, FAULT, 90, writes=True)
    state = tmp_path / "state.jsonl"
    whole = Contains(BROKEN, aten.t.default)
    expected = minify(program, inputs, whole)
    with pytest.raises(_Killed):
        minify(program, inputs, _Mortal(BROKEN, aten.t.default, at=at), state=state)
    with state.open("ab") as file:
        file.write(b'{"candidate": "half a li')  # killed while it was written
    rest = Contains(BROKEN, aten.t.default)
    found = minify(program, inputs, rest, state=state)
    assert rest.calls == whole.calls - at
    assert program_digest(found.program) == program_digest(expected.program)
    again = Contains(BROKEN, aten.t.default)
    minify(program, inputs, again, state=state)
    assert again.calls == 0


def test_a_limit_can_be_raised(tmp_path: Path) -> None:
    program, inputs = long_program(0, 200, FAULT, 90)
    state = tmp_path / "state.jsonl"
    assert not minify(program, inputs, Contains(BROKEN), state=state, limit=5).is_complete
    found = minify(program, inputs, Contains(BROKEN), state=state)
    assert found.is_complete
    assert found.answered > 0
    assert len(found.program.nodes) == 1


def test_the_file_of_another_search_is_refused(tmp_path: Path) -> None:
    program, inputs = long_program(0, 60, FAULT, 30)
    other, _ = long_program(1, 60, FAULT, 30)
    state = tmp_path / "state.jsonl"
    minify(program, inputs, Contains(BROKEN), state=state)
    text = state.read_bytes()
    changed = [inputs[0] + 1, *inputs[1:]]
    for what, arguments in (
        ("the program", (other, inputs, Contains(BROKEN))),
        ("the inputs", (program, changed, Contains(BROKEN))),
        ("the check", (program, inputs, Contains(aten.t.default))),
    ):
        with pytest.raises(OtherSearch, match=what):
            minify(*arguments, state=state)
    assert state.read_bytes() == text


def test_a_check_that_was_edited_is_another_one(tmp_path: Path) -> None:
    program, inputs = long_program(0, 10, FAULT, 3)
    path, state = tmp_path / "check.py", tmp_path / "state.jsonl"
    path.write_text("def fails(gm, inputs):\n    raise ValueError('always')\n")
    found = minify(program, inputs, CheckFile(path, "fails"), state=state)
    assert found.program.nodes == ()
    path.write_text("def fails(gm, inputs):\n    raise TypeError('always')\n")
    with pytest.raises(OtherSearch, match="the check"):
        minify(program, inputs, CheckFile(path, "fails"), state=state)
    assert Agrees(0.0).identity != Agrees(0.5).identity != Compiles().identity


@pytest.mark.parametrize("text", ["not json\n", "[]\n", "{}\n", json.dumps({"format": 99}) + "\n"])
def test_a_file_that_holds_no_verdicts_is_refused(text: str, tmp_path: Path) -> None:
    program, inputs = long_program(0, 10, FAULT, 3)
    state = tmp_path / "state.jsonl"
    state.write_text(text)
    with pytest.raises(OtherSearch):
        minify(program, inputs, Contains(BROKEN), state=state)
    assert state.read_text() == text


def test_digests_see_what_matters() -> None:
    program, inputs = long_program(0, 20, FAULT, 3)
    assert program_digest(program) == program_digest(long_program(0, 20, FAULT, 3)[0])
    assert program_digest(program) != program_digest(program.replace_nodes(program.nodes, program.outputs[:1]))
    assert inputs_digest(inputs) == inputs_digest(long_program(0, 20, FAULT, 3)[1])
    assert inputs_digest([torch.ones(2)]) != inputs_digest([torch.ones(1, 2)])
    assert inputs_digest([1]) != inputs_digest([2])


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_state_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    """Pieces of lines, other values, deep nesting and huge numbers."""
    program, inputs = long_program(0, 12, FAULT, 5)
    honest = tmp_path / "honest.jsonl"
    minify(program, inputs, Contains(aten.erf.default), state=honest)
    content = honest.read_bytes()
    choose = random.Random(seed)
    pieces = [
        b"9" * 5000,
        b"1e999",
        b"NaN",
        b"[" * 100_000,
        b"{",
        b"null",
        b'"\\ud800"',
        b"\xff",
        b"\n",
        b"true",
        b"[]",
        b"0",
    ]
    for number in range(150):
        changed = bytearray(content)
        for _ in range(choose.randrange(1, 4)):
            at = choose.randrange(len(changed) + 1)
            changed[at : at + choose.choice((0, 1, 8, 40))] = choose.choice(pieces)
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(bytes(changed))
        try:
            Verdicts(path, program, inputs, str(Contains(aten.erf.default)))
        except (OtherSearch, BadArtifact):
            continue
