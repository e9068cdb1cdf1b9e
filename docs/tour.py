"""A tour of dovetail: the whole pipeline as a toy, in one file that needs torch alone.

Run it with `python docs/tour.py` and read it from top to bottom. Each section explains one stage, names the module that
does the same properly and what the toy leaves out, and prints what it made of `layer`.

The toy takes contiguous tensors of fixed sizes. It refuses operators with several results, writes it does not list,
inputs or outputs that share memory, and gradients of gradients or of some outputs only. It does not notice what else
a function does (printing, seeding, assigning `.data`), tensor subclasses, or that autocast is on in a later call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
layer_inputs = [torch.randn(64, 32), torch.randn(128, 32, requires_grad=True), torch.zeros(128)]


def layer(x: torch.Tensor, weight: torch.Tensor, average: torch.Tensor) -> torch.Tensor:
    hidden = x @ weight.t()
    hidden[0].mul_(2)
    average.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
    return torch.dropout(hidden * torch.sigmoid(hidden) + torch.sigmoid(hidden), 0.25, True).square().mean()


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise NotImplementedError(f"not in the toy: {reason}")


# ---- 1. Record -------------------------------------------------------------------------------------------------------
# A program is a list of nodes. A node is one call of one operator, and the value that it gives. To get them, run the
# function once on *fake* tensors, which have a shape, strides, a dtype and a storage, but no numbers. A dispatch mode
# sees every operator below autograd: `x @ w` arrives as `aten.mm.default`. Writes and views arrive as they are.
# What matters most from here on: which values share bytes? A value is a view, or the *root* that stands for a storage.
# The real one: src/dovetail/capture/recorder.py. Left out: symbolic sizes, and tensors that are not arguments.
@dataclass(eq=False)
class Node:
    name: str
    fake: torch.Tensor
    target: Any = None  # an operator such as aten.mm.default; an input has none
    operands: tuple[Any, Any] = ((), {})  # args and kwargs: nodes, literals, and lists of these
    backward: bool = False  # recorded while autograd ran backward

    def __post_init__(self) -> None:
        first = next(iter(nodes_in(self.operands)), None)
        self.base = first if first and storage_of(first.fake) == storage_of(self.fake) else None  # a view of that
        self.root: Node = self.base.root if self.base else self
        tags = self.target.tags if self.target else ()
        self.draws = torch.Tag.nondeterministic_seeded in tags  # it takes numbers from the random generator
        self.cheap = bool(self.base) or (torch.Tag.pointwise in tags and not self.draws)

    def __repr__(self) -> str:
        return self.name


def nodes_in(items: Any) -> list[Node]:
    return [leaf for leaf in tree_leaves(items) if isinstance(leaf, Node)]


def storage_of(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # equal for equal storages


def layout(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device


class Recorder(TorchDispatchMode):
    def __init__(self, fakes: FakeTensorMode, known: Iterable[Node] = ()) -> None:
        super().__init__()
        self.fakes, self.nodes, self.backward = fakes, list[Node](), False
        self.known = {id(node.fake): node for node in known}  # what each fake stands for

    def inputs(self, name: str, tensors: Iterable[torch.Tensor]) -> list[Node]:
        with self.fakes:
            fakes = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]
        return [self.known.setdefault(id(fake), Node(f"{name}_{i}", fake)) for i, fake in enumerate(fakes)]

    def operand(self, item: Any) -> Any:
        require(not isinstance(item, torch.Tensor) or id(item) in self.known, "a tensor from outside")
        return self.known[id(item)] if isinstance(item, torch.Tensor) else item

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = tree_map(self.operand, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func.namespace != "prim":  # that would be a question, such as for the device
            require(not func._schema.is_mutable or func in VARIANTS, f"an operator that writes: {func}")
            require(func.namespace == "aten" and isinstance(result, torch.Tensor), f"not one tensor from torch: {func}")
            node = Node(f"{func.overloadpacket.__name__}_{len(self.nodes)}", result, func, operands, self.backward)
            require(not (node.draws and self.backward), "random numbers in backward")
            self.nodes.append(node)
            self.known.setdefault(id(result), node)  # a write gives what it wrote: known already
        return result


def record(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[Recorder, list[Node], list[Node]]:
    recorder = Recorder(FakeTensorMode())
    primals = recorder.inputs("primal", inputs)
    require([layout(primal.fake) for primal in primals] == [layout(x) for x in inputs], "an input is not contiguous")
    fakes = [primal.fake.requires_grad_(x.requires_grad) for primal, x in zip(primals, inputs, strict=True)]
    with torch.enable_grad(), recorder.fakes, recorder:
        results = [recorder.operand(x) for x in tree_leaves(function(*fakes))]
    tracked = [fake.requires_grad and fake.grad is None for fake in fakes]
    require(tracked == [x.requires_grad for x in inputs], "an input becomes part of the gradient graph or gets a .grad")
    require(len({v.root for v in primals + results}) == len(primals + results), "an output shares memory with another")
    return recorder, primals, results


# ---- 2. Text ---------------------------------------------------------------------------------------------------------
# A program's text is Python that runs. With `free`, each value is deleted right after its last use: see section 7.
# The real one: src/dovetail/ir/program.py and text.py. Left out: the user's line of each node.
@dataclass
class Program:
    name: str
    inputs: list[list[Node]]
    nodes: list[Node]
    outputs: list[list[Node | None]]

    def last_uses(self) -> dict[Node, int]:
        uses = {value: i for i, node in enumerate(self.nodes) for value in [*nodes_in(node.operands), node]}
        return uses | dict.fromkeys(nodes_in(self.outputs), len(self.nodes))

    def text(self, free: bool = False) -> str:
        lines, uses = [f"def {self.name}(args):", f"    {self.inputs} = args", "    args.clear()"], self.last_uses()
        for i, node in enumerate(self.nodes):
            args, kwargs = node.operands
            call = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
            lines += [f"    {node} = {node.target}({call})  # {str(node.fake.dtype)[6:]}{list(node.fake.shape)}"]
            lines += [f"    del {value}" for value in uses if free and uses[value] == i]
        return "\n".join([*lines, f"    return {self.outputs}"])


# ---- 3. Functionalize ------------------------------------------------------------------------------------------------
# Writes make a program hard to rearrange. So each write becomes a new value, and who reads later reads that: `mul_` has
# the functional variant `mul`. If a view was written, a scatter puts the new contents into a new root, at the place of
# the view. A view of the old root is made again from the new one when somebody reads it.
# The real one: src/dovetail/capture/functionalize.py, ops/functional_variants.py, ops/views.py. Left out: most of both.
VARIANTS = {aten.bernoulli_.float: aten.bernoulli.p, aten.div_.Scalar: aten.div.Scalar}
VARIANTS |= {aten.copy_.default: aten.copy.default, aten.zero_.default: aten.zero.default}
VARIANTS |= {getattr(aten, f"{name}_").Tensor: getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div")}
SCATTERS: dict[Any, Any] = {aten.select.int: aten.select_scatter.default, aten.slice.Tensor: aten.slice_scatter.default}
SCATTERS[aten.t.default] = lambda base, new: aten.t.default(new)  # a transpose undoes itself
SCATTERS[aten.transpose.int] = lambda base, new, *dims: aten.transpose.int(new, *dims)


def functionalize(recorded: Recorder, inputs: list[list[Node]], results: list[Node], gradients: list[Any]) -> Program:
    new = Recorder(recorded.fakes, nodes_in(inputs))  # records a second time
    now = {value: value.fake for value in nodes_in(inputs)}  # a recorded value -> its functional fake
    made_of: dict[Node, torch.Tensor] = {}  # a recorded value -> the functional root that it was made of

    def find(value: Any) -> Any:
        if isinstance(value, Node) and value.base and made_of[value] is not now[value.root]:
            again(value)
        return now[value] if isinstance(value, Node) else value

    def again(node: Node) -> None:
        args, kwargs = tree_map(find, node.operands)
        now[node] = node.target(*args, **kwargs)
        made_of[node] = now[node.root]

    def write(node: Node) -> None:
        view = nodes_in(node.operands)[0]
        require(view.root.backward or not node.backward, "a write in backward to a value of forward")
        require(not (view.base and node.draws), "random numbers written to a view")
        args, kwargs = tree_map(find, node.operands)
        contents = VARIANTS[node.target](*args, **kwargs)
        while view.base:
            require(view.target in SCATTERS, f"a write through {view.target}")
            contents = SCATTERS[view.target](find(view.base), contents, *view.operands[0][1:])
            view = view.base
        require(layout(contents) == layout(view.fake), "a write that gives another layout or dtype")
        now[view] = contents

    with torch.no_grad(), new.fakes, new:
        for node in recorded.nodes:
            new.backward = node.backward
            (write if node.target in VARIANTS else again)(node)
        gradients = [new.operand(find(gradient)) for gradient in gradients]
        new.backward = False
        outputs = [new.operand(find(result)) for result in results]
    contents = [None if now[primal] is primal.fake else new.operand(now[primal]) for primal in inputs[0]]
    return Program("joint", inputs, new.nodes, [outputs, contents, gradients])


recorder, primals, results = record(layer, layer_inputs)
print("1, 2. What `layer` does:\n", Program("recorded", [primals], recorder.nodes, [[*results]]).text(), sep="\n")
print("\n3. The same, functional:\n", functionalize(recorder, [primals], results, []).text(), sep="\n")


# ---- 4. Forward and backward, jointly --------------------------------------------------------------------------------
# The fake results carry eager's own autograd graph: ask it for gradients while the recorder listens. What it is given,
# the gradient of a result, is a *tangent*: one more input. Forward and backward are then one list of nodes, the *joint*
# program. It is functionalized as a whole, since autograd writes too.
# The real one: src/dovetail/capture/recording.py. Left out: gradients of some results only.
def capture(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[Program, list[int]]:
    recorder, primals, results = record(function, inputs)
    ends, leaves = ([value for value in values if value.fake.requires_grad] for values in (results, primals))
    tangents = recorder.inputs("tangent", [end.fake for end in ends])
    recorder.backward = True
    with recorder.fakes, recorder:
        outputs, inputs, arriving = ([value.fake for value in values] for values in (ends, leaves, tangents))
        found = torch.autograd.grad(outputs, inputs, arriving, allow_unused=True) if ends else ()
    gradients = dict(zip(leaves, map(recorder.operand, found), strict=bool(ends)))
    joint = functionalize(recorder, [primals, tangents], results, [gradients.get(primal) for primal in primals])
    return joint, [results.index(end) for end in ends]  # which results have a tangent


joint, _ = capture(layer, layer_inputs)
print("\n4. Forward and backward, one functional program:\n", joint.text(), sep="\n")


# ---- 5. One pass over the functional program -------------------------------------------------------------------------
# Without writes, passes are short. This one drops what nobody reads, but not random numbers: others would come next.
# The real ones: src/dovetail/passes/. Left out: all but this one.
def drop_dead_code(joint: Program) -> Program:
    read, nodes = set(nodes_in(joint.outputs)), list[Node]()
    for node in reversed(joint.nodes):
        if node in read or node.draws:
            read.update(nodes_in(node.operands))
            nodes.insert(0, node)
    return replace(joint, nodes=nodes)


simple = drop_dead_code(joint)
print(f"\n5. Simplified: {len(joint.nodes)} nodes -> {len(simple.nodes)}\n")


# ---- 6. Split, and keep or recompute ---------------------------------------------------------------------------------
# Forward runs now, backward later: the joint program is cut in two. A value of forward that backward reads is a
# *residual*. Eager saves all of them. Backward can recompute what is cheap, pointwise operators and views: from last to
# first, the toy saves a cheap node's operands instead, unless that is more bytes. It draws no random number twice, and
# reads no input that was written since. Inputs and results count nothing: the user holds them.
# The real one: src/dovetail/partition/split.py keeps everything so far. Left out: what recomputing costs in time.
def bytes_of(values: Iterable[Node], free: Iterable[Node]) -> int:
    return sum(root.fake.untyped_storage().nbytes() for root in {v.root for v in values} - {v.root for v in free})


def split(joint: Program, recompute: bool) -> tuple[Program, Program]:
    (primals, tangents), (results, contents, gradients) = joint.inputs, joint.outputs
    early, late = ([node for node in joint.nodes if node.backward is backward] for backward in (False, True))
    held, written = nodes_in([primals, results]), {p for p, new in zip(primals, contents, strict=True) if new}
    saved = set(nodes_in([gradients, *(node.operands for node in late)])) & {*primals, *early}
    for node in reversed(early):
        trial = saved - {node} | set(nodes_in(node.operands))
        fits = bytes_of(trial, held) <= bytes_of(saved, held) and written.isdisjoint(value.root for value in trial)
        saved = trial if recompute and node in saved and node.cheap and fits else saved
    residuals = [value for value in [*primals, *early] if value in saved]
    now, nodes = {value: value for value in residuals + tangents}, list[Node]()

    def find(value: Any) -> Any:
        if isinstance(value, Node) and value not in now:  # of backward, or to be recomputed
            now[value] = replace(value, operands=tree_map(find, value.operands))
            nodes.append(now[value])
        return now[value] if isinstance(value, Node) else value

    tree_map(find, late)
    forward = Program("forward", [primals], early, [results, contents, [*residuals]])
    return forward, Program("backward", [residuals, tangents], nodes, [[find(gradient) for gradient in gradients]])


keeping, recomputing = split(simple, recompute=False), split(simple, recompute=True)
for how, (forward, backward) in {"Keep all": keeping, "Keep or recompute": recomputing}.items():
    saved = bytes_of(backward.inputs[0], nodes_in([forward.inputs, forward.outputs[0]]))
    print(f"6. {how}: {saved} bytes, in {backward.inputs[0]}")


# ---- 7. Memory -------------------------------------------------------------------------------------------------------
# A storage is alive from the node that makes it to the last use of any value on it. The generated code deletes each
# value there, so the peak is known before anything has run. Inputs are not counted: they are the caller's.
# The real one: src/dovetail/analysis/liveness.py. Left out: what an operator allocates inside, copies of tangents.
def step_peak(halves: tuple[Program, Program]) -> int:
    (forward, backward), peak = halves, 0
    for program, held in (forward, []), (backward, nodes_in([forward.outputs[0], backward.inputs[0]])):
        uses = program.last_uses()
        for i in range(len(program.nodes)):
            alive = [value for value in program.nodes[: i + 1] if uses[value] >= i] + held
            peak = max(peak, bytes_of(alive, nodes_in([forward.inputs, backward.inputs[1]])))
    return peak


print(f"\n7. Peak, known before it runs: {step_peak(keeping)} bytes. Recomputing: {step_peak(recomputing)} bytes.")


# ---- 8. Run ----------------------------------------------------------------------------------------------------------
# The text of a program becomes a function by `exec`. For autograd, both functions are one `torch.autograd.Function`.
# After forward, the new contents of written inputs are copied into the real inputs.
# The real one: src/dovetail/execute/. Left out: other executors than torch's operators, and programs picked by guards.
def toy_compile(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[Callable[..., Any], int]:
    joint, differentiable = capture(function, inputs)
    halves = min((split(drop_dead_code(joint), recompute) for recompute in (False, True)), key=step_peak)
    names: dict[str, Any] = {"aten": aten, "torch": torch, "device": torch.device, "inf": torch.inf, "nan": torch.nan}
    for program in halves:
        exec(program.text(free=True), names)
    made_for = [(layout(x), x.requires_grad) for x in inputs]

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results, contents, residuals = names["forward"]([list(inputs)])
            for i, new in enumerate(contents):
                if new is not None:
                    inputs[i].copy_(new)
            ctx.save_for_backward(*residuals)
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*(x for i, x in enumerate(results) if i not in differentiable))
            return tuple(results)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *tangents: Any) -> tuple[torch.Tensor | None, ...]:
            require(all(tangents[i] is not None for i in differentiable), "gradients of some outputs only")
            arriving = [tangents[i].contiguous() for i in differentiable]
            return tuple(names["backward"]([list(ctx.saved_tensors), arriving])[0])

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        alike = [(layout(x), x.requires_grad) for x in inputs] == made_for
        require(alike and len({storage_of(x) for x in inputs}) == len(inputs), "inputs unlike those it was made for")
        return list(Step.apply(*inputs))

    return run, step_peak(halves)


print("\n8. The backward that runs:\n", recomputing[1].text(free=True), sep="\n")


# ---- 9. Check --------------------------------------------------------------------------------------------------------
# Results, gradients, what the inputs hold and the state of the random generator have to be those of eager, bit by bit.
# The peak, measured by a mode that sees each real storage, has to be the promised one.
# The real ones: tests/harness/, and src/dovetail/inspect/memory.py for blocks. Left out: random programs.
class Meter(TorchDispatchMode):
    blocks, peak = frozenset[tuple[StorageWeakRef, int]](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        old = {storage_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = {(storage_of(x), x.untyped_storage().nbytes()) for x in tree_leaves(result) if storage_of(x) not in old}
        self.blocks = frozenset((ref, size) for ref, size in self.blocks | made if not ref.expired())
        self.peak = max(self.peak, sum(size for _, size in self.blocks))
        return result


def run_step(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[list[Any], int]:
    fresh = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    torch.manual_seed(2)
    with Meter() as meter:
        outputs = tree_leaves(function(*fresh))
    generator, ends = torch.get_rng_state(), [output for output in outputs if output.requires_grad]
    tangents = [torch.randn_like(end, memory_format=torch.contiguous_format) for end in ends]
    with meter:
        leaves = [x for x in fresh if x.requires_grad]
        gradients = torch.autograd.grad(ends, leaves, tangents, allow_unused=True) if ends else ()
    return [*outputs, *gradients, *fresh, generator], meter.peak


def check(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> str:
    compiled, promised = toy_compile(function, inputs)
    (actual, peak), (expected, eager_peak) = run_step(compiled, inputs), run_step(function, inputs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert peak == promised, f"the peak is {peak}, not {promised}"
    return f"Bit by bit the same as eager. Peak, measured: {peak} bytes, as promised. Eager: {eager_peak} bytes."


print("\n9.", check(layer, layer_inputs))


# ---- 10. torch.compile -----------------------------------------------------------------------------------------------
# A back end of `torch.compile` takes a graph, which is callable, and gives a callable. Dynamo makes and guards graphs.
# The real one: src/dovetail/frontends/, with `torch.compile(model, backend="dovetail")`. Left out: sizes that change.
through_dynamo = torch.compile(layer, backend=lambda graph, inputs: toy_compile(graph, inputs)[0], dynamic=False)
torch.testing.assert_close(run_step(through_dynamo, layer_inputs)[0], run_step(layer, layer_inputs)[0], rtol=0, atol=0)
print("\n10. As a backend of torch.compile: the same once more.")
