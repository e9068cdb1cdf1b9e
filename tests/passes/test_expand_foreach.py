"""List operators are taken apart where that lowers the peak."""

from __future__ import annotations

import torch

from dovetail.analysis.liveness import simulate_peak
from dovetail.ir.program import Node, Value
from dovetail.passes.expand_foreach import ExpandForeachReport, expand_foreach
from dovetail.passes.inplace import work_in_place
from tests.passes.programs import Builder, body

aten = torch.ops.aten


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


def test_lists_on_other_devices_stay() -> None:
    program = _step(device=torch.device("cuda")).program()
    assert expand_foreach(program) == (program, ExpandForeachReport(0))
