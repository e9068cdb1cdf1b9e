"""Checks of `torch_compat.fake_layouts`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dovetail.torch_compat import fake_layouts, fakes
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.data_sizes import size_with_hint, with_shape_env
from dovetail.torch_compat.symbols import hint_of, new_shape_env

_aten = torch.ops.aten
_OF_TWO = (
    _aten.copysign.Tensor,
    _aten.floor_divide.default,
    _aten.hardsigmoid_backward.default,
    _aten.hardswish_backward.default,
    _aten.special_xlog1py.default,
    _aten.xlogy.Tensor,
)


def check_as_laid_out() -> str | None:
    """Results are laid out as kernels do: batch norm over every order of dimensions, paddings, zeros, gradients."""
    found: list[tuple[str, object, object]] = []
    op = _aten.native_batch_norm.default
    for x in (torch.ones(2, 5, 4).transpose(1, 2), torch.ones(2, 4, 5, 3).permute(0, 3, 1, 2), torch.ones(3, 2).t()):
        channels = x.shape[1]
        given = (x, None, None, torch.zeros(channels), torch.ones(channels), False, 0.1, 1e-5)
        mode = fakes.new_fake_mode()
        twins = [mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in given]
        with mode:
            results = op(*twins), fake_layouts.run_on_fakes(op, twins, {})
            made, quick = (fake_layouts.as_laid_out(op, twins, each) for each in results)
        found += [(f"{x.stride()}, at once", _seen(one), _seen(other)) for one, other in zip(quick, made, strict=True)]
        found.append((f"strides {x.stride()}", made[0].stride(), op(*given)[0].stride()))
    mixed = (torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(3), torch.ones(3), None, None, True, 0.1, 1e-5)
    mode = fakes.new_fake_mode()
    twins = [mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in mixed]
    with mode:
        made = fake_layouts.as_laid_out(op, twins, op(*twins))
    wanted = [one.dtype for one in op(*mixed)]
    found.append(("dtypes of statistics", [one.dtype for one in made], wanted))
    return first_difference(*found, *_layouts_of_one_result())


def _seen(tensor: torch.Tensor) -> object:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _layouts_of_one_result() -> list[tuple[str, object, object]]:
    found: list[tuple[str, object, object]] = []
    image = torch.ones(2, 4, 5, 3).permute(0, 3, 1, 2)
    x, other, mask = torch.ones(2, 4, 3).permute(2, 0, 1), torch.ones(3, 2, 4), torch.ones(3, 2, 4) > 0
    calls: list[tuple[Any, torch.Tensor, tuple[Any, ...]]] = [
        *((op, x, others) for op in _OF_TWO for others in ((other,), (other.mT.contiguous().mT,))),
        *((op, x, (x, other, 1)) for op in (_aten.mse_loss_backward.default, _aten.soft_margin_loss_backward.default)),
        *(
            (op, x, (x, other, 1, 1.0))
            for op in (_aten.huber_loss_backward.default, _aten.smooth_l1_loss_backward.default)
        ),
        (_aten.elu_backward.default, other, (1.0, 1.0, 1.0, False, x)),
        (_aten.hardtanh_backward.default, other, (x, -1.0, 1.0)),
        (_aten.softplus_backward.default, other, (x, 1.0, 20.0)),
        (_aten.logit_backward.default, other, (x,)),
        (_aten.native_dropout_backward.default, x, (mask, 2.0)),
        (_aten.rrelu_with_noise_backward.default, other, (x, x, 0.1, 0.3, True, False)),
        (_aten._log_softmax_backward_data.default, x, (x, 1, torch.float32)),
        (_aten.isin.Tensor_Tensor, x, (other,)),
        (_aten.isin.Tensor_Scalar, x, (1,)),
        (_aten.roll.default, image, ([1], [2])),
        (_aten.channel_shuffle.default, image, (3,)),
        (_aten.reflection_pad2d_backward.default, torch.ones(2, 3, 5, 8), (image, [1, 2, 1, 0])),
        (_aten.replication_pad2d_backward.default, torch.ones(2, 3, 5, 8), (image, [1, 2, 1, 0])),
        (_aten.reflection_pad2d.default, image, ([1, 1, 2, 1],)),
        (_aten.replication_pad2d.default, image, ([1, 1, 2, 1],)),
        (_aten.zero.default, torch.ones(4, 6).t()[:, ::2], ()),
    ]
    for op, x, others in calls:
        mode = fakes.new_fake_mode()
        twin = mode.from_tensor(x)
        with mode:
            made = fake_layouts.as_laid_out(op, (twin, *others), op(twin, *others))
        found.append((f"strides of {op}", made.stride(), op(x, *others).stride()))
    return found


def check_run_on_fakes() -> str | None:
    """Products of groups, of matrices of float32 too, and with rows that end before 16 bytes do."""
    found: list[tuple[str, object, object]] = []
    offsets = torch.tensor([3, 8], dtype=torch.int32, device="cpu")
    rows, stack = torch.ones(8, 16, device="cpu"), torch.ones(2, 5, 16, device="cpu")
    calls = (
        (rows, stack.mT, offsets),
        (stack, rows.t(), offsets),
        (torch.ones(5, 8, device="cpu"), torch.ones(8, 8, device="cpu")[:, :5], offsets),
        (torch.ones(2, 3, 16, device="cpu"), stack.mT, None),
    )
    for dtype in (torch.float32, torch.bfloat16):
        for a, b, places in calls:
            cast = (a.to(dtype), b.to(dtype))
            if cast[1].stride(-1) == 1 and cast[1].stride(-2) * dtype.itemsize % 16:
                continue  # which the kernel refuses
            made = _aten._grouped_mm.default(*cast, places)
            mode = fakes.new_fake_mode()
            twins = [mode.from_tensor(item) if item is not None else None for item in (*cast, places)]
            with mode:
                told = fake_layouts.run_on_fakes(_aten._grouped_mm.default, twins, {})
            place = f"{dtype} {tuple(a.shape)} {tuple(b.shape)}"
            found.append((place, (told.shape, told.stride(), told.dtype), (made.shape, made.stride(), made.dtype)))
    return first_difference(
        *found, _layout_of_gradients(), *_sizes_that_numbers_tell(), *_draws_of_any_size(), *_draws_by_reference()
    )


def _group_norms() -> list[tuple[str, object, object]]:
    """Whether group norms take images in other layouts: told, and tried."""
    op, found = _aten.native_group_norm.default, list[tuple[str, object, object]]()
    image = torch.ones(3, 4, 6, 2, device="cpu").permute(0, 3, 1, 2)
    for x in (image.contiguous(), image, image.flatten(2), image.transpose(2, 3), image[:, :, :, ::2]):
        others = (None, None, x.shape[0], x.shape[1], x[0, 0].numel(), 1, 1e-5)
        mode = fakes.new_fake_mode()
        twin = mode.from_tensor(x)
        with mode:
            told = _is_taken(partial(fake_layouts.run_on_fakes, op, (twin, *others), {}))
        found.append((f"group norm of {tuple(x.shape)} with {x.stride()}", told, _is_taken(partial(op, x, *others))))
    return found


def _is_taken(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError:
        return False
    return True


def _draws_of_any_size() -> list[tuple[str, object, object]]:
    """What draws by a generator give, where sizes are symbols: told, and made."""
    generator, found = torch.Generator(), list[tuple[str, object, object]]()
    calls: list[tuple[Any, Callable[[Any], tuple[Any, ...]]]] = [
        (_aten.rand.generator, lambda n: ([n, 3],)),
        (_aten.randint.generator, lambda n: (n, [n])),
        (_aten.randperm.generator, lambda n: (n,)),
    ]
    for op, given in calls:
        mode = fakes.new_fake_mode(new_shape_env())
        size = size_with_hint(with_shape_env(mode), 5)
        with mode:
            told = fake_layouts.run_on_fakes(op, given(size), {"generator": generator, "device": torch.device("cpu")})
        made = op(*given(5), generator=generator, device="cpu")
        sizes = [size if isinstance(size, int) else hint_of(size) for size in told.shape]
        found.append((str(op), (sizes, told.dtype), (list(made.shape), made.dtype)))
    return found


def _draws_by_reference() -> list[tuple[str, object, object]]:
    """What draws by a generator into a tensor give: told, and made."""
    generator, found = torch.Generator(), list[tuple[str, object, object]]()
    for name in ("cauchy", "exponential", "geometric", "log_normal"):
        given, rest = torch.ones(3, 2, device="cpu").t(), (0.5,) * (name == "geometric")
        for op in (getattr(_aten, name).default, getattr(_aten, f"{name}_").default):
            mode = fakes.new_fake_mode()
            twin = mode.from_tensor(given)
            with mode:
                told = fake_layouts.run_on_fakes(op, (twin, *rest), {"generator": generator})
            found.append((str(op), _seen(told), _seen(op(given, *rest, generator=generator))))
    return found


def _layout_of_gradients() -> tuple[str, object, object]:
    """Strides of the gradient of `ctc_loss` whose lengths are tensors: told, and made."""
    rows = torch.zeros(2, 4, 3, device="cpu").transpose(0, 1).log_softmax(2)
    labels, lengths = torch.ones(2, 2, dtype=torch.int64, device="cpu"), torch.tensor([4, 4], device="cpu")
    given = (labels, lengths, torch.tensor([2, 1], device="cpu"))
    losses, table = _aten._ctc_loss.Tensor(rows, *given)
    call = (torch.ones_like(losses), rows, *given, losses, table, 0)
    made = _aten._ctc_loss_backward.Tensor(*call)
    mode = fakes.new_fake_mode()
    twins = [mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in call]
    with mode:
        told = fake_layouts.run_on_fakes(_aten._ctc_loss_backward.Tensor, twins, {})
    return "gradients of a loss", (told.shape, told.stride()), (made.shape, made.stride())


def _sizes_that_numbers_tell() -> list[tuple[str, object, object]]:
    """Layouts of results whose sizes do not hang on data, though torch's fakes say so: told, and made."""
    least = _aten.linalg_lstsq.default
    found: list[tuple[str, object, object]] = []
    rows = torch.zeros(4, 2, 3, device="cpu").log_softmax(2)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (_aten._ctc_loss.default, (rows, torch.ones(2, 2, dtype=torch.int64, device="cpu"), [4, 4], [2, 1]), {})
    ]
    for shape in ((5, 3), (3, 5), (2, 4, 4)):
        a, b = torch.ones(shape, device="cpu"), torch.ones(*shape[:-1], 2, device="cpu")
        drivers = (None, "gels", "gelsy") if shape[-2] > shape[-1] else (None, "gels", "gelsy", "gelss", "gelsd")
        calls += [(least, (a + torch.eye(*shape[-2:]), b), {"driver": driver}) for driver in drivers]
        calls += [(least, (a + torch.eye(*shape[-2:]), b[..., 0]), {})]
    for op, args, keywords in calls:
        mode = fakes.new_fake_mode()
        twins = [mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in args]
        with mode:
            told = fake_layouts.run_on_fakes(op, twins, keywords)
        described = [[(one.shape, one.stride(), one.dtype) for one in side] for side in (told, op(*args, **keywords))]
        found.append((f"{op} {tuple(args[0].shape)} {keywords}", described[0], described[1]))
    return found


