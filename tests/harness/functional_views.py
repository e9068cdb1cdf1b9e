"""Views in random functional programs, copies of them, and tensors of which the part that a view shows is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.harness.functional_scene import FunctionalScene


@dataclass(frozen=True, slots=True)
class RandomView:
    """`operator(x, arguments)`, or the item `index` of the `count` it gives. scatter: what replaces that part."""

    operator: str
    arguments: str
    scatter: str
    index: int | None = None
    count: int = 1

    def call(self, name: str) -> str:
        """The call on a tensor of that name."""
        return f"{self.operator}({name}{self.arguments and ', '}{self.arguments})"

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view of a tensor, or an empty tensor where torch refuses it."""
        try:
            made = eval(self.call("x"), {"aten": torch.ops.aten, "torch": torch, "x": tensor})
        except Exception:
            return torch.empty(0)
        found = made if self.index is None else (*made, None)[self.index]
        return found if isinstance(found, torch.Tensor) else torch.empty(0)


def has_dims(tensor: torch.Tensor) -> bool:
    """Whether there is a dimension to slice."""
    return tensor.dim() > 0


def _own(operator: str, arguments: str, index: int | None = None, count: int = 1) -> RandomView:
    """A view without a scatter operator of its own."""
    return RandomView(f"aten.{operator}", arguments, f"prims.view_scatter(aten.{operator}, {index})", index, count)


