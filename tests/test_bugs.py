"""Every bug that was fixed left its smallest program in `data/bugs`; each must equal eager, bit by bit.

A file defines `program(*inputs)`, which returns tensors, and `inputs()`, which makes them; and, where it matters,
`around()`, a context in which the program is called; `finish(results)`, what the caller does to them. `DYNAMO = False`
says that Dynamo refuses the program.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import dovetail

FILES = sorted((Path(__file__).parent / "data" / "bugs").glob("*.py"))


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(function: Callable[..., Any], module: ModuleType) -> list[Any]:
    """Outputs, gradients, inputs after the call, and where the generator ended."""
    torch.manual_seed(0)
    inputs = module.inputs()
    with getattr(module, "around", contextlib.nullcontext)():
        results = function(*inputs)
        getattr(module, "finish", id)(results)
    outputs = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    wanted = [output for output in outputs if output.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.rand_like(output) for output in wanted])
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    return [*outputs, *(t.grad for t in tensors if t.is_leaf), *tensors, torch.get_rng_state()]


def _through_dynamo(module: ModuleType) -> Callable[..., Any]:
    if not getattr(module, "DYNAMO", True):
        pytest.skip("Dynamo refuses this program")
    return torch.compile(module.program, backend="dovetail", fullgraph=True, options={"verify": 2})


def _by_recording(module: ModuleType) -> Callable[..., Any]:
    return dovetail.compile(module.program, verify=2)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch.func does, by itself
@pytest.mark.parametrize("compile_program", [_by_recording, _through_dynamo])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_smallest_program_equals_eager(path: Path, compile_program: Callable[[ModuleType], Callable[..., Any]]) -> None:
    module = _load(path)
    expected = _run(module.program, module)
    compiled = compile_program(module)
    _compare(_run(compiled, module), expected)
    _compare(_run(compiled, module), expected)


def _compare(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for position, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if b is None:
            assert a is None, position
            continue
        assert type(a) is type(b), position
        assert a.dtype == b.dtype, position
        assert a.stride() == b.stride(), position
        assert torch.equal(a, b), f"value {position} differs by {(a - b).abs().max()}"
