"""Checks of `torch_compat.arenas`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import arenas
from dovetail.torch_compat.checks.difference import first_difference


def check_tensor_arena() -> str | None:
    """Tensors follow their storage to other memory, which is given back only where nobody else holds one of them."""
    arena = arenas.TensorArena([(0, (4,), (1,), torch.float32), (64, (2, 3), (3, 1), torch.int64)])
    tensors, found = arena.tensors, []
    for number in (1.0, 2.0):
        arena.take(128)
        torch.add(torch.full((4,), number, device="cpu"), 1, out=tensors[0])
        tensors[1].fill_(7)
        apart = tensors[1].data_ptr() - tensors[0].data_ptr()
        found.append((tensors[0].tolist(), int(tensors[1].sum()), apart))
        if number == 1.0 and not arena.give_back():
            return "an arena is not given back though none of its tensors is held"
    held: list[object] = [tensors[1].t()]
    is_view_seen = arena.give_back()
    held[:] = [tensors[0]]
    is_object_seen = arena.give_back()
    held.clear()
    return first_difference(
        ("the first call in an arena", found[0], ([2.0] * 4, 42, 64)),
        ("the second one", found[1], ([3.0] * 4, 42, 64)),
        ("giving back with a view", is_view_seen, False),
        ("giving back with a tensor", is_object_seen, False),
        ("giving back at last", arena.give_back(), True),
    )


CHECKS = (check_tensor_arena,)
