"""Options: where they come from, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import BadOptionValue, UnknownOption
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.executor_list import make_executors
from dovetail.pipeline.options import Options, resolve_options


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUMP", "VERIFY", "SKIP", "STOP_AFTER", "PARTITION", "RECOMPUTE"):
        monkeypatch.delenv(f"DOVETAIL_{name}", raising=False)


def test_defaults() -> None:
    assert resolve_options(None, PASS_NAMES) == resolve_options({}, PASS_NAMES) == Options()


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().verify = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("variable", "text", "option", "value"),
    [
        ("DOVETAIL_DUMP", "dumps", "dump", "dumps"),
        ("DOVETAIL_VERIFY", "2", "verify", 2),
        ("DOVETAIL_VERIFY", "0", "verify", 0),
        ("DOVETAIL_SKIP", "no_ops,dead_code", "skip", ("no_ops", "dead_code")),
        ("DOVETAIL_SKIP", "no_ops,", "skip", ("no_ops",)),
        ("DOVETAIL_STOP_AFTER", "no_ops", "stop_after", "no_ops"),
        ("DOVETAIL_STOP_AFTER", "", "stop_after", None),
        ("DOVETAIL_PARTITION", "min_cut", "partition", "min_cut"),
        ("DOVETAIL_RECOMPUTE", "all", "recompute", "all"),
        ("DOVETAIL_EXECUTORS", "aten", "executors", ("aten",)),
    ],
)
def test_the_environment_is_read(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, option: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(resolve_options(None, PASS_NAMES), option) == value


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_VERIFY", "2")
    monkeypatch.setenv("DOVETAIL_SKIP", "no_ops")
    options = resolve_options({"verify": 1}, PASS_NAMES)
    assert (options.verify, options.skip) == (1, ("no_ops",))
    assert resolve_options({"skip": []}, PASS_NAMES).skip == ()


@pytest.mark.parametrize("given", ["dead_code,no_ops", ["dead_code", "no_ops"], ("dead_code", "no_ops")])
def test_lists_of_names(given: object) -> None:
    assert resolve_options({"skip": given}, PASS_NAMES).skip == ("dead_code", "no_ops")


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    assert Path(str(resolve_options({"dump": tmp_path}).dump)) == tmp_path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"verify": 3}, "option 'verify' cannot be 3"),
        ({"verify": True}, "option 'verify' cannot be True"),
        ({"verify": "1"}, "option 'verify' cannot be '1'"),
        ({"max_variants": 0}, "option 'max_variants' cannot be 0"),
        ({"max_variants": True}, "option 'max_variants' cannot be True"),
        ({"max_variants": 2.0}, "option 'max_variants' cannot be 2.0"),
        ({"dump": 3}, "option 'dump' cannot be 3"),
        ({"dump": ""}, "option 'dump' cannot be ''"),
        ({"partition": "max_cut"}, "option 'partition' cannot be 'max_cut'"),
        ({"recompute": None}, "option 'recompute' cannot be None"),
        ({"dynamic": 1}, "option 'dynamic' cannot be 1"),
        ({"skip": None}, "option 'skip' cannot be None"),
        ({"skip": [1]}, r"option 'skip' cannot be \(1,\)"),
        ({"executors": 3}, "option 'executors' cannot be 3"),
        ({"skip": "cse"}, "option 'skip' cannot be 'cse'"),
        ({"skip": "dead_code,cse"}, "option 'skip' cannot be 'cse'"),
        ({"stop_after": "split"}, "option 'stop_after' cannot be 'split'"),
        ({"stop_after": 1}, "option 'stop_after' cannot be 1"),
    ],
)
def test_bad_values(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOptionValue, match=message):
        resolve_options(given, PASS_NAMES)


@pytest.mark.parametrize("name", ["verify", "skip", "stop_after", "partition", "recompute", "executors"])
def test_bad_values_in_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    variable = f"DOVETAIL_{name.upper()}"
    monkeypatch.setenv(variable, "full")
    with pytest.raises(BadOptionValue, match=f"option '{name}' cannot be .*full") as caught:
        resolve_options({}, PASS_NAMES)
    assert f"the environment variable {variable} sets it" in str(caught.value)
    with pytest.raises(BadOptionValue) as caught:
        resolve_options({name: "none"}, PASS_NAMES)
    assert variable not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("verfy", "did you mean 'verify'"), ("stop_afer", "did you mean 'stop_after'"), ("zzz", "remove it")],
)
def test_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(UnknownOption, match=hint) as caught:
        resolve_options({name: 1}, PASS_NAMES)
    assert "max_variants" in str(caught.value)


def test_executors() -> None:
    assert [e.name for e in make_executors(Options(executors=())).executors] == ["aten"]
    with pytest.raises(BadOptionValue, match="option 'executors' cannot be 'triton'"):
        make_executors(Options(executors=("aten", "triton")))
