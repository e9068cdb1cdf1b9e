"""`DistributedDataParallel` in a step: gradients are summed up bucket by bucket, each once it is full.

The reducer of torch, in C++, has hooks of real parameters, and sees nothing of a recording. What it does is recorded:

    each gradient times 1/ranks, one after the other  ->  bucket;   all_reduce_(bucket)
    at the end of backward: each gradient is overwritten with its part of the bucket, or becomes a view of it

Buckets are those of the reducer, because sums depend on them: they are known once eager mode has run twice.
It stays as it is, so that calls in eager mode go on from there at any time.

A module that looks for unused parameters exchanges one number more for each of them: whether it has a gradient on some
rank. What becomes of a parameter without one depends on that, so such a program runs only where all ranks miss the same
gradients (`all_reduce_used_`), of which they assure each other before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.capture.collectives import Collectives
from dovetail.capture.gradient_buckets import GradientBuckets
from dovetail.capture.origins import OriginTracker
from dovetail.errors import DovetailError, ModuleToPrepare, UnsupportedDistributed
from dovetail.torch_compat.data_parallel import (
    asks_settings,
    buckets_of,
    buffers_to_sync,
    finds_unused,
    parameters_of,
    run_inside,
    sizes_told,
    sync_buffers,
    through_sink,
    unsupported,
    unused_by,
)


class DataParallel:
    """The modules of data parallel training that a step calls. reducers: of each, by the module's identity."""

    def __init__(self, collectives: Collectives, origins: OriginTracker, refusals: list[DovetailError]) -> None:
        self._origins, self._refusals = origins, refusals
        self._collectives = collectives
        self._exchanged: dict[int, bool] = {}  # before the step: whether the last call of a module did so
        self.reducers: dict[int, GradientBuckets] = {}

    def forward(self, module: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any]) -> Any:
        """What a call of the module does. args: None where it is not called itself. Raises: UnsupportedDistributed,
        ModuleToPrepare.
        """
        if args is None:
            why = "programs exchange gradients of modules that are called"
            self._refuse("calls a module of replicate", why, "use DistributedDataParallel")
        asked = unsupported(module)
        if asked is not None:
            self._refuse(f"calls a DistributedDataParallel module with {asked[0]}", "programs do not do that", asked[1])
        self._collectives.guard(asks_settings(module))
        self._exchanged.setdefault(id(module), module.require_forward_param_sync)
        is_reduced = torch.is_grad_enabled() and module.require_backward_grad_sync
        if torch.is_grad_enabled() and id(module) not in self.reducers:
            self.reducers[id(module)] = self._reducer_of(module)
        buffers = buffers_to_sync(module)
        if buffers:
            self._collectives.meet(module.process_group)
            sync_buffers(module, buffers)
        result = run_inside(module, args, kwargs)
        module.require_forward_param_sync = is_reduced
        looks = finds_unused(module)
        if is_reduced:
            self.reducers[id(module)].prepare(unused_by(module, result) if looks else ())
        return through_sink(module, result) if looks else result

    def _reducer_of(self, module: Any) -> GradientBuckets:
        buckets, parameters = buckets_of(module), parameters_of(module)
        name = f"DistributedDataParallel({type(module.module).__name__})"
        if finds_unused(module) and not self._exchanged[id(module)]:
            why = "its last call exchanged no gradients, and which of them it has met is not known"
            raise ModuleToPrepare(name=name, why=why, origin=self._origins.here())
        if buckets is None:
            why = "its gradients are sorted into buckets in its first two calls, by the order in which they arrive"
            raise ModuleToPrepare(name=name, why=why, origin=self._origins.here())
        sizes = [sum(parameters[i].nbytes for i in bucket) for bucket in buckets if max(bucket) < len(parameters)]
        if sizes != sizes_told(module) or sum(map(len, buckets)) != len(parameters):
            why = "its reducer waits for the gradients of all of them"
            hint = "freeze parameters before DistributedDataParallel is made"
            self._refuse("calls a DistributedDataParallel module whose parameters have changed since", why, hint)
        group = self._collectives.meet(module.process_group)
        is_view, looks = bool(module.gradient_as_bucket_view), finds_unused(module)
        size = module.process_group.size()
        return GradientBuckets(group, size, parameters, buckets, self._refuse, as_views=is_view, finds_unused=looks)

    def check(self) -> None:
        """The step has ended. Raises: UnsupportedDistributed where eager mode would fail in the next call."""
        for reducer in self.reducers.values():
            if reducer.has_begun:
                self._refuse(
                    "leaves parameters of a DistributedDataParallel module without a gradient",
                    "the other ranks wait for them, and eager mode raises an error in the next call",
                    "use every parameter, freeze it before the module is made, or find_unused_parameters=True",
                )
            if reducer.has_noted:
                self._refuse(
                    "adds up gradients of several calls of a DistributedDataParallel module that looks for unused ones",
                    "which gradients it has met is noted outside the program",
                    "exchange them at the end of the step, or leave find_unused_parameters out",
                )

    def _refuse(self, what: str, why: str, hint: str) -> None:
        error = UnsupportedDistributed(what=f"the step {what}", why=why, hint=hint, origin=self._origins.here())
        self._refusals.append(error)
        raise error
