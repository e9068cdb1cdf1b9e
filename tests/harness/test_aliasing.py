"""Programs with aliased arguments hold a bit of everything, and compilers that are wrong about aliases are caught."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch

from dovetail.torch_compat.autograd import version_of
from tests.harness.agreement import check_program, observe, overlaps_itself
from tests.harness.aliasing import AliasProgram, PatternFacts, alias_program, facts_in_eager, runs_in_eager
from tests.harness.placement import KINDS, Pattern
from tests.harness.shared_bytes import OrderMatters, WritesHaveOneMeaning, bytes_of, shared_bytes
from tests.harness.shrinking import shrink_program
from tests.rotation import rotated

_SEEDS = range(160)


@cache
def _programs() -> tuple[AliasProgram, ...]:
    return tuple(alias_program(seed) for seed in _SEEDS)


@cache
def _facts() -> tuple[tuple[PatternFacts, ...], ...]:
    """Of each program; it has none where eager refuses it."""
    return tuple(facts_in_eager(program) or () for program in _programs())


# --- the generator ----------------------------------------------------------------------------------------------------


def test_a_seed_gives_one_program_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    assert alias_program(5) == alias_program(5)
    assert alias_program(5).source() != alias_program(6).source()
    assert torch.equal(before, torch.get_rng_state())


def test_every_program_runs_in_eager_in_every_pattern() -> None:
    assert all(len(facts) == 3 for facts in _facts())


def test_eager_agrees_with_itself() -> None:
    for program in _programs()[:100]:
        check_program(program, lambda function: function, program.seeds, with_counters=True)


def test_patterns_differ_in_nothing_but_where_the_arguments_lie() -> None:
    for program in _programs():
        _, inputs = program.build()
        made = [inputs(seed)[0] for seed in program.seeds]
        for versions in zip(*made, strict=True):
            for value in (
                {(x.shape, x.stride(), x.dtype) for x in versions},
                {(x.requires_grad, x.is_leaf) for x in versions},
            ):
                assert len(value) == 1, program.source()


def test_most_programs_write_what_another_argument_shows() -> None:
    written = sum(any(fact.written for fact in facts) for facts in _facts())
    changing = sum(len({fact.written for fact in facts}) == 2 for facts in _facts())
    assert written > 0.7 * len(_facts())
    assert changing > 0.4 * len(_facts())
    assert any(not any(fact.written for fact in facts) for facts in _facts())


def test_programs_hold_a_bit_of_everything() -> None:
    patterns = [pattern for program in _programs() for pattern in program.patterns]
    assert {pattern.kind for pattern in patterns} == set(KINDS)
    body = "\n".join(line for program in _programs() for line in program.body)
    made = "\n".join(line for pattern in patterns for line in pattern.lines)
    written = "mul_( add_( copy_( fill_( zero_( masked_fill_( index_put_( out= .data detach() no_grad [0]"
    viewed = "[1:] select( transpose( .view( unbind( split( chunk( diagonal( as_strided( expand( view(torch."
    for part in f"{written} {viewed}".split():
        assert part in body, part
    for part in ("view_as(", ".detach()", ".data", "requires_grad_()", "* 1", "uint8", "int32", "bfloat16", "double()"):
        assert part in made, part
    for form in (
        r"x\d = x\d$",
        r"x\d = m\d$",
        r"x\d = x\d\.data$",
        r"x\d = x\d\.detach\(\)$",
        r"as_strided\(.*\(0, 1",
        r"= x\d\[\.\.\.\]",
    ):
        assert re.search(form, made, re.MULTILINE), form
    returned = [result for program in _programs() for result in program.returns]
    for form in (r"x\d$", r"x\d\[", r"v\d+$", r"v\d+\[", "None"):
        assert any(re.match(form, result) for result in returned), form
    assert 0.35 < sum(bool(program.patterns[0].leaves) for program in _programs()) / len(_programs()) < 0.65


def test_arguments_are_reshaped_on_demand_only() -> None:
    names = re.compile(r"x\d\.(t|squeeze|unsqueeze|transpose)_\(")
    assert not any(names.search(line) for program in _programs() for line in program.body)
    assert any(names.search(line) for seed in range(60) for line in alias_program(seed, reshapes=True).body)


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_bytes_are_counted_one_by_one() -> None:
    memory = torch.zeros(8)
    assert not shared_bytes(memory[::2], memory[1::2])
    assert len(shared_bytes(memory[:4], memory[3:])) == 4
    assert len(bytes_of(memory[:1].expand(5))) == 4
    assert not bytes_of(memory[:0])
    assert len(shared_bytes(memory.view(torch.uint8)[6:9], memory[1:2])) == 2


@pytest.mark.parametrize(
    "write",
    [
        lambda m: m[::2][:3].copy_(m[::2][1:]),
        lambda m: torch.cumsum(m, 0, out=m),
        lambda m: m.view(torch.int32).copy_(torch.ones(8)),
        lambda m: m.as_strided((2, 2), (1, 1)).fill_(1),
    ],
)
def test_writes_without_one_meaning_are_refused(write: Callable[[torch.Tensor], object]) -> None:
    with WritesHaveOneMeaning(), pytest.raises((OrderMatters, RuntimeError)):
        write(torch.zeros(8))


def test_writes_of_one_meaning_run() -> None:
    memory = torch.zeros(8)
    with WritesHaveOneMeaning() as watch:
        memory[::2].copy_(memory[1::2])
        memory.add_(memory.view_as(memory))
    assert watch.written == bytes_of(memory)


# --- wrong compilers --------------------------------------------------------------------------------------------------


def _copying_back(
    function: Callable[..., Any], wrong_about: Callable[[torch.Tensor, torch.Tensor], bool]
) -> Callable[..., Any]:
    """Arguments of a kind of overlap that this is wrong about are copied, and copied back if they were written."""

    def call(*arguments: torch.Tensor) -> Any:
        given = list(arguments)
        for place, x in enumerate(arguments):
            others = [y for other, y in enumerate(arguments) if other != place]
            if not x.requires_grad and any(shared_bytes(x, y) and wrong_about(x, y) for y in others):
                given[place] = _copied(x)
        results = function(*given)
        for x, copied in zip(arguments, given, strict=True):
            if copied is not x and version_of(copied) and not overlaps_itself(x) and x.shape == copied.shape:
                x.copy_(copied.detach())
        return results

    return call


def _copied(x: torch.Tensor) -> torch.Tensor:
    extent = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((extent,), (1,)).clone().as_strided(x.shape, x.stride()).data


def _as_in_the_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arguments that were one object in the first call are taken to be one object for ever."""
    chosen: list[int] = []

    def call(*arguments: torch.Tensor) -> Any:
        if not chosen:
            chosen.extend(next(i for i, y in enumerate(arguments) if y is x) for x in arguments)
        return function(*(arguments[i] for i in chosen))

    return call


