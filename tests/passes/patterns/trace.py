"""From a function that writes to a functional graph, in the ways people do it."""

from __future__ import annotations

from torch import fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tests.passes.patterns.pattern import Pattern


def traced(pattern: Pattern, way: str) -> fx.GraphModule:
    """The functional graph of a pattern, which ends in copies back to the inputs it writes.

    way: "mutations" or "mutations_and_views", what `functionalize` removes; "symbolic": the first, with symbolic sizes.
    What the function returns as an input, the graph returns as one.
    """
    samples = pattern.inputs()
    removed = "mutations" if way == "symbolic" else way
    mode = "symbolic" if way == "symbolic" else "real"
    gm = make_fx(functionalize(pattern.program, remove=removed), tracing_mode=mode)(*samples)
    _return_inputs(gm, _returned_inputs(pattern))
    return gm


def _returned_inputs(pattern: Pattern) -> dict[int, int]:
    """For each output that is an input: number of the output -> number of the input."""
    samples = pattern.inputs()
    results = pytree.tree_leaves(pattern.program(*samples))
    return {i: j for i, result in enumerate(results) for j, sample in enumerate(samples) if result is sample}


def _return_inputs(gm: fx.GraphModule, returned: dict[int, int]) -> None:
    """`functionalize` returns new contents beside the input that they are copied to; let it be the input itself."""
    if not returned:
        return
    placeholders = gm.graph.find_nodes(op="placeholder")
    (output,) = gm.graph.find_nodes(op="output")
    leaves, spec = pytree.tree_flatten(output.args[0])
    for place, number in returned.items():
        leaves[place] = placeholders[number]
    output.args = (pytree.tree_unflatten(leaves, spec),)
    gm.recompile()
