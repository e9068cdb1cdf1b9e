"""List operators are taken apart where that lowers the peak."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise

import pytest
import torch

import dovetail
from dovetail.analysis.liveness import simulate_peak
from dovetail.ir.program import Node, Value
from dovetail.passes import expand_foreach as expand_foreach_module
from dovetail.passes.expand_foreach import ExpandForeachReport, expand_foreach, expand_lists
from dovetail.passes.inplace import work_in_place
from tests.passes.programs import Builder, body

aten = torch.ops.aten

_OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, foreach=True),
    "adamw, amsgrad": partial(torch.optim.AdamW, foreach=True, amsgrad=True, maximize=True),
    "adamw, fused": partial(torch.optim.AdamW, fused=True),
    "nadam": partial(torch.optim.NAdam, foreach=True),
    "rmsprop": partial(torch.optim.RMSprop, foreach=True, centered=True, momentum=0.9),
    "sgd": partial(torch.optim.SGD, foreach=True, lr=0.1, momentum=0.9, nesterov=True),
}


def _list(b: Builder, name: str, target: object, *args: object, **options: object) -> list[Value]:
    results = [b.value(f"{name}{i}", **options) for i in range(2)]
    b.nodes.append(Node(target, args, outputs=tuple(results), unpack=True))  # type: ignore[arg-type]
    return results


def _step(**options: object) -> Builder:
    """Two parameters; a difference and a root for each are alive at once."""
    b = Builder()
    p, q, g, h = b.inputs = [b.value(name, **options) for name in "pqgh"]
    differences = _list(b, "d", aten._foreach_sub.List, [g, h], [p, q], **options)
    roots = _list(b, "r", aten._foreach_sqrt.default, [g, h], **options)
    new = _list(b, "n", aten._foreach_addcmul.Scalar, [p, q], differences, roots, 0.5, **options)
    for target, value in zip((p, q), new, strict=True):
        b.nodes.append(Node(aten.copy_.default, (target, value)))
    return b


def test_lists_are_taken_apart_where_that_lowers_the_peak() -> None:
    before = _step().program()
    after, report = expand_foreach(before)
    assert report == ExpandForeachReport(3)
    assert body(after)[:6] == [
        "d0 = sub.Tensor(g, p)",
        "r0 = sqrt.default(g)",
        "n0 = addcmul.default(p, d0, r0, value=0.5)",
        "d1 = sub.Tensor(h, q)",
        "r1 = sqrt.default(h)",
        "n1 = addcmul.default(q, d1, r1, value=0.5)",
    ]
    peaks = [simulate_peak(work_in_place(program)[0]).peak_bytes for program in (before, after)]
    assert peaks[1] < peaks[0]


def test_lists_stay_where_nothing_is_won() -> None:
    b = Builder("x", "y")
    results = _list(b, "r", aten._foreach_add.Scalar, list(b.inputs), 1)
    program = b.program(*results)
    after, report = expand_foreach(program)
    assert after is program
    assert report == ExpandForeachReport(0)


def test_lists_on_other_devices_become_shorter_ones() -> None:
    before = _step(device=torch.device("cuda")).program()
    after, report = expand_foreach(before)
    assert report == ExpandForeachReport(3)
    assert body(after)[:4] == [
        "d0, = _foreach_sub.List([g], [p])",
        "r0, = _foreach_sqrt.default([g])",
        "n0, = _foreach_addcmul.Scalar([p], [d0], [r0], 0.5)",
        "d1, = _foreach_sub.List([h], [q])",
    ]
    peaks = [simulate_peak(work_in_place(program)[0]).peak_bytes for program in (before, after)]
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_lists_that_the_kernel_for_lists_refuses_stay_on_other_devices(dtype: torch.dtype) -> None:
    program = _step(device=torch.device("cuda"), dtype=dtype).program()
    assert expand_lists(program) == (program, 0)


def test_reductions_and_lists_of_several_layouts_stay_on_other_devices() -> None:
    b = Builder()
    p, q = b.inputs = [b.value(name, device=torch.device("cuda")) for name in "pq"]
    turned = b.value("t", shape=(3, 4), stride=(1, 3), device=torch.device("cuda"))
    straight = b.value("s", shape=(3, 4), device=torch.device("cuda"))
    b.inputs = [p, q, turned, straight]
    norms = [b.value(name, shape=(), device=torch.device("cuda")) for name in ("m", "n")]
    b.nodes.append(Node(aten._foreach_norm.Scalar, ([p, q],), outputs=tuple(norms), unpack=True))
    sums = [b.value("a", device=torch.device("cuda")), b.value("c", shape=(3, 4), device=torch.device("cuda"))]
    b.nodes.append(Node(aten._foreach_add.List, ([p, turned], [q, straight]), outputs=tuple(sums), unpack=True))
    program = b.program(*norms, *sums)
    assert expand_lists(program) == (program, 0)


@pytest.mark.parametrize("name", sorted(_OPTIMIZERS))
def test_a_step_with_short_lists_is_eagers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device with kernels for lists."""
    monkeypatch.setattr(expand_foreach_module, "_is_on_cpu", lambda node: False)

    def trained(is_compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        sizes = (3, 40, 5, 5, 60, 2)
        model = torch.nn.Sequential(*[torch.nn.Linear(*pair) for pair in pairwise(sizes)])
        optimizer = _OPTIMIZERS[name](model.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = dovetail.compile_step(step, executors=("aten",)) if is_compiled else step
        losses = [run(torch.randn(4, 3)) for _ in range(4)]
        if is_compiled:
            assert re.search(r"split [1-9]\d* list", str(run.explain()))
        return [*losses, *model.parameters()]

    for found, wanted in zip(trained(True), trained(False), strict=True):
        assert torch.equal(found, wanted)