def check_least_squares() -> str | None:
    """Matrices of full rank have residuals by each driver; where ranks decide, nothing is told."""
    a, b = torch.eye(5, 3, device="cpu").expand(2, 5, 3), torch.ones(2, 5, 2, device="cpu")
    mode = fakes.new_fake_mode()
    found: list[tuple[str, object, object]] = []
    twins = [mode.from_tensor(item) for item in (a, b)]
    for driver in ("gelss", "gelsd"):
        with mode:
            told = fake_layouts.least_squares(*twins, driver=driver, full_rank=True)
            found.append((f"{driver}, at any rank", fake_layouts.least_squares(*twins, driver=driver), None))
        made = _aten.linalg_lstsq.default(a, b, driver=driver)
        described = [[(one.shape, one.stride(), one.dtype) for one in side] for side in (told, made)]
        found.append((driver, described[0], described[1]))
    return first_difference(*found)


def check_right_layouts() -> str | None:
    """The mode does the same for whatever runs in it."""
    x, mode = torch.ones(2, 5, 4).transpose(1, 2), fakes.new_fake_mode()
    given = (None, None, torch.zeros(4), torch.ones(4), False, 0.1, 1e-5)
    twins = [mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in (x, *given)]
    with mode, fake_layouts.RightLayouts():
        made = _aten.native_batch_norm.default(*twins)
    return first_difference(("strides", made[0].stride(), _aten.native_batch_norm.default(x, *given)[0].stride()))


def check_as_on_cpu() -> str | None:
    """Eval batch norm on the meta device, put right, is described as its kernel's results are."""
    found = []
    for x in (torch.ones(2, 4, 5), torch.ones(2, 5, 4).transpose(1, 2)):
        given = (None, None, torch.zeros(4), torch.ones(4), False, 0.1, 1e-5)
        op = _aten.native_batch_norm.default
        on_meta = [item.to("meta") if isinstance(item, torch.Tensor) else item for item in given]
        twin = torch.empty_strided(x.shape, x.stride(), device="meta")
        made = fake_layouts.as_on_cpu(op, (twin, *on_meta), op(twin, *on_meta))
        wanted = [(tuple(one.shape), one.stride()) for one in op(x, *given)]
        found.append((f"strides {x.stride()}", [(tuple(one.shape), one.stride()) for one in made], wanted))
    return first_difference(*found)


CHECKS = (check_least_squares, check_as_laid_out, check_as_on_cpu, check_right_layouts, check_run_on_fakes)
