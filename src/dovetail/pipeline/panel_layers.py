"""Which layers over packed weights run by machine code over panels, where a program runs.

Convolutions over packed weights (`prims.packed_conv`) become convolutions over panels, or taps of channels, where that
is faster than oneDNN: small ones, of which a call of oneDNN takes longer than the work, those of single pixels, and
with AVX-512 all whose outputs fill panels. Without an executor that has these kernels, products by panels become
products over oneDNN's weights, and small convolutions read plain weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from dovetail.analysis.reads import readers_of
from dovetail.ir.draft import Draft
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, Value, values_in
from dovetail.ops.attention import ATTENTION, short_attention_of
from dovetail.ops.channel_parts import CAT_CHANNELS, channel_parts_of
from dovetail.ops.few_products import tiling_of
from dovetail.ops.group_norms import GROUP_NORM, group_norm_of
from dovetail.ops.max_pools import MAX_POOL, max_pool_of
from dovetail.ops.packed import PACK_CONV, PACK_LINEAR, PackedConv, packed_linear
from dovetail.ops.packing import runs_steps
from dovetail.ops.panel_convolutions import (
    PACK_TAPS,
    PIXEL_MEAN,
    is_pixel_mean,
    panel_conv,
    taps_shape,
    zeros_around,
)
from dovetail.ops.panels import PACK_PANELS, WIDTH, PanelLinear
from dovetail.ops.quantized import GROUP, PACK_INT8, PACK_INT8_PANELS, Int8Linear, int8_panel_linear, int8_panels_shape

# Multiplications for an image, measured on one thread with AVX-512 beside oneDNN.
_SMALL, _SMALL_OF_PIXELS, _SMALL_BY_CHANNEL = 1 << 20, 6 << 20, 1 << 23
_MOST_WASTE = 1.35  # of columns of panels, in larger ones
_MOST_KEYS = {True: 256, False: 128}  # of attention, with AVX-512 or without, beside torch's kernel

_IMAGE = 4


def over_panels(program: Program) -> Program:
    """The program whose convolutions over packed weights read panels or taps where that is faster."""
    readers = readers_of(program)
    chosen: dict[Value, Node] = {}
    for node in program.nodes:
        if node.target is PACK_CONV:
            users = readers.get(node.results()[0], [])
            if users and all(user is not None and _is_faster(user, node) for user in users):
                chosen[node.results()[0]] = node
    paddings = {node.results()[0]: node for node in program.nodes if _is_left_to_readers(node, readers, chosen)}
    draft = Draft(program)
    for node in program.nodes:
        run = node.target.run if isinstance(node.target, Prim) else None
        if node.outputs and node.outputs[0] in paddings:
            continue
        if node.outputs and node.outputs[0] in chosen:
            weight, groups = _weight_of(node), node.args[4]
            assert isinstance(groups, int), "of what was chosen"
            shape = taps_shape([int(each) for each in weight.tensor.shape if isinstance(each, int)], groups)
            meta = replace(weight.tensor, shape=shape, offset=0)
            made = draft.value(f"{node.results()[0].name}_taps", replace(meta, stride=_contiguous(shape)))
            draft.substitute(node.results()[0], made)
            node = replace(node, target=PACK_TAPS, args=(weight, groups, None), outputs=(made,))
        elif isinstance(run, PackedConv) and node.args[1] in chosen:
            x, packed, bias, padding, stride, _, groups, *addend = node.args
            assert isinstance(packed, Value), "a packed weight is a value"
            size = list(_weight_of(chosen[packed]).tensor.shape)
            around = [*(_two(padding) or ())]
            if isinstance(x, Value) and x in paddings:
                pads = zeros_around(paddings[x]) or ()
                x, around = paddings[x].args[0], [pad + more for pad, more in zip(pads, around * 2, strict=True)]
            args = (x, packed, bias, size, around, [*(_two(stride) or ())], groups, *addend)
            node = replace(node, target=panel_conv(run.activation), args=args)
            if addend and groups != 1 and run.activation == "none":
                node = _with_sum(draft, node)
        elif is_pixel_mean(node):
            node = replace(node, target=PIXEL_MEAN, args=(node.args[0], *_form_of_mean(node)), kwargs=())
        elif (parts := channel_parts_of(node)) is not None:
            node = replace(node, target=CAT_CHANNELS, args=(parts,), kwargs=())
        elif (pooled := max_pool_of(node)) is not None and not readers.get(node.results()[1]):
            node = replace(node, target=MAX_POOL, args=pooled, kwargs=(), outputs=node.outputs[:1], unpack=False)
        elif (heads := short_attention_of(node, _MOST_KEYS[_has_wide_vectors()])) is not None and not readers.get(
            node.results()[1]
        ):
            node = replace(node, target=ATTENTION, args=heads, kwargs=(), outputs=node.outputs[:1], unpack=False)
        draft.take(node)
    return draft.finish()


def exact_norms(program: Program) -> Program:
    """The program in which groups of channels of images with channels last are normalised as exactly as of planes."""
    readers, draft = readers_of(program), Draft(program)
    for node in program.nodes:
        arguments = group_norm_of(node)
        if arguments is not None and not any(readers.get(value) for value in node.results()[1:]):
            node = replace(node, target=GROUP_NORM, args=arguments, kwargs=(), outputs=node.outputs[:1], unpack=False)
        draft.take(node)
    return draft.finish()


def _with_sum(draft: Draft, node: Node) -> Node:
    """The sum that a convolution ends with, a node of its own, of which machine code makes a loop. The convolution
    without it is added to the draft.
    """
    *args, addend = node.args
    made = draft.value(f"{node.results()[0].name}_alone", node.results()[0].tensor)
    draft.take(replace(node, args=tuple(args), outputs=(made,)))
    return replace(node, target=torch.ops.aten.add.Tensor, args=(made, addend))


def over_packed(program: Program) -> Program:
    """The program without panels: products over weights packed for oneDNN, small convolutions and recurrent layers over
    plain ones.
    """
    draft, readers = Draft(program), readers_of(program)
    for node in program.nodes:
        run = node.target.run if isinstance(node.target, Prim) else None
        if node.target is PACK_PANELS and _is_of_steps(readers.get(node.results()[0], ())):
            draft.substitute(node.results()[0], draft.current(_weight_of(node)))
            continue
        if node.target is PACK_PANELS:
            (panels,), weight = node.results(), _weight_of(node)
            meta = replace(
                weight.tensor, stride=_contiguous(weight.tensor.shape), storage=panels.tensor.storage, offset=0
            )
            made = Value(panels.name, meta)
            draft.substitute(panels, made)
            node = replace(node, target=PACK_LINEAR, outputs=(made,))
        elif isinstance(run, PanelLinear):
            x, panels_, _, *bias = node.args
            node = replace(node, target=packed_linear(run.activation), args=(x, panels_, *bias))
        draft.take(node)
    return draft.finish()


def _form_of_mean(node: Node) -> tuple[bool, bool]:
    """Whether the result of a mean of pixels has as many dimensions as its operand, and the strides of an image."""
    meta = node.results()[0].tensor
    keeps_dims = len(meta.shape) == _IMAGE
    return keeps_dims, keeps_dims and meta.stride[-1] != 1


def _is_of_steps(readers: Iterable[Node | None]) -> bool:
    """Whether a weight is read by recurrent layers, of which torch's kernels take plain weights."""
    return any(node is not None and runs_steps(node.target) for node in readers)


