"""Hooks of mkdocs: pages link to files outside docs/, which the site has to carry along.

A page links to `../examples/x.py` or `../CONTRIBUTING.md`, as a reader of the repository needs it. The site has one
root, so these files are copied into it and the links are rewritten.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parent.parent
_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.txt",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the examples, and the pages of the repository's root that exist."""
    for path in sorted((_ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    for source, target in _PAGES.items():
        if (_ROOT / source).exists():
            text = (_ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, target, content=site_links(re.sub(r"\]\(docs/", "](", text), "")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links that leave docs/."""
    del config, files
    return site_links(markdown, "../" * (page.file.src_uri.count("/") + 1))


def site_links(markdown: str, root: str) -> str:
    """The text with links to files of the repository's root, which is `root` from here, as links within the site."""
    up = root.removeprefix("../")
    for source, target in _PAGES.items():
        markdown = markdown.replace(f"]({root}{source}", f"]({up}{target}")
    return markdown.replace(f"]({root}examples/", f"]({up}examples/")
