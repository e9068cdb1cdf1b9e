"""Checks of `torch_compat.dispatch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dovetail.torch_compat import dispatch
from dovetail.torch_compat.checks.difference import first_difference

aten = torch.ops.aten


class _Watch(dispatch.DispatchMode):
    """Writes down the operators that reach the bottom of the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(
        self,
        func: dispatch.Overload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def check_dispatch_mode() -> str | None:
    """A mode sees the operators of forward and backward, below autograd, as overloads."""
    x = torch.ones(2, requires_grad=True)
    with _Watch() as watch:
        x.exp().sum().backward()
    wanted = [aten.exp.default, aten.sum.default, aten.mul.Tensor]
    missing = [str(op) for op in wanted if op not in watch.seen]
    is_overload = all(isinstance(op, dispatch.Overload) for op in watch.seen)
    return first_difference(
        ("the operators that were missed", missing, []),
        ("the claim that each is an overload", is_overload, True),
    )


class _Plain(dispatch.PlainMode):
    def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        raise ZeroDivisionError


def check_plain_mode() -> str | None:
    """A plain mode sees operators, and torch leaves its method as it was written."""
    caught = False
    try:
        with _Plain():
            torch.ones(2).exp()
    except ZeroDivisionError:
        caught = True
    is_wrapped = hasattr(_Plain.__torch_dispatch__, "__wrapped__")
    return first_difference(("the claim that it is asked", caught, True), ("the claim of a wrapper", is_wrapped, False))


def check_schema_of() -> str | None:
    """A schema tells names, writes, aliases and defaults."""
    schema = dispatch.schema_of(aten.add_.Tensor)
    written, other, alpha = schema.arguments
    return first_difference(
        ("the name", (schema.namespace, schema.name, schema.overload), ("aten", "add_", "Tensor")),
        ("is_mutable", schema.is_mutable, True),
        ("the written argument", (written.name, written.is_write, written.alias), ("self", True, "a")),
        ("the read argument", (other.name, other.is_write, other.alias), ("other", False, "")),
        ("alpha", (alpha.kwarg_only, alpha.has_default, alpha.default, alpha.is_out), (True, True, 1, False)),
        ("the result", schema.returns, (("Tensor", "a", True),)),
        ("out", dispatch.schema_of(aten.add.out).arguments[-1].is_out, True),
    )


def check_tags_of() -> str | None:
    """Random and pointwise operators carry their tags."""
    return first_difference(
        ("the tag of bernoulli", torch.Tag.nondeterministic_seeded in dispatch.tags_of(aten.bernoulli.default), True),
        ("the tag of relu", torch.Tag.pointwise in dispatch.tags_of(aten.relu.default), True),
        ("the random tag of relu", torch.Tag.nondeterministic_seeded in dispatch.tags_of(aten.relu.default), False),
    )


def check_is_composite() -> str | None:
    """matmul is defined by other operators, mm has kernels."""
    found = (dispatch.is_composite(aten.matmul.default), dispatch.is_composite(aten.mm.default))
    return first_difference(("matmul and mm", found, (True, False)))


def check_has_kernel() -> str | None:
    """silu_backward is composite and has a kernel for the CPU; matmul has none."""
    silu, matmul = aten.silu_backward.default, aten.matmul.default
    return first_difference(
        ("silu_backward", (dispatch.is_composite(silu), dispatch.has_kernel(silu, "cpu")), (True, True)),
        ("matmul", (dispatch.is_composite(matmul), dispatch.has_kernel(matmul, "cpu")), (True, False)),
    )


def check_is_question() -> str | None:
    """A question about metadata is told from an operator that computes."""
    found = (dispatch.is_question(torch.ops.prim.device.default), dispatch.is_question(aten.mm.default))
    return first_difference(("prim.device and mm", found, (True, False)))


def check_decompose() -> str | None:
    """A composite operator runs by its parts, and one with a kernel refuses."""
    x = torch.ones(2, 2)
    with _Watch() as watch:
        result = dispatch.decompose(aten.matmul.default, (x, x), {})
    return first_difference(
        ("the parts of matmul", watch.seen, [aten.mm.default]),
        ("its result", isinstance(result, torch.Tensor) and torch.equal(result, torch.full((2, 2), 2.0)), True),
        (
            "decompose of a primitive",
            isinstance(dispatch.decompose(torch.ops.prims.sin.default, (x,), {}), torch.Tensor),
            True,
        ),
        ("decompose of mm", dispatch.decompose(aten.mm.default, (x, x), {}), NotImplemented),
    )


def check_overloads() -> str | None:
    """The overloads of a name are found, and a name that is not there has none."""
    found = dispatch.overloads("aten", "add")
    return first_difference(
        ("add", {aten.add.Tensor, aten.add.Scalar, aten.add.out} <= set(found), True),
        ("an unknown name", dispatch.overloads("aten", "no_operator_of_this_name"), ()),
    )


def check_storage_key() -> str | None:
    """Views have the key of their base and clones have another."""
    x = torch.zeros(4)
    clone = x.clone()
    key = dispatch.storage_key(x)
    found = (dispatch.storage_key(x[1:]) == key, dispatch.storage_key(clone) == key)
    return first_difference(("view and clone", found, (True, False)))


def check_python_bindings() -> str | None:
    """The fast Python functions of operators are found and work."""
    x = torch.tensor([-1.0, 1.0])
    relu = dict(dispatch.python_bindings("relu")).get("torch")
    result = relu(x) if relu is not None else None
    return first_difference(
        ("relu", isinstance(result, torch.Tensor) and result.tolist() == [0.0, 1.0], True),
        ("linear", "nn" in dict(dispatch.python_bindings("linear")), True),
        ("an unknown name", dispatch.python_bindings("no_operator_of_this_name"), ()),
    )


def check_has_own_kernels() -> str | None:
    """Operators of torch have them, also those that are defined by others; those of a library do not."""
    name = "dovetail_kernels_check"
    with torch.library._scoped_library(name, "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", torch.neg, "CPU")
        other = dispatch.has_own_kernels(getattr(torch.ops, name).f.default)
    before = dispatch.has_own_kernels(aten.pinverse.default)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("pinverse", torch.neg, "CPU")
        during = dispatch.has_own_kernels(aten.pinverse.default)
    after = dispatch.has_own_kernels(aten.pinverse.default)
    return first_difference(
        ("an operator of a library", other, False),
        ("before, during and after a kernel of a library", [before, during, after], [True, False, True]),
        ("a sum", dispatch.has_own_kernels(aten.add.Tensor), True),
    )


def check_without_modes() -> str | None:
    """Operators inside do not reach a mode that was entered outside."""

    class Refusing(dispatch.DispatchMode):
        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            return "seen"

    with Refusing(), dispatch.without_modes():
        result: object = torch.zeros(1) + 1
    return first_difference(("a sum without modes", isinstance(result, torch.Tensor), True))


CHECKS = (
    check_dispatch_mode,
    check_plain_mode,
    check_schema_of,
    check_tags_of,
    check_is_composite,
    check_has_kernel,
    check_has_own_kernels,
    check_is_question,
    check_decompose,
    check_overloads,
    check_storage_key,
    check_python_bindings,
    check_without_modes,
)
