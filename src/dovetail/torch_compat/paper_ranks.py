"""Ranks on paper: a process group that sends nothing, of which this process is the first rank."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dovetail.torch_compat.collectives import default_group, name_of_group
from dovetail.torch_compat.fakes import is_fake

_ON_NUMBERS = ("__init__", "_concatenate", "_compute_coordinates_from_mesh", "__getitem__", "_flatten")


@contextmanager
def ranks_on_paper(sizes: Mapping[str, int]) -> Iterator[Any]:
    """While active, there is a mesh of ranks, by the names of its dimensions. This process is in no group before."""
    assert default_group() is None, "it replaces the default process group"
    fakes = importlib.import_module("torch.testing._internal.distributed.fake_pg")  # which makes the kind known
    kind: Any = dist.device_mesh.DeviceMesh
    held = {name: kind.__dict__[name] for name in _ON_NUMBERS if name in kind.__dict__}
    dist.init_process_group("fake", store=fakes.FakeStore(), rank=0, world_size=math.prod(sizes.values()))
    try:
        for name, method in held.items():
            setattr(kind, name, _outside_of_fakes(method))
        yield dist.init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    finally:
        for name, method in held.items():
            setattr(kind, name, method)
        dist.destroy_process_group()


@contextmanager
def data_parallel_refused(refuse: Callable[[], Any]) -> Iterator[None]:
    """While active, `refuse` is called where a `DistributedDataParallel` is made, whose reducer reads real memory."""
    kind: Any = torch.nn.parallel.DistributedDataParallel
    own = kind.__init__

    @wraps(own)
    def make(*args: Any, **kwargs: Any) -> None:
        refuse()
        own(*args, **kwargs)

    kind.__init__ = make
    try:
        yield
    finally:
        kind.__init__ = own


def _outside_of_fakes(method: Any) -> Any:
    """A method of meshes, which looks at the numbers of ranks, whatever mode is active.

    `init_device_mesh` numbers ranks in order; where it is called on fakes, these numbers are fakes as well.
    """
    function = getattr(method, "__func__", method)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            numbers = kwargs.get("_rank_map")
            if isinstance(numbers, torch.Tensor) and is_fake(numbers):
                kwargs["_rank_map"] = torch.arange(numbers.numel(), dtype=torch.int, device="cpu")
            return function(*args, **kwargs)

    return type(method)(call) if isinstance(method, staticmethod | classmethod) else call


def names_of_groups(mesh: Any) -> dict[str, str]:
    """For each group of this process along one dimension of a mesh, by name, the dimension."""
    groups = mesh.get_all_groups()
    return {name_of_group(group): name for group, name in zip(groups, mesh.mesh_dim_names, strict=True)}
