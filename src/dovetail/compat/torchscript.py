"""Graphs through TorchScript, where this torch has it: `ts_compile` and `simple_ts_compile` of old.

TorchScript is deprecated, and knows neither dovetail's primitives nor every overload. What it does not take is refused
with one line that says what to call instead.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from dovetail.errors import CompilerUnavailable, NotAGraphModule
from dovetail.frontends.aot import make_boxed_compiler
from dovetail.ir.prim import Prim
from dovetail.torch_compat.dispatch import Overload, schema_of

_INSTEAD = 'call torch.compile(fn, backend="dovetail"), or dovetail.compile(fn), instead'


@make_boxed_compiler
def ts_compile(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph as a frozen TorchScript module, called with a list.

    Raises: CompilerUnavailable where this torch has no TorchScript, or the graph holds what it does not take.
    """
    return _scripted(gm, "ts_compile")


@make_boxed_compiler
def simple_ts_compile(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """As `ts_compile`, under its other name."""
    return _scripted(gm, "simple_ts_compile")


def _scripted(gm: fx.GraphModule, name: str) -> Callable[..., Any]:
    if not isinstance(gm, fx.GraphModule):
        raise NotAGraphModule(given=f"a {type(gm).__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated; whoever calls this asked for it
        script = getattr(torch.jit, "script", None)
        if script is None:
            raise _unavailable(name, "this torch has no TorchScript")
        prepared = _prepared(gm, name)
        try:
            scripted: Callable[..., Any] = torch.jit.freeze(script(prepared).eval())
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[0] if lines else type(error).__name__
            raise _unavailable(name, f"TorchScript does not accept this graph ({reason})") from error
    return scripted


def _prepared(gm: fx.GraphModule, name: str) -> fx.GraphModule:
    """A copy of the graph whose calls TorchScript can read."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        if isinstance(node.target, Prim):
            hint = "decompositions=default_decompositions decomposes some operators"
            raise _unavailable(name, f"TorchScript has no operator {node.target.name}; {hint}")
        if isinstance(node.target, Overload):
            schema = schema_of(node.target)
            node.target = getattr(getattr(torch.ops, schema.namespace), schema.name)
        node.kwargs = {key: value for key, value in node.kwargs.items() if value is not None}
        if node.target is torch.ops.aten._to_copy and set(node.kwargs) == {"dtype"}:
            node.target = torch.ops.aten.to
    graph.lint()
    return fx.GraphModule(copy.copy(gm) if isinstance(gm, nn.Module) else gm, graph)


def _unavailable(name: str, reason: str) -> CompilerUnavailable:
    because = "TorchScript is deprecated: some torch versions have it, and it accepts some graphs"
    return CompilerUnavailable(name=name, reason=reason, because=because, hint=_INSTEAD)
