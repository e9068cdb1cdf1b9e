"""A tour of dovetail: the whole pipeline as a toy, in one file that needs torch alone.

    python docs/tour.py

Read it from top to bottom. Each section explains one stage, has the code for it, and prints what it made. The words are
dovetail's own (recorded, functional, joint, residual, tangent, executor). Each section ends with the module that does
the same properly. The toy compiles functions of tensors, for fixed sizes. What it cannot do it refuses: `NotInTheToy`.

The program to compile is `layer`. It is ordinary PyTorch with most of what a compiler has to get right: a view of an
input, a write through a view, a write to an input, random numbers, and gradients.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import dropout
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten


def layer(x: torch.Tensor, weight: torch.Tensor, average: torch.Tensor) -> torch.Tensor:
    hidden = x @ weight.t()
    hidden[0].mul_(2)
    average.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
    return dropout(hidden * torch.sigmoid(hidden) + torch.sigmoid(hidden), 0.25).square().mean()


def example_inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((64, 32), (128, 32)))
    return [x, weight.requires_grad_(), torch.zeros(128)]


class NotInTheToy(Exception):
    """The function does something that the toy leaves out."""


# ---- 1. Record -------------------------------------------------------------------------------------------------------
#
# A program is a list of nodes. A node is one call of one operator; a value is one result of a node, or one input. To
# get the list, run the function once and write down which operators arrive.
#
# Two things in torch make that easy. A fake tensor has a shape, strides, a dtype and a storage, but no numbers: running
# on fakes costs little and changes nothing. A dispatch mode sees each operator that runs, below autograd: `x @ w`
# arrives as `aten.mm.default`. What arrives is what eager would run, writes and views included. Such a program is
# *impure*: some nodes change what later nodes read.
#
# In all that follows, storages matter most: two values can share bytes only if they share a storage.


@dataclass(eq=False)
class Value:
    name: str
    fake: torch.Tensor

    def __post_init__(self) -> None:
        self.storage = StorageWeakRef(self.fake.untyped_storage())  # equal for equal storages
        self.bytes = self.fake.untyped_storage().nbytes()


@dataclass(eq=False)
class Node:
    target: Any  # an operator such as aten.mm.default
    args: Sequence[Any]  # values, literals, and lists of these
    kwargs: dict[str, Any]
    results: list[Value | None]
    several: bool  # the operator gives a sequence of tensors instead of one
    backward: bool  # the node was recorded while autograd ran backward


def values_in(*operands: Any) -> list[Value]:
    return [leaf for leaf in tree_leaves(operands) if isinstance(leaf, Value)]


def writes(target: Any) -> list[int]:
    """Which arguments an operator writes, as its schema says."""
    arguments = target._schema.arguments if isinstance(target, OpOverload) else []
    return [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]


def draws(target: Any) -> bool:
    """Whether an operator takes numbers from the random generator."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


