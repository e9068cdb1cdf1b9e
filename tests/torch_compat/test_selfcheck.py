"""Every wrapper of a private torch function has a check, and a check that fails says what differs."""

from __future__ import annotations

import importlib
import inspect
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dovetail.torch_compat
from dovetail.torch_compat import selfcheck
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.selfcheck import CHECKS, CheckResult, run_compiler_checks, run_self_checks

_FOLDER = Path(dovetail.torch_compat.__file__).parent
# Files that wrap no function of torch: they look at the others.
_NOT_WRAPPERS = {"__init__", "selfcheck", "version"}
_WRAPPERS = sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _NOT_WRAPPERS)


def test_every_check_passes_on_this_torch() -> None:
    failed = [result for result in run_self_checks() if not result.ok]
    assert failed == []


@pytest.mark.parametrize("name", _WRAPPERS)
def test_every_wrapper_has_a_check(name: str) -> None:
    module = importlib.import_module(f"dovetail.torch_compat.{name}")
    wrappers = {
        attribute
        for attribute, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not attribute.startswith("_")
    }
    checked = {check.__name__.removeprefix("check_") for check in CHECKS if check.__module__.rpartition(".")[2] == name}
    assert wrappers - {"self_check"} <= checked


def test_checks_have_distinct_names_and_say_what_they_check() -> None:
    results = run_compiler_checks()
    assert len({result.name for result in results}) == len(results)
    assert all(result.detail for result in results)


def test_the_checks_leave_the_state_of_torch_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.no_grad():
        run_self_checks()
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_checks_pass_whatever_mode_the_caller_is_in() -> None:
    with torch.inference_mode(), torch.device("meta"):
        assert all(result.ok for result in run_compiler_checks())


def test_the_checks_pass_whatever_the_program_asks_of_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        monkeypatch.setattr(logger, "disabled", True)
        logger.setLevel(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    try:
        assert [result for result in run_self_checks() if not result.ok] == []
        assert logging.root.manager.disable == logging.CRITICAL
        assert all(logger.disabled and logger.level == logging.CRITICAL for logger in loggers)
    finally:
        logging.disable(logging.NOTSET)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def test_fake_modes_and_silence_after_the_thread_of_the_checks() -> None:
    source = (
        "import torch; from dovetail.torch_compat import fakes, selfcheck; selfcheck.run_compiler_checks()\n"
        "with fakes.new_fake_mode(): torch.ones(2)\n"
        "with torch._subclasses.FakeTensorMode(): torch.ones(2)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_check_that_differs_or_raises_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_answer() -> str | None:
        return first_difference(("one", 1, 1), ("the answer", 41, 42))

    def check_question() -> str | None:
        raise AttributeError("no such thing\nand a long story")

    monkeypatch.setattr(selfcheck, "COMPILER_CHECKS", (check_answer, check_question))
    file = __name__.rpartition(".")[2]
    assert run_compiler_checks() == (
        CheckResult(f"{file}.answer", False, "the answer is 41, not 42"),
        CheckResult(f"{file}.question", False, "raised AttributeError: no such thing"),
    )
