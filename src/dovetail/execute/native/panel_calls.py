"""The calls of nodes that read weights in panels or taps, or normalise groups, one by one, by the executors that have
kernels for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.execute.native.convolutions import convolution_call
from dovetail.execute.native.group_norms import group_norm_call
from dovetail.execute.native.int8_rows import has_int8_kernel, int8_call
from dovetail.execute.native.panels import multiplies_panels, panel_call
from dovetail.execute.native.recurrent_rows import recurrent_call
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node
from dovetail.ir.text import Names
from dovetail.ops.group_norms import GROUP_NORM
from dovetail.ops.panel_convolutions import PanelConv
from dovetail.ops.panels import PanelLinear, RecurrentLayer


def has_kernel(target: object) -> bool:
    """Whether there is a kernel for a primitive, and machine code can be made here."""
    if isinstance(target, Prim) and isinstance(target.run, PanelLinear | PanelConv | RecurrentLayer):
        return multiplies_panels()
    if target is GROUP_NORM:
        return multiplies_panels()
    return has_int8_kernel(target)


def call_of(names: Names, node: Node) -> str:
    """The call expression of a node for which there is a kernel."""
    assert isinstance(node.target, Prim), "others are not claimed"
    run: Any = node.target.run
    call: Callable[..., Any]
    if isinstance(run, PanelLinear):
        call = panel_call(run)
    elif isinstance(run, RecurrentLayer):
        call = recurrent_call(run)
    elif node.target is GROUP_NORM:
        call = group_norm_call()
    else:
        call = convolution_call(run) if isinstance(run, PanelConv) else int8_call(node.target)
    return f"{names.constant(call, node.target.name)}({names.arguments(node)})"
