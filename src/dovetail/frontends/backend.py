"""`torch.compile(model, backend="dovetail", options={...})`: compile the graphs that Dynamo finds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from dovetail.errors import (
    BadOptionValue,
    DataDependentControlFlow,
)
from dovetail.errors.base import warn
from dovetail.frontends.donation import donated_placeholders
from dovetail.frontends.inputs import size_hints
from dovetail.frontends.recorded_graph import GraphRecorder
from dovetail.pipeline.alias_graphs import AliasGraphs
from dovetail.pipeline.doors import BACKEND
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import Options, decompositions, resolve_options
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
    recorder = GraphRecorder(gm, example_inputs, decompositions(resolved))
    donated = donated_placeholders(recorder.placeholders, example_inputs, resolved.donate)
    recording = recorder.first()
    logger.info(
        "graph of %d nodes from Dynamo: recorded as %d operators", len(gm.graph.nodes), recording.operator_count
    )
    hints = size_hints(recorder.specs)
    graphs = AliasGraphs(recording, recorder.record, "graph", resolved, hints, recorder.run, donated)
    if recording.accesses().reach:  # where an input lies in its storage matters: the first call shows it
        return _Dispatch(graphs, gm)
    apart = graphs.compile_apart()  # from here on what backward writes is known, too
    return apart if graphs.only is not None else _Dispatch(graphs, gm)


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
            warn(
                "a graph runs in eager mode for calls in which inputs that it writes share memory in a new way, "
                f"because {reason}, or clone inputs that are written."
            )
        self.graphs.count_donations(inputs)
        return self._gm(*inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Dispatch:
        return self
