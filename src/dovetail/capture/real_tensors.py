"""Real tensors that a program meets while it is recorded: autograd treats them as tensors that are written.

    self.mean.mul_(0.9).add_(x)      operators run on fakes, but autograd gives `self.mean` a history and counts a write

What autograd knows of such a tensor is lent to a recording, and is as before once that has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from dovetail.errors import UnsupportedInputMutation
from dovetail.ops.grafting import graft
from dovetail.torch_compat.autograd import set_version, version_of, viewed_tensor
from dovetail.torch_compat.dispatch import without_modes
from dovetail.torch_compat.recurrent import above_autograd
from dovetail.torch_compat.tensor_hooks import without_hooks


@dataclass(frozen=True, slots=True)
class Met:
    """A real tensor as it was when a recording met it. path: has its history, None where there was none."""

    tensor: torch.Tensor
    version: int
    grad_fn: Any
    requires_grad: bool
    output: int
    path: torch.Tensor | None

    @staticmethod
    def now(tensor: torch.Tensor) -> Met:
        """As it is."""
        node = tensor.grad_fn
        path = None if node is None or viewed_tensor(tensor) is not tensor else _like(tensor)
        return Met(tensor, version_of(tensor), node, tensor.requires_grad, tensor.output_nr, path)

    @property
    def leaf(self) -> torch.Tensor | GradientEdge | None:
        """Where the gradient arrives that is for what the tensor held at first."""
        if self.grad_fn is not None:
            return GradientEdge(self.grad_fn, self.output)
        gets_gradient = self.tensor.requires_grad and (self.requires_grad or self.tensor.is_leaf)
        return self.tensor if gets_gradient else None

    @property
    def is_written(self) -> bool:
        """Whether autograd has given it another history since."""
        return self.tensor.grad_fn is not None and self.tensor.grad_fn is not self.grad_fn

    def check(self, name: str) -> None:
        """Raises: UnsupportedInputMutation for a view that gets a history which no recording can take back."""
        if self.requires_grad and self.is_written and viewed_tensor(self.tensor) is not self.tensor:
            raise UnsupportedInputMutation(what="a view of a tensor with a gradient history", name=name)

    def put_back(self) -> None:
        """Let the tensor have its first history again."""
        self.tensor.detach_()
        if self.path is None:
            self.tensor.requires_grad_(self.requires_grad)
        else:
            with torch.enable_grad():
                graft(self.tensor, self.path)


class RealTensors:
    """See the module docstring: those of one recording, in the order in which they were met."""

    def __init__(self) -> None:
        self._met: dict[int, Met] = {}
        self._left: list[_Left] = []

    def meet(self, tensor: torch.Tensor) -> None:
        """A recording meets this one, and keeps it alive."""
        self._met[id(tensor)] = Met.now(tensor)

    def of(self, tensor: torch.Tensor) -> Met:
        """As it was."""
        return self._met[id(tensor)]

    @contextmanager
    def lent(self) -> Iterator[None]:
        """While active, they have counted the writes that earlier recordings have left; afterwards they are as now."""
        known = {id(left.tensor) for left in self._left}
        with ExitStack() as stack:
            for left in self._left:  # the versions first: some may count with others that are met from here on
                stack.callback(set_version, left.tensor, version_of(left.tensor))
                stack.enter_context(without_hooks(left.tensor))
            stack.callback(self._put_back, known)
            for left in self._left:
                stack.enter_context(left.again())
            stack.callback(self._note)
            yield

    def _note(self) -> None:
        counting = [met.tensor for met in self._met.values() if not met.tensor.is_inference()]
        self._left = [_Left(tensor, version_of(tensor), tensor.grad_fn is not None) for tensor in counting]

    def _put_back(self, known: set[int]) -> None:
        """Of written views, and of what they are views of, the history stays until the program has run."""
        new = [self._met[id(left.tensor)] for left in self._left if id(left.tensor) not in known]
        changed = [met for met in new if met.tensor.grad_fn is not met.grad_fn]
        bases = {id(met.tensor): id(viewed_tensor(met.tensor)) for met in changed}
        viewed = {base for tensor, base in bases.items() if base != tensor}
        for met in changed:
            if viewed.isdisjoint((id(met.tensor), bases[id(met.tensor)])):
                met.put_back()
        for met in new:
            set_version(met.tensor, met.version)


@dataclass(frozen=True, slots=True)
class _Left:
    """A real tensor as a recording has left it. has_history: of that recording."""

    tensor: torch.Tensor
    version: int
    has_history: bool

    @contextmanager
    def again(self) -> Iterator[None]:
        """While active, it counts as many writes, and has some history, which nodes that have saved it ask for."""
        tensor = self.tensor
        set_version(tensor, self.version)
        if not self.has_history or tensor.grad_fn is not None:
            yield
            return
        requires_grad = tensor.requires_grad
        with torch.enable_grad():
            graft(tensor.requires_grad_(False), _bare(tensor).requires_grad_())
        try:
            yield
        finally:
            tensor.detach_().requires_grad_(requires_grad)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without contents that has the history of another one."""
    with above_autograd(), without_modes(), torch.enable_grad():
        return graft(_bare(tensor), tensor)


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, [0] * tensor.dim(), dtype=tensor.dtype, device=tensor.device)
