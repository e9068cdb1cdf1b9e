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


class _Refused(Exception):
    pass


def check_data_parallel_refused() -> str | None:
    """A module that is made asks first, and no longer afterwards."""
    if not collectives.is_available:
        return None

    def refuse() -> None:
        raise _Refused

    own = torch.nn.parallel.DistributedDataParallel.__init__
    found = ""
    try:
        with paper_ranks.data_parallel_refused(refuse):
            torch.nn.parallel.DistributedDataParallel(torch.nn.Identity())
    except _Refused:
        found = "refused"
    is_own = torch.nn.parallel.DistributedDataParallel.__init__ is own
    return first_difference(("making one", found, "refused"), ("left", is_own, True))


CHECKS = (
    check_data_parallel_refused,
    check_names_of_groups,
    check_ranks_on_paper,
)
