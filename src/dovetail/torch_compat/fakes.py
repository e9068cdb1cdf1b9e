"""Fake tensors: shapes, strides and storages without numbers."""

from __future__ import annotations

import importlib
import logging
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._mode_utils import no_dispatch as _no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from dovetail.deferred import deferred

if TYPE_CHECKING:
    from torch.fx.experimental import symbolic_shapes
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, StatelessSymbolicContext
else:  # it imports sympy
    symbolic_shapes = deferred("torch.fx.experimental.symbolic_shapes")


def __getattr__(name: str) -> object:
    if name != "DATA_DEPENDENT_ERRORS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return DataDependentOutputException, DynamicOutputShapeException, symbolic_shapes.GuardOnDataDependentSymNode


def unknown_number() -> Exception:
    """What torch raises where code asks for a number that only data tell."""
    return DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)


FakeMode = FakeTensorMode
_BYTES_OF: weakref.WeakKeyDictionary[FakeTensorMode, dict[int, torch.UntypedStorage]] = weakref.WeakKeyDictionary()

if TYPE_CHECKING:
    DATA_DEPENDENT_ERRORS: tuple[type[Exception], ...]
NO_FAKE_KERNEL_ERRORS: tuple[type[Exception], ...] = (UnsupportedOperatorException,)


def new_fake_mode(shape_env: ShapeEnv | None = None, *, meta_stands_for: torch.device | None = None) -> FakeTensorMode:
    """A fresh fake mode; real tensors met inside become fake ones on the fly.

    meta_stands_for: twins of tensors without numbers (on device meta, or of other fake modes) may be made as well, and
    those on meta seem to be on this device.
    """
    _load_dynamo()
    if meta_stands_for is None:
        return FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)
    mode = _ModeForMeta(allow_non_fake_inputs=True, shape_env=shape_env)
    mode.meta_stands_for = meta_stands_for
    return mode


class _Thread(threading.local):
    is_quiet = False


_HERE = _Thread()
_LOGGERS = [logging.getLogger(f"torch.{name}") for name in ("_subclasses.fake_tensor", "fx.experimental.sym_node")]


def _is_told(_: logging.LogRecord) -> bool:
    return not _HERE.is_quiet


@contextmanager
def failures_not_logged() -> Iterator[None]:
    """While active, operators that fail on fakes in this thread raise, and torch does not log their traceback."""
    for logger in _LOGGERS:
        if _is_told not in logger.filters:
            logger.addFilter(_is_told)
    before, _HERE.is_quiet = _HERE.is_quiet, True
    try:
        yield
    finally:
        _HERE.is_quiet = before


class _ModeForMeta(FakeTensorMode):
    """A fake mode that makes twins of tensors on device meta."""

    meta_stands_for: torch.device

    def device_of_twin(self, tensor: torch.Tensor) -> torch.device:
        """Where the twin of a tensor seems to be."""
        return self.meta_stands_for if tensor.device.type == "meta" else tensor.device


def number_behind(tensor: torch.Tensor) -> torch.Tensor | None:
    """The real tensor of one element that torch knows a fake by, if there is one."""
    return tensor.constant if isinstance(tensor, FakeTensor) else None


def has_no_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a mere description: on device meta, or fake."""
    return tensor.device.type == "meta" or is_fake(tensor)


@cache
def _load_dynamo() -> None:
    """Import what the first fake mode would import, on a stack of its own.

    `torch.fx.wrap`, called there, leaves a frame that refers to itself: all its callers' variables, the user's tensors
    among them, would live until the garbage collector finds it.
    """
    loader = threading.Thread(target=importlib.import_module, args=("torch._dynamo",))
    loader.start()
    loader.join()


def new_symbolic_fake_mode() -> FakeTensorMode:
    """A fresh fake mode in which sizes that only data tells are symbols, and not an error."""
    return new_fake_mode(symbolic_shapes.ShapeEnv())


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor carries no numbers (seen through Parameter)."""
    return isinstance(tensor, FakeTensor)


def attributes_set_on(fake: torch.Tensor) -> list[str]:
    """The attributes of a fake that torch has not set itself."""
    return sorted(fake.__dict__.keys() - _attributes_of_fakes())


@cache
def _attributes_of_fakes() -> frozenset[str]:
    with _disable_current_modes(), FakeTensorMode():
        return frozenset((*torch.empty(0).__dict__, "_is_param"))


def writes_fake(text: str) -> bool:
    """Whether a text was made of a tensor without numbers."""
    return "FakeTensor(" in text


DEVICE_QUESTION: Any = torch.ops.prim.device.default


def device_of_fake(tensor: torch.Tensor) -> torch.device:
    """The device that a fake tensor seems to be on, without asking it through torch's dispatcher (20 us).

    Not for code that runs inside a kernel of the fake mode, where the answer is the meta device.
    """
    assert isinstance(tensor, FakeTensor), "real tensors know their device"
    return tensor.fake_device


