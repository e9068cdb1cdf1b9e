"""The wheel holds the package and what it reads at run time, and works where nothing else of the repository is."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import dovetail

_ROOT = Path(__file__).resolve().parent.parent
_QUICK_START = """
import torch
import dovetail
f = dovetail.compile(lambda w, x: (x @ w).relu().square().mean())
w = torch.randn(4, 3, requires_grad=True)
f(w, torch.randn(5, 4)).backward()
assert w.grad is not None
print(dovetail.__file__, dovetail.__version__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution, built without a network by the build backend itself."""
    backend = pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("dist")
    before = Path.cwd()
    os.chdir(_ROOT)  # where a build backend is called
    try:
        return {
            "wheel": folder / backend.build_wheel(str(folder)),
            "sdist": folder / backend.build_sdist(str(folder)),
        }
    finally:
        os.chdir(before)


def test_the_wheel_is_pure_and_complete(built: dict[str, Path]) -> None:
    assert built["wheel"].name == f"dovetail-{dovetail.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        assert f"Version: {dovetail.__version__}" in wheel.read(metadata).decode()
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        for line in wheel.read(entry_points).decode().splitlines():
            if "=" in line:
                module, attribute = line.split("=")[1].strip().split(":")
                assert hasattr(importlib.import_module(module), attribute)
    source = _ROOT / "src"
    files = {str(path.relative_to(source)) for path in (source / "dovetail").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == {
        name for name in names if ".dist-info/" not in name
    }


def test_the_source_distribution_can_be_tested(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"README.md", "LICENSE", "Makefile", "pyproject.toml", "constraints.txt", "mkdocs.yml", "CONTRIBUTING.md"}
    assert wanted <= names
    assert {"tests/test_packaging.py", "docs/README.md", "src/dovetail/__init__.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/", "dist/"))]


def test_the_wheel_runs_where_nothing_else_is(built: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(built["wheel"])], check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", _QUICK_START],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path, version = done.stdout.split()
    assert Path(path).is_relative_to(target)
    assert version == dovetail.__version__
