"""docs/models.md is what the search over architectures writes, and says why each exception is one."""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import DovetailError
from tests.architectures import listed
from tests.model_page import SAME, page, read, told

_PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_is_what_the_search_writes() -> None:
    text = _PAGE.read_text()
    assert page(*read(text)) == text


def test_the_page_is_about_architectures_that_are_listed_and_says_why_each_exception_is_one() -> None:
    verdicts, versions = read(_PAGE.read_text())
    known = {" ".join(case) for case in listed()}
    assert {label for label in verdicts if not label.startswith("timm ")} <= known
    assert {"torch", "transformers"} <= set(versions)
    for found in verdicts.values():
        for verdict in found.values():
            assert verdict == SAME or verdict.partition(": ")[2]
            assert not verdict.startswith(("differs", "fails"))


def test_a_page_has_counts_a_row_for_each_architecture_and_reasons() -> None:
    verdicts = {
        "causal a": {"backend": SAME, "step": "refused: DT-STEP-001: why", "freeze": SAME},
        "timm b": {"backend": "as aot_eager: 2 graphs", "step": SAME},
    }
    text = page(verdicts, {"torch": "2.13.0+cpu"})
    assert "| transformers | 1 | 1 = | 0 =, 1 refused | 1 = |" in text
    assert "| causal a | = | refused | = | step: DT-STEP-001: why |" in text
    assert "| timm b | as aot_eager | = |  | backend: 2 graphs |" in text
    assert read(text) == (verdicts, {"torch": "2.13.0+cpu"})


def test_an_error_is_told_by_its_code_and_its_line_without_folders() -> None:
    error = DovetailError()
    error.args = (
        "DT-STEP-001 DovetailError: it draws a number.\n  from      /a/site-packages/b/c.py:5 in f\n  because   d",
    )
    error.code = "DT-STEP-001"
    assert told(error) == "DT-STEP-001: it draws a number. at b/c.py:5 in f"
    assert told(ValueError("one\ntwo")) == "ValueError: one"
