"""Plain words: phrases that have crept into pages and messages before, each with what to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.errors import all_error_classes
from tests.docs.blocks import ROOT, pages

BANNED: dict[str, str] = {
    r"without saying anything|if you do not say|unless the option says": "default, default: 8",
    r"\b(is|are) told in\b": "measured in, reported",
    r"lies? (in memory )?otherwise|laid out otherwise": "has a different layout",
    r"(rounds?|behaves?|nested|shared|described?|fails?|draws?) otherwise\b(?!,)": "differently",
    r"otherwise than": "differently from",
    r"that (was|were) meant (is|are) not": "misses the target",
    r"(?<!here )\b(is|are) no (view|tensor|number|program|node|constant|module|operator|name|result)s?\b": "is not a",
    r"\b(inside|outside) of (the|a|it|that|this)\b": "inside, outside",
    r"\bof one's own\b|\bof (torch|Dynamo|the user|yours)'s(?=[.,;:])": "your own, torch's",
    r"\bas ever\b": "as usual",
    r"\bback ends?\b": "backend",
    r"\bsub-programs?\b": "subgraph",
    r"\bfunctionalise|normalisation\b": "functionalize, normalization",
    r"\bhands? out\b|\bhanded out\b": "return",
    r"\bgives? away\b|\bgiven away\b": "donate",
    r"\bcheapest cut\b": "minimum cut",
    r"\bcannot be said\b|\bno words? for\b": "cannot be expressed",
    r"\bnobody\b": "name the reader, or use the passive",
    r"\b(is|are) (?-i:none)\b(?! of)": "is not one",
    r"\bwhat this says\b": "in short",
    r"\bheld against\b": "checked against, compared with",
    r"\b(taken|takes?) (it |them |these |lists |operators )?apart\b": "split, decompose, flatten",
    r"\b(dies|die) (at|here)\b": "is freed at",
    r"\b(has|have) not (\d|a|one|two|three|four|\{)\b": "does not have",
    r"\bare the most (that|to)\b": "at most",
    r"\bin the order of execution\b": "in execution order",
    r"\btensors without memory\b": "tensors without data",
    r"\blaid out (again|alike)\b": "copied to another layout, has the same layout",
    r"\bhand(s|ed)? (over|back)\b": "pass, return",
    r"\bsub-graphs?\b": "subgraph",
    r"\bnormalis(e|es|ed|ing)\b": "normalize",
}
_PATTERNS = {re.compile(pattern, re.IGNORECASE): better for pattern, better in BANNED.items()}
_GLOSSARY = "glossary.md"  # it names what not to write


def _findings(text: str) -> list[str]:
    plain = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "` `", text)
    return [
        f"line {plain.count(chr(10), 0, match.start()) + 1}: {match[0]!r}: write {better}"
        for pattern, better in _PATTERNS.items()
        for match in pattern.finditer(plain)
    ]


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are not docstrings, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owners = (ast.Module, ast.FunctionDef, ast.ClassDef)
    documented = [node for node in ast.walk(tree) if isinstance(node, owners) and ast.get_docstring(node, clean=False)]
    docstrings = {id(node.body[0].value) for node in documented if isinstance(node.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_the_list_finds_what_it_bans() -> None:
    bad = "Work is told in bytes. This is what you get without saying anything.\nIt is no tensor, and lies otherwise."
    assert [finding.split(":")[0] for finding in sorted(_findings(bad))] == ["line 1", "line 1", "line 2", "line 2"]
    assert _findings("There is no tensor here; otherwise it would be an error. `is not a tensor`") == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_plain_words(page: Path) -> None:
    if page.name != _GLOSSARY:
        assert _findings(page.read_text(encoding="utf-8")) == []


def test_errors_are_in_plain_words() -> None:
    for cls in all_error_classes():
        assert _findings(f"{cls.__doc__}\n{cls()}") == [], cls.__name__


def test_messages_are_in_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {finding}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in _messages(path)
        if " " in text
        for finding in _findings(text)
    ]
    assert found == []
