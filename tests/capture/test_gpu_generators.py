"""Default generators of GPUs: their states are read and put in each call, and put back where a step has not run.

Generators of the CPU stand for them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.execute.step import CompiledStepProgram
from dovetail.ir.program import Node, Program, Stage, TensorMeta, Value
from dovetail.ir.signature import Signature, UserInput
from dovetail.ops import prims
from dovetail.pipeline.differential import sample_inputs


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """The first GPU's."""
    made = torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (made,))
    return made


def _drawn_again(generator: torch.Generator, x: Tensor) -> tuple[Tensor, Tensor]:
    of_gpu = torch.cuda.default_generators[0]
    state = of_gpu.get_state()
    first = torch.rand(3, generator=generator)
    of_gpu.set_state(state)
    return x * first, x * torch.rand(3, generator=generator)


def _seeded(generator: torch.Generator, x: Tensor) -> tuple[Tensor, Tensor]:
    torch.cuda.default_generators[0].manual_seed(5)
    return x * torch.rand(3, generator=generator), x


@pytest.mark.parametrize("function", [_drawn_again, _seeded])
def test_states_are_read_and_put(function: Any, generator: torch.Generator) -> None:
    compiled = dovetail.compile(lambda x: function(generator, x))
    x = torch.ones(3)
    for seed in range(3):
        ends = []
        for side in (lambda x: function(generator, x), compiled):
            generator.manual_seed(seed)
            cpu = torch.get_rng_state()
            ends.append((*side(x), generator.get_state()))
            assert torch.equal(cpu, torch.get_rng_state())
        assert all(map(torch.equal, *ends))


def test_recording_does_not_touch_it(generator: torch.Generator) -> None:
    generator.manual_seed(3)
    before = generator.get_state()
    compiled = dovetail.compile(lambda x: _drawn_again(generator, x))
    compiled.record(torch.ones(3))
    assert torch.equal(before, generator.get_state())


def test_a_step_on_a_gpu_puts_its_generator_back(generator: torch.Generator) -> None:
    meta = TensorMeta((3,), (1,), 0, torch.float32, torch.device("cuda", 0), 1)
    drawn = Value("rand", meta)
    node = Node(torch.ops.aten.rand.default, ([3],), outputs=(drawn,))
    program = Program("step", Stage.SPLIT, (), (node,), (drawn,), Signature((), ()))
    code: Any = SimpleNamespace(program=program)
    plan: Any = None
    step = CompiledStepProgram(code, plan, plan, (), ())
    assert step.draws
    assert step._generators == [generator]


def test_passes_are_compared_with_its_state(generator: torch.Generator) -> None:
    generator.manual_seed(11)
    state = Value("state", TensorMeta((5056,), (1,), 0, torch.uint8, torch.device("cpu"), 1))
    node = Node(prims.SET_RNG_STATE, (state, 0))
    program = Program("step", Stage.SPLIT, (state,), (node,), (), Signature((UserInput(0),), ()))
    (given,) = sample_inputs(program, {})
    assert torch.equal(given, generator.get_state())
