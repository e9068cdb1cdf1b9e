"""Every bug of `compile_step` that was fixed left its smallest step in `data/bugs/steps`; each must equal eager.

A file defines `make()`: the step, an iterator that yields the arguments of each call (and changes state before), and
a function that gives the tensors and numbers to compare; and `PROGRAMS`, how many are captured. `REFUSES_LAST`: the
code of the error that the last call raises, in place of what eager does. `EAGER_CALLS`: how many run in eager mode
beside programs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dovetail
from tests.frontends.step.agreement import programs_of
from tests.frontends.step.twins import difference

FILES = sorted((Path(__file__).parents[2] / "data" / "bugs" / "steps").glob("*.py"))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(step: Callable[..., Any], calls: Iterator[Any], state: Callable[[], list[Any]]) -> Iterator[list[Any]]:
    for arguments in calls:
        result = step(*arguments)
        yield [result, *state()]


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_smallest_step_equals_eager(path: Path) -> None:
    module = _load(path)
    refused = getattr(module, "REFUSES_LAST", "")
    expected = list(_run(*module.make()))
    step, calls, state = module.make()
    compiled = dovetail.compile_step(step)
    running = _run(compiled, calls, state)
    for number, values in enumerate(expected[: len(expected) - bool(refused)]):
        assert difference(values, next(running)) is None, f"call {number}"
    if refused:
        with pytest.raises(dovetail.DovetailError, match=refused):
            next(running)
    assert programs_of(compiled.stats) == module.PROGRAMS
    assert compiled.stats.eager_calls == getattr(module, "EAGER_CALLS", not module.PROGRAMS)
