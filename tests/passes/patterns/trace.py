"""From a function that writes to a functional graph, in the ways people do it."""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor.config
from torch import fx
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tests.passes.patterns.pattern import Pattern


def traced(pattern: Pattern, way: str) -> fx.GraphModule:
    """The functional graph of a pattern, which ends in copies back to the inputs it writes.

    way: "mutations" or "mutations_and_views", what `functionalize` removes; "symbolic": the first, with symbolic sizes.
    "aot_v1" and "aot_v2": what `torch.compile` gives to a backend, with either form of `auto_functionalized`.
    What the function returns as an input, the graph returns as one.
    """
    samples = pattern.inputs()
    if way.startswith("aot"):
        return _ahead_of_time(pattern, samples, way == "aot_v2")
    removed = "mutations" if way == "symbolic" else way
    mode = "symbolic" if way == "symbolic" else "real"
    gm = make_fx(functionalize(pattern.program, remove=removed), tracing_mode=mode)(*samples)
    _return_inputs(gm, _returned_inputs(pattern))
    return gm


def _ahead_of_time(pattern: Pattern, samples: tuple[Any, ...], second_form: bool) -> fx.GraphModule:
    given: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, _: object) -> Any:
        given.append(gm)
        return make_boxed_func(gm.forward)

    with torch._inductor.config.patch(enable_auto_functionalized_v2=second_form), torch.no_grad():
        aot_function(pattern.program, fw_compiler=keep, keep_inference_input_mutations=True)(*samples)
    return given[0]


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
