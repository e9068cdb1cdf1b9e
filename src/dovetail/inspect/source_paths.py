"""Source files as people read them: short paths, and whose code it is."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path, PurePath

from dovetail.ir.program import Origin
from dovetail.ir.provenance import is_library_file

_PACKAGES = ("site-packages", "dist-packages")
_ROOTS = ("pyproject.toml", "setup.py", ".git")
_KEPT = 2


def is_library(file: str) -> bool:
    """Whether a file belongs to an installed package, to Python or to dovetail, and not to the user."""
    return any(name in PurePath(file).parts for name in _PACKAGES) or is_library_file(file)


def short_path(file: str) -> str:
    """A path without what every path has in common.

    Inside an installed package from the package on, else relative to the working folder or to the project that the
    file is in; of any other file the last two parts.
    """
    return _short_path(file, str(Path.cwd()))


@lru_cache(maxsize=4096)
def _short_path(file: str, folder: str) -> str:
    path = PurePath(file)
    for at in range(len(path.parts) - 1, 0, -1):
        if path.parts[at - 1] in _PACKAGES:
            return str(PurePath(*path.parts[at:]))
    if not path.is_absolute():
        return file
    if path.is_relative_to(folder):
        return str(path.relative_to(folder))
    for root in Path(file).parents:
        if any((root / name).exists() for name in _ROOTS):
            return str(path.relative_to(root))
    return str(PurePath(*path.parts[-_KEPT:]))


def line_text(origin: Origin) -> str:
    """A line of code, short: `model.py:24`; "" where none is known."""
    return f"{short_path(origin.file)}:{origin.line}" if origin.file else ""
