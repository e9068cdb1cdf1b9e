"""Errors about what dovetail runs on: torch, packages, devices."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class UnsupportedTorchVersion(DovetailError):
    """The installed torch is too old, or one of the private functions dovetail relies on behaves otherwise."""

    code = "DT-ENV-001"
    summary = "torch {version} cannot be used: {reason}."
    because = "dovetail needs torch >= 2.11 and checks each private torch function it relies on"
    way_out = "install a supported version (tested: torch 2.13), and run `dovetail doctor` to see each check"


class MissingDependency(DovetailError):
    """An optional package is needed for this feature and is not installed."""

    code = "DT-ENV-002"
    summary = "{feature} needs the package {package}, which is not installed."
    because = "it is an optional dependency"
    way_out = "{install}"


class UnsupportedDevice(DovetailError):
    """A tensor lives on a device that dovetail does not support."""

    code = "DT-ENV-003"
    summary = "{name} is on device {device}, which is not supported."
    because = "programs are captured and run on cpu and cuda only"
    way_out = "move the tensor to cpu or cuda, or leave this part uncompiled"
