"""What an error tells a user to try works: each case meets an error, does what it says, and looks at the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import dovetail
from dovetail import passes
from dovetail.compat import functorch
from dovetail.errors import DovetailError
from dovetail.inspect.minify import minify_module
from dovetail.inspect.trace import measure
from dovetail.ir.export_signature import to_export_signature
from dovetail.ir.graph_signature import GraphSignature
from tests.ways_out import refused

pytestmark = pytest.mark.usefixtures("alone")

X = torch.tensor([0.5, -1.0, 2.0])


# --- autograd -------------------------------------------------------------------------------------------------------


def _second(call: Callable[..., Any]) -> Tensor:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


def _smooth(x: Tensor) -> Tensor:
    return x.sin() * x


def test_second_derivative() -> None:
    with refused("DT-AUTOGRAD-001", "compile with double_backward=True"):
        _second(dovetail.compile(_smooth))
    assert torch.equal(_second(dovetail.compile(_smooth, double_backward=True)), _second(_smooth))
    with refused("DT-AUTOGRAD-001", 'options={"double_backward": True}'):
        _second(torch.compile(_smooth, backend="dovetail"))
    asked = torch.compile(_smooth, backend="dovetail", options={"double_backward": True})
    assert torch.equal(_second(asked), _second(_smooth))

    def slope(x: Tensor) -> Tensor:
        return torch.autograd.grad(_smooth(x).sum(), x, create_graph=True)[0]

    x = X.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(dovetail.compile(slope)(x).sum(), x)[0], _second(_smooth))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own decompositions
def test_forward_mode() -> None:
    x = X.clone().requires_grad_()
    graph = torch.compile(_smooth, backend="dovetail")
    with forward_ad.dual_level(), refused("DT-AUTOGRAD-004", "torch.func.jvp inside"):
        graph(forward_ad.make_dual(x, torch.ones(3)))

    def inside(x: Tensor, tangent: Tensor) -> Any:
        return torch.func.jvp(_smooth, (x,), (tangent,))

    for call in (dovetail.compile(inside), torch.compile(inside, backend="dovetail")):
        for got, wanted in zip(call(x, X), inside(x, X), strict=True):
            assert torch.equal(got, wanted)


# --- compilers, options, signatures ---------------------------------------------------------------------------------


def test_no_callable() -> None:
    with refused("DT-COMPILER-001", "such as the graph module itself"):
        dovetail.aot_function(torch.sin, lambda gm, inputs: None)(X)
    assert torch.equal(dovetail.aot_function(torch.sin, lambda gm, inputs: gm)(X), X.sin())


def test_no_tuple() -> None:
    with refused("DT-COMPILER-002", "return a tuple"):
        dovetail.aot_function(torch.sin, lambda gm, inputs: torch.sin)(X)
    assert torch.equal(dovetail.aot_function(torch.sin, lambda gm, inputs: lambda x: (x.sin(),))(X), X.sin())


def test_wrong_description() -> None:
    gm = make_fx(lambda x: x.sin().cos())(X)
    with FakeTensorMode():
        next(node for node in gm.graph.nodes if node.name == "sin").meta["val"] = torch.empty(5)
    with refused("DT-COMPILER-003", "fake tensor propagation"):
        functorch.debug_nop(gm, [X])([X])
    FakeTensorProp(gm).propagate(X)
    assert torch.equal(functorch.debug_nop(gm, [X])([X]), X.sin().cos())


def test_a_name_that_is_called() -> None:
    with refused("DT-COMPILER-004", 'dovetail.aot_function(fn, fw_compiler, partition="default")'):
        called: Any = functorch.default_partition
        called(fx.symbolic_trace(_smooth))
    assert torch.equal(dovetail.aot_function(_smooth, lambda gm, inputs: gm, partition="default")(X), _smooth(X))


def test_unknown_option() -> None:
    unknown: Any = {"dynamc": True}
    with refused("DT-OPTION-001", "did you mean 'dynamic'?"):
        dovetail.compile(torch.sin, **unknown)
    dovetail.compile(torch.sin, dynamic=True)
    together: Any = {"options": {"verify": 1}}
    doors: tuple[Callable[..., Any], ...] = (dovetail.compile, dovetail.compile_step)
    for door in doors:
        with refused("DT-OPTION-001", "give each option by its own name, as in verify=1"):
            door(torch.sin, **together)
        assert torch.equal(door(torch.sin, verify=1)(X), X.sin())
    with refused("DT-OPTION-001", "give each option by its own name"):
        dovetail.freeze(nn.Linear(3, 2), (X,), **together)
    dovetail.freeze(nn.Linear(3, 2), (X,), verify=1)


def test_bad_value() -> None:
    with refused("DT-OPTION-002", "give 0, 1 or 2"):
        dovetail.compile(torch.sin, verify=7)
    for level in (0, 1, 2):
        assert torch.equal(dovetail.compile(torch.sin, verify=level)(X), X.sin())


def test_not_yet() -> None:
    with refused("DT-OPTION-003", "leave it out; dovetail.passes.reinplace(gm)"):
        functorch.aot_function(_smooth, lambda gm, inputs: gm, disable_functionalization=True)
    compiled = functorch.aot_function(_smooth, lambda gm, inputs: passes.reinplace(gm, *inputs))
    assert torch.equal(compiled(X), _smooth(X))


def test_half_of_a_training_graph() -> None:
    compiled = dovetail.compile(nn.Linear(3, 2))
    compiled(torch.ones(1, 3)).sum().backward()
    (graph,) = compiled.graphs
    assert graph.backward_for is not None
    backward = graph.backward_for(((0, 0),)).program.program
    with refused("DT-SIGNATURE-001", "GraphSignature.of(backward, forward=...)"):
        GraphSignature.of(backward)
    signature = GraphSignature.of(backward, forward=graph.forward.program)
    with refused("DT-SIGNATURE-001", "its forward half without gradients"):
        to_export_signature(signature)
    alone = dovetail.compile(nn.Linear(3, 2).requires_grad_(requires_grad=False))
    alone(torch.ones(1, 3))
    assert to_export_signature(GraphSignature.of(alone.graphs[0].forward.program)).user_inputs


# --- graph modules --------------------------------------------------------------------------------------------------


class _Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).add_(1)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export itself
def test_not_functional() -> None:
    for gm in (make_fx(_Adds())(X), torch.export.export(_Adds(), (X,)).graph_module):
        with refused("DT-INPLACE-001", "make_fx(functionalize(f))"):
            passes.reinplace(gm, X)
    functional = make_fx(functionalize(_Adds()))(X)
    exported = torch.export.export(_Adds(), (X,)).run_decompositions().graph_module
    for gm in (functional, exported):
        found = passes.reinplace(gm, X)(X.clone())
        assert torch.equal(found[0] if isinstance(found, tuple) else found, X * 2 + 1)


def test_no_such_argument() -> None:
    with refused("DT-INPLACE-002", "correct donate, or leave this input out"):
        dovetail.compile(torch.mul, donate="z")
    assert torch.equal(dovetail.compile(lambda x, y: x * y, donate="x")(X.clone(), X), X * X)


def test_given_twice() -> None:
    compiled = dovetail.compile(lambda x, y: x.sin() * y, donate="x")
    with refused("DT-INPLACE-003", "pass a copy (x.clone())"):
        compiled(X, X)
    assert torch.equal(compiled(X.clone(), X), X.sin() * X)


def test_other_samples() -> None:
    gm = make_fx(torch.sin)(X)
    with refused("DT-PASS-001", "pass samples like the traced inputs, or none"):
        passes.reinplace(gm, torch.ones(4))
    assert torch.equal(passes.reinplace(gm, X)(X.clone()), X.sin())
    assert torch.equal(passes.reinplace(gm)(X.clone()), X.sin())


def test_no_samples() -> None:
    gm = make_fx(torch.sin)(X)
    for node in gm.graph.nodes:
        node.meta = {}
    with refused("DT-PASS-002", "pass sample inputs"):
        passes.reinplace(gm)
    for sample in (X, X.to("meta")):
        assert torch.equal(passes.reinplace(gm, sample)(X.clone()), X.sin())


def _ways_to_a_graph(model: Any) -> list[fx.GraphModule]:
    """As errors about graphs name them, of code that writes in place as well."""
    exported = torch.export.export(model, (X,)).run_decompositions()
    return [
        make_fx(functionalize(model))(X),
        exported.graph_module,
        exported.module(check_guards=False),
    ]


def _reinplaced(gm: fx.GraphModule) -> Tensor:
    found = passes.reinplace(gm, X)(X.clone())
    made: Tensor = found[0] if isinstance(found, tuple) else found
    return made


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export itself
def test_no_graph() -> None:
    model: Any = _Adds()
    with refused("DT-PASS-003", "export(model, inputs).run_decompositions().graph_module"):
        passes.reinplace(model, X)
    for gm in _ways_to_a_graph(model):
        assert torch.equal(_reinplaced(gm), X * 2 + 1)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export itself
def test_graph_of_other_things_than_operators() -> None:
    model = _Adds()
    for gm in (fx.symbolic_trace(model), torch.export.export(nn.Dropout(), (X,)).module()):
        with refused("DT-CAPTURE-008", "ep.run_decompositions().graph_module"):
            passes.reinplace(gm, X)
    for gm in _ways_to_a_graph(model):
        assert torch.equal(_reinplaced(gm), X * 2 + 1)


# --- reports and searches -------------------------------------------------------------------------------------------


def test_no_folder(tmp_path: Path) -> None:
    explanation = dovetail.explain(torch.sin, X)
    with refused("DT-REPORT-001", "a folder that exists"):
        explanation.html(tmp_path / "none" / "report.html")
    explanation.html(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size


def test_no_folder_for_a_dump(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("DT-REPORT-003", "name a folder that can be made"):
        dovetail.compile(torch.sin, dump=str(tmp_path / "file"))
    assert torch.equal(dovetail.compile(torch.sin, dump=str(tmp_path / "dump"))(X), X.sin())
    assert list((tmp_path / "dump").iterdir())


def test_nothing_to_explain(tmp_path: Path) -> None:
    step = dovetail.compile_step(lambda x: x + 1)
    with refused("DT-REPORT-002", "call it: a call captures"):
        dovetail.explain(step)
    step(X)
    with refused("DT-REPORT-002", "leave the arguments out"):
        dovetail.explain(step, X)
    assert str(dovetail.explain(step))
    frozen = dovetail.freeze(nn.Linear(3, 2), (X,))
    frozen.save(tmp_path / "model.dovetail")
    with refused("DT-REPORT-002", "explain it where it is frozen"):
        dovetail.explain(dovetail.load(tmp_path / "model.dovetail"))
    assert str(dovetail.explain(frozen))
    with refused("DT-REPORT-002", "call the compiled function in `run`"):
        measure(_smooth, X, run=lambda compiled: None)
    assert measure(_smooth, X, run=lambda compiled: compiled(X)).nodes


def _dislikes_sin(gm: fx.GraphModule, inputs: list[Any]) -> None:
    if "sin" in gm.code:
        raise ValueError("there is a sine")


def test_does_not_fail() -> None:
    with refused("DT-MINIFY-001", "a check that sees the failure"):
        minify_module(make_fx(lambda x: x.cos().sin())(X), [X], lambda gm, inputs: None)
    found = minify_module(make_fx(lambda x: x.cos().sin())(X), [X], _dislikes_sin)
    assert "aten.cos" not in found.module.code


def test_comes_and_goes() -> None:
    calls: list[int] = []

    def flaky(gm: fx.GraphModule, inputs: list[Any]) -> None:
        calls.append(1)
        if len(calls) % 2:
            _dislikes_sin(gm, inputs)

    with refused("DT-MINIFY-002", "make the check repeatable"):
        minify_module(make_fx(torch.sin)(X), [X], flaky)
    minify_module(make_fx(torch.sin)(X), [X], _dislikes_sin)


def test_another_search(tmp_path: Path) -> None:
    one, other = make_fx(lambda x: x.cos().sin())(X), make_fx(lambda x: x.tan().sin())(X)
    minify_module(one, [X], _dislikes_sin, state=tmp_path / "state")
    with refused("DT-MINIFY-003", "name another file, or delete this one"):
        minify_module(other, [X], _dislikes_sin, state=tmp_path / "state")
    minify_module(other, [X], _dislikes_sin, state=tmp_path / "other")
    (tmp_path / "state").unlink()
    minify_module(other, [X], _dislikes_sin, state=tmp_path / "state")


# --- memory ---------------------------------------------------------------------------------------------------------


def test_limit_too_low() -> None:
    x = torch.rand(32, 32, requires_grad=True)

    def deep(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x @ x.t()).sin()
        return x.sum()

    with pytest.raises(DovetailError, match="DT-MEMORY-001") as caught:
        dovetail.compile(deep, memory_limit=1000)(x)
    least = caught.value.facts["least"]
    assert isinstance(least, str)
    assert least.startswith("memory_limit=")
    (wanted,) = torch.autograd.grad(deep(x), x)
    (found,) = torch.autograd.grad(dovetail.compile(deep, memory_limit=int(least.partition("=")[2]))(x), x)
    assert torch.equal(found, wanted)


# --- steps ----------------------------------------------------------------------------------------------------------


def test_freed_graph() -> None:
    weight = nn.Parameter(X.clone())

    def forward(x: Tensor) -> Tensor:
        return (x * weight).sum()

    def whole(x: Tensor) -> Tensor:
        loss = forward(x)
        loss.backward()
        return loss.detach()

    step = dovetail.compile_step(forward)
    step(X)
    with refused("DT-STEP-006", "call backward inside the step, or return x.detach()"):
        step(X).backward()
    step = dovetail.compile_step(whole)
    for _ in range(3):
        assert torch.equal(step(X), forward(X))
    assert weight.grad is not None
    assert torch.equal(weight.grad, 3 * X)
