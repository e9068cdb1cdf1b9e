"""Copies of fakes by `copy.deepcopy` and `copy.copy`, without what makes them fakes.

Torch's deep copies have copies of the attributes of a tensor, and so of the mode of a fake, with weak references to
memory that are counted once and let go twice: the process ends some time later. Source: `torch.Tensor.__deepcopy__`,
`torch.Tensor.__reduce_ex__`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.fakes import parameter_of_fake

_STORAGES = "copies of fakes, by the memory that they lie in"
_OWN: set[str] = set()


def copied_fake(fake: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """What `copy.deepcopy` gives for a fake: one with memory of its own, shared with copies of what shares it.

    Of a parameter it copies the numbers alone, neither the gradient nor attributes, as `torch.nn.Parameter` says.

    Raises: RuntimeError for one that is not a leaf; NotImplementedError where it, and others, are parts of the memory.
    """
    is_parameter = isinstance(fake, torch.nn.Parameter)
    if not (fake.is_leaf or is_parameter):
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
        )
    if id(fake) in memo:
        known: torch.Tensor = memo[id(fake)]
        return known
    if is_parameter:
        with torch.no_grad():
            data = fake.detach().clone(memory_format=torch.preserve_format)
        memo[id(fake)] = copied = parameter_of_fake(data).requires_grad_(fake.requires_grad)
        return copied
    with torch.no_grad():
        made = _laid_out(fake.detach(), memo.setdefault(_STORAGES, {}))
    made.requires_grad_(fake.requires_grad)
    memo[id(fake)] = made
    if fake.grad is not None:
        made.grad = copied_fake(fake.grad, memo)
    own = _own_attributes()
    vars(made).update({k: copy.deepcopy(v, memo) for k, v in vars(fake).items() if k not in own})
    return made


def shared_fake(fake: torch.Tensor) -> torch.Tensor:
    """What `copy.copy` gives for a fake: a leaf in the same memory."""
    made = fake.detach().requires_grad_(fake.requires_grad)
    own = _own_attributes()
    vars(made).update({name: value for name, value in vars(fake).items() if name not in own})
    return made


def _laid_out(fake: torch.Tensor, known: dict[Any, tuple[torch.Tensor, bool]]) -> torch.Tensor:
    """The copy. known: by what lies in one memory, the first copy, and whether it is of all of it."""
    place = (fake.shape, fake.stride(), fake.storage_offset())
    first = known.get(storage_key(fake))
    if first is not None:
        if not first[1]:
            raise NotImplementedError("copy.deepcopy of tensors that are parts of one memory")
        return first[0].as_strided(*place)
    made = fake.clone()
    if made.stride() != fake.stride():  # with gaps
        made = torch.empty_strided(place[0], place[1], dtype=fake.dtype, device=fake.device).copy_(fake)
    fills = made.stride() == fake.stride() and fake.numel() * fake.element_size() == fake.untyped_storage().nbytes()
    known[storage_key(fake)] = made, fills
    return made


def _own_attributes() -> set[str]:
    """The names of the attributes that every fake has."""
    if not _OWN:
        _OWN.update(vars(FakeTensor(FakeTensorMode(), torch.empty(0, device="meta"), torch.device("cpu"))))
    return _OWN
