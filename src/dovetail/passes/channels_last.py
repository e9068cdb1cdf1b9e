"""Let convolutions use channels-last memory.

The kernels of convolutions on a CPU read and write images whose channels lie next to each other faster, and anything
pointwise, pooling and normalization runs as fast on such memory. A convolution follows the layout of its weight, so
it is enough to store a constant weight in channels-last layout once:

    y = convolution(x, w)             w_last = clone(w, memory_format=channels_last)     # once, when it is frozen
    z = relu(y)                  ->   y_1 = convolution(x, w_last)                       # channels last from here on
    return z                          z_1 = relu(y_1)
                                      z = copy_to_layout(z_1, ...)                       # as the caller knows it
                                      return z

Later values get new descriptions (`analysis.propagate_layouts`); outputs keep their strides. An input that one
convolution reads is converted by that; one that several read is converted once.

Cost: a run on fake tensors for each later node. Other kernels round differently.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.analysis.infer import MetaInference
from dovetail.analysis.propagate_layouts import LayoutPropagation
from dovetail.ir.program import Node, Program, Value
from dovetail.passes.convolution_forms import CHANNELS_LAST, Convolution, convolution_of, has_channels_last
from dovetail.passes.dead_code import remove_dead_code

aten = torch.ops.aten

_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


@dataclass(frozen=True, slots=True)
class ChannelsLastReport:
    """What `channels_last` did.

    asked: names of the weights that must become constants. convolutions: names of the results of the convolutions that
    read them. copies: names of the values that are copied to another layout in each call. left: names of results of
    other convolutions, each with the reason; if nothing was done, of all of them. reason: why nothing was done.
    """

    asked: tuple[str, ...] = ()
    convolutions: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"left all {len(self.left)} convolutions unchanged: {self.reason}"
        return (
            f"{len(self.convolutions)} convolutions in channels-last layout, {len(self.copies)} copies,"
            f" left {len(self.left)} convolutions unchanged"
        )


def channels_last(
    program: Program, constants: Collection[str], infer: MetaInference
) -> tuple[Program, ChannelsLastReport]:
    """The program whose convolutions by constant weights work on memory with the channels last, if that pays.

    It does not if as many values would have to be copied to another layout in each call as there are convolutions.
    constants: names of the inputs that are the same in each call. infer: makes fakes of the program's descriptions.
    """
    known = constant_values(program, constants)
    forms = {node: _convolution(node, known) for node in program.nodes}
    chosen = {node: form for node, form in forms.items() if isinstance(form, Convolution)}
    left = tuple((n.results()[0].name, form) for n, form in forms.items() if isinstance(form, str))
    if not chosen:
        return program, ChannelsLastReport(left=left, reason="NO-CONVOLUTIONS: no convolution has a constant weight")
    state = _LastChannels(program, infer, list(chosen.values()))
    for node in program.nodes:
        if node in chosen:
            state.convolve(chosen[node])
        else:
            state.propagation.follow(node)
    made, _ = remove_dead_code(state.propagation.finish())
    copies = (*state.converted, *state.propagation.copies_in(made))
    if len(copies) >= len(chosen):
        reason = f"COPIES: {len(copies)} values would be copied for {len(chosen)} convolutions"
        everything = tuple(
            (f.result.name, "NOT-WORTH-IT") if isinstance(f, Convolution) else (n.results()[0].name, f)
            for n, f in forms.items()
            if f is not None
        )
        return program, ChannelsLastReport(left=everything, reason=reason)
    names = tuple(value.name for value in state.weights.values())
    return made, ChannelsLastReport(names, tuple(state.done), copies, (*left, *state.left))


def _convolution(node: Node, known: Collection[Value]) -> Convolution | str | None:
    """A convolution that is taken over, or why not; None for another operator.

    One channel lies the same in both layouts. Torch 2.13 gives numbers that it has not computed, or ends the process,
    for some such convolutions by a weight in this layout, where the result is a few pixels wide.
    """
    form = convolution_of(node, known, _DTYPES)
    if isinstance(form, Convolution) and form.weight.tensor.shape[1] == form.groups == 1:
        return "ONE-CHANNEL: its weight lies as it would, and torch's kernel goes wrong where it is said to"
    return form


class _LastChannels:
    """The rewriting of one program."""

    def __init__(self, program: Program, infer: MetaInference, chosen: list[Convolution]) -> None:
        self.propagation = LayoutPropagation(program, infer)
        self.weights: dict[Value, Value] = {}
        self.done: list[str] = []
        self.left: list[tuple[str, str]] = []
        self.converted: list[str] = []  # inputs of convolutions that come otherwise, by them or before them
        self._images: dict[Value, Value] = {}
        self._readers: dict[Value, int] = {}
        for form in chosen:
            self._readers[form.x] = self._readers.get(form.x, 0) + 1

    def convolve(self, form: Convolution) -> None:
        """Take over a convolution, with its weight laid out again."""
        state = self.propagation
        changes = {form.weight: self._weight(form), form.x: self._image(form)}
        node = form.node.with_operands(lambda value: changes.get(value, state.current(value)))
        again = state.described(node)
        if again is None:
            state.keep(form.node)
            self.left.append((form.result.name, "SIZES: its layout is not known for symbolic sizes"))
            return
        state.stand_in(again, form.node.outputs)
        self.done.append(state.current(form.result).name)

    def _weight(self, form: Convolution) -> Value:
        if has_channels_last(form.weight.tensor):
            return form.weight
        if form.weight not in self.weights:
            self.weights[form.weight] = self._laid_out(form.weight, form)
        return self.weights[form.weight]

    def _image(self, form: Convolution) -> Value:
        x = self.propagation.current(form.x)
        if has_channels_last(x.tensor):
            return x
        if form.x in self._images:
            return self._images[form.x]
        self.converted.append(x.name)
        if self._readers[form.x] == 1:
            return x  # the convolution converts it as fast
        self._images[form.x] = self._laid_out(x, form)
        return self._images[form.x]

    def _laid_out(self, value: Value, form: Convolution) -> Value:
        kwargs = (("memory_format", CHANNELS_LAST[len(value.tensor.shape)]),)
        maker = self.propagation.maker
        name = f"{value.name}_channels_last"
        return self.propagation.add(
            maker.call(aten.clone.default, (value,), kwargs, name=name, origin=form.node.origin)
        )
