"""Measure re-inplacing next to `torch.fx.passes.reinplace.reinplace`: graphs of models and optimizers, and long ones.

Both passes get the same functional graphs: forward and backward of a training step as AOTAutograd makes them, and
optimizer steps that end in copies into parameters and state. What either made is run on the inputs of the captured
call, and compared bit for bit with the functional graph: results, and what the inputs hold afterwards.
"""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.reinplace import reinplace as torch_reinplace

from benchmarks.measure import describe_error
from benchmarks.models import Workload, build_workload, loss_of
from benchmarks.optimizer_steps import make_optimizer
from dovetail.inspect.memory import measure_peak
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Program
from dovetail.passes import InplaceReport, plan_inplace, reinplace
from dovetail.passes.fx_api import plan_for
from dovetail.passes.inplace import apply_plan
from dovetail.passes.inplace_report import report_of

aten = torch.ops.aten
LIMIT_S = 2.0
"""What the pass may take for 20,000 nodes, shapes known, on an idle core."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A functional graph and the inputs of a call."""

    name: str
    graph: fx.GraphModule
    inputs: list[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass made of a graph.

    writes: nodes that write, beyond those of the functional graph; copies: `copy_` nodes that are left.
    allocated_bytes: by a run of the result, outputs included. equal: whether results and inputs are those of the
    functional graph.
    """

    writes: int = 0
    copies: int = 0
    time_s: float = 0.0
    allocated_bytes: int | None = None
    equal: bool | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GraphCost:
    """One graph. copies, allocated_bytes: of the functional graph. The other bytes are those of dovetail's report.

    pass_s: of dovetail's pass, but for the run on fake tensors that finds shapes: plan, rewrite and report.
    """

    name: str
    nodes: int
    copies: int
    allocated_bytes: int
    in_place: int
    copied_bytes: int
    missed_bytes: int
    saved_bytes: int
    pass_s: float
    dovetail: Outcome
    torch: Outcome


@dataclass(frozen=True, slots=True)
class ScaleCost:
    """A long graph. shapes_s: to read it. pass_s: plan, rewrite and report. whole_s: `reinplace`. torch_s: its pass."""

    family: str
    nodes: int
    in_place: int
    shapes_s: float
    pass_s: float
    whole_s: float
    torch_s: float | None = None


# --- graphs ---------------------------------------------------------------------------------------------------------


def capture_model(name: str) -> list[Captured]:
    """Forward and backward graph of one training step of a model of the suite."""
    return capture_training(name, build_workload(name))


def capture_training(name: str, workload: Workload) -> list[Captured]:
    """Forward and backward graph of one training step; several of each where Dynamo breaks the model up."""
    found: list[Captured] = []
    run = _compile_into(found, workload.model, [f"{name} forward", f"{name} backward"])
    torch.manual_seed(0)
    loss_of(run(**workload.inputs)).backward()
    return found


def capture_optimizer(name: str, foreach: bool, parameters: int, size: int) -> list[Captured]:
    """The graphs of one optimizer step."""
    _, optimizer = make_optimizer(name, foreach, parameters, size)
    found: list[Captured] = []
    label = f"{name} {'foreach' if foreach else 'loop'}"
    _compile_into(found, optimizer.step, [label, label])()
    return found


def _compile_into(found: list[Captured], function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """`function`, whose graphs and inputs are noted when they run; the rest of the first name is the backward's."""
    torch.compiler.reset()

    def grab(name: str) -> Callable[..., Any]:
        def compiler(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
            kept = copy.deepcopy(graph)

            def run(*args: Any) -> Any:
                found.append(Captured(name, kept, _fresh(args)))
                return graph(*args)

            return make_boxed_func(run)

        return compiler

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return aot_module_simplified(
            graph,
            inputs,
            fw_compiler=grab(names[0]),
            bw_compiler=grab(names[1]),
            keep_inference_input_mutations=True,
        )

    compiled: Callable[..., Any] = torch.compile(function, backend=backend)
    return compiled


def _fresh(inputs: Sequence[Any]) -> list[Any]:
    """Copies that lie in memory, and share it, as the inputs do."""
    storages: dict[int, Any] = {}

    def copied(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        storage = x.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        made = torch.empty(0, dtype=x.dtype)
        return made.set_(storages[storage.data_ptr()], x.storage_offset(), x.shape, x.stride())

    with torch.no_grad():
        return [copied(x) for x in inputs]


# --- both passes on one graph -----------------------------------------------------------------------------------------


def measure_graph(captured: Captured, repeats: int) -> GraphCost:
    """What both passes make of a graph. repeats: how often a pass is timed; the least time counts."""
    graph, inputs = captured.graph, captured.inputs
    report = plan_inplace(graph, *_fresh(inputs))
    expected, allocated = _ran(graph, inputs)
    ours = _outcome(captured, expected, lambda g, xs: reinplace(g, *xs), repeats)
    program = lift(graph, _fresh(inputs)).program
    pass_s = min(_timed(lambda: _planned_and_rewritten(program))[0] for _ in range(repeats))
    theirs = _outcome(captured, expected, lambda g, xs: torch_reinplace(copy.deepcopy(g), *xs), repeats)
    return GraphCost(
        captured.name,
        len(_calls(graph)),
        _copies(graph),
        allocated,
        report.in_place,
        report.copied_bytes,
        report.missed_bytes,
        report.saved_bytes,
        pass_s,
        ours,
        theirs,
    )


def _outcome(
    captured: Captured,
    expected: list[Any],
    rewrite: Callable[[fx.GraphModule, list[Any]], fx.GraphModule],
    repeats: int,
) -> Outcome:
    best = float("inf")
    try:
        for _ in range(repeats):
            samples = _fresh(captured.inputs)
            passed, made = _timed(lambda samples=samples: rewrite(captured.graph, samples))
            best = min(best, passed)
        got, allocated = _ran(made, captured.inputs)
    except Exception as error:
        return Outcome(error=describe_error(error))
    equal = len(got) == len(expected) and all(map(_same, got, expected))
    writes = _writes(made) - _writes(captured.graph)
    return Outcome(writes, _copies(made), best, allocated, equal)


def _ran(graph: fx.GraphModule, inputs: Sequence[Any]) -> tuple[list[Any], int]:
    """What a run gives and leaves in its inputs, and how many bytes it allocates."""
    given = _fresh(inputs)
    torch.manual_seed(1)
    with torch.no_grad():
        report = measure_peak(graph, *given)
    results = report.result if isinstance(report.result, tuple | list) else [report.result]
    return [*results, *given], report.allocated_bytes


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def _calls(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def _copies(graph: fx.GraphModule) -> int:
    return sum(node.target is aten.copy_.default for node in _calls(graph))


def _writes(graph: fx.GraphModule) -> int:
    """Nodes that write, copies left out: what is copied is not worked on in place."""
    calls = _calls(graph)
    return sum(node.target._schema.is_mutable and node.target is not aten.copy_.default for node in calls)


# --- long graphs ------------------------------------------------------------------------------------------------------


class _Long:
    """A graph module in the making."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.samples: list[Tensor] = []

    def input(self, *shape: int) -> fx.Node:
        self.samples.append(torch.empty(shape))
        return self.graph.placeholder(f"x{len(self.samples)}")

    def call(self, target: Any, *args: Any) -> fx.Node:
        return self.graph.call_function(target, args)

    def finished(self, *outputs: fx.Node) -> Captured:
        self.graph.output(tuple(outputs))
        return Captured("", fx.GraphModule(torch.nn.Module(), self.graph), list(self.samples))


def _chain(nodes: int) -> Captured:
    """A product, and pointwise operators one after the other."""
    made = _Long()
    x = made.input(4, 4)
    value = made.call(aten.mm.default, x, x)
    for number in range(nodes - 1):
        value = made.call(aten.sin.default, value) if number % 2 else made.call(aten.mul.Tensor, value, 2)
    return made.finished(value)


def _parts(nodes: int) -> Captured:
    """Parts of one buffer, replaced by what is computed from them."""
    made = _Long()
    made.input(1)
    base = made.call(aten.zeros.default, [4000])
    for number in range(nodes // 3):
        start = number * 4 % 4000
        part = made.call(aten.slice.Tensor, base, 0, start, start + 4)
        new = made.call(aten.mul.Tensor, part, 2)
        base = made.call(aten.slice_scatter.default, base, new, 0, start, start + 4)
    return made.finished(base)


def _adam(nodes: int) -> Captured:
    """Parameters and a moment of each, whose new contents are copied back at the end."""
    made = _Long()
    pairs = [(made.input(4), made.input(4)) for _ in range(nodes // 8)]
    news: list[tuple[fx.Node, fx.Node]] = []
    for parameter, moment in pairs:
        gradient = made.call(aten.mul.Tensor, parameter, 3)
        later = made.call(aten.add.Tensor, made.call(aten.mul.Tensor, moment, 0.9), gradient)
        step = made.call(aten.div.Tensor, later, made.call(aten.sqrt.default, later))
        news += [(parameter, made.call(aten.add.Tensor, parameter, step)), (moment, later)]
    for old, new in news:
        made.call(aten.copy_.default, old, new)
    return made.finished()


def _views(nodes: int) -> Captured:
    """Views of one buffer, half as many as there are nodes, and something new computed from each."""
    made = _Long()
    made.input(1)
    count = nodes // 2
    base = made.call(aten.zeros.default, [4 * count])
    parts = [made.call(aten.slice.Tensor, base, 0, 4 * i, 4 * i + 4) for i in range(count)]
    return made.finished(*(made.call(aten.mul.Tensor, part, 2) for part in parts))


def _trained(nodes: int) -> Captured:
    """Forward and backward of a deep network, traced on fakes: its nodes have `meta["val"]`."""
    samples = [torch.empty(4, 8), *(torch.empty(shape) for _ in range(max(1, nodes // 33)) for shape in ((8, 8), (8,)))]

    def step(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        held = [weight.detach().requires_grad_() for weight in weights]
        with torch.enable_grad():
            for weight, bias in zip(held[::2], held[1::2], strict=True):
                x = x + torch.tanh(torch.nn.functional.layer_norm(x, (8,)) @ weight.t() + bias) * 0.5
            gradients = torch.autograd.grad(x.sum(), held)
        return x.detach(), *(old - 0.1 * gradient for old, gradient in zip(held, gradients, strict=True))

    return Captured("", make_fx(step, tracing_mode="fake")(*samples), list(samples))


FAMILIES: dict[str, Callable[[int], Captured]] = {
    "pointwise chain": _chain,
    "parts of a buffer": _parts,
    "Adam, copied back": _adam,
    "views of a buffer": _views,
    "trained network": _trained,
}


def measure_scaling(
    counts: Sequence[int], torch_counts: Sequence[int], *, repeats: int, torch_s: float
) -> list[ScaleCost]:
    """Time both passes on long graphs. torch_s: torch gets no graph that would take longer, growing quadratically."""
    rows: list[ScaleCost] = []
    for family, make in FAMILIES.items():
        expected_s = 0.0
        for count in sorted({*counts, *torch_counts}):
            row = _scaled(family, make(count), repeats, count in torch_counts and expected_s * count**2 <= torch_s)
            expected_s = max(expected_s, (row.torch_s or 0.0) / count**2)
            rows.append(row)
    return rows


def _scaled(family: str, made: Captured, repeats: int, asks_torch: bool) -> ScaleCost:
    shapes_s, lifted = _timed(lambda: lift(made.graph, made.inputs))
    passed = [_timed(lambda: _planned_and_rewritten(lifted.program)) for _ in range(repeats)]
    whole_s = min(_timed(lambda: reinplace(made.graph, *made.inputs))[0] for _ in range(repeats))
    torch_s = _timed(lambda: torch_reinplace(made.graph, *made.inputs))[0] if asks_torch else None
    pass_s = min(seconds for seconds, _ in passed)
    return ScaleCost(family, len(lifted.program.nodes), passed[0][1].in_place, shapes_s, pass_s, whole_s, torch_s)


def _planned_and_rewritten(program: Program) -> InplaceReport:
    plan = plan_for(program)
    apply_plan(plan)
    return report_of(plan)
