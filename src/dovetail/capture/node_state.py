"""What nodes of autograd that are written in Python hold (`ctx.count`, `ctx.stack`), and their backward may change.

Backward is recorded once for each set of results that get gradients, of one forward; in eager mode each call has nodes
of its own. So every backward that is recorded has to find what forward left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.autograd.function import BackwardCFunction

from dovetail.torch_compat.graph_leaves import nodes_below

_HELD: dict[str, list[Any]] = {"item": []}
_ONCE = sys.getrefcount(_HELD["item"])  # of what only a container holds


@contextmanager
def nodes_left_alone(ends: Sequence[Any]) -> Iterator[None]:
    """What nodes hold is put back afterwards. ends: tensors and gradient edges that lead to the nodes.

    So are lists, dictionaries and sets in it that nothing else holds: others could see what backward did to those.
    """
    nodes = [node for node in nodes_below(ends) if isinstance(node, BackwardCFunction)]
    undo = [put_back for node in nodes for put_back in _undone(vars(node))]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


def _undone(container: Any) -> list[Callable[[], None]]:
    """What puts a list, a dictionary or a set back, and what it alone holds."""
    if isinstance(container, dict):
        inner = [container[key] for key in container if sys.getrefcount(container[key]) == _ONCE]
    elif isinstance(container, list):
        inner = [container[n] for n in range(len(container)) if sys.getrefcount(container[n]) == _ONCE]
    else:
        inner = []
    undo: list[Callable[[], None]] = [partial(_fill, container, container.copy())]
    for item in inner:
        if type(item) in (dict, list, set):
            undo += _undone(item)
    return undo


def _fill(container: Any, contents: Any) -> None:
    container.clear()
    container.extend(contents) if isinstance(container, list) else container.update(contents)
