"""Each way in which a compiled function can be wrong is seen, and the report runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.harness.agreement import check_program
from tests.harness.programs import RandomProgram
from tests.harness.shrinking import shrink_program


def _program(*body: str, returns: tuple[str, ...] = ("v1",), inputs: tuple[str, ...] = ()) -> RandomProgram:
    made = inputs or ("x0 = torch.randn((2, 3), generator=g).requires_grad_()",)
    return RandomProgram(0, made, ("x0",), ("x0",) if "requires_grad" in made[0] else (), body, returns)


_PLAIN = ("x0 = torch.randn((2, 3), generator=g)",)

_WRONG: list[tuple[str, RandomProgram, Callable[..., Any]]] = [
    ("output 0 values", _program("v1 = x0 * 2"), lambda x: (x * 3,)),
    ("output 0 dtype, shape", _program("v1 = x0.sum()"), lambda x: (x.sum(0),)),
    ("output 0 dtype, shape", _program("v1 = x0 * 2"), lambda x: ((x * 2).double(),)),
    ("output 0 strides", _program("v1 = x0 * 2"), lambda x: ((x * 2).t().contiguous().t(),)),
    ("output 0 requires_grad", _program("v1 = x0 * 2"), lambda x: ((x * 2).detach(),)),
    ("gradient 0", _program("v1 = x0 * 2"), lambda x: ((x.detach() * 2 + (x - x.detach())),)),
    ("gradient 0", _program("v1 = x0.detach().requires_grad_() * 1"), lambda x: (x * 1,)),
    ("gradient 0", _program("v1 = x0 * 1"), lambda x: (x.detach().requires_grad_() * 1,)),
    ("same objects", _program("v1 = x0 * 2", returns=("v1", "v1")), lambda x: (x * 2, x * 2)),
    ("shared bytes", _program("v1 = x0 * 2", returns=("v1", "v1[0]")), lambda x: (x * 2, (x * 2)[0])),
    ("shared bytes", _program("v1 = x0.t()"), lambda x: (x.t().clone(memory_format=torch.preserve_format),)),
    ("input 0 values", _program("x0.add_(1)", returns=("3",), inputs=_PLAIN), lambda x: (3,)),
    (
        "input 0 version counter moved",
        _program("x0.add_(1)", returns=("3",), inputs=_PLAIN),
        lambda x: (x.data.add_(1), 3)[1:],
    ),
    ("random generator", _program("v1 = x0 * 2", "torch.rand(3)"), lambda x: (x * 2,)),
    ("output 0", _program("v1 = x0 * 2", returns=("3",)), lambda x: (4,)),
    (
        "output 0 conjugate",
        _program("v1 = (x0 * 1j).conj()", inputs=_PLAIN),
        lambda x: ((x * 1j).conj().resolve_conj(),),
    ),
]


@pytest.mark.parametrize(("what", "program", "wrong"), _WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(_WRONG)])
def test_a_wrong_result_is_seen(what: str, program: RandomProgram, wrong: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match=f"(?s)^{what}.*eager has.*def program") as caught:
        check_program(program, lambda function: wrong)
    report = str(caught.value)
    source = report[report.index("import torch") :]
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    namespace["program"](*namespace["inputs"](0)[0])


def test_eager_agrees_with_itself() -> None:
    for _, program, _ in _WRONG:
        check_program(program, lambda function: function)


def test_an_error_carries_the_program() -> None:
    def refuse(*args: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        check_program(_program("v1 = x0 * 2"), lambda function: refuse)
    assert "v1 = x0 * 2" in "".join(caught.value.__notes__)


def test_shrinking_leaves_what_matters() -> None:
    program = RandomProgram(
        0,
        ("x0 = torch.randn((3, 2), generator=g).permute(1, 0)", "x1 = torch.ones(2)"),
        ("x0", "x1"),
        (),
        ("v1 = x0 * 2", "v2 = x1 + 1", "with torch.no_grad():\n    v3 = v1.exp()", "v4 = v2.t()"),
        ("v4", "v3", "x1"),
    )
    small = shrink_program(program, lambda p: "exp" in p.source() and "v3" in p.returns)
    assert small.body == ("v1 = x0 * 2", "v3 = v1.exp()")
    assert small.arguments == ("x0",)
    assert small.inputs == ("x0 = torch.randn((3, 2), generator=g)",)
    assert small.returns == ("v3",)
