"""The documentation builds as a site without a warning, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from tests.docs.blocks import ROOT, pages

pytest.importorskip("mkdocs", reason="mkdocs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    # --strict: a link or an anchor that leads nowhere, a page outside the navigation, a name without a docstring
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_is_there(site: Path) -> None:
    for page in (page for page in pages() if page.parent != ROOT):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / ("index.html" if page.name == "README.md" else name)).exists(), name


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    built = list(site.rglob("*.html"))
    assert len(built) > 20
    for page in built:
        text = page.read_text(encoding="utf-8")
        tags = re.findall(r"<(?:script|img|iframe|link(?=[^>]*rel=.?(?:stylesheet|preload|preconnect)))[^>]*>", text)
        assert [tag for tag in tags if re.search(r"(?:src|href)=.?(?:https?:)?//", tag)] == [], page.name


def test_the_api_reference_has_every_public_name(site: Path) -> None:

    text = (site / "reference" / "dovetail.html").read_text(encoding="utf-8")
    assert [name for name in dovetail.__all__ if name != "__version__" and f'id="dovetail.{name}"' not in text] == []
