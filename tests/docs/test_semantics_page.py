"""Each refusal on the page about semantics happens, with the code that the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import dovetail
from dovetail.errors import DovetailError

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "semantics.md").read_text()
KEPT: list[Any] = []

torch.library.define("dovetail_page::unknown", "(Tensor x) -> Tensor")
torch.library.impl("dovetail_page::unknown", "CPU", lambda x: x + 1)


class Other:
    """No container, no dataclass."""


def _call(function: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    return lambda: dovetail.compile(function)(*inputs)


def _keep(x: Tensor) -> Tensor:
    KEPT.append(x * 2)
    return x + 1


def _overlapping() -> Any:
    base = torch.tensor([1 + 1j, 2, 3])
    return dovetail.compile(lambda x, y: (x.mul_(2), y * 1)[1])(base.conj()[:2], base[1:])


def _wrong_size() -> Any:
    compiled = dovetail.compile(lambda x: x[x > 0] + torch.ones(2))
    return compiled(torch.tensor([1.0, -1.0], requires_grad=True))


def _second_derivative() -> Any:
    x = torch.ones(2, requires_grad=True)
    return torch.autograd.grad(dovetail.compile(lambda x: x.exp())(x).sum(), x, create_graph=True)


def _forward_mode() -> Any:
    torch.compiler.reset()
    weight = torch.ones(2, requires_grad=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        return torch.compile(lambda x, w: x * w, backend="dovetail")(dual, weight)


def _shifted(x: Tensor) -> Tensor:
    torch._foreach_add_([x[:2], x[1:]], 1.0)
    return x * 1


def _write_an_array(x: Tensor) -> Tensor:
    return torch.from_numpy(np.zeros(3)).add_(1) + x


def _set_gradient(x: Tensor) -> Tensor:
    x.grad = x * 2
    return x


def _unknown(x: Tensor) -> Any:
    return torch.ops.dovetail_page.unknown(x)


REFUSED: dict[str, Callable[[], Any]] = {
    "DT-CAPTURE-002": _call(lambda x: x if x.sum() > 0 else -x, torch.ones(2)),
    "DT-CAPTURE-003": _call(_unknown, torch.ones(2)),
    "DT-CAPTURE-004": _call(lambda x: x * 2, torch.eye(2).to_sparse()),
    "DT-CAPTURE-005": _call(lambda x: Other(), torch.ones(2)),
    "DT-CAPTURE-007": _call(_keep, torch.ones(2)),
    "DT-CAPTURE-009": _call(lambda x: torch.rand(2, generator=torch.Generator()) + x, torch.ones(2)),
    "DT-CAPTURE-010": _wrong_size,
    "DT-CAPTURE-014": _call(_set_gradient, torch.ones(2)),
    "DT-ALIAS-001": _overlapping,
    "DT-ALIAS-002": _call(lambda x: x.resize_(5) * 2, torch.ones(2)),
    "DT-ALIAS-003": _call(_shifted, torch.ones(3)),
    "DT-ALIAS-005": _call(_write_an_array, torch.ones(3)),
    "DT-AUTOGRAD-001": _second_derivative,
    "DT-AUTOGRAD-004": _forward_mode,
    "DT-ENV-003": _call(lambda x: x + 1, torch.ones(2, device="meta")),
}


def test_the_page_and_this_test_name_the_same_refusals() -> None:
    table = PAGE[PAGE.index("## Refused") : PAGE.index("## Known to differ")]
    assert set(re.findall(r"DT-[A-Z]+-\d+", table)) == REFUSED.keys()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, for forward mode
@pytest.mark.parametrize("code", REFUSED)
def test_it_is_refused_with_this_code(code: str) -> None:
    with pytest.raises(DovetailError, match=code) as caught:
        REFUSED[code]()
    assert caught.value.code == code
    assert KEPT == []
