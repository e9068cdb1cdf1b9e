"""Calls of torch's databases of operators and modules, each made again as often as it is needed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

OPERATOR_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64)
MODULE_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Call:
    """One call, not yet made. leaves: gradients are taken for these. watched: may be written; all by name."""

    target: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    leaves: dict[str, Tensor] = field(default_factory=dict)
    watched: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """A call that can be made any number of times, each time on fresh tensors that hold the same numbers."""

    label: str
    fresh: Callable[[], Call]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a database with one dtype. samples: makes at most so many calls, spread evenly over all it has."""

    kind: str
    name: str
    dtype: torch.dtype
    samples: Callable[[int], list[Sample]]

    @property
    def key(self) -> str:
        """A name that no other entry has."""
        return f"{self.kind}/{self.name}/{dtype_name(self.dtype)}"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, without the module."""
    return str(dtype).removeprefix("torch.")


def operator_entries(dtypes: Sequence[torch.dtype] = OPERATOR_DTYPES, transposed: bool = False) -> Iterator[Entry]:
    """Every operator that has a dtype on the CPU, dtype by dtype. transposed: dense inputs lie in memory backwards."""
    kind = "transposed" if transposed else "operator"
    for dtype in dtypes:
        for op in op_db:
            if dtype in op.supported_dtypes("cpu"):
                yield Entry(kind, op.formatted_name, dtype, _OperatorSamples(op, dtype, transposed))


def module_entries(dtypes: Sequence[torch.dtype] = MODULE_DTYPES) -> Iterator[Entry]:
    """Every module that has a dtype on the CPU, dtype by dtype, in training and in evaluation."""
    for dtype in dtypes:
        for info in module_db:
            if dtype in info.supported_dtypes("cpu"):
                for training in (True, False) if info.train_and_eval_differ else (True,):
                    name = f"{info.name}.{'train' if training else 'eval'}"
                    yield Entry("module", name, dtype, _ModuleSamples(info, dtype, training))


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def _spread(items: list[Any], count: int) -> list[tuple[int, Any]]:
    """At most `count` of the items with their places, evenly spaced, beginning with the first."""
    if len(items) <= count:
        return list(enumerate(items))
    return [(place, items[place]) for place in sorted({k * len(items) // count for k in range(count)})]


# --- fresh tensors ----------------------------------------------------------------------------------------------------


class _Copier:
    """Copies tensors with their strides; copies share objects and bytes as the originals do."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._bytes: dict[int, torch.UntypedStorage] = {}

    def __call__(self, item: Any) -> Any:
        if not isinstance(item, Tensor):
            return copy.deepcopy(item) if isinstance(item, torch.Generator) else item
        if id(item) not in self._copies:
            self._copies[id(item)] = (item, self._copy(item))
        return self._copies[id(item)][1]

    def _copy(self, tensor: Tensor) -> Tensor:
        with torch.no_grad():
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
                return tensor.detach().clone().requires_grad_(tensor.requires_grad)
            storage = tensor.untyped_storage()
            if storage._cdata not in self._bytes:
                self._bytes[storage._cdata] = storage.clone()
            made = torch.empty(0, dtype=tensor.dtype)
            made.set_(self._bytes[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
            made = made.conj() if tensor.is_conj() else made
            made = torch._neg_view(made) if tensor.is_neg() else made
        made = made.detach()
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)


def _transposed(tensor: Tensor) -> Tensor:
    """The same numbers with dimensions in the opposite order in memory, if the tensor is contiguous."""
    if tensor.layout != torch.strided or tensor.dim() < 2 or not tensor.is_contiguous():
        return tensor
    backwards = tuple(reversed(range(tensor.dim())))
    made = tensor.detach().permute(backwards).clone(memory_format=torch.contiguous_format).permute(backwards)
    return made.requires_grad_(tensor.requires_grad)


def _tensors(tree: Any, prefix: str) -> dict[str, Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {f"{prefix} {place}": leaf for place, leaf in enumerate(leaves)}


def _requiring_grad(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


# --- operators --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OperatorSamples:
    """Calls of an operator, and of its in-place variant where there is one."""

    op: Any
    dtype: torch.dtype
    transposed: bool

    def __call__(self, count: int) -> list[Sample]:
        with_gradients = self.op.supports_autograd and self.dtype in self.op.supported_backward_dtypes("cpu")
        _seed()
        made = list(self.op.sample_inputs("cpu", self.dtype, requires_grad=with_gradients))
        found = []
        in_place = self.op.inplace_variant
        for place, sample in _spread(made, count):
            tree = (sample.input, tuple(sample.args), dict(sample.kwargs))
            tree = pytree.tree_map_only(Tensor, _transposed, tree) if self.transposed else tree
            found.append(Sample(f"sample {place}", _OperatorCall(self.op.op, tree)))
            if in_place is not None and isinstance(sample.input, Tensor) and not sample.broadcasts_input:
                rooted = with_gradients and self.op.supports_inplace_autograd and place % 2 == 1
                found.append(Sample(f"sample {place}, in place", _InPlaceCall(in_place, tree, rooted)))
        return found


@dataclass(frozen=True, slots=True)
class _OperatorCall:
    function: Callable[..., Any]
    tree: Any

    def __call__(self) -> Call:
        return _closed_call(self.function, pytree.tree_map(_Copier(), self.tree), None)


@dataclass(frozen=True, slots=True)
class _InPlaceCall:
    """rooted: the written tensor was computed from a leaf; otherwise no gradients are taken."""

    function: Callable[..., Any]
    tree: Any
    rooted: bool

    def __call__(self) -> Call:
        tree = pytree.tree_map(_Copier(), self.tree)
        if self.rooted:
            leaf = tree[0]
            return _closed_call(self.function, (leaf.clone(), *tree[1:]), leaf)
        for tensor in _tensors(tree, "").values():
            tensor.requires_grad_(False)
        return _closed_call(self.function, tree, None)


def _closed_call(function: Callable[..., Any], tree: Any, root: Tensor | None) -> Call:
    """A call of a function of tensors only: everything else is closed over."""
    leaves, spec = pytree.tree_flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[place] for place in places]
    others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def target(*given: Tensor) -> Any:
        filled = list(others)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return function(first, *args, **kwargs)

    named = {f"input {place}": tensor for place, tensor in enumerate(tensors)}
    wanted = _requiring_grad({name: tensor for name, tensor in named.items() if tensor.is_leaf})
    if root is not None:
        wanted["root"] = root
    return Call(target, tensors, leaves=_requiring_grad(wanted), watched=named)


# --- modules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ModuleSamples:
    """Calls of a module in one mode."""

    info: Any
    dtype: torch.dtype
    training: bool

    def __call__(self, count: int) -> list[Sample]:
        _seed()
        made = self.info.module_inputs_func(
            self.info, device="cpu", dtype=self.dtype, requires_grad=True, training=self.training
        )
        made = [sample for sample in made if sample.forward_input is not None]
        return [
            Sample(f"sample {place} ({sample.desc})" if sample.desc else f"sample {place}", self._call(sample))
            for place, sample in _spread(made, count)
        ]

    def _call(self, sample: Any) -> _ModuleCall:
        construct, forward = sample.constructor_input, sample.forward_input
        module = self.info.module_cls(*construct.args, **construct.kwargs).to(self.dtype).train(self.training)
        return _ModuleCall(module, (tuple(forward.args), dict(forward.kwargs)))


@dataclass(frozen=True, slots=True)
class _ModuleCall:
    module: torch.nn.Module
    tree: Any

    def __call__(self) -> Call:
        module = copy.deepcopy(self.module)
        args, kwargs = pytree.tree_map(_Copier(), self.tree)
        inputs = _tensors((args, kwargs), "input")
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        leaves = _requiring_grad({**inputs, **dict(module.named_parameters())})
        return Call(module, args, kwargs, leaves, {**inputs, **state})
