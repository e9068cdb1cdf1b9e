"""Weights of a frozen program: kept unfolded, and folded again."""

from __future__ import annotations

import difflib
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dovetail.deferred import deferred
from dovetail.errors import BadWeights, NoSources
from dovetail.frontends.freezing.method import FrozenMethod
from dovetail.frontends.freezing.pool import Pool, copies_of, copy_of, with_strides
from dovetail.frontends.size_guard import strides_of
from dovetail.ir.program import TensorMeta
from dovetail.pipeline.differential import same_bits
from dovetail.pipeline.freezing import fold
from dovetail.torch_compat.subclasses import is_wrapper

if TYPE_CHECKING:
    from dovetail.artifact import call
else:
    call = deferred("dovetail.artifact.call")

MEMORY, FILE = "memory", "file"


class Sources:
    """Weights by their names in the pool, in memory or in a file of their own.

    is_complete: all of them. Otherwise they are those that no state dict has: buffers that are not persistent, and
    tensors that the model closes over.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], where: str, *, is_complete: bool) -> None:
        self.is_complete = is_complete
        self._where = where
        self._names = list(tensors)
        self._tensors = dict(tensors) if where == MEMORY else {}
        self._path: Path | None = None
        if where == FILE:
            folder = tempfile.mkdtemp(prefix="dovetail-sources-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._path = Path(folder) / "sources.safetensors"
            call.save_call(self._path, [tensors[name].detach() for name in self._names])

    def read(self) -> dict[str, torch.Tensor]:
        """The tensors. Who may write them takes `copies`: programs can hold the same memory."""
        if self._path is None:
            return dict(self._tensors)
        return dict(zip(self._names, call.load_call(self._path), strict=True))

    def copies(self) -> dict[str, torch.Tensor]:
        """The tensors in memory of their own. Those that shared a storage share one again."""
        return copies_of(self.read()) if self._path is None else self.read()

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Sources:
        """Others in place of those of these names."""
        known = self.read()
        if known.keys().isdisjoint(tensors):
            return self
        changed = {name: tensors.get(name, tensor) for name, tensor in known.items()}
        return Sources(changed, self._where, is_complete=self.is_complete)


def refolded(
    methods: Sequence[FrozenMethod],
    pool: Pool,
    sources: Sources | None,
    given: Mapping[str, torch.Tensor],
    *,
    own: bool,
) -> tuple[Pool, Sources | None]:
    """A pool with these weights, folded, and the sources with them; what is given stays as it is.

    given: by dotted name. own: constants get memory of their own.
    Raises: BadWeights; NoSources.
    """
    if not isinstance(given, Mapping):
        raise BadWeights(reason=f"a {type(given).__name__} has no names", hint="give a state dict")
    unfolded = [one.unfolded() for method in methods for one in method.programs]
    expected: dict[str, TensorMeta] = {}
    for one in unfolded:
        expected |= {value.name: value.tensor for value in one.program.inputs[one.arguments :]}
    found = _by_name(pool, given)
    known = sources.read() if sources is not None else {}
    stored = pool.stored()
    tensors: dict[str, torch.Tensor] = {}
    for name, meta in expected.items():
        if name in found:
            tensors[name] = _fitting(pool.origins.get(name, (name,))[0], meta, found[name])
        elif name in pool.state:
            tensors[name] = stored[name]
        elif name in known or name in stored:
            tensors[name] = known[name] if name in known else stored[name]
        else:
            raise NoSources(
                what=f"swapping some weights without {pool.origins.get(name, (name,))[0]}", hint=", or give all weights"
            )
    tensors |= copies_of({name: tensors[name] for name in found.keys() & tensors.keys() if own or name in pool.state})
    if sources is not None:
        sources = sources.with_tensors({name: copy_of(tensors[name]) for name in found if name in known})
    fold(unfolded, tensors, pool.state)
    _check_held(methods, tensors)
    return Pool(tensors, dict(pool.origins), pool.state, pool.unused), sources


def _check_held(methods: Sequence[FrozenMethod], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise BadWeights unless folding made what the programs hold."""
    for folded in [one.folded for method in methods for one in method.programs]:
        inputs = folded.program.inputs[len(folded.program.inputs) - len(folded.held) :]
        for name, value in zip(folded.held, inputs, strict=True):
            made, meta = tensors.get(name), value.tensor
            if made is None or (tuple(made.shape), made.dtype, made.device) != (meta.shape, meta.dtype, meta.device):
                hint = "save it again: dovetail did not write this file"
                raise BadWeights(reason=f"folding does not give {name}, which a program takes", hint=hint)


def _by_name(pool: Pool, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The weights by their names in the pool."""
    names = {dotted: name for name, dots in pool.origins.items() for dotted in dots}
    found: dict[str, torch.Tensor] = {}
    for dotted, tensor in given.items():
        if dotted in pool.unused:
            continue
        if dotted not in names:
            close = difflib.get_close_matches(str(dotted), names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the names are {', '.join(list(names)[:5])}, ..."
            raise BadWeights(reason=f"the model that was frozen has no {dotted!r}", hint=hint)
        if not isinstance(tensor, torch.Tensor):
            raise BadWeights(reason=f"{dotted!r} is a {type(tensor).__name__}", hint="give tensors")
        if tensor.layout is not torch.strided or tensor.device.type == "meta" or is_wrapper(tensor):
            is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
            kind = f"{tensor.layout} tensor on {tensor.device}" if is_plain else type(tensor).__name__
            raise BadWeights(reason=f"{dotted!r} is a {kind}", hint="give plain strided tensors with data")
        other = found.setdefault(names[dotted], tensor)
        if other is not tensor and not _same(other, tensor):
            tied = " and ".join(pool.origins[names[dotted]])
            raise BadWeights(reason=f"{tied} are one tensor in the model, but differ here", hint="freeze the new model")
    return found


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.data_ptr(), a.shape, a.stride(), a.dtype) == (b.data_ptr(), b.shape, b.stride(), b.dtype):
        return True
    return same_bits(a.detach().contiguous(), b.detach().contiguous())


def _fitting(dotted: str, meta: TensorMeta, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as programs expect it. dotted: its name in the model."""
    if tuple(tensor.shape) != meta.shape or tensor.dtype != meta.dtype:
        given = f"{list(tensor.shape)} of {tensor.dtype}"
        reason = f"{dotted} is {given}, and was {list(meta.shape)} of {meta.dtype}"
        raise BadWeights(reason=reason, hint="freeze the new model")
    tensor = tensor.detach()
    if tensor.stride() == meta.stride and tensor.device == meta.device:
        return tensor
    try:
        return with_strides(tensor.to(meta.device), strides_of(meta, {}))
    except ValueError as error:
        hint = "give one whose elements are equal there, or freeze the new model"
        raise BadWeights(reason=f"{dotted} was an expanded tensor, and {error}", hint=hint) from error
