"""Where the arguments of a program lie: three patterns, in which the same tensors share bytes differently.

From pattern to pattern an argument keeps its dtype, shape, strides, `requires_grad` and `is_leaf`. What moves is the
memory behind it: a place of its own, a place that overlaps others, the place of another argument (as a tensor of its
own, or as the very same object), the other half of interleaved columns, a part of an argument that is a whole memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

KINDS = ("apart", "side by side", "overlapping", "duplicate", "interleaved", "base", "moved")
GRADIENTS = ("none", "views", "leaves")

_WIDTHS = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "int16": 2, "bfloat16": 2, "uint8": 1}
_ALIKE = {
    "float32": ("float32", "int32", "int32"),
    "int32": ("int32", "float32", "float32"),
    "bfloat16": ("bfloat16", "int16", "int16"),
    "int16": ("int16", "bfloat16", "bfloat16"),
}
# The number of the memory that is an argument itself.
_WHOLE = 9
_MIXED = ("float32", "float32", "int32", "int32", "uint8", "uint8", "bfloat16", "bfloat16", "int16")


@dataclass(frozen=True, slots=True)
class Spec:
    """What an argument is in every pattern. is_tracked: it requires a gradient. of_leaf: it is a view of a leaf."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_tracked: bool = False
    of_leaf: bool = False

    @property
    def extent(self) -> int:
        """Elements from the first to the last, those between that it skips included."""
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return _WIDTHS[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        """Whether the strides are those of a new tensor."""
        return self.stride == _contiguous(self.shape)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to make the arguments. lines: Python over a generator `g`. leaves: names of what gets gradients."""

    kind: str
    lines: tuple[str, ...]
    leaves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _In:
    """A place in a memory. offset: in elements. through: how the memory is taken. whole: it is the memory itself."""

    memory: int
    offset: int
    through: str = ""
    sliced: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Same:
    """The place of another argument. how: what is done to that argument."""

    other: int
    how: str


_Place: TypeAlias = _In | _Same


@dataclass(slots=True)
class _Planner:
    """Makes the patterns of one program. memories: the dtype in which all memory is made."""

    choose: random.Random
    specs: Sequence[Spec]
    gradient: str
    memories: str
    plans: list[list[_Place]] = field(default_factory=list)

    def pattern(self) -> Pattern:
        """A pattern of a kind that these arguments can have."""
        weights = {"apart": 12, "side by side": 8, "overlapping": 30, "moved": 12 if self.plans else 0}
        weights |= {"duplicate": 25 if self._pairs() else 0, "interleaved": 15 if self._with_gaps() else 0}
        weights |= {"base": 12 if self._whole() else 0}
        kind = self.choose.choices(list(weights), weights=list(weights.values()))[0]
        plan = self._plan(kind)
        self.plans.append(plan)
        return self._written(kind, plan)

    def _plan(self, kind: str) -> list[_Place]:
        places: list[_Place]
        if kind == "moved":
            by = self.choose.choice((0, 2, 4))
            return [_moved(place, by) for place in self.choose.choice(self.plans)]
        if kind == "apart":
            return [self._in(i, i, self.choose.choice((0, 0, 1, 2))) for i in range(len(self.specs))]
        if kind == "side by side":
            return self._side_by_side()
        places = [self._somewhere(i) for i in range(len(self.specs))]
        if kind == "duplicate":
            for _ in range(self.choose.choice((1, 1, 2))):
                first, second = self.choose.choice(self._pairs())
                places[second] = _Same(first, self._copying(first, second))
        elif kind == "interleaved":
            first, second = self.choose.choice(self._with_gaps())
            start = self.choose.choice((0, 1, 2))
            places[first], places[second] = self._in(first, 0, start), self._in(second, 0, start + 1)
        elif kind == "base":
            index = self.choose.choice(self._whole())
            places[index] = _In(_WHOLE, 0, whole=True)
            for other, spec in enumerate(self.specs):
                room = self.specs[index].extent * self.specs[index].width - spec.extent * spec.width
                if other != index and room >= 0 and self.choose.random() < 0.8:
                    places[other] = self._in(other, _WHOLE, self.choose.randint(0, room // spec.width))
        return places

    def _side_by_side(self) -> list[_Place]:
        order = list(range(len(self.specs)))
        self.choose.shuffle(order)
        starts: dict[int, int] = {}
        end = 0
        for i in order:
            starts[i] = -(-end // self.specs[i].width)
            end = (starts[i] + self.specs[i].extent) * self.specs[i].width
        return [self._in(i, 0, starts[i]) for i in range(len(self.specs))]

    def _somewhere(self, index: int) -> _In:
        """Mostly in the first memory, near its start."""
        spec = self.specs[index]
        reach = max(other.extent * other.width for other in self.specs)
        offset = self.choose.randint(0, max(0, reach * 2 // 3 // spec.width))
        return self._in(index, 0 if self.choose.random() < 0.85 else 1 + index, offset)

    def _in(self, index: int, memory: int, offset: int) -> _In:
        spec = self.specs[index]
        through = self.choose.choice(("", "", ".data", ".detach()"))
        if self.gradient == "views":
            through = "" if spec.is_tracked else self.choose.choice((".data", ".detach()"))
        return _In(memory, offset, through, self.choose.random() < 0.6)

    def _copying(self, first: int, second: int) -> str:
        source, result = self.specs[first], self.specs[second]
        if source.dtype != result.dtype:
            return f"{self.choose.choice(('', '.data', '.detach()'))}.view(torch.{result.dtype})"
        if not source.is_tracked and not result.is_tracked:
            return self.choose.choice(("", "", ".view_as({x})", ".detach()", ".data", ".view({x}.shape)"))
        if source.is_tracked and not result.is_tracked:
            return self.choose.choice((".detach()", ".data"))
        if self.gradient == "views":
            return self.choose.choice(("", ".view_as({x})", ".view({x}.shape)"))
        if result.of_leaf:
            return self.choose.choice((".view_as({x})", "[...]", *([""] if source.of_leaf else [])))
        return self.choose.choice(
            (".detach().requires_grad_()", ".data.requires_grad_()", *([""] * (not source.of_leaf)))
        )

    def _pairs(self) -> list[tuple[int, int]]:
        """Pairs of which the second argument can lie where the first lies."""
        specs = self.specs
        return [
            (i, j)
            for j in range(len(specs))
            for i in range(j)
            if (specs[i].shape, specs[i].stride, specs[i].width) == (specs[j].shape, specs[j].stride, specs[j].width)
            and (specs[i].is_tracked or not specs[j].is_tracked)
        ]

    def _with_gaps(self) -> list[tuple[int, int]]:
        """Pairs that fit into each other's gaps."""
        return [
            (i, j)
            for j in range(len(self.specs))
            for i in range(j)
            if self.specs[i].shape == self.specs[j].shape
            and self.specs[i].stride == self.specs[j].stride
            and self.specs[i].width == self.specs[j].width
            and all(step > 1 for step, size in zip(self.specs[i].stride, self.specs[i].shape, strict=True) if size > 1)
        ]

    def _whole(self) -> list[int]:
        """Arguments that can be a whole memory."""
        return [
            i
            for i, spec in enumerate(self.specs)
            if spec.dtype == self.memories
            and len(spec.shape) == 1
            and spec.is_contiguous
            and self.gradient != "leaves"
            and spec.is_tracked == (self.gradient == "views")
        ]

    def _written(self, kind: str, plan: list[_Place]) -> Pattern:
        sizes: dict[int, int] = {}
        for place, spec in zip(plan, self.specs, strict=True):
            if isinstance(place, _In):
                end = (place.offset + spec.extent) * spec.width
                sizes[place.memory] = max(sizes.get(place.memory, 0), end)
        width, lines, leaves = _WIDTHS[self.memories], [], []
        for memory, size in sorted(sizes.items()):
            values = f"torch.randint(-32, 33, ({-(-size // width)},), generator=g)"
            made = {"int64": values, "float32": f"({values} / 8)", "float64": f"({values}.double() / 8)"}
            if self.gradient == "views":
                lines += [
                    f"leaf{memory} = {made[self.memories]}.requires_grad_()",
                    f"m{memory} = leaf{memory} * 1",
                ]
                leaves.append(f"leaf{memory}")
            else:
                lines.append(f"m{memory} = {made[self.memories]}")
        for index, (place, spec) in enumerate(zip(plan, self.specs, strict=True)):
            is_leaf = self.gradient == "leaves" and spec.is_tracked and not spec.of_leaf
            if isinstance(place, _Same):
                text = f"x{place.other}{place.how.format(x=f'x{place.other}')}"
            elif spec.of_leaf:
                lines.append(f"leaf{index} = {self._taken(place, spec)}")
                leaves.append(f"leaf{index}")
                text = f"leaf{index}[...]"
            else:
                text = self._taken(place, spec)
            lines.append(f"x{index} = {text}")
            leaves += [f"x{index}"] if is_leaf else []
        return Pattern(kind, tuple(lines), tuple(leaves))

    def _taken(self, place: _In, spec: Spec) -> str:
        if place.whole:
            return f"m{place.memory}"
        cast = "" if spec.dtype == self.memories else f".view(torch.{spec.dtype})"
        start = f"m{place.memory}{place.through}{cast}"
        turned = len(spec.shape) == 2 and spec.stride == (1, spec.shape[0])
        if place.sliced and spec.shape and (spec.is_contiguous or turned):
            text = f"{start}[{place.offset} : {place.offset + spec.extent}]"
            if len(spec.shape) > 1:
                shape = spec.shape if spec.is_contiguous else tuple(reversed(spec.shape))
                text += f".view{shape}{'' if spec.is_contiguous else '.t()'}"
        else:
            text = f"{start}.as_strided({spec.shape}, {spec.stride}, {place.offset})"
        return f"{text}.detach().requires_grad_()" if self.gradient == "leaves" and spec.is_tracked else text


def random_patterns(choose: random.Random) -> tuple[int, tuple[Pattern, ...]]:
    """The number of arguments (`x0`, `x1`, ...), and three ways to make them."""
    gradient = choose.choices(GRADIENTS, weights=(50, 28, 22))[0]
    memories = "float32"
    mixed = gradient == "none" and choose.random() < 0.5
    if not mixed:
        memories = choose.choices(("float32", "float64", "int64"), weights=(80, 8, 12 if gradient == "none" else 0))[0]
    specs = _random_specs(choose, memories, mixed, gradient)
    planner = _Planner(choose, specs, gradient, memories)
    while True:
        planner.plans.clear()
        patterns = tuple(planner.pattern() for _ in range(3))
        if len({pattern.kind for pattern in patterns} - {"moved"}) > 1:
            return len(specs), patterns


def _random_specs(choose: random.Random, memories: str, mixed: bool, gradient: str) -> list[Spec]:
    rows, columns = choose.choice((2, 3)), choose.choice((2, 3, 4))
    specs: list[Spec] = []
    for index in range(choose.choices((2, 3, 4), weights=(45, 40, 15))[0]):
        is_tracked = gradient != "none" and (index == 0 or choose.random() < 0.6)
        of_leaf = is_tracked and gradient == "leaves" and choose.random() < 0.3
        if specs and choose.random() < 0.5:
            spec = replace(choose.choice(specs), is_tracked=is_tracked, of_leaf=of_leaf)
            specs.append(replace(spec, dtype=choose.choice(_ALIKE.get(spec.dtype, (spec.dtype,)))) if mixed else spec)
            continue
        shapes = ((rows * columns,), (rows, columns), (rows, columns), (columns,), (rows,), (1, columns), ())
        shape = choose.choices(shapes, weights=(25, 25, 25, 12, 6, 4, 3))[0]
        dtype = choose.choice(_MIXED) if mixed else memories
        if mixed and shape and choose.random() < 0.5:
            shape = (*shape[:-1], shape[-1] * (4 // _WIDTHS[dtype]))
        specs.append(Spec(dtype, shape, _random_stride(choose, shape, is_tracked), is_tracked, of_leaf))
    return specs


def _random_stride(choose: random.Random, shape: tuple[int, ...], is_tracked: bool) -> tuple[int, ...]:
    kinds = ("contiguous", "transposed", "columns", "rows apart", "expanded")
    kind = choose.choices(kinds, weights=(50, 12, 25, 9, 0 if is_tracked else 4))[0]
    stride = _contiguous(shape)
    if kind == "columns" and shape:
        return tuple(2 * step for step in stride)
    if len(shape) != 2:
        return stride
    return {"transposed": (1, shape[0]), "rows apart": (shape[1] + 2, 1), "expanded": (0, 1)}.get(kind, stride)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def _moved(place: _Place, by: int) -> _Place:
    """The place `by` elements further on; what lies in a memory that is an argument stays."""
    return replace(place, offset=place.offset + by) if isinstance(place, _In) and place.memory != _WHOLE else place
