"""Convolutions over images whose channels come first, and their gradients, as rows of clusters.

torch's library lays such images, and the weight, out anew around each call, which takes longer than the products where
there are few of these, or few channels. The results differ by rounding, so clusters have such rows only where they may.
By itself a node is torch's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import torch

from dovetail.execute.native.call_memory import around
from dovetail.execute.native.claim_base import PlacedBase
from dovetail.execute.native.driver import LOOSE, THREADED
from dovetail.execute.native.machine import driver, function_of, has_vectors
from dovetail.execute.native.panel_rows import is_in_order, known_sizes
from dovetail.execute.native.panels import WORK
from dovetail.execute.native.plane_convolution_text import jobs_of, plane_text, room_elements
from dovetail.execute.native.plane_geometry import Geometry, Pair
from dovetail.execute.native.plane_tiles import NARROW, WIDE, Shape
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.scratch import scratch
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.arguments import arguments_of
from dovetail.ops.panels import MOST_ROOMS
from dovetail.torch_compat.dispatch import Overload

_ITEMSIZE = torch.float32.itemsize
_IMAGE, _LINE = 4, 3  # dimensions of images, and of lines, which are images of one row
_FEW = 5_000_000  # multiplications: with so many at most, what is around them counts
_FEW_TAPS, _FEW_CHANNELS = 80, 8  # of an output, and of images: with so many at most, torch's kernels are not full
_MOST_ROOM = 1 << 18  # elements: what is larger leaves the cache
_MOST_PHASES, _MOST_WEIGHTS = 16, 1 << 16
_TOLERANCE = 1e-4  # of trials: far above rounding, far below what a wrong element is off by
_CONVOLUTION, _BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


@dataclass(frozen=True, slots=True)
class PlaneQuestion:
    """A convolution, or its gradients, of some images."""

    target: Overload
    geometry: Geometry
    images: int
    is_biased: bool


@dataclass(frozen=True, slots=True)
class PlaneClaim(PlacedBase):
    """See `rows.RowClaim`. operands: x, weight and perhaps bias, or of gradients: that of the result, x and weight.
    results: of gradients those of x, weight and bias; None for what is not asked for.
    """

    node: Node
    question: PlaneQuestion
    operands: tuple[Operand, ...]
    result: Value
    results: tuple[Value | None, ...]
    into: Value | None = None
    layout: None = None
    element: str = "i8"

    @property
    def pays_alone(self) -> bool:
        """By itself the node runs a kernel of torch's that takes longer."""
        return True

    @property
    def has_scratch(self) -> bool:
        """Whether the node's operator may take memory for itself, which is measured."""
        return True

    @property
    def made(self) -> tuple[Value, ...]:
        """The results that get new memory."""
        return tuple(value for value in self.results if value is not None)

    def bytes_in_row(self, alone: int) -> int:
        """What its rows take while they run."""
        return _ITEMSIZE * max(_room_of(part, self.question) for part in _parts(self))

    @property
    def room(self) -> int:
        """All of that."""
        return self.bytes_in_row(0)

    def is_proven(self) -> bool:
        """Whether rows give torch's results but for rounding."""
        question = self.question
        return answered(question, question.target, lambda: _tried(question))


def plane_claim(node: Node) -> PlaneClaim | None:
    """The claim on a node, as far as descriptions say."""
    if node.target not in (_CONVOLUTION, _BACKWARD) or not has_vectors(NARROW.lanes):
        return None
    arguments, is_backward = arguments_of(node), node.target is _BACKWARD
    names = ("grad_output", "input", "weight") if is_backward else ("input", "weight", "bias")
    given = [arguments[name] for name in names if arguments[name] is not None]
    made = [value for value in node.outputs if value is not None]
    values = [value for value in (*made, *given) if isinstance(value, Value) and value.is_tensor]
    if not made or len(values) < len(made) + len(given) or not all(is_in_order(value.tensor) for value in values):
        return None
    x, weight = (given[names.index(name)] for name in ("input", "weight"))
    assert isinstance(x, Value) and isinstance(weight, Value), "they are tensors"
    images, *sizes = known_sizes(x.tensor)
    geometry = _geometry(tuple(sizes), known_sizes(weight.tensor), arguments)
    if geometry is None:
        return None
    of_result = given[0] if is_backward else made[0]
    assert isinstance(of_result, Value), "it is a tensor"
    if known_sizes(of_result.tensor) != (images, geometry.outputs, *geometry.made[-(len(sizes) - 1) :]):
        return None
    question = PlaneQuestion(node.target, geometry, images, not is_backward and arguments["bias"] is not None)
    claim = PlaneClaim(node, question, tuple(given), made[0], tuple(node.outputs))
    return claim if _pays(claim) else None


