"""The code blocks of a page, and how each is run.

A page is one session: its examples with prompts (`>>>`) run first, then its python blocks, in order, in one namespace.
A python block that cannot run has a comment on the line above it: `<!-- not run: the reason -->`.
"""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"(?:<!-- (not run: [^>]+?) -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, its text, the line it begins at, and why it is not run, if it is not."""

    language: str
    text: str
    line: int
    not_run: str


def pages() -> list[Path]:
    """Every page that a person wrote: the pages of the root, and those below docs/."""
    written = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in written if page.name not in ("CHANGELOG.md", "errors.md"))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        yield Block(match[2], match[3], text.count("\n", 0, match.start(3)) + 1, match[1] or "")


def run_prompts(page: Path) -> doctest.TestResults:
    """Run the examples with prompts; what differs is printed."""
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test)
    return doctest.TestResults(runner.failures, runner.tries)


def run_blocks(page: Path, names: dict[str, Any]) -> int:
    """Run the python blocks without prompts, in order, over `names`; how many there were."""
    count = 0
    for block in blocks(page):
        if block.language == "python" and not block.not_run and ">>>" not in block.text:
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(page), "exec"), names)
            count += 1
    return count


def commands(page: Path) -> Iterator[str]:
    """The commands of the console blocks, without comments and without variables set in front of them."""
    for block in blocks(page):
        if block.language in ("console", "bash", "sh"):
            for line in block.text.splitlines():
                command = re.sub(r"\s+#.*", "", line.removeprefix("$ ")).strip()
                command = re.sub(r"^(?:[A-Z_]+=\S* )+", "", command)
                if command and not command.startswith("#"):
                    yield command
