"""A frozen method as a `torch.export.ExportedProgram`, for tools that read those."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.errors import NotExportable
from dovetail.frontends.freezing.call_form import bound
from dovetail.frontends.freezing.method import RunnableMethod
from dovetail.frontends.freezing.pool import with_strides
from dovetail.frontends.freezing.saving import refusal
from dovetail.frontends.freezing.variant import FrozenVariant
from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import Size, SizeExpr, evaluate

_FIRST_SIZE = 5
_SAVE = "save it with frozen.save(path), which dovetail.load reads without torch.export"


def export(method: RunnableMethod, state: frozenset[str]) -> Any:
    """The method as torch exports a module that runs its program: constants and state are buffers.

    state: names of tensors that it writes. Free sizes stay free, for sizes above 1.
    Raises: NotExportable when torch cannot export it.
    """
    free = [
        v
        for v in method.variants
        if any(_free_dims(meta) for meta in v.guard.program.shapes.inputs if meta is not None)
    ]
    chosen = (free or method.variants)[0]
    sizes: dict[str, int] = {}
    leaves, dims = _example(method, chosen, sizes)
    args, kwargs = method.form.structure.put_together(leaves)
    positional, named = method.form.structure.put_together(dims)
    shapes = dict(method.form.signature.bind(*positional, **named).arguments)
    module = _Exportable(method, chosen, state)
    try:
        with torch.no_grad():
            return torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=shapes if free else None)
    except Exception as error:
        refused = refusal(method.method)
        hint = _SAVE if refused is None else f"{refused.facts['hint']} (it cannot be saved either)"
        raise NotExportable(method=method.form.method, reason=str(error).split("\n")[0], hint=hint) from error


def _example(method: RunnableMethod, chosen: FrozenVariant, sizes: dict[str, int]) -> tuple[list[Any], list[Any]]:
    """Leaves for a call of a program, and for each the dimensions that are free."""
    leaves: list[Any] = [leaf.value for leaf in method.form.leaves]
    dims: list[Any] = [None] * len(leaves)
    for place, meta in zip(chosen.guard.program.arguments, chosen.guard.program.shapes.inputs, strict=True):
        assert meta is not None, "inputs that are tensors are described"
        for size in meta.shape:
            if isinstance(size, SizeExpr) and size.op == "symbol":
                sizes.setdefault(str(size), _FIRST_SIZE + len(sizes))
        shape, stride = ([int(evaluate(size, sizes)) for size in part] for part in (meta.shape, meta.stride))
        leaves[place] = with_strides(torch.zeros(shape, dtype=meta.dtype, device=meta.device), tuple(stride))
        dims[place] = dict.fromkeys(_free_dims(meta), torch.export.Dim.AUTO)
    for place, earlier in chosen.guard.program.same:
        leaves[place], dims[place] = leaves[earlier], dims[earlier]
    return leaves, dims


def _free_dims(meta: TensorMeta) -> list[int]:
    def is_free(size: Size) -> bool:
        return isinstance(size, SizeExpr)

    return [dim for dim, size in enumerate(meta.shape) if is_free(size)]


class _Exportable(torch.nn.Module):
    """Runs one program of a method over buffers."""

    def __init__(
        self,
        method: RunnableMethod,
        chosen: FrozenVariant,
        state: frozenset[str],
    ) -> None:
        super().__init__()
        self.eval()
        self._form, self._runner = method.form, chosen.runner
        for name, tensor in chosen.runner.graph.constants.items():
            self.register_buffer(f"held_{name}", tensor.clone() if name in state else tensor)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs)

        forward.__signature__ = method.form.signature  # type: ignore[attr-defined]  # what torch.export names shapes by
        self.forward = forward

    def _run(self, args: Any, kwargs: Any) -> Any:
        leaves = self._form.structure.take_apart(bound(self._form.signature, args, kwargs))
        inputs = [leaves[place] for place in self._runner.program.arguments]
        held = [getattr(self, f"held_{name}") for name in self._runner.packed.held]
        return self._runner.program.results.put_together(self._runner.run_over(inputs, held))
