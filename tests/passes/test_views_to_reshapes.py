"""Views of another shape as reshapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail import passes
from dovetail.errors import NotAGraphModule
from dovetail.passes.views_to_reshapes import ViewsToReshapesReport, views_to_reshapes
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def test_before_and_after() -> None:
    b = Builder("x")
    (x,) = b.inputs
    view = b.call("v", aten.view.default, x, [2, 2], view_of=x, shape=(2, 2))
    other = b.call("u", aten._unsafe_view.default, view, [4], view_of=x)
    before = b.program(b.call("y", aten.exp.default, other))
    after, report = views_to_reshapes(before)
    assert body(after) == [
        "v = reshape.default(x, [2, 2])",
        "u = reshape.default(v, [4])",
        "y = exp.default(u)",
        "return (y,)",
    ]
    assert report == ViewsToReshapesReport(("v", "u"))
    assert str(report) == "wrote 2 views as reshapes"


def test_no_view_gives_the_same_program() -> None:
    b = Builder("x")
    (x,) = b.inputs
    bits = b.call("bits", aten.view.dtype, x, torch.int32, view_of=x, dtype=torch.int32)
    program = b.program(b.call("y", aten.t.default, bits))
    assert views_to_reshapes(program)[0] is program


def _traced() -> fx.GraphModule:
    def flat(x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1).sin().view(-1)

    return make_fx(flat, tracing_mode="symbolic")(torch.randn(3, 2, 5))


def test_on_graph_modules() -> None:
    gm = _traced()
    before = gm.code
    made = passes.views_to_reshapes(gm)
    assert gm.code == before
    targets = [node.target for node in made.graph.nodes if node.op == "call_function"]
    assert targets.count(aten.reshape.default) == 2
    assert aten.view.default not in targets
    x = torch.randn(4, 3, 6)
    assert torch.equal(made(x), gm(x))
    last = torch.randn(4, 6, 3).transpose(1, 2)  # no view shows this as one row for each image
    assert torch.equal(made(last), gm(last.contiguous()))
    assert len(passes.plan_views_to_reshapes(gm).rewritten) == 2


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(NotAGraphModule):
        passes.views_to_reshapes(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
