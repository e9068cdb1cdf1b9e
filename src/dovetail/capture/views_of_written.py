"""Gradients of views whose memory was written after they were made.

Where the base of a differentiable view was written, or another view of it, autograd makes the view's node anew when the
view is read next. In eager mode the new node is an `as_strided` of the base: the base's gradient gets the base's
strides, and overlapping elements are summed as `as_strided` sums them. On fakes autograd makes the views again, one by
one, and the gradient gets the strides of their backward. Equal values, but later sums round in the order of strides.

A view made again knows nothing of `t_`, `unsqueeze_` and the like. Where one of these came between, gradients of a
write would be wrong, and the write is refused; so is the gradient of a view whose base has another shape by now.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.analysis.data_movement import is_view
from dovetail.capture.asked_views import AskedViews
from dovetail.errors import CaptureFailed
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.autograd import next_sequence_number, version_of, viewed_tensor
from dovetail.torch_compat.dispatch import Overload, schema_of, tags_of
from dovetail.torch_compat.nested import tensors_in
from dovetail.torch_compat.view_nodes import node_made_since, nodes_of_view, takes_gradient_like

aten = torch.ops.aten
_REFUSED = (
    "{} writes memory of which autograd knows a view by the shape and strides from before they were changed in place; "
    "make another view (y = x.t()) in place of that change (x.t_())"
)
_READ = (
    "the gradient is wanted of a view whose base was written when its shape had been changed in place; make another "
    "tensor (y = x.t()) in place of that change (x.t_())"
)
Make = Callable[[], torch.Tensor]


@dataclass(slots=True)
class _Reshaped:
    """Tensors of one base whose shape or strides were changed in place: views of it, or itself.

    since: the number of the next node of autograd's when the first was. in_shape: a view has another shape than before.
    """

    since: int
    tensors: list[torch.Tensor] = field(default_factory=list)
    in_shape: bool = False

    def is_in_the_way(self, written: torch.Tensor, base: torch.Tensor, known_since: int) -> bool:
        """Whether a write to the base, or to a view known since a node of that number, leads through one of them."""
        has_views = any(tensor is not base for tensor in self.tensors)
        if self.in_shape or not torch.is_grad_enabled():
            return self.in_shape
        if has_views and any(tensor is written for tensor in self.tensors):
            return True
        is_older = known_since < self.since
        return written is not base and (is_older if not has_views else not is_older)


class ViewsOfWritten:
    """Lets the nodes that autograd made anew give the gradients that eager's nodes give.

    Attributes: of_inputs, what is asked of inputs as views.
    """

    def __init__(self, unrecorded: Callable[[Make], torch.Tensor]) -> None:
        """unrecorded: runs what it is given without a trace of it in the program."""
        self._unrecorded = weakref.WeakMethod(unrecorded)  # of what holds this
        self.of_inputs = AskedViews()
        self._known: dict[int, int] = {}
        self._reshaped: dict[int, _Reshaped] = {}
        self._read: list[tuple[list[tuple[torch.Tensor, int]], list[torch.Tensor]]] = []

    def note(self, tensor: torch.Tensor) -> None:
        """Every node of this tensor that was made up to now is its first, or was treated."""
        self._known[id(tensor)] = next_sequence_number()

    def write(self, func: object, arguments: Iterable[object]) -> None:
        """An operator is about to run. If it writes, the views among its arguments are treated now: autograd has their
        nodes, and makes some of them anew as soon as it has run.
        """
        self.settle()
        if isinstance(func, Overload) and schema_of(func).is_mutable:
            arguments = list(arguments)
            if self._reshaped and torch.Tag.inplace_view not in tags_of(func):
                self._refuse_reshaped(func, arguments)
            self._treat_all(self._views_in(arguments))

    def reshape(self, tensor: torch.Tensor, before: torch.Size) -> None:
        """The strides of a tensor, which had this shape before, were changed in place."""
        base = viewed_tensor(tensor)
        found = self._reshaped.setdefault(id(base), _Reshaped(next_sequence_number()))
        found.tensors.append(tensor)
        found.in_shape |= tensor is not base and tensor.shape != before

    def _refuse_reshaped(self, func: Overload, arguments: Sequence[object]) -> None:
        """Raises: NotImplementedError for a write after which autograd would take a view for what it was before."""
        if not any(tensor.requires_grad for tensor in tensors_in(arguments)):
            return
        for written in tensors_in([arguments[k] for k in facts_of(func).writes if k < len(arguments)]):
            base = viewed_tensor(written)
            found = self._reshaped.get(id(base))
            if found is not None and found.is_in_the_way(written, base, self._known.get(id(written), found.since)):
                raise NotImplementedError(_REFUSED.format(func))

    def read(self, func: object, arguments: Iterable[object], result: object) -> None:
        """An operator has run. The views among its arguments are treated before the next one runs, if it has a node.

        Autograd looks for their nodes when it makes one for a result, which it has not done yet: to look for them here
        would make them earlier than in eager mode, and gradients are added in the order in which nodes were made.
        """
        found = list(self._views_in(arguments)) if torch.is_grad_enabled() else []
        if not found or (isinstance(func, Overload) and schema_of(func).is_mutable):
            return
        if isinstance(func, Overload) and is_view(func):  # autograd makes other objects of these results
            self._treat_all(found if func is not aten.detach.default else ())
        else:
            results = result if isinstance(result, list | tuple) else [result]
            read = [(view, version_of(view)) for view in found]
            self._read.append((read, [x for x in results if isinstance(x, torch.Tensor)]))

    def settle(self) -> None:
        """Treat the views that operators have read up to now, if these have nodes.

        One that was written since has another node soon; autograd may be about to make it, and cannot be asked for it.
        """
        while self._read:
            views, results = self._read[0]
            if any(made.requires_grad for made in results):
                self._treat_all(view for view, version in views if version_of(view) == version)
            self._read.pop(0)

    def lay_out(self, roots: Iterable[object]) -> None:
        """Treat all views whose gradients are wanted, before backward begins."""
        self.settle()
        self._treat_all(self._views_in(roots))

    def _views_in(self, arguments: Iterable[object]) -> Iterator[torch.Tensor]:
        for tensor in tensors_in(arguments):
            if tensor.requires_grad and id(tensor) in self._known and viewed_tensor(tensor) is not tensor:
                yield tensor

    def _treat_all(self, views: Iterable[torch.Tensor]) -> None:
        if torch.is_grad_enabled():
            for view in views:
                self._treat(view)

    def _treat(self, view: torch.Tensor) -> None:
        node = node_made_since(view, self._known[id(view)])
        if node is None:
            return
        if not takes_gradient_like(node, view):
            raise CaptureFailed(error=_READ)
        self.note(view)
        base = viewed_tensor(view)
        nodes = nodes_of_view(node, base)
        if nodes is not None:
            self._replace(nodes[0], nodes[1], base, (view.shape, view.stride(), view.storage_offset()))

    def _replace(self, first: Any, last: Any, base: torch.Tensor, layout: tuple[Any, ...]) -> None:
        """Let `last`, which ends the chain from `first`, hand on what eager's node makes of what arrives there."""
        arrived: list[tuple[torch.Tensor | None, ...]] = []
        if first is not last:
            first.register_prehook(arrived.append)

        def hand_on(found: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
            (gradient,) = gradients if first is last else arrived.pop()
            if gradient is None:
                return None
            with torch.enable_grad():
                own = base.detach().requires_grad_()
                unrecorded = self._unrecorded()
                assert unrecorded is not None, "gradients are made while it records"
                whole = unrecorded(lambda: own.as_strided(*layout))
            (made,) = torch.autograd.grad(whole, own, gradient, create_graph=torch.is_grad_enabled())
            return made, *found[1:]

        last.register_hook(hand_on)
