"""Write docs/errors.md from the error classes of dovetail.

python docs/generate_errors.py            # write the page
python docs/generate_errors.py --check    # exit with status 1 if the page is not what would be written
"""

from __future__ import annotations

import inspect
import string
import sys
from itertools import groupby
from pathlib import Path

from dovetail.errors import DovetailError, all_error_classes

PAGE = Path(__file__).resolve().parent / "errors.md"

_INTRODUCTION = """\
# Errors

<!-- Written by docs/generate_errors.py from src/dovetail/errors.py. Change the classes, then run `make docs`. -->

Every error that dovetail raises on purpose has a code, says what happened and because of what, and names the way out.
All of them are children of `dovetail.DovetailError`. Below, `<name>` stands for a fact that the message fills in; a row
such as `operator`, `node` or `from` (the line of your code) is printed when it is known.
"""


def render_page() -> str:
    """The whole page: a table of all errors, then a section for each family of codes."""
    classes = [cls for cls in all_error_classes() if "code" in vars(cls)]
    lines = [_INTRODUCTION, "| code | error | meaning |", "|---|---|---|"]
    lines += [f"| [{cls.code}](#{cls.code}) | `{cls.__name__}` | {_meaning(cls)} |" for cls in classes]
    for family, members in groupby(classes, key=_family):
        lines += ["", f"## {family.capitalize()}"]
        for cls in members:
            lines += ["", *_section(cls)]
    return "\n".join(lines) + "\n"


def _section(cls: type[DovetailError]) -> list[str]:
    facts = sorted(_facts(cls))
    lines = [f'<a id="{cls.code}"></a>', "", f"### {cls.code} {cls.__name__}", "", inspect.cleandoc(cls.__doc__ or "")]
    lines += ["", "```text", str(cls()), "```"]
    if facts:
        lines += ["", "Facts, in `error.facts`: " + ", ".join(f"`{fact}`" for fact in facts) + "."]
    return lines


def _family(cls: type[DovetailError]) -> str:
    return cls.code.split("-")[1]


def _meaning(cls: type[DovetailError]) -> str:
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()).replace("|", r"\|")


def _facts(cls: type[DovetailError]) -> set[str]:
    """The facts that the templates of a class use."""
    fields: set[str] = set()
    for template in (cls.summary, cls.because, cls.way_out):
        fields |= {name for _, name, _, _ in string.Formatter().parse(template) if name}
    return fields


def main() -> int:
    """Write the page, or check it with `--check`; the exit status."""
    page = render_page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
            return 0
        print(f"{PAGE.name} is not up to date: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
