"""Primitives that let contents leave memory for a while.

    t = spill(x)                         the bytes of x begin to leave
    out = spilled(x, t)                  they have left: x may go
    y = fetch(out, shape, stride, dtype) memory like that of x, which begins to fill
    here = fetched(y, out)               it is filled: from now on y is x

Between the first two nothing may write x, and between the last two nothing may use y. Tokens are tensors of no
bytes. Run as they are, contents stay with the token; the executor of a step moves them to a file
(`execute.offload`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import TensorMeta

_CONTENTS = "_dovetail_contents"


def new_token(like: torch.Tensor) -> torch.Tensor:
    """A token on the device of a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=like.device)


def token_meta(storage: int) -> TensorMeta:
    """The description of a token."""
    return TensorMeta((0,), (1,), 0, torch.uint8, torch.device("cpu"), storage)


def memory_like(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory for contents that come back."""
    return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=device)


def _spill(x: torch.Tensor) -> torch.Tensor:
    token = new_token(x)
    setattr(token, _CONTENTS, memory_like(x.shape, x.stride(), x.dtype, x.device).copy_(x))
    return token


def _spilled(x: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    out = new_token(x)
    if hasattr(token, _CONTENTS):
        setattr(out, _CONTENTS, getattr(token, _CONTENTS))
    return out


def _fetch(token: torch.Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    memory = memory_like(shape, stride, dtype, token.device)
    contents = getattr(token, _CONTENTS, None)
    if contents is None:
        if token.is_meta:
            return memory
        raise ValueError("nothing was spilled")
    if (contents.shape, contents.stride(), contents.dtype) != (memory.shape, memory.stride(), memory.dtype):
        raise ValueError("what was spilled has another layout")
    return memory.copy_(contents)


def _fetched(_: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    return new_token(token)


# Each is an effect: it is neither left out, nor merged, nor run twice, and keeps its place among the others.
SPILL = Prim("spill", _spill, "prims.SPILL", effect=True)
SPILLED = Prim("spilled", _spilled, "prims.SPILLED", effect=True)
FETCH = Prim("fetch", _fetch, "prims.FETCH", effect=True)
FETCHED = Prim("fetched", _fetched, "prims.FETCHED", effect=True)
TRANSFERS = frozenset({SPILL, SPILLED, FETCH, FETCHED})
