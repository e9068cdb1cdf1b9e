"""The command: what it prints, what it hands on, and how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dovetail import cli
from dovetail.cli import doctor
from dovetail.errors import UnsupportedTorchVersion
from dovetail.execute.native.cache import cache_folder
from dovetail.torch_compat.selfcheck import CheckResult
from tests.torch_release import IS_TESTED


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return int(caught.value.code or 0)


def _use_checks(monkeypatch: pytest.MonkeyPatch, *results: CheckResult) -> None:
    monkeypatch.setattr(doctor, "run_self_checks", lambda: results)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--version") == 0
    assert re.fullmatch(r"dovetail \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_without_arguments_it_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run() == 2
    captured = capsys.readouterr()
    assert all(command in captured.out + captured.err for command in ("doctor", "explain"))


def test_doctor_tells_versions_machine_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("doctor") == 0
    out = capsys.readouterr().out
    for expected in (
        torch.__version__,
        "(tested)" if IS_TESTED else "(not tested: supported if every",
        "threads",
        "C++ compiler",
        "not required",
        "triton",
        'torch.compile(backend="dovetail")',
        "dispatch.schema_of",
        "self-checks pass",
    ):
        assert expected in out


def test_doctor_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _use_checks(monkeypatch, CheckResult("a.bad", False, "the key is 1, not 2"))
    assert _run("doctor", "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["checks"] == [{"name": "a.bad", "ok": False, "detail": "the key is 1, not 2"}]
    assert torch.__version__ in facts["versions"]["torch"]
    assert "a.bad" in facts["problems"][0]


def test_cache_is_listed_and_cleared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("llvmlite")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    folder = cache_folder()
    if folder is None:
        pytest.skip("nothing is kept on this system")
    folder.write("a" * 64, "kernel", "a loop", "another machine", b"code")
    assert _run("cache", "list") == 0
    assert "a loop" in (listed := capsys.readouterr().out)
    assert "1 entries" in listed
    assert _run("cache", "list", "--json") == 0
    [entry] = json.loads(capsys.readouterr().out)["entries"]
    assert (entry["kind"], entry["what"], entry["here"]) == ("kernel", "a loop", False)
    assert _run("doctor", "--json") == 0
    assert str(tmp_path) in json.loads(capsys.readouterr().out)["toolchain"]["cache of native code"]
    assert _run("cache", "clear") == 0
    assert capsys.readouterr().out == "1 entries removed\n"
    assert _run("cache", "clear", "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 0
    folder.path.chmod(0o777)
    assert _run("cache", "clear") == 0
    assert "others may write to it" in capsys.readouterr().out
    monkeypatch.setenv("DOVETAIL_CACHE_SIZE", "0")
    assert _run("cache", "clear") == 0
    assert "DOVETAIL_CACHE_SIZE is 0" in capsys.readouterr().out


class _Device:
    name, total_memory = "a device", 8 << 30


@pytest.mark.parametrize("there", [False, True])
def test_doctor_says_that_cuda_is_not_tested(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    _use_checks(monkeypatch, CheckResult("a.good", True, "fine"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: _Device)
    assert _run("doctor", "--json") == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    told = machine["cuda:0" if there else "cuda"]
    assert "not tested" in told
    assert "open an issue" in told
    assert ("a device, 8.0 GiB" in told) is there
    assert "not tested" not in machine["cpu"]


def test_doctor_fails_when_a_check_does(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _use_checks(monkeypatch, CheckResult("a.good", True, "fine"), CheckResult("a.bad", False, "the key is 1, not 2"))
    assert _run("doctor") == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "self-check a.bad failed: the key is 1, not 2" in out
    assert "dovetail works here" not in out


def test_doctor_fails_on_a_torch_that_is_too_old(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_checks(monkeypatch)
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    assert _run("doctor") == 1
    assert "torch 2.10.0 is not supported: dovetail needs torch >= 2.11" in capsys.readouterr().out


def test_doctor_says_that_another_torch_is_not_tested(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_checks(monkeypatch)
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    assert _run("doctor") == 0
    assert "2.14.0 (not tested" in capsys.readouterr().out


@pytest.mark.parametrize("options", [("replay",), ("draw", "no-such-dump"), ("doctor", "--unknown"), ("unknown",)])
def test_wrong_usage_ends_with_status_2(options: tuple[str, ...]) -> None:
    assert _run(*options) == 2


def _raise_unsupported() -> None:
    raise UnsupportedTorchVersion(version="1.0", reason="it is too old")


def _raise_wrapped() -> None:
    """What Dynamo does with an error of a backend: raises one of its own, and hides where it came from."""
    try:
        _raise_unsupported()
    except UnsupportedTorchVersion as error:
        raise RuntimeError(f"backend='dovetail' raised: {error}") from None


@pytest.mark.parametrize("fail", [_raise_unsupported, _raise_wrapped])
def test_an_error_of_dovetail_is_printed_without_a_traceback(
    fail: Callable[[], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "run_self_checks", fail)
    assert _run("doctor") == 2
    err = capsys.readouterr().err
    assert err.startswith("DT-ENV-001 UnsupportedTorchVersion: torch 1.0 cannot be used: it is too old")
    assert "Traceback" not in err


def test_any_other_error_is_a_bug_and_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(doctor, "run_self_checks", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])
