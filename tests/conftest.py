"""Fixtures that several folders use, and the seed that chooses the slices of long lists of cases."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from tests import rotation, slow_tests

_CACHE, _WORKER = "DOVETAIL_CACHE_DIR", "PYTEST_XDIST_WORKER"


def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed before pytest-xdist starts workers: they find it in their environment.

    So they find how threads of torch wait: by default they spin, and with as many workers as cores each then takes the
    time that the others need, which makes small operators five times as slow. And a new folder for native code, which
    all tests of a run share: the user's is not touched, and the first test that needs an operator probes it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if _WORKER not in os.environ:
        os.environ[_CACHE] = tempfile.mkdtemp(prefix="dovetail-tests-")
    try:
        rotation.fix_seed()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder for native code, where this process made it."""
    if _WORKER not in os.environ and os.path.basename(os.environ.get(_CACHE, "")).startswith("dovetail-tests-"):
        shutil.rmtree(os.environ[_CACHE], ignore_errors=True)


def pytest_report_header() -> str:
    """The seed, above the first test."""
    part = "whole lists of cases" if rotation.everything() else "slices of long lists of cases"
    return f"{part}: {rotation.VARIABLE}={rotation.seed()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests that are due in the next run, but not where somebody names a test."""
    if any("::" in argument for argument in config.args):
        return
    chosen = slow_tests.of_this_run(items)
    config.hook.pytest_deselected(items=list(set(items).difference(chosen)))
    items[:] = chosen


def pytest_collection_finish() -> None:
    """What is imported and collected stays to the end: no garbage collection of a test needs to look through it."""
    with suppress(ImportError):
        importlib.import_module("hypothesis")  # a plugin of pytest; when it is imported, it looks for referring objects
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file of tests leaves behind, in caches for one, stays to the end as well.

    Tests that measure memory collect garbage first. After some thousand tests that takes seconds, if all is looked at.
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where something failed, how to take the same slices again."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"The same slices again: {rotation.VARIABLE}={rotation.seed()} make test")


@pytest.fixture
def alone() -> Iterator[None]:
    """Nothing compiled before, one thread (so that sums are split alike), and the generator given back."""
    torch.compiler.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
    torch.compiler.reset()
