"""Checks of `torch_compat.settings`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.backends.mha import get_fastpath_enabled
from torch.utils.serialization import config

from dovetail.torch_compat import settings
from dovetail.torch_compat.checks.difference import first_difference

_BENCHMARK = torch._C._get_cudnn_benchmark


def check_setting_functions() -> str | None:
    """Functions that tell settings are among them; what tells of the call, and what sets, is not."""
    known = settings.setting_functions()
    asked = (
        _BENCHMARK,
        torch.get_num_threads,
        torch.is_grad_enabled,
        torch._C._set_cudnn_benchmark,
        torch._C._is_tracing,
    )
    return first_difference(("known", [function in known for function in asked], [True, True, False, False, False]))


def check_setting_of() -> str | None:
    """A plain answer is the function's own, members of enumerations are texts, and with arguments it is all of them."""
    enumerated = settings.setting_of(torch._C._get_blas_preferred_backend)
    precisions = settings.setting_of(torch._C._get_fp32_precision_getter)
    if enumerated is None or precisions is None:
        return "a setting is not known"
    found = (settings.setting_of(_BENCHMARK), enumerated() == enumerated(), len(precisions()), type(precisions()[0]))
    return first_difference(
        ("what is asked", found, (_BENCHMARK, True, 9, str)),
        ("without arguments", settings.setting_of(torch._C._get_schema), None),
    )


def check_print_options() -> str | None:
    """Another precision of texts is a difference."""
    before, options = settings.print_options(), torch._tensor_str.PRINT_OPTS
    precision = options.precision
    try:
        options.precision = precision + 1
        during = settings.print_options()
    finally:
        options.precision = precision
    return first_difference(("differs", (before != during, settings.print_options() == before), (True, True)))


def _seen(call: Callable[[], Any]) -> list[Callable[[], Any] | None]:
    """What frames of a call that tell a setting may be asked by."""
    found = list[Any]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and settings.tells_setting(frame.f_code):
            found.append(settings.told_by(frame))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def check_tells_setting() -> str | None:
    """Code that tells a setting is known by its name, and by taking nothing."""
    asked = (torch.hub.get_dir, torch.is_warn_always_enabled, torch.save, get_fastpath_enabled)
    found = [settings.tells_setting(x.__code__) for x in asked]
    return first_difference(("known", found, [True, True, False, False]))


def check_told_by() -> str | None:
    """The function itself, an option by its name, and what texts of tensors go by."""
    saving: Any = config.save
    options = [asked() for asked in _seen(lambda: saving.storage_alignment) if asked is not None]
    return first_difference(
        ("a function", _seen(torch.is_warn_always_enabled), [torch.is_warn_always_enabled]),
        ("an option", options[-1:], [saving.storage_alignment]),
        ("a text", settings.print_options in _seen(lambda: str(torch.ones(1))), True),
    )


def _fails() -> None:
    raise RuntimeError


def check_tells_nothing() -> str | None:
    """None is told from other answers, and from errors."""
    asked: list[Callable[[], Any]] = [lambda: None, lambda: 0, _fails]
    return first_difference(("answers None", [settings.tells_nothing(x) for x in asked], [True, False, False]))


CHECKS = (
    check_setting_functions,
    check_setting_of,
    check_print_options,
    check_tells_setting,
    check_told_by,
    check_tells_nothing,
)