class NodeList:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.backward = False
        self.count = itertools.count()

    def append(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Node:
        """Add the node of a call that gave `result`, with a new value for each tensor in it."""
        several = isinstance(result, tuple | list)
        tensors = list(result) if several else [] if writes(target) else [result]
        if not all(isinstance(tensor, torch.Tensor | None) for tensor in tensors):
            raise NotInTheToy(f"{target} gives something that is not a tensor")
        name = target.overloadpacket.__name__ if isinstance(target, OpOverload) else target.__name__
        results = [None if tensor is None else Value(f"{name}_{next(self.count)}", tensor) for tensor in tensors]
        self.nodes.append(Node(target, args, kwargs, results, several, self.backward))
        return self.nodes[-1]


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.list = NodeList()
        self.fakes = FakeTensorMode()
        self.primals: list[Value] = []  # the inputs
        self.outputs: list[torch.Tensor] = []  # fakes, with the autograd graph that eager made
        self.tangents: list[Value] = []  # this one and the next: section 4
        self.gradients: list[Value | None] = []
        self._known: dict[int, tuple[torch.Tensor, Value]] = {}  # what each tensor object stands for, by its id

    def stand_for(self, tensor: torch.Tensor, value: Value) -> Value:
        self._known[id(tensor)] = (tensor, value)
        return value

    def operand(self, argument: Any) -> Any:
        if isinstance(argument, FakeTensor):
            value = self._known[id(argument)][1]
            if StorageWeakRef(argument.untyped_storage()) != value.storage:
                raise NotInTheToy("a tensor is given another storage")
            return value
        if isinstance(argument, torch.Tensor):
            raise NotInTheToy("a tensor from outside: pass it as an argument")
        if isinstance(argument, torch.Generator | torch.SymInt | torch.SymFloat | torch.SymBool):
            raise NotInTheToy(f"an operand of type {type(argument).__name__}")
        return argument

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":  # a question, such as for the device
            return func(*args, **(kwargs or {}))
        refuse_what_is_left_out(func)
        operands, keywords = tree_map(self.operand, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in (aten.detach.default, aten.alias.default):
            self.stand_for(result, operands[0])  # another tensor object for the same value
            return result
        node = self.list.append(func, operands, keywords, result)
        for value in values_in(node.results):
            self.stand_for(value.fake, value)
        if writes(func):
            self.stand_for(result, operands[0])
        return result


def refuse_what_is_left_out(func: OpOverload) -> None:
    if func.namespace != "aten":
        raise NotInTheToy(f"{func}: only operators of torch itself")
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        raise NotInTheToy(f"{func}: depends on numbers, and fake tensors have none")
    if torch.Tag.inplace_view in func.tags:
        raise NotInTheToy(f"{func}: changes the shape or the storage of a tensor in place")
    if writes(func) not in ([], [0]) or "foreach" in str(func):
        raise NotInTheToy(f"{func}: writes something else than its first argument")
    if ("batch_norm" in str(func) and "backward" not in str(func)) or "rnn_layer" in str(func):
        raise NotInTheToy(f"{func}: does more than its schema says")


def record(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Recorder:
    """Run `function` on fakes of `inputs` and note what it does."""
    if not all(isinstance(x, torch.Tensor) for x in inputs):
        raise NotInTheToy("an argument is not a tensor")
    recorder = Recorder()
    fakes = [recorder.fakes.from_tensor(x.detach()).requires_grad_(x.requires_grad) for x in inputs]
    recorder.primals = [recorder.stand_for(fake, Value(f"primal_{i}", fake)) for i, fake in enumerate(fakes)]
    recorder.gradients = [None] * len(fakes)
    generator = torch.get_rng_state()
    try:
        with torch.enable_grad(), recorder.fakes, recorder:
            outputs = recorder.outputs = as_list(function(*fakes))
    except RuntimeError as error:
        raise NotInTheToy(f"the function fails on fake inputs that are leaves: {error}") from error
    if not torch.equal(generator, torch.get_rng_state()):
        torch.set_rng_state(generator)
        raise NotInTheToy("the function sets the state of the random generator")
    if any(
        fake.requires_grad != x.requires_grad or fake.grad is not None for fake, x in zip(fakes, inputs, strict=True)
    ):
        raise NotInTheToy("an input becomes part of the gradient graph, or is given a gradient")
    if not all(isinstance(output, FakeTensor) for output in outputs):
        raise NotInTheToy("an output is not a tensor made by the function")
    owned = {recorder.operand(fake).storage for fake in fakes}
    if len({recorder.operand(output).storage for output in outputs} - owned) < len(outputs):
        raise NotInTheToy("an output shares memory with an input or with another output")
    return recorder


def as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


# The real one: src/dovetail/capture/recorder.py and recording.py. It takes symbolic sizes, tensors from outside, tensor
# subclasses, outputs that share memory, and most of what is refused above. What a function does besides tensors is not
# noticed here: a counter that it increments is incremented once, and `torch.random.fork_rng` has no effect.


# ---- 2. Text ---------------------------------------------------------------------------------------------------------
#
# A program has inputs, nodes and outputs, and a text form. The text is Python that runs, which leaves little to do for
# section 8. With `free`, each value is deleted right after its last use: that is for section 7.


@dataclass
class Program:
    name: str
    inputs: list[Value]
    nodes: list[Node]
    outputs: list[Value | None]

    def text(self, free: bool = False) -> str:
        dying = last_uses(self) if free else {}
        lines = [f"def {self.name}(args):", f"    {text_of(self.inputs)} = args"]
        lines += ["    args.clear()"] if free else []
        for index, node in enumerate([None, *self.nodes], start=-1):
            lines += [f"    {text_of(node)}"] if node else []
            lines += [f"    del {', '.join(sorted(value.name for value in dying[index]))}"] if index in dying else []
        return "\n".join([*lines, f"    return {text_of(self.outputs)}"])


def text_of(item: Any) -> str:
    if isinstance(item, Node):
        operands = [*map(text_of, item.args), *(f"{key}={text_of(value)}" for key, value in item.kwargs.items())]
        call = f"{text_of(item.target)}({', '.join(operands)})"
        if not item.results:
            return call
        names = ", ".join("_" if value is None else value.name for value in item.results)
        looks = ", ".join(f"{str(v.fake.dtype)[6:]}{list(v.fake.shape)}" for v in values_in(item.results))
        return f"{names}{',' if item.several else ''} = {call}  # {looks}"
    if isinstance(item, Value):
        return item.name
    if isinstance(item, list | tuple):
        return f"[{', '.join(map(text_of, item))}]"
    if isinstance(item, OpOverload):
        return str(item)
    return item.__name__ if item in (view_scatter, operator.getitem) else repr(item)


def last_uses(program: Program) -> dict[int, list[Value]]:
    """For each node, by its index, the values that nobody reads after it. Outputs stay; unread inputs die at -1."""
    last = dict.fromkeys(program.inputs, -1)
    for index, node in enumerate(program.nodes):
        last.update(dict.fromkeys(values_in(node.args, node.kwargs, node.results), index))
    dying: dict[int, list[Value]] = {}
    for value in last.keys() - set(values_in(program.outputs)):
        dying.setdefault(last[value], []).append(value)
    return dying


def view_scatter(base: torch.Tensor, contents: torch.Tensor, *steps: Sequence[Any]) -> torch.Tensor:
    """The toy's own operator, for section 3: `base` with new contents in a view. The steps make the view of `base`."""
    new = view = base.clone()
    for target, *rest in steps:
        view = target(view, *rest)
    view.copy_(contents)
    return new


def recorded(recorder: Recorder) -> Program:
    outputs = [recorder.operand(output) for output in recorder.outputs]
    return Program("recorded", recorder.primals, recorder.list.nodes, outputs)


print("1, 2. What `layer` does, recorded:\n")
print(recorded(record(layer, example_inputs())).text())

# The real one: src/dovetail/ir/program.py and text.py. Programs never change, and know the user's line of each node.


# ---- 3. Functionalize ------------------------------------------------------------------------------------------------
#
# Writes make a program hard to rearrange. So they go: each write becomes a new value, and who reads later reads that.
# This is a problem of storages and views.
#
# What is not a view is the *root* of its storage. Of a root, the toy keeps which value holds its contents now. Of a
# view, it keeps how the view was made, and at which *version* of the storage. A write through a view
#
# 1. computes the new contents with the operator's functional twin: `mul_` -> `mul`, found by schema;
# 2. puts them into a new root, at the place of the view: `view_scatter`;
# 3. moves the version. A view that is out of date now is made again from its root when somebody reads it.
#
# A builder makes the new program. It runs each node on fakes, so that new values have shapes and storages as well.


class Builder(NodeList):
    def __init__(self, fakes: FakeTensorMode) -> None:
        super().__init__()
        self.fakes = fakes
        self.now: dict[Value | None, Value | None] = {}  # a value of the old program -> what it is in the new one

    def find(self, value: Value) -> Value | None:
        return self.now.get(value, value)

    def find_all(self, operands: Any) -> Any:
        return tree_map(lambda item: self.find(item) if isinstance(item, Value) else item, operands)

    def emit(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
        fakes, keywords = tree_map(lambda item: item.fake if isinstance(item, Value) else item, (args, kwargs))
        with self.fakes, torch.no_grad():
            return self.append(target, args, kwargs, target(*fakes, **keywords))

    def again(self, node: Node, suffix: str | None = None) -> None:
        """The same node, with operands of the new program. suffix: keep the names of its results, with that added."""
        args, kwargs = self.find_all((node.args, node.kwargs))
        results = self.emit(node.target, args, kwargs).results
        self.now.update(zip(node.results, results, strict=True))
        if suffix is not None:
            for old, new in zip(values_in(node.results), values_in(results), strict=True):
                new.name = old.name + suffix


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.storage_offset()


def functional_twin(target: Any) -> Any:
    types = [str(argument.type) for argument in target._schema.arguments]
    packet = getattr(aten, target.overloadpacket.__name__.removesuffix("_"), None)
    for twin in [getattr(packet, name) for name in packet.overloads()] if packet else []:
        if not writes(twin) and [str(argument.type) for argument in twin._schema.arguments] == types:
            return twin
    raise NotInTheToy(f"{target} has no functional twin")


class Functionalizer(Builder):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.fakes)
        self.inputs = recorder.primals + recorder.tangents
        self.view_of: dict[Value, tuple[Node, int]] = {}  # the node that made a view, and which of its results it is
        self.version: Counter[StorageWeakRef] = Counter()  # how often a storage was written
        self.made_at: dict[Value, int] = {}
        self.early = set(self.inputs)  # roots that backward may not write

    def find(self, value: Value) -> Value | None:
        """The functional value that holds what a recorded value holds now."""
        if value in self.view_of and self.made_at[value] != self.version[value.storage]:
            node, _ = self.view_of[value]
            self.again(node)
            self.made_at.update((view, self.version[view.storage]) for view in values_in(node.results))
        return self.now.get(value, value)

    def consume(self, node: Node) -> None:
        self.backward = node.backward
        if node.backward and draws(node.target):
            raise NotInTheToy("random numbers in backward")
        if writes(node.target):
            self.write(node)
            return
        self.again(node)
        for index, value in enumerate(node.results):
            if value is None:
                continue
            self.made_at[value] = self.version[value.storage]
            if any(operand.storage == value.storage for operand in values_in(node.args)):
                self.view_of[value] = (node, index)
            elif not node.backward:
                self.early.add(value)

    def write(self, node: Node) -> None:
        root, steps = self.way_to_root(node.args[0])
        if sum(value.storage == root.storage for value in self.inputs) > 1:
            raise NotInTheToy("a write to an input that shares memory with another one")
        if node.backward and root in self.early:
            raise NotInTheToy("a write in backward to a value of forward")
        args, kwargs = self.find_all((node.args, node.kwargs))
        overwrites = node.target is aten.copy_.default
        if overwrites:
            new = args[1]
        else:
            defaults = [a.default_value for a in node.target._schema.arguments[len(args) :] if not a.kwarg_only]
            (new,) = values_in(self.emit(functional_twin(node.target), [*args, *defaults], kwargs).results)
            if draws(node.target) and layout(new.fake) != layout(root.fake):
                raise NotInTheToy("random numbers written to a view, or to a tensor with gaps")
        if steps or overwrites or layout(new.fake) != layout(root.fake):
            (new,) = values_in(self.emit(view_scatter, [self.find(root), new, *steps], {}).results)
        if layout(new.fake) != layout(root.fake):
            raise NotInTheToy("a write to a tensor with gaps in its memory")
        self.now[root] = new
        self.version[root.storage] += 1

    def way_to_root(self, value: Value) -> tuple[Value, list[Sequence[Any]]]:
        steps: list[Sequence[Any]] = []
        while value in self.view_of:
            node, index = self.view_of[value]
            steps[:0] = [[node.target, *node.args[1:]], *([[operator.getitem, index]] if node.several else [])]
            value = node.args[0]
        return value, steps


@dataclass
class Joint(Program):
    """Inputs: primals, tangents. Outputs: results, new contents of written primals, a gradient for each primal."""

    fakes: FakeTensorMode
    primals: list[Value]
    results: int
    written: list[int]  # which primals

    @property
    def gradients(self) -> list[Value | None]:
        return self.outputs[self.results + len(self.written) :]


def functionalize(recorder: Recorder) -> Joint:
    functional = Functionalizer(recorder)
    primals, nodes = recorder.primals, recorder.list.nodes
    for node in nodes:
        if not node.backward:
            functional.consume(node)
    written = [i for i, value in enumerate(primals) if functional.version[value.storage]]
    results = [recorder.operand(output) for output in recorder.outputs]
    outputs = functional.find_all([*results, *(primals[i] for i in written)])
    for node in nodes:
        if node.backward:
            functional.consume(node)
    outputs += functional.find_all(recorder.gradients)
    assert not any(writes(node.target) for node in functional.nodes), "a functional program writes nothing"
    for old, new in functional.now.items():
        assert old is None or new is None or layout(old.fake) == layout(new.fake), "values look as they did"
    return Joint("joint", functional.inputs, functional.nodes, outputs, recorder.fakes, primals, len(results), written)


def write_through_views(x: torch.Tensor) -> torch.Tensor:
    t = x + 1
    t.t()[0].mul_(2)
    return t


print("\n3. A write through two views, recorded and functional:\n")
small = record(write_through_views, [torch.zeros(2, 3)])
print(recorded(small).text(), functionalize(small).text(), sep="\n\n")

# The real one: src/dovetail/capture/functionalize.py, ops/twins.py and ops/views.py. It knows how to undo a transpose
# and which operator scatters into a slice, which saves copies; it takes writes without a twin, and tensors with gaps.


# ---- 4. Forward and backward, jointly --------------------------------------------------------------------------------
#
# Backward needs no derivative rules of ours. The fake outputs carry eager's own autograd graph: ask it for gradients
# while the recorder listens, and its operators are recorded like any others. What it is given, the gradient of each
# output, is a *tangent*: one more input. Forward and backward are then one list of nodes, the *joint* program. It is
# functionalized as a whole, since autograd makes writes of its own: `hidden[0].mul_(2)` leads to some.


def record_backward(recorder: Recorder) -> None:
    leaves = {i: value.fake for i, value in enumerate(recorder.primals) if value.fake.requires_grad}
    ends = [output for output in recorder.outputs if output.requires_grad]
    if not ends or not leaves:
        return
    with recorder.fakes:
        arriving = [empty_like(end) for end in ends]
    recorder.tangents = [recorder.stand_for(fake, Value(f"tangent_{i}", fake)) for i, fake in enumerate(arriving)]
    recorder.list.backward = True
    with recorder.fakes, recorder:
        found = torch.autograd.grad(ends, list(leaves.values()), arriving, allow_unused=True)
    for index, gradient in zip(leaves, found, strict=True):
        recorder.gradients[index] = recorder.operand(gradient)


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


recorder = record(layer, example_inputs())
record_backward(recorder)
joint = functionalize(recorder)
print("\n4. Forward and backward of `layer`, one functional program:\n")
print(joint.text())

# The real one: src/dovetail/capture/recording.py. It records one backward for each pattern of gradients that really
# arrives. The toy's backward takes them all: where the user asks for less, zeros arrive.


# ---- 5. One pass over the functional program -------------------------------------------------------------------------
#
# Without writes, passes are short. A node whose results nobody reads can go (dead code). Of two equal nodes, the second
# can go (common subexpressions). Some have to stay. Random numbers are neither dropped nor merged: that would change
# which ones come next. What the user gets is not merged: two results are two tensors. Backward nodes are not merged
# with forward ones: that would keep a value alive in between.


def simplify(joint: Joint) -> Joint:
    needed = set(values_in(joint.outputs))
    live: list[Node] = []
    for node in reversed(joint.nodes):
        if draws(node.target) or needed & set(values_in(node.results)):
            needed.update(values_in(node.args, node.kwargs))
            live.insert(0, node)
    returned = {value.storage for value in values_in(joint.outputs)}
    builder = Builder(joint.fakes)
    first: dict[str, list[Value | None]] = {}
    for node in live:
        builder.backward = node.backward
        operands = builder.find_all([node.args, list(node.kwargs), list(node.kwargs.values())])
        key = f"{node.backward} {node.target} {text_of(operands)}"
        stays = draws(node.target) or any(value.storage in returned for value in values_in(node.results))
        if key in first and not stays:
            builder.now.update(zip(node.results, first[key], strict=True))
            continue
        builder.again(node, suffix="")
        if not stays:
            first[key] = builder.nodes[-1].results
    return replace(joint, nodes=builder.nodes, outputs=builder.find_all(joint.outputs))


simple = simplify(joint)
print(f"\n5. Simplified: {len(joint.nodes)} nodes -> {len(simple.nodes)}")

# The real ones: src/dovetail/passes/. Each is undone where it would raise the peak of memory. Another one, which the
# toy leaves out, writes results into operands that die: `mul` becomes `mul_` again.


# ---- 6. Split, and keep or recompute ---------------------------------------------------------------------------------
#
# Forward runs now, backward later. So the joint program is cut in two:
#
#     forward(primals)              -> results, new contents of written primals, residuals
#     backward(residuals, tangents) -> gradients
#
# A *residual* is a value of forward that backward reads. By default all of them are saved, as eager does. But what is
# cheap to compute (pointwise, or a view) from values that are there anyway need not be saved: backward computes it
# again, right before it is read. The toy goes from the last value to the first and drops a storage whenever the sum of
# saved bytes gets smaller. It never draws a random number twice, and never reads an input that has been written since.
# Inputs and results cost nothing: the user holds them.


@dataclass
class Split:
    forward: Program
    backward: Program
    results: list[Value]
    residuals: list[Value]
    saved_bytes: int


def bytes_of(values: Iterable[Value], free: Iterable[Value]) -> int:
    """The bytes of the storages of `values`, without those of `free`."""
    not_counted = {value.storage for value in free}
    return sum({value.storage: value.bytes for value in values if value.storage not in not_counted}.values())


def is_cheap(node: Node) -> bool:
    owned = {value.storage for value in values_in(node.args)}
    is_view = all(value.storage in owned for value in values_in(node.results))
    return not draws(node.target) and (is_view or torch.Tag.pointwise in getattr(node.target, "tags", ()))


def sources(values: Iterable[Value], there: set[Value], made_by: dict[Value, Node]) -> set[Value]:
    """What has to be there, so that cheap nodes can compute `values` again."""
    found, todo = set(), list(values)
    while todo:
        value = todo.pop()
        if value in there or value not in made_by or not is_cheap(made_by[value]):
            found.add(value)
        else:
            todo += values_in(made_by[value].args, made_by[value].kwargs)
    return found


class BackwardBuilder(Builder):
    """Copies backward nodes, and before them the forward nodes whose results are not saved."""

    def __init__(self, fakes: FakeTensorMode, saved: set[Value], made_by: dict[Value, Node]) -> None:
        super().__init__(fakes)
        self.saved, self.made_by = saved, made_by

    def find(self, value: Value) -> Value | None:
        if value not in self.now and value in self.made_by and value not in self.saved:
            self.again(self.made_by[value], suffix="_again")
        return self.now.get(value, value)


def split(joint: Joint, recompute: bool) -> Split:
    early = [node for node in joint.nodes if not node.backward]
    late = [node for node in joint.nodes if node.backward]
    made_by = {value: node for node in early for value in values_in(node.results)}
    given = joint.outputs[: joint.results + len(joint.written)]
    results = values_in(given[: joint.results])
    held = [*joint.primals, *results]
    lost = {joint.primals[i] for i in joint.written}
    read = values_in([(node.args, node.kwargs) for node in late], joint.gradients)
    saved = {value for value in read if value in made_by or value in joint.primals}
    if saved & lost:
        raise NotInTheToy("backward reads what an input held before it was written")
    for value in reversed(made_by) if recompute else ():
        others = {other for other in saved if other.storage != value.storage}
        trial = others | sources(saved - others, others, made_by)
        if not trial & lost and bytes_of(trial, held) < bytes_of(saved, held):
            saved = trial
    builder = BackwardBuilder(joint.fakes, saved, made_by)
    for node in late:
        builder.again(node, suffix="")
    gradients = builder.find_all(joint.gradients)
    read = values_in([(node.args, node.kwargs) for node in builder.nodes], gradients)
    residuals = list(dict.fromkeys(value for value in read if value in saved or value in joint.primals))
    forward = Program("forward", joint.primals, early, [*given, *residuals])
    backward = Program("backward", residuals + joint.inputs[len(joint.primals) :], builder.nodes, gradients)
    return Split(forward, backward, results, residuals, bytes_of(residuals, held))


keeping, recomputing = split(simple, recompute=False), split(simple, recompute=True)
print(f"\n6. Keep all: {keeping.saved_bytes} bytes, in {text_of(keeping.residuals)}")
print(f"6. Keep or recompute: {recomputing.saved_bytes} bytes, in {text_of(recomputing.residuals)}")

# The real one: src/dovetail/partition/split.py. It keeps everything so far; partition/check.py proves the split without
# sharing code with it. The toy's choice is greedy and looks at bytes only, not at the time that recomputing takes.


# ---- 7. Memory -------------------------------------------------------------------------------------------------------
#
# A storage is alive from the node that makes it to the last use of any value on it. The generated code deletes each
# value there, so that is when its bytes are free, and the peak is known before anything has run. Inputs are not
# counted: they are the caller's. Outputs stay. What an operator allocates for itself while it runs is not known here.


def peak_of(program: Program) -> int:
    outside = {value.storage for value in program.inputs}
    dying = last_uses(program)
    users: Counter[StorageWeakRef] = Counter()  # how many living values each storage has
    live = peak = 0
    for index, node in enumerate(program.nodes):
        for value in values_in(node.results):
            live += value.bytes if value.storage not in outside and not users[value.storage] else 0
            users[value.storage] += 1
        peak = max(peak, live)
        for value in dying.get(index, ()):
            users[value.storage] -= 1
            live -= value.bytes if value.storage not in outside and not users[value.storage] else 0
    return peak


def step_peak(halves: Split) -> int:
    """The peak of forward and backward. Results and residuals are held while backward runs."""
    held = bytes_of([*halves.results, *halves.residuals], halves.forward.inputs)
    return max(peak_of(halves.forward), held + peak_of(halves.backward))


class Meter(TorchDispatchMode):
    """Measures it in a real run: after each operator, the bytes of the storages that it has seen made and that live."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before = storages_of(args, kwargs)
        self.blocks.update({ref: size for ref, size in storages_of(result).items() if ref not in before})
        self.blocks = {ref: size for ref, size in self.blocks.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self.blocks.values()))
        return result


def storages_of(*trees: Any) -> dict[StorageWeakRef, int]:
    found = [leaf.untyped_storage() for leaf in tree_leaves(trees) if isinstance(leaf, torch.Tensor)]
    return {StorageWeakRef(storage): storage.nbytes() for storage in found}


print(f"\n7. Peak, known before it runs: {step_peak(keeping)} bytes. Recomputing: {step_peak(recomputing)} bytes.")

# The real one: src/dovetail/analysis/liveness.py; inspect/memory.py measures each block that the allocator hands out.


# ---- 8. Run ----------------------------------------------------------------------------------------------------------
#
# The text of a program becomes a function by `exec`. The toy has one *executor*: torch's own operators. For autograd,
# the two functions are one `torch.autograd.Function`; residuals go through `save_for_backward`, which notices when
# somebody writes to one. After forward, the new contents of written inputs are copied into the real inputs.


class Compiled:
    def __init__(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> None:
        recorder = record(function, inputs)
        record_backward(recorder)
        self.joint = simplify(functionalize(recorder))
        self.split = min((split(self.joint, recompute) for recompute in (False, True)), key=step_peak)
        self.forward, self.backward = executable(self.split.forward), executable(self.split.backward)
        self.differentiable = [i for i, output in enumerate(recorder.outputs) if output.requires_grad]
        self.tangents = recorder.tangents
        self.made_for = [signature(x) for x in inputs]

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        if [signature(x) for x in inputs] != self.made_for:
            raise NotInTheToy("inputs that are unlike those it was compiled for")
        for i in self.joint.written:
            if not storages_of(inputs[i]).keys().isdisjoint(storages_of(inputs[:i], inputs[i + 1 :])):
                raise NotInTheToy("a write to an input that shares memory with another one")
        outputs: tuple[torch.Tensor, ...] = Step.apply(self, *inputs)
        with torch.no_grad():
            for i, new in zip(self.joint.written, outputs[self.joint.results :], strict=True):
                inputs[i].copy_(new)
        return list(outputs[: self.joint.results])


def signature(x: torch.Tensor) -> tuple[Any, ...]:
    return *layout(x), x.device, x.requires_grad


def executable(program: Program) -> Any:
    names: dict[str, Any] = {
        "aten": aten,
        "torch": torch,
        "device": torch.device,
        "inf": float("inf"),
        "nan": float("nan"),
    }
    names |= {"getitem": operator.getitem, "view_scatter": view_scatter}
    exec(program.text(free=True), names)
    return names[program.name]


class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compiled: Compiled, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = compiled.forward(list(inputs))
        count = compiled.joint.results + len(compiled.joint.written)
        ctx.compiled = compiled
        ctx.save_for_backward(*results[count:])
        ctx.mark_non_differentiable(*(results[i] for i in range(count) if i not in compiled.differentiable))
        ctx.set_materialize_grads(False)
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotInTheToy("a gradient of a gradient (create_graph=True)")
        arriving = [tangents[i] for i in ctx.compiled.differentiable]
        for i, value in enumerate(ctx.compiled.tangents):
            tangent = arriving[i]
            if tangent is None:
                arriving[i] = empty_like(value.fake).zero_()
            elif tangent.stride() != value.fake.stride():  # backward was recorded for the layout of the output
                arriving[i] = empty_like(value.fake).copy_(tangent)
        return None, *ctx.compiled.backward([*ctx.saved_tensors, *arriving])


compiled = Compiled(layer, example_inputs())
print("\n8. The backward that runs:\n")
print(compiled.split.backward.text(free=True))

# The real one: src/dovetail/execute/. There may be several executors; the wrapper rebuilds views and repeats changes of
# shape; a guard picks the program that was made for the way in which the inputs share memory.


# ---- 9. Check --------------------------------------------------------------------------------------------------------
#
# Nothing counts before it was compared with eager: results, gradients, what the inputs hold, and the random generator
# afterwards, all of them bit by bit. And the peak has to be the one that section 7 promised.


def run_step(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[list[Any], int]:
    """What a user can see of one step, and its peak."""
    fresh = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    leaves = [x for x in fresh if x.requires_grad]
    torch.manual_seed(2)
    with Meter() as meter:
        outputs = as_list(function(*fresh))
    generator = torch.get_rng_state()
    ends = [output for output in outputs if output.requires_grad]
    tangents = [torch.randn_like(end) for end in ends]
    with meter:
        gradients = torch.autograd.grad(ends, leaves, tangents, allow_unused=True) if ends else ()
    return [*outputs, *gradients, *fresh, generator], meter.peak


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    for a, b in zip(actual, expected, strict=True):
        if a is not None or b is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, check_stride=True)
            assert a.requires_grad == b.requires_grad, "what has a gradient in eager has one here"


def check(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Compile `function` and compare it with eager. Gives the peaks of both."""
    generator = torch.get_rng_state()
    compiled = Compiled(function, inputs)
    assert torch.equal(generator, torch.get_rng_state()), "compiling draws no random numbers"
    expected, eager_peak = run_step(function, inputs)
    actual, peak = run_step(compiled, inputs)
    assert_same(actual, expected)
    assert peak == step_peak(compiled.split), f"the peak is {peak}, not {step_peak(compiled.split)}"
    return peak, eager_peak


peak, eager_peak = check(layer, example_inputs())
print("\n9. Results, gradients, written inputs and random numbers are those of eager, bit by bit.")
print(f"9. Peak, measured: {peak} bytes, as promised. Eager: {eager_peak} bytes.")

# The real ones: src/dovetail/testing/, which makes random programs to compare, and the option `verify`.


# ---- 10. torch.compile -----------------------------------------------------------------------------------------------
#
# A back end of `torch.compile` takes a graph, which is callable, and gives a callable. Dynamo makes the graph from the
# user's bytecode, and guards it. The toy compiles it when the first real inputs arrive.


def toy_backend(graph: Callable[..., Any], example_inputs: Sequence[Any]) -> Callable[..., list[torch.Tensor]]:
    compiled: list[Compiled] = []

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        if not compiled:
            compiled.append(Compiled(graph, inputs))
        return compiled[0](*inputs)

    return run


through_dynamo, _ = run_step(torch.compile(layer, backend=toy_backend, dynamic=False), example_inputs())
assert_same(through_dynamo, run_step(layer, example_inputs())[0])
print("\n10. As a back end of torch.compile: the same once more.")

# The real one: src/dovetail/frontends/. With it: torch.compile(model, backend="dovetail").