def _geometry(image: tuple[int, ...], weight: tuple[int, ...], arguments: Mapping[str, Operand]) -> Geometry | None:
    """The sizes of a convolution; None for one of another kind."""
    if arguments["transposed"] is not False or arguments["groups"] != 1:
        return None
    if len(weight) == _LINE and len(image) == _LINE - 1:  # a line is an image of one row
        image, weight = (image[0], 1, image[1]), (*weight[:2], 1, weight[2])
    if len(weight) != _IMAGE or len(image) != _IMAGE - 1 or weight[1] != image[0]:
        return None
    stride, padding, dilation = (
        _pair(arguments[name], rest) for name, rest in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    if stride is None or padding is None or dilation is None or min(padding) < 0:
        return None
    found = Geometry(image[0], (image[1], image[2]), weight[0], (weight[2], weight[3]), stride, padding, dilation)
    return found if min(found.made) > 0 else None


def _pair(numbers: Operand, before: int) -> Pair | None:
    """Two known numbers, of which there may be one alone. before: the first one then."""
    found = [each for each in numbers if isinstance(each, int)] if isinstance(numbers, list | tuple) else []
    if isinstance(numbers, list | tuple) and len(found) == len(numbers) and len(found) in (1, 2):
        return (before, found[0]) if len(found) == 1 else (found[0], found[1])
    return None


def _pays(claim: PlaneClaim) -> bool:
    """Whether rows take less time than torch's kernels do. Measured with one thread on a Xeon with AVX-512."""
    of = claim.question.geometry
    taps = of.channels * prod(of.kernel)
    if len(of.phases) > _MOST_PHASES or of.outputs * taps > _MOST_WEIGHTS:
        return False
    if max(_room_of(part, claim.question) for part in _parts(claim)) > _MOST_ROOM:
        return False
    if claim.question.images * of.products <= _FEW:
        return True
    return of.channels <= _FEW_CHANNELS if claim.node.target is _BACKWARD else taps <= _FEW_TAPS


# --- rows -------------------------------------------------------------------------------------------------------------


def _shape() -> Shape:
    """The tiles for this processor."""
    return WIDE if has_vectors(WIDE.lanes) else NARROW


def _parts(claim: PlaneClaim) -> tuple[str, ...]:
    """The kinds of rows of a claim."""
    if claim.node.target is _CONVOLUTION:
        return ("forward" if claim.question.is_biased else "unbiased",)
    images, *others = claim.results
    return (*(["images"] if images is not None else []), *(["weight"] if any(x is not None for x in others) else []))


def _rooms(part: str, question: PlaneQuestion) -> int:
    """How many threads work at once."""
    jobs = jobs_of(part, question.geometry, _shape(), question.images)
    return max(1, min(MOST_ROOMS, torch.get_num_threads(), jobs, _items(question) // THREADED))


def _items(question: PlaneQuestion) -> int:
    return question.images * question.geometry.products // WORK + 1


def _room_of(part: str, question: PlaneQuestion) -> int:
    """Elements that a row takes for itself: rooms, and results that nobody asks for."""
    of = question.geometry
    more = of.outputs * (of.channels * prod(of.kernel) + 1) if part == "weight" else 0
    return _rooms(part, question) * room_elements(part, of, _shape()) + more


@cache
def _function(part: str, geometry: Geometry) -> int:
    """The address of the function of a kind of row."""
    name = f"planes_{part}"
    found = function_of(plane_text(part, geometry, _shape()).replace("NAME", name), name, ())
    assert found is not None, "it calls nothing"
    return found


def _row(part: str, question: PlaneQuestion, pointers: Sequence[Address]) -> ReadyRow:
    """A row. pointers: the last one is to its rooms."""
    function, more = _function(part, question.geometry), _more(part, question)
    return ReadyRow(function, _items(question), tuple(pointers), more=more, marks=LOOSE)


def _more(part: str, question: PlaneQuestion) -> bytes:
    """The slots behind the pointers. No room is taken."""
    return struct.pack("3q", question.images, _rooms(part, question), 0)


def plane_row(claims: Sequence[PlaneClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim, with those around it."""
    (claim,) = claims
    question, parts = claim.question, _parts(claim)
    room, take, let_go = around(f"{claim.result.name}_rooms", claim.bytes_in_row(0))

    def of(value: object, behind: int = 0) -> Address:
        if isinstance(value, Value):
            return addresses.get(value, Address(value))
        return Address(room, behind * _ITEMSIZE)

    rows = []
    for part in parts:
        if part == "weight":
            gradient, x, _weight = claim.operands
            own = _rooms(part, question) * room_elements(part, question.geometry, _shape())
            _x, of_weight, bias = claim.results
            unread = own + question.geometry.outputs
            pointers = [of(of_weight, unread), of(bias, own), of(gradient), of(x)]
        elif part == "images":
            gradient, _x, weight = claim.operands  # type: ignore[assignment]
            pointers = [of(claim.results[0]), of(gradient), of(weight)]
        else:
            pointers = [of(claim.result), *map(of, claim.operands)]
        rows.append(_row(part, question, [*pointers, Address(room)]))
    *before, last = rows
    return replace(last, before=(take, *before), after=(let_go,))


# --- trials -----------------------------------------------------------------------------------------------------------


def _tried(question: PlaneQuestion) -> bool:
    """Whether rows give what torch gives, nearly."""
    of, generator = question.geometry, torch.Generator().manual_seed(0)
    question = replace(question, images=min(question.images, of.chunk(_shape().step) + 1))

    def drawn(*sizes: int) -> torch.Tensor:
        return scratch(sizes, torch.float32).normal_(generator=generator)

    x, weight = drawn(question.images, of.channels, *of.size), drawn(of.outputs, of.channels, *of.kernel)
    bias = drawn(of.outputs) if question.is_biased else None
    options = (list(of.stride), list(of.padding), list(of.dilation), False, [0, 0], 1)
    gradient = drawn(question.images, of.outputs, *of.made)
    if question.target is _CONVOLUTION:
        part = "unbiased" if bias is None else "forward"
        given = [x, weight, *([] if bias is None else [bias])]
        made = [scratch(gradient.shape, torch.float32)]
        return _are_near(part, question, made, given, [_CONVOLUTION(x, weight, bias, *options)])
    expected = list(_BACKWARD(gradient, x, weight, [of.outputs], *options, [True] * 3))
    made = [scratch(each.shape, torch.float32) for each in expected]
    return _are_near("images", question, made[:1], [gradient, weight], expected[:1]) and _are_near(
        "weight", question, made[1:], [gradient, x], expected[1:]
    )


def _are_near(
    part: str,
    question: PlaneQuestion,
    made: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> bool:
    room = scratch((_room_of(part, question),), torch.float32).fill_(torch.nan)
    pointers = [each.data_ptr() for each in (*made, *given, room)]
    table = table_row(_function(part, question.geometry), _items(question), pointers, (), _more(part, question))
    if driver()(table, 1, torch.get_num_threads(), 0):
        raise Refused
    return all(
        bool(((a - b).abs() <= _TOLERANCE * max(1.0, float(b.abs().max()))).all())
        for a, b in zip(made, expected, strict=True)
    )
