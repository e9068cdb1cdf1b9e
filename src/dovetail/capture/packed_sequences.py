"""Packed sequences while code is recorded: torch's functions on them, as operators of `ops.packed_sequences`.

    torch._VF.lstm(data, sizes, hx, weights, ...)   ->   out, h, c = packed_layer(data, sizes, [h0, c0], weights)

Above autograd torch takes a recurrent layer over a packed sequence apart, by lengths that fakes do not have. Here each
layer is one node of autograd. Eager mode has a node for each time step, and adds up what arrives at a weight in their
order; `PackedValues` keeps to that where something else has arrived there before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import torch

from dovetail.errors import NoFakeKernel, UnsupportedTensor
from dovetail.ir.program import Node, Origin, Value
from dovetail.ops.facts import written_values
from dovetail.ops.packed_sequences import (
    KINDS,
    PACK,
    PACK_BACKWARD,
    PACKED_LAYER,
    PACKED_LAYER_BACKWARD,
    PADDED,
    PADDED_BACKWARD,
)
from dovetail.torch_compat.autograd import engine_adds_after
from dovetail.torch_compat.cudnn_layers import draws_for_itself
from dovetail.torch_compat.fakes import hold_number
from dovetail.torch_compat.recurrent import Replacement, functions_replaced

aten = torch.ops.aten
_SUMS = frozenset({aten.add.Tensor, aten.add_.Tensor})
_ARGUMENTS = 9  # of a layer's function
_BEGUN = 1  # the place of that argument
_HINT = (
    "give the layer the padded batch, and mask what lies behind the lengths; or compile the model by "
    "torch.compile(model, backend='dovetail'), which leaves the layer to eager mode"
)


class Recording(Protocol):
    """The recorder, as this module sees it."""

    nodes: list[Node]

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value that a tensor stands for."""

    def here(self) -> Origin:
        """The user's line that runs."""


