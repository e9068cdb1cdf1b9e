"""The first CUDA tensor: one warning in a process, of a class of its own. No GPU is needed: fakes are on any device."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from dovetail import DovetailWarning
from dovetail.errors import UntestedDevice
from dovetail.frontends import untested_devices
from dovetail.frontends.described_call import checked_name
from dovetail.frontends.inputs import check_tensor


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untested_devices, "_SAID", threading.Lock())


def _on(device: str) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(2, device=device)


def test_the_first_tensor_warns_and_no_other() -> None:
    assert issubclass(UntestedDevice, DovetailWarning)
    check_tensor("x", torch.ones(2))
    with pytest.warns(UntestedDevice, match="seldom tested on cuda .a tensor is on cuda:1.") as told:
        check_tensor("x", _on("cuda:1"))
    assert len(told) == 1
    assert all(words in str(told[0].message) for words in ("open an issue", "dovetail doctor", "Compare results"))
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        for name in ("x", "y"):
            check_tensor(name, _on("cuda"))
        checked_name([], 0, _on("cuda:0"))
    assert again == []


def test_calls_at_once_warn_once() -> None:
    tensors = [_on("cuda") for _ in range(32)]
    with warnings.catch_warnings(record=True) as told, ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("always")
        list(pool.map(lambda tensor: check_tensor("x", tensor), tensors))
    assert [warning.category for warning in told] == [UntestedDevice]


def test_it_can_be_silenced_or_made_an_error() -> None:
    tensor = _on("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntestedDevice)
        for _ in range(2):  # an error is raised again
            with pytest.raises(UntestedDevice):
                check_tensor("x", tensor)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", UntestedDevice)
        check_tensor("x", _on("cuda"))
    assert told == []


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_cpu_is_tested(device: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        untested_devices.tell_if_untested(torch.device(device))
