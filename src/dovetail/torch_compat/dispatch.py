"""Seeing operators below autograd, and reading what their schemas say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dovetail.torch_compat.dynamo import not_traced

DispatchMode = TorchDispatchMode
Overload = OpOverload
HigherOrder = HigherOrderOperator
Packet = OpOverloadPacket


class PlainMode(TorchDispatchMode):
    """A dispatch mode whose first use does not load Dynamo (over a second), and which Dynamo leaves alone."""

    def __init_subclass__(cls) -> None:
        """Mark the method of a subclass."""
        super().__init_subclass__()
        if "__torch_dispatch__" in vars(cls):
            not_traced(vars(cls)["__torch_dispatch__"])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked when a subclass is defined: True wraps its method in a call that loads Dynamo."""
        return False


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operator schema. alias: name of its alias set, "" if it has none.

    type: as kernels see it, where dtypes are integers. kind: as it is declared: `Optional[ScalarType]`. is_fixed: an
    integer, or several, that torch never takes as a symbol: a dimension, say.
    """

    name: str
    type: str
    is_write: bool
    alias: str
    kwarg_only: bool
    is_out: bool
    has_default: bool
    default: object
    kind: str = ""
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """What an operator declares about itself. returns: (type, alias set or "", is written) for each result."""

    namespace: str
    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[tuple[str, str, bool], ...]
    is_mutable: bool


# By identity, because overloads hash in Python; each is kept, so that no other object gets its number.
_SCHEMAS: dict[int, tuple[OpOverload, Schema]] = {}


def schema_of(op: OpOverload) -> Schema:
    """The schema of an operator overload."""
    known = _SCHEMAS.get(id(op))
    if known is None:
        raw = op._schema
        namespace, _, name = raw.name.partition("::")
        schema = Schema(
            namespace=namespace,
            name=name,
            overload=raw.overload_name,
            arguments=tuple(_argument(a) for a in raw.arguments),
            returns=tuple((str(r.type), _alias(r.alias_info), _writes(r.alias_info)) for r in raw.returns),
            is_mutable=raw.is_mutable,
        )
        known = _SCHEMAS[id(op)] = op, schema
    return known[1]


def _argument(raw: Any) -> Argument:
    has_default = raw.has_default_value()
    return Argument(
        name=raw.name,
        type=str(raw.type),
        is_write=_writes(raw.alias_info),
        alias=_alias(raw.alias_info),
        kwarg_only=raw.kwarg_only,
        is_out=raw.is_out,
        has_default=has_default,
        default=raw.default_value if has_default else None,
        kind=str(raw.real_type),
        is_fixed=_innermost(raw.real_type).kind() == "IntType",
    )


def _innermost(kind: Any) -> Any:
    while kind.kind() in ("OptionalType", "ListType"):
        kind = kind.getElementType()
    return kind


def _alias(info: Any) -> str:
    return "" if info is None else "|".join(sorted(info.before_set))


def _writes(info: Any) -> bool:
    return info is not None and bool(info.is_write)


def tags_of(op: OpOverload) -> frozenset[torch.Tag]:
    """The tags of an operator overload."""
    return frozenset(op.tags)


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@cache
def is_composite(op: OpOverload) -> bool:
    """Whether the operator is defined by other operators, in torch's own C++ (Python overrides of torch's Python
    dispatcher do not count: eager does not use them), or in Python, as primitives of `torch._prims` are. A
    device may still have a kernel of its own: `has_kernel`."""
    if _python_definition(op) is not None:
        return True
    return not is_question(op) and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE)


def _python_definition(op: OpOverload) -> Callable[..., object] | None:
    """What eager runs for a functional primitive of torch."""
    is_meant = op.namespace == "prims" and not any(a.alias_info is not None for a in op._schema.arguments)
    found: Callable[..., object] | None = getattr(op, "impl_aten", None) if is_meant else None
    return found


@cache
def has_kernel(op: OpOverload, device_type: str) -> bool:
    """Whether the operator has a kernel made for this kind of device, which eager takes before any definition."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), torch._C._dispatch_key_for_device(device_type))


_RUNNING = re.compile(r"^(?:CPU|Composite|Autograd|ADInplaceOrView|catch).*?: registered at (.*?) ::", re.MULTILINE)
_SCHEMA = re.compile(r"^debug: registered at (.*)/build/", re.MULTILINE)


def has_own_kernels(op: OpOverload) -> bool:
    """Whether what runs on the CPU was all built with torch: no library has registered another kernel until now."""
    text: str = torch._C._dispatch_dump(op.name())
    sources = _SCHEMA.search(text)
    return sources is not None and all(place.startswith(sources[1] + "/") for place in _RUNNING.findall(text))


@cache
def is_question(op: OpOverload) -> bool:
    """Whether the operator asks a tensor about its metadata (`prim.device`): it is not part of a program.

    So does what was never registered with the dispatcher (`aten.size`, of TorchScript), asked for as a last resort.
    """
    return op.namespace == "prim" or not torch._C._dispatch_has_kernel(op.name())


def decompose(op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Run a composite operator by the operators that define it; NotImplemented for any other operator."""
    if not is_composite(op):
        return NotImplemented  # torch would jump to a kernel that is not there
    definition = _python_definition(op)
    if definition is not None:
        return definition(*args, **kwargs)
    return op._op_dk(_COMPOSITE, *args, **kwargs)


def overloads(namespace: str, name: str) -> tuple[OpOverload, ...]:
    """Every overload registered under `namespace::name`; empty when there is none."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return () if packet is None else tuple(getattr(packet, o) for o in packet.overloads())


def storage_key(tensor: torch.Tensor) -> int:
    """A number that identifies the storage of a strided tensor while that storage is alive."""
    return tensor.untyped_storage()._cdata


_BINDING_SPACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch._C._VariableFunctions),
    ("nn", torch._C._nn),
    ("linalg", torch._C._linalg),
    ("special", torch._C._special),
    ("fft", torch._C._fft),
)


def python_bindings(name: str) -> tuple[tuple[str, Callable[..., object]], ...]:
    """The Python functions that may call the operator `name`, each with the prefix of its readable name.

    Whether one really calls the wanted overload is for the caller to find out.
    """
    found = []
    for prefix, space in _BINDING_SPACES:
        function = getattr(space, name, None)
        if function is not None:
            found.append((prefix, function))
    return tuple(found)


def without_modes() -> AbstractContextManager[object]:
    """While active, operators run as if no dispatch mode were entered: real tensors stay real."""
    found: AbstractContextManager[object] = _disable_current_modes()
    return found
