"""Checks of `torch_compat.paper_ranks`."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dovetail.torch_compat import collectives, paper_ranks
from dovetail.torch_compat.checks.difference import first_difference


def check_ranks_on_paper() -> str | None:
    """There are as many ranks as were asked for, and a collective of them comes back at once."""
    if not collectives.is_available or dist.is_initialized():
        return None
    with paper_ranks.ranks_on_paper({"data": 4, "tensor": 2}) as mesh:
        found = [dist.get_world_size(), dist.get_rank(), mesh["tensor"].size()]
        dist.all_reduce(torch.ones(2), group=mesh.get_group("data"))
    return first_difference(("ranks", found, [8, 0, 2]), ("left", dist.is_initialized(), False))


def check_names_of_groups() -> str | None:
    """Each dimension has a group of its own."""
    if not collectives.is_available or dist.is_initialized():
        return None
    with paper_ranks.ranks_on_paper({"data": 4, "tensor": 2}) as mesh:
        found = paper_ranks.names_of_groups(mesh)
    return first_difference(("names", sorted(found.values()), ["data", "tensor"]))


CHECKS = (
    check_names_of_groups,
    check_ranks_on_paper,
)