def random_view(scene: FunctionalScene, tensor: torch.Tensor) -> RandomView:
    """A view of a tensor that has dimensions."""
    choose = scene.choose
    kind = choose.choices(
        ("slice", "select", "reorder", "shape", "diagonal", "as_strided", "items", "dtype"),
        weights=(36, 14, 16, 14, 6, 8, 10, 2),
    )[0]
    dim = choose.randrange(tensor.dim())
    size = tensor.shape[dim]
    if kind == "slice":
        return _slice(scene, dim, size)
    if kind == "select":
        place = choose.randrange(max(1, size)) - choose.choice((0, 0, size))
        return RandomView("aten.select.int", f"{dim}, {place}", "aten.select_scatter.default")
    if kind == "diagonal" and tensor.dim() > 1:
        return RandomView("aten.diagonal.default", str(choose.choice((0, 0, 1, -1))), "aten.diagonal_scatter.default")
    if kind == "as_strided":
        return _as_strided(scene, tensor)
    if kind == "items" and size > 0:
        if choose.random() < 0.5:
            return _own("unbind.int", str(dim), choose.randrange(max(1, size)), size)
        length = choose.randint(1, max(1, size))
        count = -(-size // length)
        return _own("split.Tensor", f"{length}, {dim}", choose.randrange(max(1, count)), count)
    if kind == "dtype" and tensor.dtype is not torch.bool:  # of which a byte is 0 or 1
        narrow = {torch.float32: "torch.int32", torch.int32: "torch.int16", torch.int64: "torch.float32"}
        return _own("view.dtype", narrow.get(tensor.dtype, str(tensor.dtype)))
    return _reordered(scene, tensor, dim) if kind == "reorder" else _shaped(scene, tensor, dim)


def _slice(scene: FunctionalScene, dim: int, size: int) -> RandomView:
    choose = scene.choose
    start = choose.randrange(max(1, size))
    stop = choose.choice((size, choose.randint(min(start + 1, size), size)))
    step = choose.choice((1, 1, 1, 2, 3))
    return RandomView("aten.slice.Tensor", f"{dim}, {start}, {stop}, {step}", "aten.slice_scatter.default")


def _as_strided(scene: FunctionalScene, tensor: torch.Tensor) -> RandomView:
    """No two elements in one place."""
    choose = scene.choose
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    room = int(tensor.storage_offset()) + reach + 1 if tensor.numel() else 0
    rows, columns, gap = choose.randint(1, 3), choose.randint(1, 3), choose.randint(0, 1)
    shape, strides = [rows, columns], [columns + gap, 1]
    if choose.random() < 0.3:
        strides = [1, rows + gap]
    if choose.random() < 0.3:
        shape, strides = [rows], [1 + gap]
    last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    offset = choose.randint(0, int(max(0, room - last - 1)))
    where = choose.choice((f", {offset}", f", {offset}", ""))
    return RandomView("aten.as_strided.default", f"{shape}, {strides}{where}", "aten.as_strided_scatter.default")


def _reordered(scene: FunctionalScene, tensor: torch.Tensor, dim: int) -> RandomView:
    order = list(range(tensor.dim()))
    scene.choose.shuffle(order)
    if scene.choose.random() < 0.5:
        return _own("transpose.int", f"{dim}, {order[0]}")
    if tensor.dim() == 2 and scene.choose.random() < 0.4:
        return _own("t.default", "")
    return _own("permute.default", str(order))


def _shaped(scene: FunctionalScene, tensor: torch.Tensor, dim: int) -> RandomView:
    kind = scene.choose.random()
    if kind < 0.3:
        return _own("unsqueeze.default", str(dim))
    if kind < 0.4:
        return _own("squeeze.dims", f"[{dim}]")
    if kind < 0.55:
        return _own("expand.default", str([scene.choose.choice((1, 2, 3)), *tensor.shape]))
    if kind < 0.62 and tensor.dtype is torch.complex64:
        return _own("view_as_real.default", "")
    whole = tensor.numel()
    if kind < 0.8 or dim == 0:
        return _own("view.default", str([whole]))
    first = tensor.shape[0]
    return _own("view.default", str([first, whole // max(1, first)]))


# --- lines ------------------------------------------------------------------------------------------------------------


def view(scene: FunctionalScene) -> Sequence[str]:
    """`v = transpose(x, 0, 1)`, `v, w = split(x, 2)`."""
    x = scene.pick(has_dims)
    if x is None:
        return ()
    found = random_view(scene, scene.tensor(x))
    if found.index is None:
        return (f"{scene.fresh()} = {found.call(x)}",)
    names = [scene.fresh() for _ in range(found.count)]
    return (f"{', '.join(names)}, = {found.call(x)}",)


_COPIED_VIEWS = (
    "slice.Tensor",
    "select.int",
    "permute.default",
    "transpose.int",
    "view.default",
    "expand.default",
    "t.default",
    "unsqueeze.default",
    "diagonal.default",
    "as_strided.default",
)


def view_copy(scene: FunctionalScene) -> Sequence[str]:
    """`v = permute_copy(x, [1, 0])`."""
    x = scene.pick(has_dims)
    if x is None:
        return ()
    found = random_view(scene, scene.tensor(x))
    name = found.operator.removeprefix("aten.")
    if name not in _COPIED_VIEWS:
        return ()
    base, _, overload = name.partition(".")
    return (f"{scene.fresh()} = aten.{base}_copy.{overload}({x}, {found.arguments})".replace(", )", ")"),)


_IN_BETWEEN = (
    "aten.add.Tensor({t}, 1)",
    "aten.mul.Tensor({t}, 2)",
    "aten.relu.default({t})",
    "aten.add.Tensor({t}, {y})",
    "aten.sub.Tensor({y}, {t})",
    "aten.neg.default({t})",
    "aten.clone.default({t})",
    "aten.cumsum.default({t}, 0)",
    "aten.flip.default({t}, [0])",
)


def replace_part(scene: FunctionalScene) -> Sequence[str]:
    """A part is viewed, worked on, and put into the base; or something else of its shape is."""
    x = scene.pick_target(has_dims)
    if x is None:
        return ()
    base = scene.tensor(x)
    lines: list[str] = []
    if scene.choose.random() < 0.4:
        new = scene.fresh()
        lines.append(f"{new} = {scene.one_of('aten.clone.default({x})', 'aten.add.Tensor({x}, 1)').format(x=x)}")
        x = new
        base = torch.empty_like(base)
    for _ in range(scene.choose.choice((1, 1, 1, 2, 3))):
        found = random_view(scene, base)
        if "expand" in found.operator:
            return ()
        part = found.apply(base)
        others = scene.tensors(lambda t, shape=part.shape, dtype=part.dtype: t.shape == shape and t.dtype == dtype)  # type: ignore[misc]
        source = scene.choose.choice(others) if others and scene.choose.random() < 0.35 else ""
        if not source:
            names = [scene.fresh() for _ in range(found.count)]
            lines.append(f"{', '.join(names)}{',' * (found.index is not None)} = {found.call(x)}")
            source = names[found.index or 0]
        for _ in range(scene.choose.choice((0, 1, 1, 2))):
            new = scene.fresh()
            y = scene.choose.choice(others) if others else source
            lines.append(f"{new} = {scene.choose.choice(_IN_BETWEEN).format(t=source, y=y)}")
            source = new
        new = scene.fresh()
        lines.append(f"{new} = {found.scatter}({x}, {source}{found.arguments and ', '}{found.arguments})")
        x = new
    return lines
