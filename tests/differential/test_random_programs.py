"""Random programs, compiled, do what eager does; `make sweep` runs as many as there is time for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import is_tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.capture.recording import InputSpec, Recording
from dovetail.ir.program import Program
from dovetail.ir.signature import UserInput
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.torch_compat.fakes import fake_of, new_fake_mode
from tests.harness.agreement import check_program, first_difference
from tests.harness.programs import random_program
from tests.rotation import rotated

BLOCK = 30
BLOCKS = 12
THROUGH_DYNAMO = (3, 17, 41, 58, 90, 113)
FUNCTIONALIZED = 30


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", rotated(range(0, BLOCK * BLOCKS, BLOCK), 6))
def test_compiled_programs_equal_eager(first: int) -> None:
    compile_checked = partial(dovetail.compile, verify=2)
    for seed in range(first, first + BLOCK):
        check_program(random_program(seed), compile_checked)


@pytest.mark.parametrize("seed", rotated(THROUGH_DYNAMO, 3))
def test_programs_through_dynamo_equal_eager(seed: int) -> None:
    check_program(random_program(seed), partial(torch.compile, backend="dovetail", options={"verify": 1}))


# --- torch.func.functionalize as a second opinion -----------------------------------------------------------


def _recorded(function: Callable[..., Any], inputs: list[Any]) -> Recording:
    mode = new_fake_mode()
    recording = Recording(mode, [InputSpec(f"x{i}", UserInput(i), fake_of(mode, x)) for i, x in enumerate(inputs)])
    recording.run_forward(function)
    return recording


def _functional_program(recording: Recording) -> Program:
    return recording.programs("functional", (None,) * len(recording.outputs.values)).functional


def _without_gradients(seed: int) -> tuple[Callable[..., Any], list[Any]]:
    function, make = random_program(seed).build()
    return function, [x.detach() for x in make(0)[0]]


def _observed(run: Callable[[list[Any]], Any], seed: int) -> dict[str, object]:
    inputs = _without_gradients(seed)[1]
    torch.manual_seed(0)
    outputs = run(inputs)
    seen = {f"output {i}": o.resolve_conj().resolve_neg().clone() for i, o in enumerate(outputs) if is_tensor(o)}
    seen |= {f"input {i}": x.clone() for i, x in enumerate(inputs)}
    return {**seen, "generator": torch.get_rng_state()}


@torch.no_grad()
def test_functional_programs_equal_those_of_functorch() -> None:
    """`torch.func.functionalize` is a second opinion: outputs and written inputs are those of its programs."""
    compared = 0
    for seed in range(FUNCTIONALIZED):
        if any(".data" in line or "as_strided" in line for line in random_program(seed).body):
            continue  # functionalize loses writes through `.data`, and takes storage offsets for those of new tensors
        function, inputs = _without_gradients(seed)
        compiled = dovetail.compile(function, inputs, skip=PASS_NAMES)
        try:
            oracle = make_fx(torch.func.functionalize(function, remove="mutations_and_views"))(*inputs)
        except (RuntimeError, TypeError, NotImplementedError, SyntaxError):
            continue  # it does not know every operator: `out=`, `t_`, views of complex numbers
        expected = _observed(lambda args, oracle=oracle: oracle(*args), seed)
        actual = _observed(lambda args, compiled=compiled: compiled(*args), seed)
        difference = first_difference(expected, actual)
        assert difference is None, f"{difference}\n\n{random_program(seed).source()}"
        compared += 1
    assert compared > FUNCTIONALIZED // 2


def test_functional_programs_hold_no_write() -> None:
    for seed in range(FUNCTIONALIZED):
        for node in _functional_program(_recorded(*_without_gradients(seed))).nodes:
            schema = getattr(node.target, "_schema", None)
            assert schema is None or not schema.is_mutable, f"{node.target} in seed {seed}"
