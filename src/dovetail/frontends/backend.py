"""`torch.compile(model, backend="dovetail", options={...})`: compile the graphs that Dynamo finds."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dovetail.analysis.alias_pattern import AliasPattern
from dovetail.capture.inputs import InputSpec
from dovetail.capture.interpret import GraphInterpreter
from dovetail.capture.left_modes import switched_in
from dovetail.capture.recording import Recording
from dovetail.errors import (
    BadDonation,
    BadOptionValue,
    DataDependentControlFlow,
    DovetailWarning,
    UnsupportedInputMutation,
)
from dovetail.frontends.inputs import check_tensor, size_hints, specs_with_parts
from dovetail.ir.signature import Buffer, InputRole, Parameter, SizeInput, UserInput
from dovetail.ir.text import identifier
from dovetail.pipeline.alias_graphs import AliasGraphs
from dovetail.pipeline.doors import BACKEND
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import Options, decompositions, resolve_options
from dovetail.torch_compat.fakes import FakeMode, fake_of, graph_fake_mode, is_fake, new_fake_mode
from dovetail.torch_compat.subclasses import is_wrapper
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES, concrete_layout, symbol_name
from dovetail.torch_compat.version import ensure_supported_torch

logger = logging.getLogger("dovetail")


def dovetail_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo; registered as the backend "dovetail".

    Args:
        gm: the graph.
        example_inputs: its inputs, as Dynamo passes them to a backend.
        options: see `dovetail.pipeline.options`.
        mode: no mode is supported.

    Returns:
        A callable with the graph's inputs.

    Raises:
        DovetailError: before anything runs.
    """
    if mode not in (None, "default"):
        raise BadOptionValue(option="mode", value=mode, reason="modes are for inductor", expected="no mode")
    return compile_graph(gm, example_inputs, resolve_options(options, PASS_NAMES, BACKEND))


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], resolved: Options) -> Callable[..., Any]:
    """Compile a graph without parameters of its own, as Dynamo makes them, for calls like this one.

    resolved: `donate` names its placeholders. Raises: DovetailError, before anything ran.
    """
    ensure_supported_torch()
    if resolved.dynamic:
        raise BadOptionValue(
            option="dynamic",
            value=True,
            reason=BACKEND.reasons["dynamic"],
            expected=BACKEND.instead["dynamic"],
        )
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    fake_mode = graph_fake_mode(node.meta.get("example_value") for node in placeholders) or new_fake_mode()
    own = [_input_spec(i, n, e, fake_mode) for i, (n, e) in enumerate(zip(placeholders, example_inputs, strict=True))]
    specs = specs_with_parts(example_inputs, own, lambda part: part if is_fake(part) else fake_of(fake_mode, part))
    rules = decompositions(resolved)
    switched = switched_in(node.target for node in gm.graph.nodes)

    def run(recording: Recording) -> Recording:
        interpreter = GraphInterpreter(gm, recording.origins, recording.in_region)
        recording.run_forward(lambda *inputs: _as_sequence(interpreter.run(*inputs)), switched)
        return recording

    def again(inputs: Sequence[Any], alias_pattern: AliasPattern, constants: Sequence[torch.Tensor]) -> Recording:
        mode = new_fake_mode()
        fixed = [_fixed_spec(spec, value, mode) for spec, value in zip(specs, inputs, strict=True)]
        fixed = specs_with_parts(inputs[: len(own)], fixed[: len(own)], lambda part: fake_of(mode, part))
        return run(Recording(mode, fixed, None, alias_pattern, constants, rules))

    donated = _donated(placeholders, example_inputs, resolved.donate)
    recording = run(Recording(fake_mode, specs, taken_apart=rules))
    logger.info(
        "graph of %d nodes from Dynamo: recorded as %d operators", len(gm.graph.nodes), recording.operator_count
    )

    def source(inputs: Sequence[Any]) -> Sequence[Any]:
        return _as_sequence(gm(*inputs))

    graphs = AliasGraphs(recording, again, "graph", resolved, size_hints(specs), source, donated)
    if recording.accesses().reach:  # where an input lies in its storage matters: the first call shows it
        return _Dispatch(graphs, gm)
    apart = graphs.compile_apart()  # from here on what backward writes is known, too
    return apart if graphs.is_one else _Dispatch(graphs, gm)


class _Dispatch:
    """Calls the graph that was compiled for the way in which the inputs share memory, or Dynamo's own, uncompiled."""

    def __init__(self, graphs: AliasGraphs, gm: fx.GraphModule) -> None:
        self.graphs = graphs
        self._gm = gm
        self._warned = False

    def __call__(self, *inputs: Any) -> Any:
        reason = f"it was compiled for {len(self.graphs.graphs)} alias patterns already: raise max_variants"
        try:
            chosen = self.graphs.select(inputs)
        except DataDependentControlFlow:  # Dynamo hands floats over as tensors, which are read while recording again
            chosen, reason = None, "it reads a number from a tensor, a float argument for instance: pass it as a tensor"
        if chosen is not None:
            graph, taken = chosen
            return graph(*taken)
        if not self._warned:
            self._warned = True
            warnings.warn(
                "a graph runs in eager mode for calls in which inputs that it writes share memory in a new way, "
                f"because {reason}, or clone inputs that are written.",
                DovetailWarning,
                stacklevel=2,
            )
        self.graphs.count_donations(inputs)
        return self._gm(*inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Dispatch:
        return self


def _donated(
    placeholders: Sequence[fx.Node], example_inputs: Sequence[Any], donate: Sequence[str | int]
) -> dict[int, str]:
    """Inputs that each call gives away, and what to call them. Raises: BadDonation."""
    found: dict[int, str] = {}
    names = [node.name for node in placeholders]
    for wish in donate:
        known = [i for i, name in enumerate(names) if (wish == i and type(wish) is int) or wish == name]
        if not known:
            raise BadDonation(donation=wish, reason="there is no such placeholder", known=", ".join(names))
        if not isinstance(example_inputs[known[0]], torch.Tensor) or is_wrapper(example_inputs[known[0]]):
            raise BadDonation(donation=wish, reason="it is not a plain tensor", known=", ".join(names))
        found[known[0]] = f"argument {wish!r}"
    return found


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
