"""`debug_nop` finds descriptions that are not what a node gives, at that node, and nothing in graphs that are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import dovetail
from dovetail.compat.functorch import debug_nop
from dovetail.errors import GraphMismatch
from dovetail.inspect.graph_check import GraphChecker
from tests.models.zoo import MORE, ZOO, loss_of
from tests.rotation import rotated

pytestmark = pytest.mark.usefixtures("alone")


def program(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    hidden = (x @ w).relu()
    top, places = hidden.max(dim=1)
    first, second = hidden.split(2, dim=1)
    kept = hidden[:, None, :].transpose(0, 2)
    return top, places, first + second, kept.contiguous(), hidden.sum(), hidden.to(torch.float64), x > 0


def graph() -> tuple[fx.GraphModule, list[Tensor]]:
    """The forward half of `program`, and inputs for it."""
    made: list[fx.GraphModule] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> fx.GraphModule:
        made.append(gm)
        return gm

    inputs = [torch.randn(3, 5), torch.randn(5, 4)]
    dovetail.aot_function(program, compiler)(*inputs)
    return made[0], inputs


def like(fake: Tensor, **changes: Any) -> Tensor:
    """A description that differs from another."""
    shape = changes.get("shape", tuple(fake.shape))
    stride = changes.get("stride", torch.empty(shape, device="meta").stride() if "shape" in changes else fake.stride())
    device = changes.get("device", fake.device)
    return torch.empty_strided(shape, stride, dtype=changes.get("dtype", fake.dtype), device=device)


Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Fault:
    """One wrong description. operator: of the first node whose description is changed. what: said in the message."""

    operator: str
    what: str
    change: Change

    def __str__(self) -> str:
        return f"{self.operator}: {self.what}"


def item(index: int, change: Change) -> Change:
    """A change of one item of a sequence."""
    return lambda said: type(said)(change(x) if i == index else x for i, x in enumerate(said))


FAULTS = (
    Fault("mm", "the dtype", lambda t: like(t, dtype=torch.float64)),
    Fault("mm", "the dtype", lambda t: like(t, dtype=torch.bfloat16)),
    Fault("mm", "the shape", lambda t: like(t, shape=(4, 3))),
    Fault("mm", "the shape", lambda t: like(t, shape=(3, 5))),
    Fault("mm", "the rank", lambda t: like(t, shape=(12,))),
    Fault("mm", "the rank", lambda t: like(t, shape=(3, 4, 1))),
    Fault("mm", "the strides", lambda t: like(t, stride=(1, 3))),
    Fault("mm", "the device", lambda t: like(t, device="meta")),
    Fault("mm", "the kind of result", lambda t: None),
    Fault("mm", "the kind of result", lambda t: 3),
    Fault("mm", "the structure", lambda t: [t]),
    Fault("mm", "the structure", lambda t: (t,)),
    Fault("relu", "the dtype", lambda t: like(t, dtype=torch.int64)),
    Fault("relu", "the strides", lambda t: like(t, stride=(0, 1))),
    Fault("relu", "the shape", lambda t: like(t, shape=(0, 4))),
    Fault("max", "the structure", list),
    Fault("max", "the structure", lambda t: t[0]),
    Fault("max", "the number of items", lambda t: t[:1]),
    Fault("max", "the number of items", lambda t: (*t, None)),
    Fault("max", "the dtype of item 1", item(1, lambda t: like(t, dtype=torch.int32))),
    Fault("max", "the shape of item 0", item(0, lambda t: like(t, shape=(4,)))),
    Fault("max", "the kind of result of item 1", item(1, lambda t: None)),
    Fault("split", "the structure", tuple),
    Fault("split", "the shape of item 1", item(1, lambda t: like(t, shape=(3, 1)))),
    Fault("split", "the strides of item 0", item(0, lambda t: like(t, stride=(2, 1)))),
    Fault("transpose", "the strides", lambda t: like(t, stride=(3, 3, 1))),
    Fault("clone", "the strides", lambda t: like(t, stride=(1, 4, 4))),
    Fault("sum", "the rank", lambda t: like(t, shape=(1,))),
    Fault("_to_copy", "the dtype", lambda t: like(t, dtype=torch.float32)),
    Fault("gt", "the dtype", lambda t: like(t, dtype=torch.uint8)),
    Fault("add", "the device", lambda t: like(t, device="meta")),
    Fault("placeholder", "the shape", lambda t: like(t, shape=(7, 5))),
)


def find(gm: fx.GraphModule, operator: str) -> fx.Node:
    """The first node that calls this operator."""
    if operator == "placeholder":
        return next(iter(gm.graph.nodes))
    return next(n for n in gm.graph.nodes if n.op == "call_function" and str(n.target).startswith(f"aten.{operator}."))


def test_there_are_thirty_faults() -> None:
    assert len(FAULTS) >= 30


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_wrong_description_is_found_at_its_node(fault: Fault) -> None:
    gm, inputs = graph()
    node = find(gm, fault.operator)
    node.meta["val"] = fault.change(node.meta["val"])
    with pytest.raises(GraphMismatch) as raised:
        debug_nop(gm, inputs)(list(inputs))
    facts = raised.value.facts
    assert facts["name"] == node.name
    assert facts["what"] == fault.what
    if node.op == "call_function":
        assert "test_debug_nop.py:" in str(raised.value), "the user's line"


def test_a_graph_that_is_right_passes_with_its_results() -> None:
    gm, inputs = graph()
    results = debug_nop(gm, inputs)(list(inputs))
    assert all(torch.equal(a, b) for a, b in zip(results, program(*inputs), strict=True))


def test_strides_of_dimensions_of_one_do_not_count() -> None:
    gm = fx.symbolic_trace(lambda x: -x)
    for node in gm.graph.nodes:
        node.meta["val"] = torch.empty_strided((1, 3), (99, 1))
    debug_nop(gm, [])([torch.ones(1, 3)])


def test_all_findings_are_collected_on_demand() -> None:
    gm, inputs = graph()
    for operator in ("mm", "max"):
        find(gm, operator).meta["val"] = None
    checker = GraphChecker(gm, collect=True)
    checker.run(*inputs)
    assert [error.facts["name"] for error in checker.findings] == [find(gm, o).name for o in ("mm", "max")]


def test_sizes_are_bound_from_the_inputs() -> None:
    graphs: list[fx.GraphModule] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return debug_nop(gm, example_inputs)

    compiled = dovetail.aot_function(lambda x: (x.repeat(2, 1) @ x.t()).reshape(-1).sin().sum(), compiler, dynamic=True)
    for rows in (3, 5, 6):
        compiled(torch.randn(rows, 4, requires_grad=True)).backward()
    assert len(graphs) == 2
    node = find(graphs[0], "sin")
    (size,) = node.meta["val"].shape
    assert isinstance(size, torch.SymInt)
    node.meta["val"] = node.meta["val"].new_empty((size + 1,))
    with pytest.raises(GraphMismatch, match=r"sizes in this run: .* = 3") as raised:
        compiled(torch.randn(3, 4, requires_grad=True))
    assert raised.value.facts["name"] == node.name


def test_sizes_that_depend_on_data() -> None:
    compiled = dovetail.aot_function(lambda x: x[x > 0] * 2, debug_nop)
    x = torch.tensor([1.0, -1.0, 2.0])
    assert compiled(x).tolist() == [2.0, 4.0]
    assert compiled(-x).tolist() == [2.0]


@pytest.mark.parametrize("name", rotated(["mlp", "resnet", "gpt2", "bert", "unet", "mamba"], 3))
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_nothing_is_found_in_models(name: str) -> None:
    entry = next(entry for entry in ZOO + MORE if entry.name == name)
    nodes: list[int] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        nodes.append(len(gm.graph.nodes))
        return debug_nop(gm, example_inputs)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return dovetail.aot_module_simplified(gm, example_inputs, compiler)

    model = entry.model()
    loss_of(torch.compile(model, backend=backend, fullgraph=True)(**entry.batches(1)[0])).backward()
    assert len(nodes) == 2
