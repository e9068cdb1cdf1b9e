"""What the inputs of a graph module are like: fakes of sample inputs, or what its placeholders say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import fx

from dovetail.errors import InvalidGraphModule, MissingSamples, SampleMismatch, UnsupportedTensor
from dovetail.ir.convert import describe, unsupported_kind
from dovetail.ir.fx_targets import may_depend_on_data
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.fakes import (
    FakeMode,
    allow_real_inputs,
    fake_like,
    fake_of,
    has_plain_bytes,
    is_fake,
    kernels_for_symbolic_sizes,
    mode_of,
    new_fake_mode,
)
from dovetail.torch_compat.symbols import (
    SYMBOLIC_TYPES,
    data_dependent_sizes,
    new_shape_env,
    shape_env_of,
    sizes_made_in_passing,
)


@dataclass(frozen=True, slots=True)
class InputFakes:
    """What each placeholder holds: a fake tensor of `mode`, a number (perhaps symbolic), or another object.

    is_traced: whether the placeholders' own descriptions were taken, so that the other nodes' fit, too.
    has_traced_sizes: whether the other nodes' fit in their sizes, at least.
    """

    mode: FakeMode
    of: Mapping[fx.Node, object]
    is_traced: bool
    has_traced_sizes: bool

    @property
    def is_symbolic(self) -> bool:
        """Whether a number or a size is a symbol."""
        return any(map(_has_symbols, self.of.values()))


def _has_symbols(item: object) -> bool:
    if not isinstance(item, torch.Tensor):
        return isinstance(item, SYMBOLIC_TYPES)
    return any(isinstance(size, SYMBOLIC_TYPES) for size in (*item.shape, *item.stride(), item.storage_offset()))


def input_fakes(module: fx.GraphModule, samples: Sequence[object]) -> InputFakes:
    """Fakes for the placeholders of a graph module.

    samples: arguments of a call of the module; none: the placeholders' `meta["val"]` are taken.
    Raises: SampleMismatch, MissingSamples, UnsupportedTensor.
    """
    holders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node in holders:
        if str(node.target).startswith("*"):
            raise InvalidGraphModule(node=node.name, reason="it takes any number of arguments")
    given = _given(module, holders, samples) if samples else _described(holders)
    is_traced = not samples or _looks_as_traced(given)
    if is_traced:
        given = _described(holders)
    mode = _mode_for(list(given.values()), is_traced and _has_unknown_sizes(module))
    is_fixed = all("val" in node.meta and not _has_symbols(node.meta["val"]) for node in holders)
    return InputFakes(mode, Faker(mode).all(given), is_traced, is_traced or is_fixed)


def _given(module: fx.GraphModule, holders: list[fx.Node], samples: Sequence[object]) -> dict[fx.Node, object]:
    flat = list(module.graph.process_inputs(*samples))
    flat += [node.args[0] for node in holders[len(flat) :] if node.args]
    if len(flat) != len(holders):
        names = ", ".join(node.name for node in holders)
        raise SampleMismatch(name="the number of sample inputs", given=len(flat), expected=f"{len(holders)} ({names})")
    for node, sample in zip(holders, flat, strict=True):
        expected = node.meta.get("val")
        if expected is not None and not _fits(sample, expected):
            raise SampleMismatch(
                name=f"the sample for placeholder {node.name}", given=_told(sample), expected=_told(expected)
            )
    devices = {node: node.meta["val"].device for node in holders if isinstance(node.meta.get("val"), torch.Tensor)}
    return {node: _Placed.of(item, devices.get(node)) for node, item in zip(holders, flat, strict=True)}


def _described(holders: list[fx.Node]) -> dict[fx.Node, object]:
    for node in holders:
        if "val" not in node.meta:
            raise MissingSamples(name=node.name)
    return {node: node.meta["val"] for node in holders}


@dataclass(frozen=True, slots=True)
class _Placed:
    """A sample of device meta that stands for a tensor on another device."""

    tensor: torch.Tensor
    device: torch.device

    @staticmethod
    def of(sample: object, device: torch.device | None) -> object:
        if device is None or not isinstance(sample, torch.Tensor) or is_fake(sample) or sample.device.type != "meta":
            return sample
        return _Placed(sample, device)


def _fits(sample: object, expected: object) -> bool:
    if isinstance(sample, torch.Tensor) or isinstance(expected, torch.Tensor):
        if not (isinstance(sample, torch.Tensor) and isinstance(expected, torch.Tensor)):
            return False
        if sample.dtype != expected.dtype or sample.dim() != expected.dim():
            return False
        if sample.layout is not torch.strided:
            return True  # refused for a better reason
        return all(map(_may_be_equal, sample.shape, expected.shape))
    return _may_be_equal(sample, expected)


def _may_be_equal(a: object, b: object) -> bool:
    return isinstance(a, SYMBOLIC_TYPES) or isinstance(b, SYMBOLIC_TYPES) or a == b


def _told(item: object) -> str:
    return str(describe(item, 0)) if isinstance(item, torch.Tensor) else repr(item)


def _looks_as_traced(given: Mapping[fx.Node, object]) -> bool:
    """Whether samples are plain tensors that look and share memory as placeholders say, so that nothing is learnt."""
    pairs = [(item, node.meta.get("val")) for node, item in given.items()]
    storages: dict[object, object] = {}
    for item, said in pairs:
        if not isinstance(item, torch.Tensor) or not isinstance(said, torch.Tensor) or is_fake(item):
            return False
        if not has_plain_bytes(said) or type(item) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if (
            unsupported_kind(item) is not None
            or item.is_conj()
            or item.is_neg()
            or describe(item, 0) != describe(said, 0)
        ):
            return False
        storages.setdefault(storage_key(item), storage_key(said))
        if storages[storage_key(item)] != storage_key(said):
            return False
    return bool(pairs) and len(set(storages.values())) == len(storages)


def _has_unknown_sizes(module: fx.GraphModule) -> bool:
    """Whether running a node on fakes may make a symbol for a size that depends on data."""
    return any(node.op == "call_function" and may_depend_on_data(node.target) for node in module.graph.nodes)


def _mode_for(items: list[object], needs_symbols: bool) -> FakeMode:
    """The mode of the items that have symbolic sizes, else the only mode, else a new one."""
    fakes = [item for item in items if isinstance(item, torch.Tensor) and is_fake(item)]
    for fake in fakes:
        mode = mode_of(fake)
        if mode is not None and _has_symbols(fake):
            return mode
    modes = {id(mode): mode for mode in map(mode_of, fakes) if mode is not None}
    environments = [shape_env_of(item) for item in items if isinstance(item, SYMBOLIC_TYPES)]
    known = [mode for mode in modes.values() if not environments or mode.shape_env is environments[0]]
    if len(known) == 1 and (known[0].shape_env is not None or not needs_symbols):
        return known[0]
    return new_fake_mode(environments[0] if environments else new_shape_env())


class Faker:
    """Makes fakes of one mode. Tensors that share a storage get fakes that do."""

    def __init__(self, mode: FakeMode) -> None:
        self._mode = mode
        self._bytes_of: dict[int, torch.UntypedStorage] = {}
        self._alive: list[object] = []

    def all(self, items: Mapping[fx.Node, object]) -> dict[fx.Node, object]:
        """What the nodes hold, with a fake for each tensor."""
        return {node: self.fake(node.name, item) for node, item in items.items()}

    def fake(self, name: str, item: object) -> object:
        """The fake of a tensor, real or not; anything else is given back. name: for errors."""
        if isinstance(item, _Placed):
            return fake_like(self._mode, item.tensor, item.device, self._bytes_of)
        if not isinstance(item, torch.Tensor) or mode_of(item) is self._mode:
            return item
        unsupported = unsupported_kind(item)
        if unsupported is not None:
            raise UnsupportedTensor(name=name, kind=unsupported[0], hint=unsupported[1])
        if not is_fake(item) and item.device.type != "meta":
            return fake_of(self._mode, item)
        if _has_symbols(item):
            raise InvalidGraphModule(node=name, reason="its symbolic sizes belong to another fake mode")
        self._alive.append(item)
        return fake_like(self._mode, item, item.device, self._bytes_of)


@contextmanager
def fakes_running(mode: FakeMode, symbolic: bool) -> Iterator[None]:
    """While active, operators run on fakes of this mode. symbolic: whether sizes may be symbols."""
    with ExitStack() as stack:
        stack.enter_context(data_dependent_sizes(mode.shape_env))
        stack.enter_context(sizes_made_in_passing(mode.shape_env))
        stack.enter_context(allow_real_inputs(mode))
        stack.enter_context(torch.no_grad())
        if symbolic:
            stack.enter_context(kernels_for_symbolic_sizes())
        stack.enter_context(mode)
        yield