@dataclass(frozen=True, slots=True)
class Layout:
    """What a plain fake tensor looks like, its storage apart."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        """That of a tensor."""
        return Layout(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, tensor.device)

    def fills(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor, which has this layout, begins and ends where its storage does."""
        size_bytes = tensor.untyped_storage().nbytes()
        return self.offset == 0 and size_bytes == _own_length(tensor) * self.dtype.itemsize


def hold_number(fake: torch.Tensor, number: int | torch.SymInt) -> None:
    """Let a fake of one element give this number when it is asked for it, until it is written."""
    fake.item_memo = number


def holds_numbers(fake: torch.Tensor) -> bool:
    """Whether torch knows the numbers of a fake (of `torch.tensor([...])`, or zeros of autograd's): it uses them."""
    return isinstance(fake, FakeTensor) and (fake.constant is not None or fake._is_zerotensor())


def has_plain_bytes(fake: torch.Tensor) -> bool:
    """Whether shape, strides, dtype and device say all about a fake: no number, no symbol, no bit."""
    return type(fake) is FakeTensor and not holds_numbers(fake) and not fake.requires_grad and _has_plain_layout(fake)


def _has_plain_layout(fake: Any) -> bool:
    return (
        fake.layout is torch.strided
        and fake.fake_device.type in ("cpu", "cuda")
        and not (fake.dtype.is_complex or fake.is_neg() or fake.is_quantized)
        and all(type(number) is int for number in (*fake.shape, *fake.stride(), fake.storage_offset()))
    )


def blank_fake(mode: FakeTensorMode, layout: Layout) -> torch.Tensor:
    """A fake of an offset of 0 on new memory; for code that runs below autograd. Cost: 20 us."""
    with _no_dispatch():
        meta = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="meta")
        return FakeTensor(mode, meta, layout.device)


def view_of_fake(mode: FakeTensorMode, base: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A fake in the memory of another one; autograd is not told. For code that runs below autograd. Cost: 20 us."""
    with _no_dispatch():
        meta = torch.empty((0,), dtype=layout.dtype, device="meta")
        meta.set_(base.untyped_storage(), layout.offset, layout.shape, layout.stride)
        return FakeTensor(mode, meta, layout.device)


def fake_of(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """The fake twin of `tensor`: equal meta data, storage sharing kept among twins made by one mode.

    Never symbolic: every size is fixed.
    """
    is_foreign = is_fake(tensor) and mode_of(tensor) is not mode
    if is_foreign or (isinstance(mode, _ModeForMeta) and tensor.device.type == "meta"):
        device = mode.device_of_twin(tensor) if isinstance(mode, _ModeForMeta) else tensor.device
        with _disable_current_modes():
            twin = fake_like(mode, tensor, device, _BYTES_OF.setdefault(mode, {}))
        return twin.requires_grad_(tensor.requires_grad and tensor.is_leaf)
    with _quiet_about_gradients():
        return mode.from_tensor(tensor, static_shapes=True)


def fake_apart(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """As `fake_of`, on a storage that no other fake tensor has; it never requires a gradient."""
    return fakes_apart(mode, [tensor])[0]


def reads_data(error: BaseException) -> bool:
    """Whether C++ has raised because it was about to read numbers of a fake."""
    return isinstance(error, RuntimeError) and "its data is not allocated yet" in str(error)


def sparse_fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake for a sparse tensor. How many values it seems to have means nothing."""
    with _disable_current_modes(), torch.no_grad():
        return fake_of(mode, tensor).detach()


def fakes_apart(mode: FakeTensorMode, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """As `fake_apart`, for each of many tensors, which takes 50 us each where they are plain."""
    with _disable_current_modes(), torch.no_grad():
        takes_meta = isinstance(mode, _ModeForMeta)
        return [
            _plain_fake(mode, tensor)
            if (mode_of(tensor) is mode and _has_plain_layout(tensor)) or _is_plain(tensor, takes_meta)
            else _described_fake(mode, tensor)
            for tensor in tensors
        ]


def _is_plain(tensor: torch.Tensor, takes_meta: bool) -> bool:
    """Whether shape, strides, dtype and device say all that a fake has to know."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, *((FakeTensor,) if takes_meta else ()))
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda", *(("meta",) if takes_meta else ()))
        and not (
            tensor.is_quantized or tensor.is_nested or tensor.is_inference() or tensor.is_conj() or tensor.is_neg()
        )
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and all(type(number) is int for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))
    )


def _own_length(tensor: torch.Tensor) -> int:
    """Elements of a storage that has the tensor at its offset and ends with it."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()) + (0 if tensor.numel() == 0 else extent)


def _plain_fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    own = torch.empty((_own_length(tensor),), dtype=tensor.dtype, device="meta").untyped_storage()
    meta = torch.empty((0,), dtype=tensor.dtype, device="meta")
    meta.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())
    if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode:
        return FakeTensor(mode, meta, tensor.fake_device)
    return FakeTensor(mode, meta, mode.device_of_twin(tensor) if isinstance(mode, _ModeForMeta) else tensor.device)


def _described_fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    twin = fake_of(mode, tensor).detach()
    with mode:
        length = _own_length(tensor)
        own = torch.empty((length,), dtype=tensor.dtype, device=tensor.device).untyped_storage()
        return twin.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())


