"""Which versions of torch are taken, warned about and refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from dovetail.errors import DovetailWarning, UnsupportedTorchVersion
from dovetail.torch_compat import selfcheck, version
from dovetail.torch_compat.version import ensure_supported_torch, release_of


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    version._ensure_supported.cache_clear()
    yield
    version._ensure_supported.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the checks by one that passes, and lists its calls."""
    calls: list[str] = []

    def check_call() -> str | None:
        """Counts."""
        calls.append("call")
        return None

    monkeypatch.setattr(selfcheck, "COMPILER_CHECKS", (check_call,))
    return calls


def _fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_storage() -> str | None:
        return "the key is 1, not 2"

    monkeypatch.setattr(selfcheck, "COMPILER_CHECKS", (check_storage,))


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.14.0a0+git12ab34", (2, 14)),
        ("2.9.1", (2, 9)),
        ("10.0", (10, 0)),
        ("unknown", None),
    ],
)
def test_release_of(text: str, release: tuple[int, int] | None) -> None:
    assert release_of(text) == release


@pytest.mark.parametrize("text", ["2.13.0", "2.13.1+cu130"])
def test_tested_version_runs_no_check(monkeypatch: pytest.MonkeyPatch, calls: list[str], text: str) -> None:
    monkeypatch.setattr(torch, "__version__", text)
    ensure_supported_torch()
    assert calls == []


def test_older_supported_version_is_checked_once_and_quietly(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensure_supported_torch()
        ensure_supported_torch()
    assert calls == ["call"]


def test_newer_version_is_checked_and_warned_about_once(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    monkeypatch.setattr(torch, "__version__", "2.14.0.dev20261101")
    with pytest.warns(DovetailWarning, match=r"tested with torch 2\.13; this is torch 2\.14"):
        ensure_supported_torch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensure_supported_torch()
    assert calls == ["call"]


@pytest.mark.parametrize("text", ["2.10.1", "1.13.1+cu117"])
def test_too_old_version_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(torch, "__version__", text)
    with pytest.raises(UnsupportedTorchVersion, match=r"cannot be used: it is older than 2\.11") as caught:
        ensure_supported_torch()
    assert text in str(caught.value)


def test_unreadable_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "custom")
    with pytest.raises(UnsupportedTorchVersion, match="version number cannot be read"):
        ensure_supported_torch()


@pytest.mark.parametrize("text", ["2.12.0", "2.14.0"])
def test_failing_check_refuses_and_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(torch, "__version__", text)
    _fail(monkeypatch)
    with pytest.raises(UnsupportedTorchVersion, match=r"1 self-check\(s\) failed: .*storage: the key is 1, not 2"):
        ensure_supported_torch()


def test_failing_check_does_not_matter_on_the_tested_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    _fail(monkeypatch)
    ensure_supported_torch()


def test_a_refusal_is_not_remembered(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    with pytest.raises(UnsupportedTorchVersion):
        ensure_supported_torch()
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    ensure_supported_torch()
