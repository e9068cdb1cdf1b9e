"""docs/errors.md says what the error classes say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from dovetail.errors import DovetailError, all_error_classes

_DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
_CLASSES = all_error_classes()


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_errors", _DOCS / "generate_errors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator: ModuleType) -> None:
    assert generator.PAGE.read_text(encoding="utf-8") == generator.render_page(), "run `make docs`"


def test_the_page_has_the_anchor_that_a_message_points_to(generator: ModuleType) -> None:
    page = generator.render_page()
    for cls in _CLASSES:
        pointer = re.search(r"docs/errors\.md#(\S+)", str(cls()))
        assert pointer is not None
        assert f'<a id="{pointer[1]}"></a>' in page


def test_codes_are_unique_and_well_formed() -> None:
    codes = [cls.code for cls in _CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"DT-[A-Z]+-\d{3}", code) for code in codes)


@pytest.mark.parametrize("cls", _CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_says_what_why_and_the_way_out(cls: type[DovetailError]) -> None:
    assert cls.__doc__
    assert cls.summary != DovetailError.summary
    assert cls.because
    assert cls.way_out
    assert str(cls()).startswith(f"{cls.code} {cls.__name__}: ")
