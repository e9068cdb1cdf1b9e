"""Which torch is installed, and whether dovetail may be used with it.

Private functions of torch change without notice. Version 2.13 is the one that every test runs on; any other supported
version is taken on evidence: the self-checks of `selfcheck` call each private function on a tiny case.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import torch

from dovetail.deferred import deferred
from dovetail.errors import UnsupportedTorchVersion
from dovetail.errors.base import warn

if TYPE_CHECKING:
    from dovetail.torch_compat import selfcheck
else:
    selfcheck = deferred("dovetail.torch_compat.selfcheck")

OLDEST_SUPPORTED = (2, 11)
TESTED = (2, 13)


def ensure_supported_torch() -> None:
    """Refuse a torch that dovetail would be wrong on; free after the first call that passes.

    The tested version passes at once. Any other version from `OLDEST_SUPPORTED` on passes when every self-check does.

    Raises:
        UnsupportedTorchVersion: torch is older than `OLDEST_SUPPORTED`, its version cannot be read, or a private
            function behaves differently from dovetail needs.

    Warns:
        DovetailWarning: torch is newer than `TESTED` and every self-check passes.
    """
    _ensure_supported(installed_torch_version())


def installed_torch_version() -> str:
    """The version of the installed torch, as it gives it: `2.13.0+cpu`."""
    return str(torch.__version__)


def release_of(version: str) -> tuple[int, int] | None:
    """Major and minor number of a version such as `2.14.0a0+git12ab`; None if the text does not start with them."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


@functools.cache
def _ensure_supported(version: str) -> None:
    release = release_of(version)
    if release is None:
        raise UnsupportedTorchVersion(version=version, reason="its version number cannot be read")
    if release < OLDEST_SUPPORTED:
        oldest = ".".join(map(str, OLDEST_SUPPORTED))
        raise UnsupportedTorchVersion(version=version, reason=f"it is older than {oldest}")
    if release == TESTED:
        return
    failed = [result for result in selfcheck.run_compiler_checks() if not result.ok]
    if failed:
        reason = "; ".join(f"{result.name}: {result.detail}" for result in failed)
        raise UnsupportedTorchVersion(version=version, reason=f"{len(failed)} self-check(s) failed: {reason}")
    if release > TESTED:
        tested = ".".join(map(str, TESTED))
        warn(f"dovetail is tested with torch {tested}; this is torch {version}, on which every self-check passes.")
