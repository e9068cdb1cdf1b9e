"""`torch.compile(model, backend="dovetail", options={...})`: compile the graphs that Dynamo finds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from dovetail.capture.interpret import GraphInterpreter
from dovetail.capture.recording import InputSpec, Recording
from dovetail.errors import BadOptionValue, UnsupportedInputMutation
from dovetail.frontends.inputs import check_tensor, size_hints
from dovetail.ir.signature import Buffer, InputRole, Parameter, SizeInput, UserInput
from dovetail.ir.text import identifier
from dovetail.pipeline.compile import compile_recording
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import resolve_options
from dovetail.torch_compat.fakes import FakeMode, fake_of, graph_fake_mode, new_fake_mode
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
    """Compile one of Dynamo's graphs; registered as the backend "dovetail".

    gm, example_inputs: what Dynamo hands to a backend. options: see `pipeline.options`. mode: none is known so far.
    Raises: DovetailError, before anything ran.
    """
    ensure_supported_torch()
    if mode not in (None, "default"):
        raise BadOptionValue(option="mode", value=mode, reason="modes are inductor's", expected="no mode")
    resolved = resolve_options(options, PASS_NAMES)
    if resolved.dynamic:
        raise BadOptionValue(
            option="dynamic", value=True, reason="Dynamo decides about sizes", expected="torch.compile(dynamic=True)"
        )
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    fake_mode = graph_fake_mode(node.meta.get("example_value") for node in placeholders) or new_fake_mode()
    specs = [_input_spec(i, n, e, fake_mode) for i, (n, e) in enumerate(zip(placeholders, example_inputs, strict=True))]
    recording = Recording(fake_mode, specs)
    interpreter = GraphInterpreter(gm, recording.origins, recording.in_region)
    recording.run_forward(lambda *inputs: _as_sequence(interpreter.run(*inputs)))
    logger.info(
        "graph of %d nodes from Dynamo: recorded as %d operators", len(gm.graph.nodes), recording.operator_count
    )
    return compile_recording(recording, "graph", resolved, size_hints(specs))


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
    if not isinstance(fake, torch.Tensor):
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
