"""The page about shared memory: its pictures are what the analysis says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

_DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_pictures", _DOCS / "generate_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_up_to_date(generator: ModuleType) -> None:
    for name, picture in generator.pictures().items():
        assert (generator.FOLDER / name).read_text(encoding="utf-8") == generator.render(picture), "run `make docs`"


def test_the_page_shows_every_picture_and_each_is_well_formed(generator: ModuleType) -> None:
    shown = re.findall(r"images/(alias-\w+\.svg)", (_DOCS / "aliasing.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(generator.pictures())
    for name in shown:
        ElementTree.parse(generator.FOLDER / name)


def test_the_flat_tensor_spans_its_group(generator: ModuleType) -> None:
    x, y, z, flat = generator.pictures()["alias-group.svg"].rows
    assert flat.cells == tuple(sorted({*x.cells, *y.cells}))
    assert not {*z.cells} & {*flat.cells}
