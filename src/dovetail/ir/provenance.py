"""Where in the user's code a node of a `torch.fx` graph comes from."""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache
from pathlib import Path

import torch
from torch import fx

from dovetail.ir.program import Origin

ORIGIN_KEY = "dovetail_origin"

_TORCH_DIR = str(Path(torch.__file__).parent)
_OWN_DIR = str(Path(__file__).parent.parent)
_PYTHON_DIR = str(Path(os.__file__).parent)
_PACKAGE_DIRS = tuple(os.path.join(_PYTHON_DIR, name) for name in ("site-packages", "dist-packages"))
_COMMAND_LINE = re.compile(r"[\\/](site|dist)-packages[\\/](typer|click)[\\/]")  # also in an environment of its own
_DECORATES = os.sep + "typing_extensions.py"  # with wrappers of its own, which torch's functions have
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_TEXT = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?: in (?P<function>\S+))?(?:   \((?P<module>.*)\))?")


@cache
def is_library_file(filename: str) -> bool:
    """Whether a source file belongs to torch, to dovetail and its command line, or to Python: not to the user."""
    if filename.startswith((_TORCH_DIR, _OWN_DIR, "<frozen", "<dovetail", "<string")):
        return True
    if filename.endswith(_DECORATES) or _COMMAND_LINE.search(filename):
        return True
    return filename.startswith(_PYTHON_DIR) and not filename.startswith(_PACKAGE_DIRS)


@cache
def is_own_file(filename: str) -> bool:
    """Whether a source file belongs to dovetail, or is code that it made."""
    return filename.startswith((_OWN_DIR, "<dovetail"))


def origin_of(node: fx.Node) -> Origin:
    """The user's line and module that an fx node stands for."""
    written = node.meta.get(ORIGIN_KEY)
    if isinstance(written, str):
        return origin_from_text(written)
    stack = node.meta.get("nn_module_stack")
    last = list(stack.values())[-1] if stack else ("",)
    return _innermost(node.meta.get("stack_trace") or "", _module_path(str(last[0])))


@lru_cache(maxsize=4096)
def origin_from_text(text: str) -> Origin:
    """The origin that was written as `str(origin)`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return Origin(module=text)
    return Origin(found["file"], int(found["line"]), found["function"] or "", found["module"] or "")


@lru_cache(maxsize=4096)
def _innermost(stack_trace: str, module: str) -> Origin:
    frames = list(_FRAME.finditer(stack_trace))
    users = [frame for frame in frames if not is_library_file(frame["file"])] or frames
    if not users:
        return Origin(module=module)
    return Origin(users[-1]["file"], int(users[-1]["line"]), users[-1]["function"], module)


@lru_cache(maxsize=4096)
def _module_path(dynamo_name: str) -> str:
    """`L['self'].layers[3].mlp` and `L['fn'].layers.3.mlp` as `layers.3.mlp`."""
    without_root = re.sub(r"^[LG]\[['\"]\w+['\"]\]\.?", "", dynamo_name)
    dotted = re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", without_root)
    return re.sub(r"(^|\.)_modules\.", r"\1", dotted).strip(".")
