"""Errors about the environment: torch, packages, devices."""

from __future__ import annotations

from dovetail.errors.base import DovetailError, DovetailWarning


class UnsupportedTorchVersion(DovetailError):
    """The installed torch is too old, or a private function that dovetail relies on behaves differently."""

    code = "DT-ENV-001"
    summary = "torch {version} cannot be used: {reason}."
    because = "dovetail needs torch >= 2.11 and checks each private torch function it relies on"
    way_out = "install a supported version (tested: torch 2.13); `dovetail doctor` shows each check"


class UnsupportedDevice(DovetailError):
    """A tensor is on a device that dovetail does not support."""

    code = "DT-ENV-003"
    summary = "{name} is on device {device}, which is not supported."
    because = "dovetail captures and runs programs on cpu and cuda only"
    way_out = "move the tensor to cpu or cuda, or leave this part uncompiled"


class UntestedDevice(DovetailWarning):
    """A tensor is on a kind of device that dovetail has code for, but on which not every change is tested."""

    def __init__(self, device: str) -> None:
        super().__init__(
            f"dovetail is seldom tested on {device.partition(':')[0]} (a tensor is on {device}): most changes are only "
            "tested on CPUs. Compare results with eager before you rely on them. If something fails or "
            "differs, please open an issue on the project's page with the program and the output of `dovetail doctor`. "
            "This is said once; warnings.simplefilter('ignore', dovetail.errors.UntestedDevice) silences it."
        )
