"""New nodes for a program: their results described, in storages and under names that the program does not have yet.

A description comes from running the operator once on fake tensors that lie as its operands do. A result that lies in
an operand's storage is a view of it, and is described as one.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.ir.convert import describe, scalar_of
from dovetail.ir.draft import Draft
from dovetail.ir.program import (
    Meta,
    Node,
    Operand,
    Origin,
    Phase,
    ScalarMeta,
    Target,
    TensorMeta,
    Value,
    map_operands,
)
from dovetail.ir.sizes import Size, difference, product, shifted
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.fake_layouts import as_laid_out, run_on_fakes
from dovetail.torch_compat.fakes import kernels_for_symbolic_sizes

_NOWHERE = Origin()


class NodeMaker:
    """Makes nodes for one program; everything it makes has a name and storages of its own.

    Attributes: draft, which gives those.
    """

    def __init__(self, draft: Draft, infer: MetaInference) -> None:
        """infer: makes fakes of the program's descriptions, of symbolic sizes as well."""
        self.draft = draft
        self._infer = infer

    def call(
        self,
        target: Target,
        args: tuple[Operand, ...],
        kwargs: tuple[tuple[str, Operand], ...] = (),
        *,
        name: str,
        origin: Origin = _NOWHERE,
        phase: Phase = Phase.FORWARD,
    ) -> Node:
        """The application of an operator. name: of its first result, if it is still free.

        Raises: what the operator raises for operands like these.
        """
        metas, unpack = self._describe(target, args, kwargs)
        outputs = tuple(None if meta is None else Value(self.draft.name(name), meta) for meta in metas)
        return Node(target, args, kwargs, outputs, unpack, phase, origin)

    def reinferred(self, node: Node) -> Node:
        """The node with its results described again, because its operands are not what they were."""
        metas, unpack = self._describe(node.target, node.args, node.kwargs)
        pairs = zip(node.outputs, metas, strict=True)
        outputs = tuple(None if o is None or m is None else Value(self.draft.name(o.name), m) for o, m in pairs)
        return Node(
            node.target, node.args, node.kwargs, outputs, unpack, node.phase, node.origin, recomputed=node.recomputed
        )

    def look_alike(self, value: Value, other: Value) -> bool:
        """Whether two values have the same shape, strides, offset, dtype and device, as far as sizes are known."""
        if not (value.is_tensor and other.is_tensor):
            return value.meta == other.meta
        a, b = self._infer.settled(value.tensor), self._infer.settled(other.tensor)
        return a.layout() == b.layout() and a.offset == b.offset

    def input(self, wish: str, meta: Meta) -> Value:
        """A new input of the program; a tensor gets a storage of its own."""
        if not isinstance(meta, ScalarMeta):
            meta = describe(self._infer.fake(meta), self.draft.storage())
        return Value(self.draft.name(wish), meta)

    def _describe(
        self, target: Target, args: tuple[Operand, ...], kwargs: tuple[tuple[str, Operand], ...]
    ) -> tuple[list[Meta | None], bool]:
        """Descriptions of the results. Answers are remembered by the inference: layers of a model are alike."""
        storages: list[int] = []  # of the operands, in order
        key = (target, _key(args, storages), _key(kwargs, storages))
        if key not in self._infer.answers:
            self._infer.answers[key] = self._run(target, args, kwargs, list(storages))
        answers, unpack = self._infer.answers[key]
        fresh: dict[int, int] = {}
        found: list[Meta | None] = []
        for meta, place in answers:
            if isinstance(meta, TensorMeta):
                storage = storages[place] if place >= 0 else fresh.get(place)
                if storage is None:
                    storage = fresh[place] = self.draft.storage()
                meta = replace(meta, storage=storage)
            found.append(meta)
        return found, unpack

    def _run(
        self, target: Target, args: tuple[Operand, ...], kwargs: tuple[tuple[str, Operand], ...], storages: list[int]
    ) -> tuple[list[tuple[Meta | None, int]], bool]:
        """Each result with its place: the number of the operand's storage that it lies in, or -1, -2, ..."""
        fakes: dict[Value, Any] = {}
        places: dict[int, int] = {}
        kernels = kernels_for_symbolic_sizes() if self._infer.is_symbolic else nullcontext()

        def fake(value: Value) -> Operand:
            if not value.is_tensor:
                return value
            if value not in fakes:
                fakes[value] = self._placed(value)
                places[storage_key(fakes[value])] = storages.index(value.tensor.storage)
            return fakes[value]

        def live(operand: Operand) -> Any:
            return self._infer.materialize(map_operands(operand, fake))

        with self._infer.mode, torch.no_grad(), kernels:
            given = [live(operand) for operand in args]
            named = {name: live(operand) for name, operand in kwargs}
            result: Any = as_laid_out(target, given, run_on_fakes(target, given, named))
        unpack = isinstance(result, tuple | list)
        return [_described(item, places) for item in (result if unpack else [result])], unpack

    def _placed(self, value: Value) -> torch.Tensor:
        """A fake that lies in its storage where the value does."""
        meta = value.tensor
        reach: Size = shifted(meta.offset, 1)
        for size, step in zip(meta.shape, meta.stride, strict=True):
            reach = shifted(reach, product((difference(size, 1), step)))
        shape, stride = (self._infer.materialize(part) for part in (meta.shape, meta.stride))
        with self._infer.mode:
            if meta.offset == 0:
                whole: torch.Tensor = torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
                return whole
            length = self._infer.materialize(reach)
            length = max(length, 0) if isinstance(length, int) else length
            flat: torch.Tensor = torch.empty(length, dtype=meta.dtype, device=meta.device)
            placed: torch.Tensor = flat.as_strided(shape, stride, self._infer.materialize(meta.offset))
            return placed


def _described(item: object, places: dict[int, int]) -> tuple[Meta | None, int]:
    """What a result looks like, and where it lies; storages that are met first are added to the places."""
    if item is None:
        return None, -1
    if not isinstance(item, torch.Tensor):
        return ScalarMeta(scalar_of(item)), -1
    fresh = -1 - sum(place < 0 for place in places.values())
    return describe(item, 0), places.setdefault(storage_key(item), fresh)


def _key(operand: object, storages: list[int]) -> object:
    """What matters of an operand: of a tensor, how it lies, and which of the storages, to which its own is added."""
    if isinstance(operand, Value):
        if not operand.is_tensor:
            return operand.meta
        meta = operand.tensor
        if meta.storage not in storages:
            storages.append(meta.storage)
        return (*meta.layout(), meta.offset, storages.index(meta.storage))
    if isinstance(operand, tuple | list):
        return tuple([_key(item, storages) for item in operand])
    return (type(operand), repr(operand)) if isinstance(operand, int | float | complex) else operand
