"""Lines of random functional programs: each template writes a few calls that belong together, over what exists.

A template looks at the live tensors, so most of what it writes is valid; the generator runs each line at once, and
drops those that torch refuses. `TEMPLATES` says how often each is picked. Views and parts: `functional_views`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from tests.harness.functional_scene import FunctionalScene, fits
from tests.harness.functional_views import has_dims, replace_part, view, view_copy
from tests.harness.scene import is_real_float

SIZE_LIMIT = 256
Lines: TypeAlias = Sequence[str]
Template: TypeAlias = Callable[[FunctionalScene], Lines]


def _is_real(tensor: torch.Tensor) -> bool:
    return not tensor.dtype.is_complex and tensor.dtype is not torch.bool


# --- arithmetic -------------------------------------------------------------------------------------------------------

_OF_ONE = ("neg", "relu", "abs", "sign", "square", "floor", "sin", "exp", "sigmoid", "hardtanh", "zeros_like", "alias")
_WITH_NUMBER = (
    "aten.add.Tensor({x}, 1)",
    "aten.sub.Tensor({x}, 2)",
    "aten.mul.Tensor({x}, 2)",
    "aten.mul.Scalar({x}, 3)",
    "aten.div.Tensor({x}, 2)",
    "aten.rsub.Scalar({x}, 1)",
    "aten.clamp.default({x}, -3, 3)",
    "aten.pow.Tensor_Scalar({x}, 2)",
    "aten.add.Scalar({x}, 2)",
    "aten.fmod.Scalar({x}, 3)",
    "aten.leaky_relu.default({x}, 0.5)",
)
_OF_TWO = (
    "aten.add.Tensor({x}, {y})",
    "aten.add.Tensor({y}, {x})",
    "aten.sub.Tensor({x}, {y})",
    "aten.mul.Tensor({y}, {x})",
    "aten.add.Tensor({y}, {x}, alpha=2)",
    "aten.maximum.default({x}, {y})",
    "aten.minimum.default({y}, {x})",
    "aten.addcmul.default({x}, {x}, {y}, value=2)",
    "aten.addcmul.default({y}, {x}, {x})",
    "aten.lerp.Scalar({x}, {y}, 0.5)",
    "aten.fmin.default({x}, {y})",
    "aten.threshold_backward.default({x}, {y}, 0)",
)
_COMPARED = (
    "aten.gt.Tensor({x}, {y})",
    "aten.le.Tensor({y}, {x})",
    "aten.ge.Scalar({x}, 0)",
    "aten.eq.Tensor({x}, {y})",
    "aten.ne.Scalar({x}, 1)",
    "aten.logical_and.default({x}, {y})",
)


def of_one(scene: FunctionalScene) -> Lines:
    """`v = relu(x)`."""
    x = scene.pick()
    return (f"{scene.fresh()} = aten.{scene.choose.choice(_OF_ONE)}.default({x})",) if x else ()


def with_number(scene: FunctionalScene) -> Lines:
    """`v = add(x, 1)`."""
    x = scene.pick(_is_real)
    return (f"{scene.fresh()} = {scene.choose.choice(_WITH_NUMBER).format(x=x)}",) if x else ()


def of_two(scene: FunctionalScene) -> Lines:
    """`v = add(x, y)`, in either order, also where one is broadcast or converted."""
    x = scene.pick(lambda t: t.dtype is not torch.bool)
    if x is None:
        return ()
    y = scene.fitting(x)
    if scene.choose.random() < 0.12:
        y = scene.pick(lambda t: fits(t.shape, scene.tensor(x).shape)) or y
    return (f"{scene.fresh()} = {scene.choose.choice(_OF_TWO).format(x=x, y=y)}",)


def comparison(scene: FunctionalScene) -> Lines:
    """`m = gt(x, y)`, often converted back at once."""
    x = scene.pick(_is_real)
    if x is None:
        return ()
    m = scene.fresh()
    lines = [f"{m} = {scene.choose.choice(_COMPARED).format(x=x, y=scene.fitting(x))}"]
    if scene.choose.random() < 0.6:
        lines.append(f"{scene.fresh()} = aten._to_copy.default({m}, dtype={scene.tensor(x).dtype})")
    return lines


def chain(scene: FunctionalScene) -> Lines:
    """Several pointwise calls, each on the result of the last."""
    x = scene.pick(is_real_float)
    if x is None:
        return ()
    lines = []
    y = scene.fitting(x)
    for _ in range(scene.choose.randint(2, 4)):
        new = scene.fresh()
        lines.append(f"{new} = {scene.choose.choice((*_WITH_NUMBER, *_OF_TWO)).format(x=x, y=y)}")
        x = new
    return lines


def lists(scene: FunctionalScene) -> Lines:
    """`a, b = _foreach_add([x, y], [y, z])`."""
    x = scene.pick(is_real_float)
    if x is None:
        return ()
    y, z = (scene.pick(is_real_float) if scene.choose.random() < 0.5 else scene.like(x) for _ in range(2))
    call = scene.one_of(
        "add.Scalar([{x}, {y}], 1)",
        "neg.default([{x}, {y}])",
        "mul.List([{x}, {y}], [{x}, {y}])",
        "add.List([{x}, {x}], [{z}, {x}], alpha=2)",
        "sub.List([{x}, {z}], [{z}, {x}])",
        "addcmul.Scalar([{x}, {z}], [{z}, {x}], [{x}, {z}], 2)",
        "mul.Scalar([{x}, {y}], 2)",
        "maximum.List([{x}, {z}], [{z}, {z}])",
    )
    return (f"{scene.fresh()}, {scene.fresh()} = aten._foreach_{call.format(x=x, y=y, z=z)}",)


# --- what reads -------------------------------------------------------------------------------------------------------


def reading(scene: FunctionalScene) -> Lines:
    """Reductions, products and gathers."""
    x = scene.pick(lambda t: is_real_float(t) and t.dim() > 0 and t.numel() > 0)
    if x is None:
        return ()
    dim = scene.dim_of(scene.tensor(x))
    call = scene.one_of(
        "sum.dim_IntList({x}, [{d}])",
        "sum.dim_IntList({x}, [{d}], True)",
        "sum.default({x})",
        "amax.default({x}, [{d}], True)",
        "cumsum.default({x}, {d})",
        "mean.dim({x}, [{d}])",
        "flip.default({x}, [{d}])",
        "roll.default({x}, [1], [{d}])",
        "cat.default([{x}, {y}], {d})",
        "stack.default([{x}, {y}], {d})",
        "tril.default({x})",
        "argmax.default({x}, {d})",
        "_softmax.default({x}, {d}, False)",
    )
    return (f"{scene.fresh()} = aten.{call.format(x=x, y=scene.like(x), d=dim)}",)


def several_results(scene: FunctionalScene) -> Lines:
    """`v, i = sort(x)`."""
    x = scene.pick(lambda t: is_real_float(t) and t.dim() > 0)
    if x is None:
        return ()
    call = scene.one_of("sort.default({x}, {d})", "max.dim({x}, {d})", "topk.default({x}, 1, {d})")
    return (f"{scene.fresh()}, {scene.fresh()} = aten.{call.format(x=x, d=scene.dim_of(scene.tensor(x)))}",)


def product(scene: FunctionalScene) -> Lines:
    """`v = mm(x, y)`."""
    x = scene.pick(lambda t: is_real_float(t) and t.dim() in (2, 3))
    if x is None:
        return ()
    mine = scene.tensor(x)
    y = scene.pick(lambda t: t.dtype == mine.dtype and t.dim() == mine.dim() and t.shape[-2] == mine.shape[-1])
    if y is None:
        return ()
    if mine.dim() == 3:
        return (f"{scene.fresh()} = aten.bmm.default({x}, {y})",)
    shape = (mine.shape[0], scene.tensor(y).shape[1])
    z = scene.pick(lambda t: t.dtype == mine.dtype and fits(t.shape, shape))
    if z is not None and scene.choose.random() < 0.4:
        return (f"{scene.fresh()} = aten.addmm.default({z}, {x}, {y}, beta=2)",)
    return (f"{scene.fresh()} = aten.mm.default({x}, {y})",)


def normalization(scene: FunctionalScene) -> Lines:
    """Batch normalization that gives new running statistics, which are often copied back later."""
    x = scene.pick(lambda t: t.dtype is torch.float32 and t.dim() >= 2 and t.shape[0] > 1)
    if x is None:
        return ()
    channels = scene.tensor(x).shape[1:2]
    mean, var = (scene.pick(lambda t: t.dtype is torch.float32 and t.shape == channels) for _ in range(2))
    names = ", ".join(scene.fresh() for _ in range(5))
    call = f"aten._native_batch_norm_legit_functional.default({x}, None, None, {mean}, {var}, True, 0.1, 1e-05)"
    return (f"{names} = {call}",) if mean and var else ()


# --- parts that an index or a mask selects ----------------------------------------------------------------------------


def indexed(scene: FunctionalScene) -> Lines:
    """The base with elements replaced that an index selects."""
    x = scene.pick_target(has_dims)
    if x is None:
        return ()
    base = scene.tensor(x)
    dim = scene.dim_of(base)
    size = base.shape[dim]
    i, s = scene.fresh(), scene.fresh()
    start, step = scene.choose.randrange(max(1, size)), scene.choose.choice((1, 1, 2))
    count = len(range(start, size, step))
    part = [*base.shape[:dim], count, *base.shape[dim + 1 :]]
    lines = [f"{i} = aten.arange.start_step({start}, {size}, {step}, dtype=torch.int64)"]
    source = scene.pick(lambda t: t.dtype == base.dtype and list(t.shape) == part)
    if source is None or scene.choose.random() < 0.4:
        lines.append(f"{s} = aten.index_select.default({x}, {dim}, {i})")
        source = s
    spread = f"{scene.fresh()}"
    call = scene.one_of(
        f"index_put.default({x}, [{'None, ' * dim}{i}], {source}{scene.one_of('', ', True')})",
        f"index_copy.default({x}, {dim}, {i}, {source})",
        f"index_add.default({x}, {dim}, {i}, {source}, alpha=2)",
        f"index_fill.int_Scalar({x}, {dim}, {i}, 7)",
        f"scatter.src({x}, {dim}, {spread}, {source})",
        f"scatter.value({x}, {dim}, {spread}, 5)",
        f"scatter_add.default({x}, {dim}, {spread}, {source})",
    )
    if spread in call:
        shape = [1] * len(part)
        shape[dim] = count
        flat = scene.fresh()
        lines.append(f"{flat} = aten.view.default({i}, {shape})")
        lines.append(f"{spread} = aten.expand.default({flat}, {part})")
    return (*lines, f"{scene.fresh()} = aten.{call.format(x=x)}")


def masked(scene: FunctionalScene) -> Lines:
    """The base with elements replaced that a mask selects."""
    x = scene.pick_target(_is_real)
    if x is None:
        return ()
    shape = scene.tensor(x).shape
    mask = scene.pick(lambda t: t.dtype is torch.bool and fits(t.shape, shape))
    lines = []
    if mask is None or scene.choose.random() < 0.3:
        mask = scene.fresh()
        lines.append(f"{mask} = aten.gt.Scalar({scene.like(x)}, 0)")
    y = scene.like(x)
    call = scene.one_of(
        "masked_fill.Scalar({x}, {m}, 2)",
        "where.self({m}, {x}, {y})",
        "where.self({m}, {y}, {x})",
        "masked_scatter.default({x}, {m}, {y})",
        "index_put.default({x}, [{m}], {z})",
    )
    z = scene.pick(lambda t: t.dtype == scene.tensor(x).dtype and t.dim() == 0)
    return (*lines, f"{scene.fresh()} = aten.{call.format(x=x, y=y, m=mask, z=z)}")


def overwritten(scene: FunctionalScene) -> Lines:
    """`copy(x, y)`, `fill(x, 2)`."""
    x = scene.pick_target()
    if x is None:
        return ()
    shape = scene.tensor(x).shape
    y = scene.pick(lambda t: fits(t.shape, shape) and not t.dtype.is_complex) or scene.like(x)
    call = scene.one_of("copy.default({x}, {y})", "fill.Scalar({x}, 2)", "zero.default({x})", "copy.default({x}, {y})")
    return (f"{scene.fresh()} = aten.{call.format(x=x, y=y)}",)


# --- new memory -------------------------------------------------------------------------------------------------------


def copied(scene: FunctionalScene) -> Lines:
    """Copies, converted or laid out again."""
    x = scene.pick()
    if x is None:
        return ()
    mine = scene.tensor(x)
    strides = scene.tensor(scene.like(x)).stride()
    layout = f"{list(mine.shape)}, {list(strides)}, {mine.dtype}, torch.device('cpu')"
    call = scene.one_of(
        f"aten.clone.default({x})",
        f"aten.clone.default({x})",
        f"aten.clone.default({x}, memory_format=torch.contiguous_format)",
        f"aten._to_copy.default({x}, dtype=torch.float64)",
        f"aten._to_copy.default({x}, dtype={mine.dtype})",
        f"aten.lift_fresh_copy.default({x})",
        f"prims.COPY_TO_LAYOUT({x}, {layout})",
    )
    return (f"{scene.fresh()} = {call}",)


def made(scene: FunctionalScene) -> Lines:
    """New memory, filled."""
    x = scene.pick()
    if x is None:
        return ()
    mine = scene.tensor(x)
    shape, dtype = list(mine.shape), f"dtype={mine.dtype}"
    new = scene.fresh()
    call = scene.one_of(
        f"zeros.default({shape}, {dtype})",
        f"full.default({shape}, 2, {dtype})",
        f"ones_like.default({x})",
        f"new_zeros.default({x}, {shape})",
        f"empty.memory_format({shape}, {dtype})",
    )
    if call.startswith("empty"):
        fill = scene.one_of("aten.fill.Scalar({e}, 3)", "aten.copy.default({e}, {x})", "aten.zero.default({e})")
        return f"e{new} = aten.{call}", f"{new} = {fill.format(e=f'e{new}', x=x)}"
    return (f"{new} = aten.{call}",)


def drawn(scene: FunctionalScene) -> Lines:
    """Random numbers."""
    x = scene.pick(lambda t: is_real_float(t) and t.numel() > 0)
    if x is None:
        return ()
    new = scene.fresh()
    return (
        scene.one_of(
            f"{new} = aten.bernoulli.p({x}, 0.5)",
            f"({new},) = prims.functional_form(aten.normal_.default, (0,))({x}, 0.0, 1.0)",
            f"({new},) = prims.functional_form(aten.bernoulli_.float, (0,))({x}, 0.5)",
            f"{new} = aten.rand_like.default({x})",
            f"{new}, {scene.fresh()} = aten.native_dropout.default({x}, 0.5, True)",
            f"{new} = aten.uniform.default({x}, 0.0, 1.0)",
        ),
    )


# --- what is seen outside ---------------------------------------------------------------------------------------------


def foreign(scene: FunctionalScene) -> Lines:
    """Operators of another library, some of which write several arguments."""
    x = scene.pick_target(is_real_float)
    y = scene.pick_target(is_real_float)
    if x is None or y is None:
        return ()
    a, b, c = (scene.fresh() for _ in range(3))
    other = scene.like(x)
    return (
        scene.one_of(
            f"{a}, {b} = prims.functional_form(checks.swap_.default, (0, 1))({x}, {other})",
            f"{a}, {b} = prims.functional_form(checks.push_.default, (0,))([{x}], {other})",
            f"{a}, {b}, {c} = prims.functional_form(checks.push_.default, (0,))([{x}, {y}], {other})",
            f"checks.note.default({x})",
        ),
    )


def check(scene: FunctionalScene) -> Lines:
    """Something that can fail."""
    x = scene.pick()
    if x is None:
        return ()
    one, truth = scene.fresh(), scene.fresh()
    if scene.choose.random() < 0.3:
        whole = f"{one} = aten.sum.default({x})"
        return whole, f"{truth} = aten.eq.Tensor({one}, {one})", f"aten._assert_async.msg({truth}, 'equal')"
    return (scene.one_of(f"checks.demand.default({x})", "prims.EXPECT(True, 'it holds')"),)


_OFTEN: dict[Template, int] = {
    view: 14,
    replace_part: 16,
    view_copy: 4,
    of_one: 5,
    with_number: 8,
    of_two: 12,
    comparison: 5,
    chain: 8,
    lists: 5,
    reading: 6,
    several_results: 2,
    product: 4,
    normalization: 2,
    indexed: 8,
    masked: 6,
    overwritten: 5,
    copied: 8,
    made: 4,
    drawn: 3,
    foreign: 4,
    check: 2,
}
TEMPLATES = tuple(_OFTEN), tuple(_OFTEN.values())
