"""Records graphs that Dynamo has made: the counterpart of `recorded_call` for functions that run through Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dovetail.analysis.alias_pattern import APART, AliasPattern
from dovetail.capture.inputs import InputSpec
from dovetail.capture.interpret import GraphInterpreter
from dovetail.capture.left_modes import refuse_kernels_switched, switched_in
from dovetail.capture.number_symbols import NumberSymbols
from dovetail.capture.recording import Recording
from dovetail.errors import DataDependentControlFlow, UnsupportedInputMutation
from dovetail.frontends.inputs import check_tensor, specs_with_parts
from dovetail.ir.provenance import origin_of
from dovetail.ir.signature import Buffer, InputRole, Parameter, SizeInput, UserInput
from dovetail.ir.text import identifier
from dovetail.torch_compat.autograd import asks_where_or_how_often
from dovetail.torch_compat.fakes import FakeMode, fake_of, graph_fake_mode, is_fake, new_fake_mode
from dovetail.torch_compat.subclasses import is_wrapper
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES, concrete_layout, shape_env_of, symbol_name


class GraphRecorder:
    """Records one graph, for the inputs that Dynamo has described or for real ones. specs: of the former."""

    def __init__(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], taken_apart: Mapping[Any, Callable[..., Any]] | None
    ) -> None:
        """taken_apart: rules that replace operators. Raises: DovetailError."""
        self.placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self._gm = gm
        self._taken_apart = taken_apart
        refuse_kernels_switched(gm.graph.nodes)
        _refuse_versions(gm.graph.nodes)
        self._switched = switched_in(node.target for node in gm.graph.nodes)
        examples = [node.meta.get("example_value") for node in self.placeholders]
        sizes = [x for x in (*examples, *example_inputs) if isinstance(x, SYMBOLIC_TYPES)]  # alone, at times
        self._mode = mode = graph_fake_mode(examples) or new_fake_mode(shape_env_of(sizes[0]) if sizes else None)
        pairs = enumerate(zip(self.placeholders, example_inputs, strict=True))
        own = [_input_spec(i, node, example, mode) for i, (node, example) in pairs]
        self.specs = specs_with_parts(example_inputs, own, lambda part: part if is_fake(part) else fake_of(mode, part))

    def first(self) -> Recording:
        """A recording with Dynamo's own fakes, whose sizes may be symbols. Raises: DovetailError."""
        numbers = None if self._mode.shape_env is None else NumberSymbols({}, self._mode, are_guarded=False)
        recording = Recording(self._mode, self.specs, taken_apart=self._taken_apart, numbers=numbers)
        return self._run(recording, None if numbers is None else numbers.number_for)

    def record(
        self, inputs: Sequence[Any], alias_pattern: AliasPattern = APART, constants: Sequence[torch.Tensor] = ()
    ) -> Recording:
        """Record for these inputs, each size as it is. Raises: DovetailError."""
        mode, own = new_fake_mode(), len(self.placeholders)
        fixed = [_fixed_spec(spec, value, mode) for spec, value in zip(self.specs, inputs, strict=True)]
        fixed = specs_with_parts(inputs[:own], fixed[:own], lambda part: fake_of(mode, part))
        return self._run(Recording(mode, fixed, None, alias_pattern, constants, self._taken_apart))

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph in eager mode."""
        return _as_sequence(self._gm(*inputs))

    def _run(self, recording: Recording, number_for: Callable[[Any], Any] | None = None) -> Recording:
        interpreter = GraphInterpreter(self._gm, recording.origins, recording.in_region, number_for)
        recording.run_forward(lambda *inputs: _as_sequence(interpreter.run(*inputs)), self._switched)
        return recording


def _refuse_versions(nodes: Iterable[fx.Node]) -> None:
    """Raises: DataDependentControlFlow where a graph reads version counters, which no program follows."""
    for node in nodes:
        if node.op == "call_function" and asks_where_or_how_often(node.target):
            raise DataDependentControlFlow(operator="a tensor's version counter", origin=origin_of(node))


def _fixed_spec(spec: InputSpec, value: Any, mode: FakeMode) -> InputSpec:
    """The same input, with the sizes that `value` has."""
    if not isinstance(value, torch.Tensor):
        return replace(spec, value=value)
    fake = None if is_wrapper(value) else fake_of(mode, value)
    return replace(spec, value=fake, requires_grad=value.requires_grad, is_leaf=value.is_leaf, layout=None, parts=())


def _as_sequence(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple | list) else (result,)


def _input_spec(index: int, node: fx.Node, example: Any, mode: FakeMode) -> InputSpec:
    name = identifier(str(node.target).removeprefix("L_").strip("_") or node.name)
    name = f"{name}_{index}" if not isinstance(example, SYMBOLIC_TYPES) else identifier(node.name)
    if not isinstance(example, torch.Tensor):
        symbol = symbol_name(example) if isinstance(example, SYMBOLIC_TYPES) else None
        return InputSpec(name, SizeInput(symbol or str(example)), example)
    check_tensor(name, example)
    fake = node.meta.get("example_value")
    if is_wrapper(example):
        fake = None
    elif not isinstance(fake, torch.Tensor):
        fake = fake_of(mode, example)
    elif concrete_layout(fake) != concrete_layout(example):
        raise UnsupportedInputMutation(what="the shape or strides", name=name)
    return InputSpec(
        name,
        _role(index, node, example),
        fake,
        requires_grad=example.requires_grad,
        is_leaf=example.is_leaf,
    )


def _role(index: int, node: fx.Node, example: torch.Tensor) -> InputRole:
    target = str(node.target)
    if isinstance(example, torch.nn.Parameter):
        return Parameter(target)
    return Buffer(target) if "buffers" in target else UserInput(index)
