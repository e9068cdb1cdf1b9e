"""How a `torch.fx` graph takes its arguments and gives its results, apart from its nodes."""

from __future__ import annotations

import copy

from torch import fx


def copy_calling_convention(source: fx.Graph, target: fx.Graph) -> None:
    """Let `target` be called as `source` is: with nested containers, if export made it so."""
    target.set_codegen(copy.copy(source._codegen))