def parameter_of_fake(fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor as what `torch.nn.Parameter` makes of it, but that it is the same object; see `is_fake`."""
    fake._is_param = True
    return fake


def mode_of(value: object) -> FakeTensorMode | None:
    """The mode that a fake tensor belongs to, None for anything else."""
    return value.fake_mode if isinstance(value, FakeTensor) else None


def fake_like(
    mode: FakeTensorMode, tensor: torch.Tensor, device: torch.device, bytes_of: dict[int, torch.UntypedStorage]
) -> torch.Tensor:
    """A fake with the layout of a tensor without numbers (of device meta, or fake in another mode).

    bytes_of: by the tensor's own storage, the fake one made for it; one is added when it is missing.
    """
    key = tensor.untyped_storage()._cdata
    with torch.no_grad(), mode:
        if key not in bytes_of:
            size_bytes = tensor.untyped_storage().nbytes()
            bytes_of[key] = torch.empty((size_bytes,), dtype=torch.uint8, device=device).untyped_storage()
        twin = torch.empty((0,), dtype=tensor.dtype, device=device)
        return twin.set_(bytes_of[key], tensor.storage_offset(), tensor.shape, tensor.stride())


@contextmanager
def _quiet_about_gradients() -> Iterator[None]:
    with warnings.catch_warnings():
        # torch reads `.grad` of every tensor here, and warns its caller when the tensor is not a leaf.
        warnings.filterwarnings(
            "ignore", message="The .grad attribute of a Tensor that is not a leaf", category=UserWarning
        )
        yield


def symbolic_fake_of(
    mode: FakeTensorMode, tensor: torch.Tensor, name: str, dims: Sequence[int] | None = None
) -> torch.Tensor:
    """As `fake_of`, with a symbol for every size above 1, or for those of `dims`; `mode` needs a shape environment.

    Equal sizes get one symbol. What a single number holds is not known, as it is data.
    """
    chosen = range(tensor.dim()) if dims is None else dims
    duck, static = symbolic_shapes.DimDynamic.DUCK, symbolic_shapes.DimDynamic.STATIC
    context: StatelessSymbolicContext[Any, Any] = symbolic_shapes.StatelessSymbolicContext(
        dynamic_sizes=[duck if size > 1 and dim in chosen else static for dim, size in enumerate(tensor.shape)]
    )
    if tensor._is_view() and type(tensor) is torch.Tensor:  # the fake of its base would have symbols of its own
        tensor = tensor.detach().requires_grad_(tensor.requires_grad)
    with _quiet_about_gradients():
        fake = mode.from_tensor(tensor, source=torch._dynamo.source.ConstantSource(name), symbolic_context=context)
    if isinstance(fake, FakeTensor):
        fake.item_memo = None
    return fake


def allow_real_inputs(mode: FakeTensorMode) -> AbstractContextManager[None]:
    """While active, real tensors met by `mode` are taken as fakes instead of refused."""
    return _AllowReal(mode)


class _AllowReal(AbstractContextManager[None]):
    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._before = mode.allow_non_fake_inputs

    def __enter__(self) -> None:
        self._mode.allow_non_fake_inputs = True

    def __exit__(self, *error: object) -> None:
        self._mode.allow_non_fake_inputs = self._before


def kernels_for_symbolic_sizes() -> AbstractContextManager[None]:
    """While active, operators on fakes may run kernels written in Python, which take symbolic sizes.

    Some C++ kernels take numbers only (padding by a symbolic amount, for one).
    """
    context: AbstractContextManager[None] = enable_python_dispatcher()
    return context


def keep_number(source: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    """`twin`, whose `.item()` is the symbolic number that `source`'s is known by (Dynamo wraps floats that way)."""
    if isinstance(source, FakeTensor) and isinstance(twin, FakeTensor) and source.item_memo is not None:
        twin.item_memo = source.item_memo
    return twin


def graph_fake_mode(examples: Iterable[object]) -> FakeTensorMode | None:
    """The fake mode that the example values of a captured graph belong to, if there is one fake among them."""
    return next((example.fake_mode for example in examples if isinstance(example, FakeTensor)), None)
