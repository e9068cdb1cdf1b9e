"""A primitive of images whose channels are put side by side, channels last.

    y = prims.CAT_CHANNELS([a, b])

It is made of `cat` where a program runs, and is in no file.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Value
from dovetail.ops.arguments import arguments_of
from dovetail.ops.max_pools import is_known_image


def _cat_channels(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([*parts], 1)


CAT_CHANNELS = Prim("cat_channels", _cat_channels, "prims.CAT_CHANNELS")


def channel_parts_of(node: Node) -> list[Value] | None:
    """The parts of a node that puts channels of images of float32 on a CPU with channels last, of known sizes, side by
    side; None for others.
    """
    if node.target is not torch.ops.aten.cat.default or len(node.results()) != 1:
        return None
    arguments, (result,) = arguments_of(node), node.results()
    tensors = arguments["tensors"]
    given = tensors if isinstance(tensors, list | tuple) else ()
    parts = [each for each in given if isinstance(each, Value)]
    if arguments.get("dim", 0) not in (1, -3) or not parts or len(parts) < len(given):
        return None
    return parts if all(map(is_known_image, (*parts, result))) else None