def over_int8_panels(program: Program) -> Program:
    """The program whose products of 8-bit integers over packed weights read panels, where these can be laid out."""
    draft, changed = Draft(program), set[Value]()
    for node in program.nodes:
        run = node.target.run if isinstance(node.target, Prim) else None
        if node.target is PACK_INT8 and _has_groups(weight := _weight_of(node)):
            (packed,), shape = node.results(), int8_panels_shape(*map(int, weight.tensor.shape))  # type: ignore[arg-type]
            made = draft.value(f"{packed.name}_panels", replace(weight.tensor, shape=shape, stride=_contiguous(shape)))
            draft.substitute(packed, made)
            changed.add(packed)
            node = replace(node, target=PACK_INT8_PANELS, outputs=(made,))
        elif isinstance(run, Int8Linear) and node.args[1] in changed:
            node = replace(node, target=int8_panel_linear(run.activation))
        draft.take(node)
    return draft.finish() if changed else program


def _has_groups(weight: Value) -> bool:
    sizes = weight.tensor.shape
    return all(isinstance(size, int) for size in sizes) and int(sizes[1]) % GROUP == 0  # type: ignore[arg-type]


def _weight_of(node: Node) -> Value:
    (weight,) = values_in(node.args[:1])
    return weight


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Of a convolution of one image."""

    outputs: int
    inputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    pixels: tuple[int, int]
    groups: int

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.outputs * self.inputs * prod(self.kernel) * prod(self.pixels)


def _is_faster(user: Node, packing: Node) -> bool:
    """Whether a reader of a packed weight is a convolution that is faster by panels or taps."""
    found = _geometry(user, packing)
    if found is None:
        return False
    if found.groups > 1:
        return found.work <= _SMALL_BY_CHANNEL
    if found.work <= _SMALL:
        return True
    is_of_pixels = (found.kernel, found.stride, found.padding) == ((1, 1), (1, 1), (0, 0))
    if is_of_pixels and _has_wide_vectors() and found.outputs <= WIDTH // 2:
        return True  # memory is what they take: 4 of 16 outputs 0.8 of oneDNN's time, 8 0.75
    size = (found.outputs, found.inputs, *found.kernel)
    if tiling_of(size, found.stride, 1, found.pixels, torch.get_num_threads()) is not None:
        return True
    width = WIDTH // 2 if _has_wide_vectors() and (is_of_pixels or found.outputs > WIDTH) else WIDTH
    waste = -(-found.outputs // width) * width / found.outputs
    return waste <= _MOST_WASTE and (is_of_pixels or _has_wide_vectors() or found.work <= _SMALL_OF_PIXELS)


def _has_wide_vectors() -> bool:
    """Whether half of a panel is one vector, so that it takes half of the time, and large tiles fit in registers."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _geometry(user: Node, packing: Node) -> _Geometry | None:
    """The geometry of a convolution; None where it is none that the kernels know."""
    run = user.target.run if isinstance(user.target, Prim) else None
    weight = _weight_of(packing).tensor
    if not isinstance(run, PackedConv) or user.args[1] is not packing.results()[0] or user.kwargs:
        return None
    x, _, _, padding, stride, dilation, groups, *_ = user.args
    if not isinstance(x, Value) or len(weight.shape) != _IMAGE or x.tensor.dtype is not torch.float32:
        return None
    image, (outputs, inputs, *tall_broad) = x.tensor, weight.shape
    before, step, apart, kernel, size = map(_two, (padding, stride, dilation, tall_broad, image.shape[2:]))
    if before is None or step is None or apart != (1, 1) or kernel is None or size is None:
        return None
    if not isinstance(outputs, int) or not isinstance(inputs, int) or not isinstance(groups, int):
        return None
    by_channel = inputs == 1 and groups == outputs == image.shape[1]
    if not (groups == 1 or by_channel) or weight.dtype is not torch.float32:
        return None
    rows, columns = ((size[at] + 2 * before[at] - kernel[at]) // step[at] + 1 for at in range(2))
    return _Geometry(outputs, inputs, kernel, step, before, (rows, columns), groups) if min(rows, columns) > 0 else None


def _is_left_to_readers(node: Node, readers: Mapping[Value, Sequence[Node | None]], chosen: Collection[Value]) -> bool:
    """Whether a node only puts zeros around images for convolutions that can do so themselves."""
    if zeros_around(node) is None:
        return False
    (padded,) = node.results()
    return all(
        user is not None
        and padded is user.args[0]
        and isinstance(user.target, Prim)
        and isinstance(user.target.run, PackedConv)
        and user.args[1] in chosen
        and padded not in values_in(user.args[1:])
        for user in readers.get(padded, [None])
    )


def _two(numbers: object) -> tuple[int, int] | None:
    """Two known numbers; one stands for both."""
    match numbers:
        case (int() as both,) | [int() as both]:
            return both, both
        case (int() as first, int() as second) | [int() as first, int() as second]:
            return first, second
    return None


def _contiguous(shape: Sequence[object]) -> tuple[int, ...]:
    strides, step = list[int](), 1
    for size in reversed(shape):
        strides.append(step)
        step *= int(size)  # type: ignore[call-overload]
    return tuple(reversed(strides))
