"""The gradients of one module of data parallel training, as its reducer sums them up: see `capture.data_parallel`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch

from dovetail.ops import collectives as ops
from dovetail.torch_compat.data_parallel import at_end_of_backward, gradient_node


class GradientBuckets:
    """What the reducer of a module does with gradients.

    has_begun: some have arrived, others not yet. has_noted: some have arrived that were not exchanged, and a reducer
    that looks for unused ones remembers which.
    """

    def __init__(
        self,
        group: str,
        size: int,
        parameters: Sequence[torch.nn.Parameter],
        buckets: Sequence[Sequence[int]],
        refuse: Any,
        *,
        as_views: bool,
        finds_unused: bool,
    ) -> None:
        """Follow the gradients of parameters. buckets: their numbers. refuse: raises what it is told."""
        self._group, self._size = group, size
        self._parameters = parameters
        self._buckets = [[parameters[number] for number in bucket] for bucket in buckets]
        self._refuse = refuse
        self._as_views, self._finds_unused = as_views, finds_unused
        self._expects, self.has_begun = False, False
        self._unused: list[torch.nn.Parameter] = []
        self._scaled: dict[int, torch.Tensor] = {}
        self._summed: list[torch.Tensor] = []
        self._used = set[int]()
        self._apart = set[int]()  # those whose gradient the step has made, and that is in no bucket yet
        self._nodes = [gradient_node(parameter) for parameter in parameters]
        for node, parameter in zip(self._nodes, parameters, strict=True):
            node.register_prehook(lambda *_, parameter=parameter: self._look_before(parameter))
            node.register_hook(lambda *_, parameter=parameter: self._arrived(parameter))

    @property
    def has_noted(self) -> bool:
        """See the class."""
        return bool(self._used)

    def prepare(self, unused: Iterable[int] = ()) -> None:
        """Backward is to come, for gradients that are summed up. unused: parameters that get none, by number."""
        self._expects, self.has_begun = True, False
        self._unused = [self._parameters[number] for number in unused]
        self._scaled, self._summed = {}, []

    def _look_before(self, parameter: torch.nn.Parameter) -> None:
        if parameter.grad is None:
            self._apart.add(id(parameter))

    def _arrived(self, parameter: torch.nn.Parameter) -> None:
        if self._finds_unused and parameter.grad is not None:
            self._used.add(id(parameter))
        if not self._expects:
            return
        self.has_begun = True
        unused, self._unused = self._unused, []
        with torch.no_grad():
            for other in unused:
                self._look_before(other)
                self._mark_ready(other)
            self._mark_ready(parameter)
            if len(self._summed) == len(self._buckets):
                self._exchange_used()
                at_end_of_backward(self._end)

    def _mark_ready(self, parameter: torch.nn.Parameter) -> None:
        gradient = parameter.grad
        if (gradient is not None and gradient.is_sparse) or id(parameter) in self._scaled:
            self._refuse(
                "has a sparse gradient, or several in one backward pass, in a DistributedDataParallel module",
                "buckets hold one dense gradient of each parameter",
                "use sparse=False, and torch.utils.checkpoint with use_reentrant=False",
            )
        self._scaled[id(parameter)] = self._part(parameter, gradient)
        while len(self._summed) < len(self._buckets) and self._is_full(self._buckets[len(self._summed)]):
            self._sum_up(self._buckets[len(self._summed)])

    def _part(self, parameter: torch.nn.Parameter, gradient: torch.Tensor | None) -> torch.Tensor:
        """What a parameter adds to its bucket, flat."""
        if gradient is None:
            return parameter.detach().new_zeros(parameter.numel())
        if not self._as_views or id(parameter) in self._apart:
            return _in_bucket(torch.mul(gradient.detach(), 1.0 / self._size), parameter)
        if self._size & (self._size - 1):  # the reducer divides what lies in its bucket, and multiplies what does not
            self._refuse(
                "adds to gradients that are views of the buckets of a DistributedDataParallel module",
                "how they are divided by a number of ranks that is no power of two depends on where they lie",
                "clear gradients before backward, or leave gradient_as_bucket_view out",
            )
        return _in_bucket(torch.div(gradient.detach(), self._size), parameter)

    def _is_full(self, bucket: list[torch.nn.Parameter]) -> bool:
        return all(id(parameter) in self._scaled for parameter in bucket)

    def _sum_up(self, bucket: list[torch.nn.Parameter]) -> None:
        flat = torch.cat([self._scaled[id(parameter)] for parameter in bucket])
        ops.ALL_REDUCE(flat, "SUM", self._group)
        self._summed.append(flat)
        for parameter in bucket:  # its place stays taken
            self._scaled[id(parameter)] = flat

    def _exchange_used(self) -> None:
        """Ranks count for each parameter how many of them have a gradient, as the reducer does."""
        if not self._finds_unused:
            return
        used = [id(parameter) in self._used for parameter in self._parameters]
        counts = torch.ones(len(used), dtype=torch.int32)
        first = 0
        for is_used, run in groupby(used):
            length = len(list(run))
            if not is_used:
                counts[first : first + length].zero_()
            first += length
        ops.ALL_REDUCE_USED(counts, "".join("01"[is_used] for is_used in used), self._group)

    def _end(self) -> None:
        """Backward has ended: gradients become what buckets hold."""
        with torch.no_grad():
            for bucket, flat in zip(self._buckets, self._summed, strict=True):
                parts = flat.split([parameter.numel() for parameter in bucket])
                for parameter, part in zip(bucket, parts, strict=True):
                    self._receive(parameter, _from_bucket(part, parameter))
        self._expects, self.has_begun = False, False
        self._used = set()
        self._scaled, self._summed = {}, []

    def _receive(self, parameter: torch.nn.Parameter, part: torch.Tensor) -> None:
        """A parameter gets what ranks have summed up for it."""
        is_unused = self._finds_unused and id(parameter) not in self._used
        if is_unused and (not self._as_views or parameter.grad is None):
            return  # no rank has a gradient
        if parameter.grad is None:
            parameter.grad = part if self._as_views else part.clone()
        elif self._as_views and id(parameter) in self._apart:
            parameter.grad = part
        else:
            parameter.grad.copy_(part)
        self._apart.discard(id(parameter))


def _in_bucket(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient's elements in the order in which a bucket has them: that of the parameter in memory."""
    order = _order_of(parameter)
    return gradient.reshape(-1) if order is None else gradient.permute(order).reshape(-1)


def _from_bucket(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A part of a bucket, laid out as the parameter."""
    order = _order_of(parameter)
    if order is None:
        made = part.view(parameter.shape)
        if not parameter.is_contiguous() or made.stride() == parameter.stride():
            return made
        return made.as_strided(parameter.shape, parameter.stride(), part.storage_offset())  # it has a dimension of 1
    back = [order.index(dim) for dim in range(len(order))]
    return part.view([parameter.shape[dim] for dim in order]).permute(back)


def _order_of(parameter: torch.Tensor) -> list[int] | None:
    """The dimensions of a dense parameter from the slowest to the fastest; None where that is their own order."""
    if parameter.is_contiguous():
        return None
    strides = parameter.stride()
    order = sorted(range(parameter.dim()), key=lambda dim: -strides[dim])
    return order if parameter.permute(order).is_contiguous() else None