def _same_place(x: torch.Tensor, y: torch.Tensor) -> bool:
    return (x.data_ptr(), x.shape, x.stride(), x.dtype) == (y.data_ptr(), y.shape, y.stride(), y.dtype)


_WRONG: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "any overlap": partial(_copying_back, wrong_about=lambda x, y: True),
    "partial overlap": partial(_copying_back, wrong_about=lambda x, y: not _same_place(x, y)),
    "equal tensors": partial(_copying_back, wrong_about=lambda x, y: x is not y and _same_place(x, y)),
    "the same object": partial(_copying_back, wrong_about=lambda x, y: x is y),
    "other dtypes": partial(_copying_back, wrong_about=lambda x, y: x.dtype is not y.dtype),
    "gradients": partial(_copying_back, wrong_about=lambda x, y: y.requires_grad),
    "the first call": _as_in_the_first_call,
}


def _failure(program: AliasProgram, wrong: Callable[[Callable[..., Any]], Callable[..., Any]]) -> str | None:
    try:
        check_program(program, wrong, program.seeds)
    except (AssertionError, RuntimeError) as error:
        return str(error) + "".join(getattr(error, "__notes__", ()))
    return None


@pytest.mark.parametrize("kind", rotated([*_WRONG], 3))
def test_a_compiler_that_is_wrong_about_aliases_is_caught(kind: str) -> None:
    failures = [failure for program in _programs()[:150] if (failure := _failure(program, _WRONG[kind]))]
    assert len(failures) >= 3
    assert all("def inputs(seed=0)" in failure and "with inputs(" in failure for failure in failures)


def test_the_copies_are_right_where_no_argument_is_copied() -> None:
    right = partial(_copying_back, wrong_about=lambda x, y: False)
    assert all(_failure(program, right) is None for program in _programs()[:100])


# --- reports ----------------------------------------------------------------------------------------------------------


def _two_views(*body: str, returns: tuple[str, ...] = ("v1",)) -> AliasProgram:
    memory = "m0 = torch.randn(4, generator=g)"
    patterns = (
        Pattern("apart", ("x0 = torch.randn(2, generator=g)", "x1 = torch.randn(2, generator=g)"), ()),
        Pattern("overlapping", (memory, "x0 = m0[0:2]", "x1 = m0[1:3]", "x2 = m0[2:4]"), ()),
        Pattern("duplicate", (memory, "x0 = m0[0:2]", "x1 = x0"), ()),
    )
    return AliasProgram(0, ("x0", "x1"), patterns, body, returns)


def test_a_report_names_the_pattern_and_runs() -> None:
    failure = _failure(_two_views("x0.mul_(2)", "v1 = x1 + 1"), _WRONG["partial overlap"])
    assert failure is not None
    assert "with inputs(1) of this program" in failure
    assert "if seed % 3 == 1:  # overlapping" in failure
    namespace: dict[str, Any] = {}
    exec(failure[failure.index("import torch") :], namespace)
    namespace["program"](*namespace["inputs"](1)[0])


def test_shrinking_leaves_what_matters() -> None:
    program = _two_views("v2 = x0 * 3", "x0.mul_(2)", "v1 = x1 + 1", "v3 = v1 * 2", returns=("v3", "v2", "v1"))
    small = shrink_program(program, lambda p: _failure(p, _WRONG["partial overlap"]) is not None)
    assert [pattern.kind for pattern in small.patterns] == ["overlapping"]
    assert small.patterns[0].lines == ("m0 = torch.randn(4, generator=g)", "x0 = m0[0:2]", "x1 = m0[1:3]")
    assert small.body == ("x0.mul_(2)", "v1 = x1 + 1")
    assert len(small.returns) == 1


def test_a_random_failure_shrinks() -> None:
    wrong = _WRONG["any overlap"]
    program = next(program for program in _programs() if _failure(program, wrong))
    small = shrink_program(program, lambda p: _failure(p, wrong) is not None)
    assert len(small.source()) < len(program.source())
    assert runs_in_eager(small)


def test_a_program_that_eager_refuses_is_told_apart() -> None:
    assert not runs_in_eager(_two_views("x0.resize(3)", returns=("x0",)))
    assert not runs_in_eager(_two_views("x0.add_(x1)", returns=("x0",)))


def test_arguments_that_are_one_object_are_observed() -> None:
    function, inputs = _two_views("x0.mul_(2)", "v1 = x1 + 1").build()
    seen = observe(function, inputs, 2, with_counters=True)
    assert seen["same objects"] == [("input 0", "input 1")]
    assert seen["input 1 version counter moved"] is True
