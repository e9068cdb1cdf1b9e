"""The shape of the code: layers, privacy and lengths, with samples that each rule must refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import architecture
from tests.architecture import MAY_IMPORT, PACKAGE, ROOT, check_circles, check_source, check_tree, is_vague_name

_REPOSITORY = Path(__file__).resolve().parent.parent
_PACKAGE_ROOT = _REPOSITORY / "src" / PACKAGE
_SAMPLES = sorted((_REPOSITORY / "tests" / "data" / "architecture").glob("*.py"))
_CIRCLE = _REPOSITORY / "tests" / "data" / "architecture" / "circle"
_RULES = {
    "layer-order",
    "sibling-import",
    "private-torch",
    "private-attribute",
    "function-level-import",
    "vague-file-name",
    "function-length",
    "file-length",
}


def _header(source: str, key: str) -> str:
    """The value of a `# key: value` line among the first two lines of a sample."""
    values = [line.removeprefix(f"# {key}: ") for line in source.splitlines()[:2] if line.startswith(f"# {key}: ")]
    assert len(values) == 1, f"a sample needs one line '# {key}: ...'"
    return values[0]


def test_the_code_follows_the_architecture() -> None:
    findings = check_tree(_PACKAGE_ROOT)
    assert not findings, "\n" + "\n".join(map(str, findings))


@pytest.mark.parametrize("sample", _SAMPLES, ids=lambda path: path.stem)
def test_sample_breaks_exactly_the_rule_it_names(sample: Path) -> None:
    source = sample.read_text(encoding="utf-8")
    expected = _header(source, "expect")
    found = {finding.rule for finding in check_source(source, module=_header(source, "module"), path=sample.name)}
    assert found == (set() if expected == "nothing" else {expected})


def test_every_rule_has_a_sample_and_is_documented() -> None:
    sampled = {_header(path.read_text(encoding="utf-8"), "expect") for path in _SAMPLES}
    assert sampled - {"nothing"} == _RULES
    assert all(rule in (architecture.__doc__ or "") for rule in {*_RULES, "import-circle"})


def test_a_circle_of_imports_in_one_layer_is_found() -> None:
    """A type checker's import closes the circle; a module that imports only what is elsewhere is not part of it."""
    (finding,) = check_circles(_CIRCLE, module="dovetail.execute.circle")
    assert (finding.rule, finding.path) == ("import-circle", "graph.py")
    names = ("graph", "training", "graph")
    assert finding.detail == " imports ".join(f"dovetail.execute.circle.{name}" for name in names)


def test_private_torch_is_allowed_in_torch_compat() -> None:
    source = "import torch\nfrom torch._subclasses import FakeTensorMode\n\nstate = torch._C._get_tracing_state\n"
    assert check_source(source, module="dovetail.torch_compat.fake", path="fake.py") == []


def test_layers_have_no_cycle() -> None:
    """A layer may import another only if that one may not, directly or through others, import it back."""
    seen: set[str] = set()
    for layer, allowed in MAY_IMPORT.items():
        # The table is in order from low to high, so each entry may name only itself and what stands above it.
        targets = {entry.split(".")[0] for entry in allowed} - {layer}
        siblings = architecture.SIBLINGS if layer in architecture.SIBLINGS else frozenset[str]()
        assert targets <= seen, f"{layer} imports {sorted(targets - seen)}"
        assert not targets & siblings
        seen.add(layer)
    assert ROOT in seen


@pytest.mark.parametrize("name", ["utils", "_utils", "helpers", "common", "misc", "graph_utils", "view_helper"])
def test_vague_names(name: str) -> None:
    assert is_vague_name(name)


@pytest.mark.parametrize("name", ["__init__", "common_subexpressions", "cse", "in_common", "utility"])
def test_telling_names(name: str) -> None:
    assert not is_vague_name(name)


def test_no_vague_file_name_in_the_repository() -> None:
    folders = ("src", "tests", "benchmarks", "docs", "examples")
    paths = [path for folder in folders for path in (_REPOSITORY / folder).rglob("*.py")]
    assert [str(path) for path in paths if is_vague_name(path.stem)] == []


def test_every_source_file_is_in_a_known_layer() -> None:
    entries = [path for path in _PACKAGE_ROOT.iterdir() if path.is_dir() or path.suffix == ".py"]
    layers = {path.stem for path in entries if not path.name.startswith("__pycache__")}
    assert layers <= set(MAY_IMPORT)