class PackedValues:
    """What is known of the values of packed sequences.

    Gradients that autograd has not added to anything yet, and how many sequences there are.
    """

    def __init__(self, recorder: Recording, know: Callable[[torch.Tensor, int], None] = hold_number) -> None:
        """know: called with a fake of one element, and the number that it holds whatever the data."""
        self._know = know
        self._recorder: Recording = weakref.proxy(recorder)  # which holds this
        self._fresh: dict[int, tuple[torch.Tensor, Value, int]] = {}
        self._node: object = None
        self._batches: dict[int, tuple[torch.Tensor, Any]] = {}

    # --- how many there are -------------------------------------------------------------------------------------

    def packed(self, sizes: torch.Tensor, batch: Any) -> None:
        """So many sequences were packed: the first of the sizes is that number."""
        self._batches[id(sizes)] = (sizes, batch)

    def batch_of(self, sizes: torch.Tensor) -> Any:
        """How many sequences there are."""
        return self._batches[id(sizes)][1] if id(sizes) in self._batches else int(sizes[0])

    def follow(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """An operator gave a result."""
        if self._batches and func is aten.select.int and id(args[0]) in self._batches and args[1:] == [0, 0]:
            batch = self._batches[id(args[0])][1]
            if type(batch) is int:
                self._know(result, batch)
            elif isinstance(batch, torch.SymInt):
                hold_number(result, batch)

    def refuse(self, kind: str) -> NoReturn:
        """Raises: UnsupportedTensor for a packed sequence of which programs have none."""
        raise UnsupportedTensor(
            name="the input of a recurrent layer", kind=kind, hint=_HINT, origin=self._recorder.here()
        )

    def refuse_draws(self) -> NoReturn:
        """Raises: NoFakeKernel for a layer that draws in cuDNN."""
        raise NoFakeKernel(operator=str(aten._cudnn_rnn.default), origin=self._recorder.here())

    # --- gradients ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Backward runs. Raises: UnsupportedTensor where its results are to have gradients."""
        if torch.is_grad_enabled():
            self.refuse("a packed sequence, under backward(create_graph=True)")

    def note(self, node: object, gradients: Sequence[torch.Tensor]) -> None:
        """The last operator has given these to a node of autograd, the context of a function."""
        self._fresh.clear()
        self._node = node
        for place, gradient in enumerate(gradients):
            self._fresh[id(gradient)] = (gradient, self._recorder.value_of(gradient), place)

    def instead(self, func: Any, args: Sequence[Any]) -> tuple[Any, Sequence[Any], torch.Tensor | None]:
        """The operator that is to be recorded, and its arguments; or what it gives, where nothing is to be."""
        if not self._fresh or func not in _SUMS or len(args) != 2 or id(args[1]) not in self._fresh:
            return func, args, None
        if not engine_adds_after(self._node):
            return func, args, None
        before, (gradient, value, place) = args[0], self._fresh.pop(id(args[1]))
        self._begin_with(self._recorder.value_of(before), value, place)
        return (func, args, gradient) if func is aten.add.Tensor else (aten.copy_.default, (before, gradient), None)

    def _begin_with(self, before: Value, value: Value, place: int) -> None:
        """Let the node that gives `value` begin with what was there before."""
        nodes = self._recorder.nodes
        index = next(k for k in range(len(nodes) - 1, -1, -1) if value in nodes[k].outputs)
        later = [v for node in nodes[index:] for v in (*node.outputs, *written_values(node)) if v is not None]
        same = {v.tensor.storage for v in later if v.is_tensor}
        assert before.tensor.storage not in same, "what had arrived before was there before"
        args = list(nodes[index].args)
        held = args[_BEGUN]
        args[_BEGUN] = [before if k == place else x for k, x in enumerate(held)] if isinstance(held, list) else before
        nodes[index] = replace(nodes[index], args=tuple(args))


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, known: PackedValues, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        ctx.known = known
        data, sizes = PACK(x, lengths, batch_first)
        ctx.mark_non_differentiable(sizes)
        ctx.save_for_backward(sizes)
        ctx.shape, ctx.batch_first = x.shape, batch_first
        return data, sizes

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        ctx.known.begin()
        first, second, *others = ctx.shape
        shape = (second, first, *others) if ctx.batch_first else ctx.shape
        made = PACK_BACKWARD(grad, *ctx.saved_tensors, list(shape))
        return None, made.transpose(0, 1) if ctx.batch_first else made, None, None


class _Padded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, known: PackedValues, data: torch.Tensor, sizes: torch.Tensor, *how: Any) -> Any:
        ctx.known, ctx.how = known, how
        ctx.save_for_backward(data, sizes)
        made, lengths = PADDED(data, sizes, *how)
        ctx.mark_non_differentiable(lengths)
        return made, lengths

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        ctx.known.begin()
        made = PADDED_BACKWARD(grad, None, *ctx.saved_tensors, *ctx.how)
        ctx.known.note(ctx, [made])
        return None, made, None, *(None for _ in ctx.how)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, known: PackedValues, count: int, how: Any, data: torch.Tensor, sizes: Any, *held: Any) -> Any:
        ctx.known, ctx.count, ctx.how = known, count, how
        ctx.save_for_backward(data, sizes, *held)
        ctx.set_materialize_grads(False)
        return tuple(PACKED_LAYER(data, sizes, list(held[:count]), list(held[count:]), *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        ctx.known.begin()
        data, sizes, *held = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:]
        wanted = [needs[0], *needs[2:]]
        if all(grad is None for grad in grads) or not any(wanted):
            return (None,) * len(ctx.needs_input_grad)
        states, weights = held[: ctx.count], held[ctx.count :]
        begun = [None] * sum(wanted)
        made = PACKED_LAYER_BACKWARD(list(grads), begun, wanted, data, sizes, states, weights, *ctx.how)
        ctx.known.note(ctx, made)
        given = iter(made)
        found = [next(given) if is_wanted else None for is_wanted in wanted]
        return None, None, None, found[0], None, *found[1:]


class PackedSequences:
    """Torch's functions on packed sequences, as code calls them while it is recorded."""

    def __init__(self, known: PackedValues) -> None:
        self._known = known

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """While active, code that packs, pads, or runs a layer over a packed sequence, calls these.

        Raises, where it runs a layer that draws in cuDNN: NoFakeKernel, before torch is asked, which would note it.
        """
        table: dict[str, Replacement] = {
            kind: (_is_packed_or_draws, lambda *args, kind=kind: self._run_or_refuse(kind, args)) for kind in KINDS
        }
        table["_pack_padded_sequence"] = (_any, self._pack)
        table["_pad_packed_sequence"] = (_any, self._pad)
        with functions_replaced(table):
            yield

    def _pack(self, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        data, sizes = _Pack.apply(self._known, x, lengths, batch_first)
        self._known.packed(sizes, lengths.shape[0])
        return data, sizes

    def _pad(
        self, data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, padding: float, time: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        how = (padding, time, self._known.batch_of(sizes))
        made, lengths = _Padded.apply(self._known, data, sizes, *how)
        return made.transpose(0, 1) if batch_first else made, lengths

    def _run_or_refuse(self, kind: str, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        return self._run(kind, *args) if _is_packed(args) else self._known.refuse_draws()

    def _run(
        self, kind: str, data: torch.Tensor, sizes: Any, states: Any, weights: Sequence[torch.Tensor], *how: Any
    ) -> tuple[torch.Tensor, ...]:
        has_biases, layers, dropout, train, both_ways = how
        self._refuse_what_differs(data, weights)
        held = list(states) if kind == "lstm" else [states]
        ways = 2 if both_ways else 1
        of_layer = [list(state.split(ways)) if layers > 1 else [state] for state in held]
        count, ends = len(weights) // layers, []
        for layer in range(layers):
            given = [parts[layer] for parts in of_layer]
            own = weights[layer * count : (layer + 1) * count]
            own_how = (kind, has_biases, both_ways, torch.is_grad_enabled())
            data, *last = _Layer.apply(self._known, len(given), own_how, data, sizes, *given, *own)
            ends.append(last)
            if dropout and train and layer < layers - 1:
                data = torch.dropout(data, dropout, True)
        return data, *(parts[0] if layers == 1 else torch.cat(parts) for parts in zip(*ends, strict=True))

    def _refuse_what_differs(self, data: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
        why = None
        if torch.is_autocast_enabled(data.device.type):
            why = "a packed sequence under autocast"
        elif len({id(weight) for weight in weights}) < len(weights):
            why = "a packed sequence, for a layer that has one weight twice"
        elif data.device.type != "cpu":
            why = f"a packed sequence on {data.device.type}"
        if why is not None:
            self._known.refuse(why)


def _is_packed_or_draws(args: Sequence[Any], _: Mapping[str, Any]) -> bool:
    return len(args) == _ARGUMENTS and (_is_packed(args) or draws_for_itself(args))


def _is_packed(args: Sequence[Any]) -> bool:
    return isinstance(args[3], list | tuple)


def _any(*_: Any) -> bool:
    return True
