"""The page about training steps names every option and error."""

from __future__ import annotations

import inspect
from pathlib import Path

import dovetail
from dovetail.errors import step

_PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "training-step.md"


def test_the_page_has_every_option_and_error() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    for option, parameter in inspect.signature(dovetail.compile_step).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert f"{option}=" in text or f"`{option}`" in text, option
    codes = [found.code for found in vars(step).values() if getattr(found, "code", "").startswith("DT-STEP")]
    assert len(codes) > 5
    for code in codes:
        assert f"errors.md#{code}" in text, code
