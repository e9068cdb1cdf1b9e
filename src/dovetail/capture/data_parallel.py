"""`DistributedDataParallel` in a step: gradients are summed up bucket by bucket, each once it is full.

The reducer of torch, in C++, has hooks of real parameters, and sees nothing of a recording. What it does is recorded:

    each gradient times 1/ranks, one after the other  ->  bucket;   all_reduce_(bucket)
    at the end of backward: each gradient is overwritten with its part of the bucket

Buckets are those of the reducer, because sums depend on them: they are known once eager mode has run twice.
It stays as it is, so that calls in eager mode go on from there at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.capture.collectives import Collectives
from dovetail.capture.origins import OriginTracker
from dovetail.errors import DovetailError, ModuleToPrepare, UnsupportedDistributed
from dovetail.ops import collectives as ops
from dovetail.torch_compat.data_parallel import (
    asks_settings,
    at_end_of_backward,
    buckets_of,
    buffers_to_sync,
    gradient_node,
    parameters_of,
    run_inside,
    sizes_told,
    sync_buffers,
    unsupported,
)


class DataParallel:
    """The modules of data parallel training that a step calls. reducers: of each, by the module's identity."""

    def __init__(self, collectives: Collectives, origins: OriginTracker, refusals: list[DovetailError]) -> None:
        self._origins, self._refusals = origins, refusals
        self._collectives = collectives
        self.reducers: dict[int, _Reducer] = {}

    def forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call of the module does. Raises: UnsupportedDistributed, ModuleToPrepare."""
        asked = unsupported(module)
        if asked is not None:
            self._refuse(f"calls a DistributedDataParallel module with {asked[0]}", "programs do not do that", asked[1])
        self._collectives.guard(asks_settings(module))
        is_reduced = torch.is_grad_enabled() and module.require_backward_grad_sync
        if torch.is_grad_enabled() and id(module) not in self.reducers:
            self.reducers[id(module)] = self._reducer_of(module)
        buffers = buffers_to_sync(module)
        if buffers:
            self._collectives.meet(module.process_group)
            sync_buffers(module, buffers)
        result = run_inside(module, args, kwargs)
        module.require_forward_param_sync = is_reduced
        if is_reduced:
            self.reducers[id(module)].prepare()
        return result

    def _reducer_of(self, module: Any) -> _Reducer:
        buckets, parameters = buckets_of(module), parameters_of(module)
        if buckets is None:
            name = f"DistributedDataParallel({type(module.module).__name__})"
            why = "its gradients are sorted into buckets in its first two calls, by the order in which they arrive"
            raise ModuleToPrepare(name=name, why=why, origin=self._origins.here())
        sizes = [sum(parameters[i].nbytes for i in bucket) for bucket in buckets if max(bucket) < len(parameters)]
        if sizes != sizes_told(module) or sum(map(len, buckets)) != len(parameters):
            why = "its reducer waits for the gradients of all of them"
            hint = "freeze parameters before DistributedDataParallel is made"
            self._refuse("calls a DistributedDataParallel module whose parameters have changed since", why, hint)
        name = self._collectives.meet(module.process_group)
        return _Reducer(
            name, module.process_group.size(), [[parameters[i] for i in bucket] for bucket in buckets], self._refuse
        )

    def check(self) -> None:
        """The step has ended. Raises: UnsupportedDistributed where eager mode would fail in the next call."""
        for reducer in self.reducers.values():
            if reducer.has_begun:
                self._refuse(
                    "leaves parameters of a DistributedDataParallel module without a gradient",
                    "the other ranks wait for them, and eager mode raises an error in the next call",
                    "use every parameter, or freeze it before the module is made",
                )

    def _refuse(self, what: str, why: str, hint: str) -> None:
        error = UnsupportedDistributed(what=f"the step {what}", why=why, hint=hint, origin=self._origins.here())
        self._refusals.append(error)
        raise error


class _Reducer:
    """What the reducer of a module does with gradients. has_begun: some have arrived, others not yet."""

    def __init__(self, group: str, size: int, buckets: list[list[torch.nn.Parameter]], refuse: Any) -> None:
        self._group, self._scale = group, 1.0 / size
        self._buckets = buckets
        self._refuse = refuse
        self._expects, self.has_begun = False, False
        self._scaled: dict[int, torch.Tensor] = {}
        self._summed: list[torch.Tensor] = []
        self._nodes = [gradient_node(parameter) for bucket in buckets for parameter in bucket]
        parameters = [parameter for bucket in buckets for parameter in bucket]
        for node, parameter in zip(self._nodes, parameters, strict=True):
            node.register_hook(lambda *_, parameter=parameter: self._arrived(parameter))

    def prepare(self) -> None:
        """Backward is to come, for gradients that are summed up."""
        self._expects, self.has_begun = True, False
        self._scaled, self._summed = {}, []

    def _arrived(self, parameter: torch.nn.Parameter) -> None:
        if not self._expects:
            return
        self.has_begun = True
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse or id(parameter) in self._scaled:
            self._refuse(
                "has a sparse gradient, or several in one backward pass, in a DistributedDataParallel module",
                "buckets hold one dense gradient of each parameter",
                "use sparse=False, and torch.utils.checkpoint with use_reentrant=False",
            )
            return
        with torch.no_grad():
            self._scaled[id(parameter)] = torch.mul(gradient.detach(), self._scale)
            while len(self._summed) < len(self._buckets) and self._is_full(self._buckets[len(self._summed)]):
                self._sum_up(self._buckets[len(self._summed)])
        if len(self._summed) == len(self._buckets):
            at_end_of_backward(self._end)

    def _is_full(self, bucket: list[torch.nn.Parameter]) -> bool:
        return all(id(parameter) in self._scaled for parameter in bucket)

    def _sum_up(self, bucket: list[torch.nn.Parameter]) -> None:
        flat = torch.cat([_in_bucket(self._scaled[id(parameter)], parameter) for parameter in bucket])
        ops.ALL_REDUCE(flat, "SUM", self._group)
        self._summed.append(flat)
        for parameter in bucket:  # its place stays taken
            self._scaled[id(parameter)] = flat

    def _end(self) -> None:
        """Backward has ended: gradients become what buckets hold."""
        with torch.no_grad():
            for bucket, flat in zip(self._buckets, self._summed, strict=True):
                parts = flat.split([parameter.numel() for parameter in bucket])
                for parameter, part in zip(bucket, parts, strict=True):
                    assert parameter.grad is not None, "it has arrived"
                    parameter.grad.copy_(_from_bucket(part, parameter))
        self._expects, self.has_begun = False, False
        self._scaled, self._summed = {}, []


def _in_bucket(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient's elements in the order in which a bucket has them: that of the parameter in memory."""
    order = _order_of(parameter)
    return gradient.reshape(-1) if order is None else gradient.permute(order).reshape(-1)


def _from_bucket(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    order = _order_of(parameter)
    if order is None:
        return part.view(parameter.shape)
    back = [order.index(dim) for dim in range(len(order))]
    return part.view([parameter.shape[dim] for dim in order]).permute(back)


def _order_of(parameter: torch.Tensor) -> list[int] | None:
    """The dimensions of a dense parameter from the slowest to the fastest; None where that is their own order."""
    if parameter.is_contiguous():
        return None
    strides = parameter.stride()
    order = sorted(range(parameter.dim()), key=lambda dim: -strides[dim])
    return order if parameter.permute(order).is_contiguous() else None
