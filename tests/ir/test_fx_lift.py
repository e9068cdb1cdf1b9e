"""Graph modules to programs and back: what comes back runs alike, and nothing was lost or edited."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from dovetail.errors import InvalidGraphModule, InvalidProgram, MissingSamples, SampleMismatch, UnsupportedTensor
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.ir.fx_lower import lower, lower_part
from dovetail.ir.program import Node, Origin, Value
from dovetail.ir.signature import Constant, SizeInput, UserInput
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.ir.stages import verify_program
from dovetail.pipeline.driver import program_text, writes

aten = torch.ops.aten


def _same(actual: object, expected: object) -> None:
    """Both are one structure of equal leaves."""
    found, spec = pytree.tree_flatten(actual)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for a, b in zip(found, wanted, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            assert a.stride() == b.stride()
            assert torch.equal(a, b)
        else:
            assert a == b


def _frozen(module: fx.GraphModule) -> list[object]:
    """What must not change of a module."""
    nodes = [(n.name, n.op, n.target, str(n.args), str(n.kwargs), dict(n.meta)) for n in module.graph.nodes]
    vals = [repr(n.meta.get("val")) for n in module.graph.nodes]
    return [module.code, nodes, vals, sorted(module.state_dict())]


def _round_trip(module: fx.GraphModule, *calls: tuple[Any, ...], samples: tuple[Any, ...] = ()) -> Lifted:
    """Lift, lower, lift again; run both modules on copies of the arguments of each call."""
    before = _frozen(module)
    lifted = lift(module, samples)
    verify_program(lifted.program, writes)
    made = lower(lifted, lifted.program)
    assert _frozen(module) == before
    made.graph.lint()
    assert [n.name for n in made.graph.nodes] == [n.name for n in module.graph.nodes]
    assert type(made).__name__ == type(module).__name__
    assert sorted(made.state_dict()) == sorted(module.state_dict())
    assert all("val" in n.meta or n.op in ("output", "get_attr") for n in made.graph.nodes)
    again = lift(made, samples)
    assert program_text(again.program) == program_text(lifted.program)
    assert str(again.program.signature) == str(lifted.program.signature)
    for args in calls:
        _same(_ran(made, args), _ran(module, args))
    return lifted


def _ran(module: fx.GraphModule, args: tuple[Any, ...]) -> object:
    """Results, arguments and state after a call on copies; the state is put back."""
    args = copy.deepcopy(args)
    tensors = [*module.parameters(), *module.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    torch.manual_seed(0)
    results = copy.deepcopy(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, module(*args)))
    after = [tensor.detach().clone() for tensor in tensors]
    with torch.no_grad():
        for tensor, held in zip(tensors, before, strict=True):
            tensor.copy_(held)
    return results, args, after


# --- round trips ---------------------------------------------------------------------------------------------


def _views_and_writes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = x.t()
    base.add_(1)
    first, _ = x.split(2)
    first.copy_(y[:2])
    return x.reshape(-1), base.contiguous(), x.topk(2)[0], torch.zeros_like(y).normal_(), y * float("inf")


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traces_of_every_kind(mode: Any) -> None:
    inputs = (torch.randn(4, 6), torch.randn(4, 6))
    module = make_fx(_views_and_writes, tracing_mode=mode)(*inputs)
    _round_trip(module, inputs)
    _round_trip(module, inputs, samples=inputs)


def test_a_symbolic_trace_runs_at_other_sizes() -> None:
    def f(x: torch.Tensor, n: int) -> tuple[object, ...]:
        rows = x.shape[0] * 2
        return x.view(-1, rows).sum(0), x.shape[1] // 2, x.new_zeros(rows + n), x.expand(n, *x.shape), n

    module = make_fx(f, tracing_mode="symbolic")(torch.randn(4, 6), 3)
    calls = [(torch.randn(r, c), n) for r, c, n in [(4, 6, 3), (3, 8, 5), (5, 10, 2)]]
    lifted = _round_trip(module, *calls)
    roles = lifted.program.signature.inputs
    assert roles[0] == UserInput(0)
    assert isinstance(roles[1], SizeInput)
    bare = torch.empty((6, 4), device="meta")
    assert "scalar 12" in program_text(lift(module, (bare, 7)).program)  # the sample's sizes
    _round_trip(module, calls[1], samples=calls[1])


def test_fake_samples_keep_their_symbols() -> None:
    module = make_fx(lambda x: (x.t(), x.reshape(-1)))(torch.randn(4, 6))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    sample = mode.from_tensor(torch.randn(8, 5))
    for node in module.graph.nodes:
        node.meta.pop("val", None)
    lifted = lift(module, (sample,))
    (x,) = lifted.program.inputs
    assert lifted.mode is mode
    assert [type(size) for size in x.tensor.shape] == [SizeExpr, SizeExpr]
    assert lower(lifted, lifted.program).graph.find_nodes(op="placeholder")[0].meta["val"] is sample


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_functionalized_traces(remove: Any) -> None:
    inputs = (torch.randn(4, 6), torch.randn(4, 6))
    module = make_fx(functionalize(_views_and_writes, remove=remove))(*inputs)
    _round_trip(module, inputs)
    _round_trip(module, inputs, samples=inputs)


_quiet = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.scale = torch.full((4,), 2.0)

    def forward(self, input: dict[str, torch.Tensor]) -> dict[str, object]:
        self.count.add_(1)  # type: ignore[operator]
        x = self.norm(self.second(self.first(input["x"]))) * self.scale
        return {"x": [x, x.topk(2)[0]], "none": None, "number": 3, "count": (self.count.clone(),)}


@_quiet
def test_export() -> None:
    x = torch.randn(3, 4)
    program = torch.export.export(_Net().train(), ({"x": x},))
    for exported in (program, program.run_decompositions()):
        _round_trip(exported.graph_module)
        module = exported.module(check_guards=False)
        lifted = _round_trip(module, ({"x": x},))
        _round_trip(module, ({"x": x},), samples=({"x": x},))
        constants = {role.name for role in lifted.program.signature.inputs if isinstance(role, Constant)}
        assert {"first.weight", "count", "scale"} <= constants


@_quiet
def test_export_with_dynamic_sizes() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(_Net().eval(), ({"x": torch.randn(3, 4)},), dynamic_shapes=({"x": {0: batch}},))
    module = exported.module(check_guards=False)
    _round_trip(module, *(({"x": torch.randn(rows, 4)},) for rows in (3, 7)))


def _graph(outputs: Callable[[fx.Graph, fx.Node], Any]) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = FakeTensorMode().from_tensor(torch.empty(4, 4))
    graph.output(outputs(graph, x))
    return fx.GraphModule(nn.Module(), graph, class_name="Handmade")


@pytest.mark.parametrize(
    "outputs",
    [
        lambda g, x: x,
        lambda g, x: None,
        lambda g, x: (),
        lambda g, x: {"a": (x, [None, 2, x]), "b": {"c": x, "d": "text"}},
        lambda g, x: [x, x, None, 1.5, torch.float32],
        lambda g, x: (g.call_function(aten.sin.default, (x,)), slice(None, 2)),
        lambda g, x: g.call_function(aten.split.Tensor, (x, 2)),
        lambda g, x: g.call_function(aten.cat.default, (g.call_function(aten.split.Tensor, (x, 2)),)),
        lambda g, x: g.call_function(operator.getitem, (g.call_function(aten.topk.default, (x, 2)), -1)),
        lambda g, x: (g.call_function(aten.sym_size.int, (x, 0)), g.call_function(aten.sym_numel.default, (x,))),
        lambda g, x: g.call_function(aten.native_layer_norm.default, (x, [4], None, None, 1e-5)),
    ],
)
def test_outputs_of_every_structure(outputs: Any) -> None:
    module = _graph(outputs)
    lifted = lift(module)
    made = lower(lifted, lifted.program)
    x = torch.randn(4, 4)
    _same(made(x), module(x))
    assert program_text(lift(made).program) == program_text(lifted.program)


def test_defaults_of_placeholders_and_placeholders_without_tensor() -> None:
    graph = fx.Graph()
    x, mask, scale = (
        graph.placeholder("x"),
        graph.placeholder("mask", default_value=None),
        graph.placeholder("s", default_value=2),
    )
    norm = graph.call_function(aten.native_layer_norm.default, (x, [4], mask, None, 1e-5))
    graph.output((graph.call_function(operator.getitem, (norm, 0)), graph.call_function(aten.mul.Scalar, (x, scale))))
    module = fx.GraphModule(nn.Module(), graph)
    lifted = _round_trip(module, (torch.randn(2, 4),), samples=(torch.randn(2, 4),))
    assert [value.name for value in lifted.program.inputs] == ["x", "s"]
    assert lower(lifted, lifted.program)(torch.ones(1, 4), s=3)[1].tolist() == [[3.0] * 4]


# --- attributes ----------------------------------------------------------------------------------------------


def test_an_attribute_is_one_input_and_tied_attributes_share_a_storage() -> None:
    root = nn.Module()
    root.inner = nn.Module()
    root.inner.weight = nn.Parameter(torch.randn(4, 4))
    root.tied = root.inner.weight
    root.row = torch.arange(4.0)
    root.tail = root.row[2:]
    root.register_buffer("unread", torch.ones(2))
    graph = fx.Graph()
    x = graph.placeholder("x")
    reads = [graph.get_attr(t) for t in ("inner.weight", "tied", "inner.weight")]
    for read in reads:
        x = graph.call_function(aten.mm.default, (x, read))
    graph.call_function(aten.add_.Tensor, (graph.get_attr("tail"), 1))
    graph.output(graph.call_function(aten.mul.Tensor, (x, graph.get_attr("row"))))
    module = fx.GraphModule(root, graph)
    module.register_buffer("unread", root.unread)
    lifted = lift(module, (torch.randn(2, 4),))
    by_name = {
        r.name: v
        for r, v in zip(lifted.program.signature.inputs, lifted.program.inputs, strict=True)
        if isinstance(r, Constant)
    }
    assert list(by_name) == ["inner.weight", "tied", "tail", "row"]
    assert by_name["inner.weight"].tensor.storage == by_name["tied"].tensor.storage
    assert by_name["tail"].tensor.storage == by_name["row"].tensor.storage
    assert by_name["tail"].tensor.offset == 2
    made = lower(lifted, lifted.program)
    assert made.inner.weight is root.inner.weight
    assert made.unread is root.unread
    assert made.inner is not module.inner
    again = lift(made, (torch.randn(2, 4),))
    assert program_text(again.program) == program_text(lifted.program)


def test_samples_that_are_views_of_one_tensor_share_a_storage() -> None:
    module = make_fx(lambda x, y, z: x.add_(y) + z)(*(torch.ones(2, 2) for _ in range(3)))
    base = torch.zeros(10)
    whole, rest, apart = base[:4].view(2, 2), base[3:7].view(2, 2), torch.zeros(2, 2)
    x, y, z = lift(module, (whole, rest, apart)).program.inputs
    assert x.tensor.storage == y.tensor.storage != z.tensor.storage
    assert (x.tensor.offset, y.tensor.offset) == (0, 3)
    bare = torch.empty(10, device="meta")
    x, y, z = lift(module, (bare[:4].view(2, 2), bare[3:7].view(2, 2), bare.new_empty(2, 2))).program.inputs
    assert x.tensor.storage == y.tensor.storage != z.tensor.storage
    assert x.tensor.device.type == "cpu"
    assert (x.tensor.offset, y.tensor.offset) == (0, 3)
    x, y, z = lift(module).program.inputs
    assert len({x.tensor.storage, y.tensor.storage, z.tensor.storage}) == 3


# --- operators over sub-graphs, lists, writes ----------------------------------------------------------------


def _cond(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x, w: (x @ w).sin(), lambda x, w: x.cos(), (x, w))


def _while_loop(x: torch.Tensor, w: torch.Tensor) -> Any:
    step = torch.ops.higher_order.while_loop
    return step(lambda i, a, w: i < 3, lambda i, a, w: (i + 1, a @ w), (torch.zeros((), dtype=torch.int64), x), (w,))


def _scan(x: torch.Tensor, w: torch.Tensor) -> Any:
    scan = torch._higher_order_ops.scan
    return scan(lambda carry, row: (carry + row, carry * 2), w[0], x)


@pytest.mark.parametrize("function", [_cond, _while_loop, _scan])
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_sub_graphs(function: Any, mode: Any) -> None:
    inputs = (torch.randn(4, 4), torch.randn(4, 4))
    module = make_fx(function, tracing_mode=mode)(*inputs)
    calls = [inputs, (-inputs[0].abs(), inputs[1])]
    lifted = _round_trip(module, *calls)
    (held,) = [n for n in lifted.program.nodes if type(n.target).__name__.lower().endswith("op")]
    sub_graphs = [item for item in held.args if isinstance(item, fx.GraphModule)]
    assert sub_graphs
    _round_trip(module, *calls, samples=inputs)


def test_another_sub_graph_takes_the_place_of_one() -> None:
    inputs = (torch.randn(4, 4), torch.randn(4, 4))
    lifted = lift(make_fx(_cond, tracing_mode="fake")(*inputs))
    program = lifted.program
    (call,) = [node for node in program.nodes if any(isinstance(a, fx.GraphModule) for a in node.args)]
    other = make_fx(lambda x, w: (x + w,))(*inputs)
    changed = replace(call, args=(call.args[0], other, other, call.args[3]))
    made = lower(lifted, program.replace_nodes(tuple(changed if n is call else n for n in program.nodes)))
    assert torch.equal(made(*inputs), inputs[0] + inputs[1])
    assert len({id(child) for child in made.children()}) == 1
    assert made.graph.find_nodes(op="call_function", target=call.target)[0].name == "cond"


def test_lists_and_writes_without_results() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch._foreach_add_([x, y], 1)
        a, b = torch._foreach_mul([x, y], 2)
        torch.mul(x, 2, out=y)
        return a, b, y

    inputs = (torch.randn(3), torch.randn(3))
    module = make_fx(f)(*inputs)
    lifted = _round_trip(module, inputs, samples=inputs)
    foreach = lifted.program.nodes[0]
    assert foreach.outputs == ()
    out = lifted.program.outputs[2]
    assert isinstance(out, Value)
    assert out.tensor.storage == lifted.program.inputs[1].tensor.storage


def test_operators_that_change_the_shape_of_their_operand() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        same = y.contiguous()
        y.t_()
        return y * 2, same.unsqueeze_(0), y

    module = make_fx(f)(torch.randn(3, 4))
    lifted = _round_trip(module, (torch.randn(3, 4),))
    program = lifted.program
    by_name = {value.name: value for node in program.nodes for value in node.results()}
    assert by_name["add"].tensor.shape == (3, 4)
    assert by_name["t_"].tensor.shape == (4, 3)
    assert by_name["mul"].tensor.shape == (4, 3)
    assert len({by_name[name].tensor.storage for name in ("add", "t_", "unsqueeze_")}) == 1
    multiply = next(node for node in program.nodes if node.target is aten.mul.Tensor)
    assert multiply.args[0] is by_name["t_"]


def test_sizes_that_depend_on_data() -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        found = x.nonzero()
        return found.sum(0), found.shape[0] * 2, x.sum().item(), x.masked_select(x > 0)

    x = torch.tensor([0.0, 1.0, 2.0])
    module = make_fx(f, tracing_mode="symbolic")(x)
    _round_trip(module, (x,), (torch.ones(5),))
    _round_trip(module, (x,), samples=(x,))
    real = make_fx(lambda x: x.masked_select(x > 0) + 1)(x)
    _round_trip(real, (x,), (torch.ones(5),))


def test_an_operator_without_fake_kernel_is_what_its_node_says() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.linalg.lstsq(x, y, driver="gelsd")[0] * 2

    inputs = (torch.randn(5, 3), torch.randn(5, 2))
    module = make_fx(f)(*inputs)
    _round_trip(module)
    _round_trip(module, samples=inputs)
    for node in module.graph.nodes:
        node.meta.pop("val", None)
    with pytest.raises(InvalidGraphModule, match="on fake tensors raised DynamicOutputShapeException"):
        lift(module, inputs)


def test_draws_and_the_generators_state() -> None:
    module = make_fx(lambda x: (torch.rand_like(x), torch.nn.functional.dropout(x, 0.5)))(torch.ones(3, 3))
    state = torch.get_rng_state()
    _round_trip(module)
    assert torch.equal(torch.get_rng_state(), state)
    _round_trip(module, (torch.ones(3, 3),))


# --- what a pass changes -------------------------------------------------------------------------------------


def test_new_values_get_names_fakes_and_origins() -> None:
    module = make_fx(lambda x: x.sin().cos())(torch.randn(3, 4))
    (sin,) = module.graph.find_nodes(op="call_function", target=aten.sin.default)
    sin.meta["stack_trace"] = '  File "model.py", line 7, in forward\n    x.sin()\n'
    sin.meta["nn_module_stack"] = {"a": ("L['self'].layers[0]", nn.Linear)}
    lifted = lift(module)
    program = lifted.program
    origin = Origin("model.py", 7, "forward", "layers.0")
    assert program.nodes[0].origin == origin
    (x,) = program.inputs
    (old,) = program.nodes[0].results()
    value = Value("sin", replace(x.tensor, storage=9))
    swap: Callable[[Value], object] = lambda v: value if v is old else v  # noqa: E731
    changed = replace(program.nodes[0], outputs=(value,))
    made = lower(lifted, replace(program, nodes=(changed, program.nodes[1].with_operands(swap))))
    node = made.graph.find_nodes(op="call_function", target=aten.sin.default)[0]
    assert node.name == "sin"
    assert node.meta["stack_trace"] == sin.meta["stack_trace"]
    assert node.meta["dovetail_origin"] == str(origin)
    assert tuple(node.meta["val"].shape) == (3, 4)
    assert lift(made).program.nodes[0].origin == origin


def test_a_value_takes_the_place_of_another() -> None:
    module = make_fx(lambda x: (x.sin(), x.sin() + 1))(torch.randn(3))
    lifted = lift(module)
    program = lifted.program
    first, second = (node.results()[0] for node in program.nodes[:2])
    swap: Callable[[Value], object] = lambda v: first if v is second else v  # noqa: E731
    nodes = (program.nodes[0], *(node.with_operands(swap) for node in program.nodes[2:]))
    made = lower(lifted, program.replace_nodes(nodes, (first, first)))
    x = torch.randn(3)
    assert torch.equal(made(x)[1], x.sin())
    assert [node.name for node in made.graph.nodes] == ["x_1", "sin", "add", "output"]


def test_a_write_that_nobody_reads_stays() -> None:
    module = make_fx(lambda x, y: x.copy_(y).sum() * 0)(torch.ones(2), torch.ones(2))
    lifted = lift(module)
    program = lifted.program
    made = lower(lifted, program.replace_nodes(program.nodes[:1], (None,)))
    x = torch.zeros(2)
    assert made(x, torch.ones(2)) is None
    assert x.tolist() == [1, 1]


def test_sizes_are_put_together_where_no_node_has_them() -> None:
    module = make_fx(lambda x: x.sin(), tracing_mode="symbolic")(torch.randn(4, 6))
    lifted = lift(module)
    program = lifted.program
    (x,) = program.inputs
    rows, columns = x.tensor.shape
    assert isinstance(rows, SizeExpr)
    assert isinstance(columns, SizeExpr)
    half = SizeExpr("floordiv", (SizeExpr("add", (rows, columns, 2)), 2))
    most = SizeExpr("max", (half, rows, 1))
    meta = replace(x.tensor, shape=(half, most), stride=(most, 1), storage=5)
    fresh = Value("fresh", meta)
    node = Node(aten.new_zeros.default, (x, [half, most]), (), (fresh,))
    made = lower(lifted, program.replace_nodes((*program.nodes, node), (fresh,)))
    for r, c in ((4, 6), (9, 2)):
        assert made(torch.ones(r, c)).shape == ((r + c + 2) // 2, max((r + c + 2) // 2, r))
    _round_trip(made, (torch.ones(9, 2),))
    stray = Node(aten.new_zeros.default, (x, [symbol("nowhere")]), (), (fresh,))
    with pytest.raises(InvalidProgram, match=r"every size symbol is bound(.|\n)*nowhere"):
        lower(lifted, program.replace_nodes((stray,), (fresh,)))
    with pytest.raises(InvalidProgram, match=r"computed before they are read(.|\n)*fresh"):
        lower(lifted, program.replace_nodes((), (fresh,)))


def test_a_part_has_inputs_and_outputs_of_its_own_and_constants_can_be_added() -> None:
    module = make_fx(lambda x: x.sin() * 2 + 1)(torch.randn(3))
    lifted = lift(module)
    program = lifted.program
    x = torch.randn(3)
    (sine,) = program.nodes[0].results()
    signature = replace(program.signature, inputs=(UserInput(0),))
    tail = replace(program, inputs=(sine,), nodes=program.nodes[1:], signature=signature)
    part = lower_part(lifted, tail)
    assert torch.equal(part(x)[0], x * 2 + 1)
    folded = replace(program, inputs=(*program.inputs, sine), nodes=program.nodes[1:])
    folded = replace(folded, signature=replace(signature, inputs=(UserInput(0), Constant("folded"))))
    made = lower(lifted, folded, {"folded": x})
    assert torch.equal(made(torch.zeros(3)), x * 2 + 1)
    assert made.folded is x


# --- errors --------------------------------------------------------------------------------------------------


def _called(target: Any, *rest: object) -> fx.GraphModule:
    return _graph(lambda g, x: g.call_function(target, (x, *rest)))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (_called(aten.add, 1), r"node add of .*: aten.add is a packet of operators, .* name one overload of it"),
        (_called(torch.add, 1), r"node add of .*: it calls .*add, a Python function, which has no schema"),
        (_called(operator.add, 1), r"node add of .*: it calls operator.add, a Python function, on the tensor x"),
        (
            _called(operator.getitem, 0),
            r"node getitem of .*: it calls operator.getitem, a Python function, on the tensor x",
        ),
        (_called(getattr, "shape"), r"node getattr_1 of .*: it calls getattr, a Python function, on the tensor x"),
        (_called(aten.view.default, [5]), r"node view_default of .* running aten.view.default on fake tensors raised"),
        (
            _graph(lambda g, x: g.call_method("sin", (x,))),
            r"node sin of .* it is a call_method of sin, not an operator",
        ),
        (_called(aten.to_sparse.default), r"the result of node to_sparse_default is a torch.sparse_coo tensor"),
    ],
)
def test_what_cannot_be_read_is_refused(module: fx.GraphModule, message: str) -> None:
    with pytest.raises((InvalidGraphModule, UnsupportedTensor), match=message) as caught:
        lift(module)
    assert "make_fx" in str(caught.value) or isinstance(caught.value, UnsupportedTensor)


@_quiet
def test_names_that_fx_would_not_give() -> None:
    module = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).graph_module
    assert "input" in [node.name for node in module.graph.nodes]
    _round_trip(module)


def test_a_call_of_a_module_is_refused() -> None:
    module = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).module()
    with pytest.raises(InvalidGraphModule, match=r"a call_module of _guards_fn(.|\n)*check_guards=False"):
        lift(module)


def test_samples_that_do_not_fit_are_refused() -> None:
    module = make_fx(lambda x, y: x + y)(torch.ones(2, 3), torch.ones(2, 3))
    fit = torch.ones(2, 3)
    for sample, given in (
        (torch.ones(2, 4), r"f32\[2, 4\]"),
        (fit.double(), r"f64\[2, 3\]"),
        (fit[0], r"f32\[3\]"),
        (1, "1"),
    ):
        with pytest.raises(SampleMismatch, match=rf"placeholder y_1 is {given}, .* takes f32\[2, 3\]"):
            lift(module, (fit, sample))
    with pytest.raises(SampleMismatch, match=r"number of sample inputs is 1, .* takes 2 \(x_1, y_1\)"):
        lift(module, (fit,))
    with pytest.raises(UnsupportedTensor, match=r"y_1 is a torch.sparse_coo tensor"):
        lift(module, (fit, fit.to_sparse()))
    symbolic = make_fx(lambda x: x + 1, tracing_mode="symbolic")(torch.ones(2, 3))
    with pytest.raises(SampleMismatch, match=r"placeholder x_1 is f32\[3\]"):
        lift(symbolic, (torch.ones(3),))


def test_inputs_that_nothing_describes_are_refused() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(aten.sin.default, (graph.placeholder("x"),)))
    module = fx.GraphModule(nn.Module(), graph)
    with pytest.raises(MissingSamples, match=r"shape and dtype of placeholder x .* are unknown"):
        lift(module)
    _round_trip(module, (torch.ones(2),), samples=(torch.ones(2),))


# --- results in lists ---------------------------------------------------------------------------------------------


def _fused_momentum(p: torch.Tensor, q: torch.Tensor, g: torch.Tensor) -> list[list[torch.Tensor]]:
    options = {"weight_decay": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
    made: Any = aten._fused_sgd.default(
        [p, q], [g, g * 2], [p * 0, q * 0], momentum=0.9, is_first_step=False, **options
    )
    return [list(part) for part in made]


def test_arguments_that_are_named_have_their_places() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    total = graph.call_function(aten.add.Tensor, (), {"alpha": 2, "other": y, "self": x})
    rows = graph.call_function(aten.expand.default, (), {"size": [2, 3], "self": total})
    summed = graph.call_function(aten.sum.dim_IntList, (rows,), {"keepdim": True, "dim": [0]})
    part = graph.call_function(aten.slice.Tensor, (summed,), {"start": 0, "dim": 1, "end": 2})
    first = graph.call_function(aten.slice.Tensor, (summed,), {"end": 1})
    graph.output((part, first, graph.call_function(aten.relu.default, (), {"self": total})))
    module = fx.GraphModule({}, graph)
    lifted = _round_trip(module, (torch.randn(3), torch.randn(3)), samples=(torch.zeros(3), torch.zeros(3)))
    assert [len(node.args) for node in lifted.program.nodes] == [2, 2, 3, 4, 4, 1]
    assert [tuple(dict(node.kwargs)) for node in lifted.program.nodes if node.kwargs] == [("alpha",)]


def test_results_that_are_lists() -> None:
    samples = torch.randn(3), torch.randn(2, 3)[1], torch.randn(3)
    lifted = _round_trip(make_fx(_fused_momentum)(*samples), samples, samples=samples)
    fused = [node for node in lifted.program.nodes if "fused" in str(node.target)]
    assert [len(node.outputs) for node in fused] == [6]
    assert "prims.flat_results(torch.ops.aten._fused_sgd.default)" in program_text(lifted.program)


def test_a_list_of_results_as_an_operand() -> None:
    samples = torch.randn(3), torch.randn(3), torch.randn(3)
    graph = make_fx(lambda *xs: torch.stack([item for part in _fused_momentum(*xs)[::2] for item in part]))(*samples)
    (stack,) = graph.graph.find_nodes(op="call_function", target=aten.stack.default)
    item = stack.args[0][0]
    with graph.graph.inserting_before(stack):  # as one operand, in place of an item for each
        stack.args = (graph.graph.call_function(operator.getitem, (item.args[0].args[0], 2)),)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    lifted = lift(graph, samples)
    made = lower(lifted, lifted.program)
    assert aten._fused_sgd.default in {node.target for node in made.graph.nodes}
    _same(made(*copy.deepcopy(samples)), graph(*copy.deepcopy(samples)))
    assert [node.meta["val"].shape for node in made.graph.nodes if node.target is aten.stack.default] == [(2, 3)]
