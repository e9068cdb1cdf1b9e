"""Functional variants: they exist for every writing operator, and give what it writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dovetail.ir.convert import describe
from dovetail.ir.prim import Prim
from dovetail.ops.facts import facts_of
from dovetail.ops.functional_variants import exact_variant, functional_variant, inplace_variant, spell_out_defaults
from dovetail.torch_compat.dispatch import Overload, schema_of
from tests.ops.operators import aten_overloads

aten = torch.ops.aten


def test_every_mutable_overload_has_a_variant_that_does_not_write() -> None:
    mutable = [op for op in aten_overloads() if schema_of(op).is_mutable]
    assert len(mutable) > 1000
    for op in mutable:
        variant = functional_variant(op, facts_of(op).writes)
        if isinstance(variant.target, Prim):
            assert variant.returns_list
            continue
        assert isinstance(variant.target, Overload), op
        assert not schema_of(variant.target).is_mutable, op
        assert not facts_of(op).draws, op


def test_most_variants_are_operators() -> None:
    mutable = [op for op in aten_overloads() if schema_of(op).is_mutable and not facts_of(op).draws]
    found = sum(isinstance(functional_variant(op, facts_of(op).writes).target, Overload) for op in mutable)
    assert found > 0.85 * len(mutable)


def test_a_draw_keeps_its_own_operator() -> None:
    variant = functional_variant(aten.bernoulli_.float, (0,))
    assert isinstance(variant.target, Prim)
    assert variant.target.draws


def _f(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _i(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def _mask() -> Tensor:
    return torch.tensor([[True, False, True], [False, True, False]])


def _case(op: Any, *args: Any, **kwargs: Any) -> Any:
    return pytest.param(op, args, kwargs, id=str(op))


CASES = [
    # in place
    _case(aten.add_.Tensor, _f(2, 3), _f(3), alpha=2),
    _case(aten.add_.Scalar, _f(2, 3), 1),
    _case(aten.sub_.Tensor, _f(2, 3), _f(2, 1)),
    _case(aten.mul_.Tensor, _f(3, 2).t(), _f(2, 3)),
    _case(aten.mul_.Scalar, _i(1, 2), 3),
    _case(aten.div_.Tensor_mode, _f(2, 3), _f(2, 3), rounding_mode="floor"),
    _case(aten.pow_.Scalar, _f(2), 2),
    _case(aten.relu_.default, _f(2, 3)),
    _case(aten.silu_.default, _f(2, 3)),
    _case(aten.leaky_relu_.default, _f(2, 3), 0.2),
    _case(aten.hardtanh_.default, _f(2, 3)),
    _case(aten.elu_.default, _f(2, 3)),
    _case(aten.clamp_.default, _f(2, 3), -0.5),
    _case(aten.clamp_.Tensor, _f(2, 3), None, _f(3)),
    _case(aten.zero_.default, _f(2, 3)),
    _case(aten.fill_.Scalar, _f(2, 3), 3),
    _case(aten.fill_.Tensor, _i(2, 3), torch.tensor(1.7)),
    _case(aten.masked_fill_.Scalar, _f(2, 3), _mask(), -1.0),
    _case(aten.masked_scatter_.default, _f(2, 3), _mask(), _f(6)),
    _case(aten.index_put_.default, _f(3, 2), [_i(0, 0), None], _f(2, 2), True),
    _case(aten.index_add_.default, _f(3, 2), 0, _i(2, 0), _f(2, 2)),
    _case(aten.index_copy_.default, _f(3, 2), 0, _i(2, 0), _f(2, 2)),
    _case(aten.index_fill_.int_Scalar, _f(3, 2), 0, _i(1), 5),
    _case(aten.scatter_.src, _f(2, 3), 1, _i(2, 0).view(2, 1), _f(2, 1)),
    _case(aten.scatter_.value, _f(2, 3), 1, _i(2, 0).view(2, 1), 9),
    _case(aten.scatter_add_.default, _f(2, 3), 1, _i(2, 0).view(2, 1), _f(2, 1)),
    _case(aten.scatter_reduce_.two, _f(2, 3), 1, _i(2, 0).view(2, 1), _f(2, 1), "amax"),
    _case(aten.addcmul_.default, _f(2, 3), _f(2, 3), _f(3), value=0.5),
    _case(aten.addcdiv_.default, _f(2, 3), _f(2, 3), _f(3)),
    _case(aten.addmm_.default, _f(2, 2), _f(2, 3), _f(3, 2), beta=0.5),
    _case(aten.baddbmm_.default, _f(1, 2, 2), _f(1, 2, 3), _f(1, 3, 2)),
    _case(aten.lerp_.Scalar, _f(3), _f(3), 0.3),
    _case(aten.tril_.default, _f(3, 3)),
    _case(aten.cumsum_.default, _f(3), 0),
    _case(aten.bitwise_or_.Tensor, _i(1, 2), _i(4, 2)),
    _case(aten.logical_not_.default, _mask()),
    _case(aten.eq_.Tensor, _f(2), _f(2)),
    _case(aten.fill_diagonal_.default, _f(3, 3), 2),
    _case(aten.put_.default, _f(3), _i(1), _f(1)),
    _case(aten.renorm_.default, _f(3, 2), 2, 0, 0.5),
    _case(aten.embedding_renorm_.default, _f(3, 2), _i(0, 2), 0.1, 2.0),
    _case(aten.sigmoid_.default, _f(4).expand(2, 4).clone()),
    # out=
    _case(aten.add.out, _f(2, 3), _f(2, 3), out=_f(2, 3)),
    _case(aten.mm.out, _f(2, 3), _f(3, 2), out=_f(2, 2)),
    _case(aten.sum.IntList_out, _f(2, 3), [1], out=_f(2)),
    _case(aten.cat.out, [_f(2), _f(3)], out=_f(5)),
    _case(aten.topk.values, _f(5), 2, values=_f(2), indices=_i(0, 0)),
    _case(aten.max.dim_max, _f(2, 3), 1, max=_f(2), max_values=_i(0, 0)),
    _case(aten.sort.values, _f(3), values=_f(3), indices=_i(0, 0, 0)),
    _case(aten.aminmax.out, _f(3), min=_f(), max=_f()),
    _case(aten.native_layer_norm.out, _f(2, 3), [3], None, None, 1e-5, out0=_f(2, 3), out1=_f(2, 1), out2=_f(2, 1)),
    _case(aten.split_copy.Tensor_out, _f(4), 2, out=[_f(2), _f(2)]),
    # several writes, lists, and fresh results beside the writes
    _case(aten._foreach_add_.Scalar, [_f(2), _f(3)], 1),
    _case(aten._foreach_mul_.List, [_f(2), _f(3)], [_f(2), _f(3)]),
    _case(aten._foreach_addcmul_.Scalar, [_f(2)], [_f(2)], [_f(2)], 0.5),
    _case(aten._native_batch_norm_legit.default, _f(4, 3), None, None, _f(3), _f(3).abs(), True, 0.1, 1e-5),
    _case(aten._batch_norm_with_update.default, _f(4, 3), None, None, _f(3), _f(3).abs(), 0.1, 1e-5),
    _case(
        aten._fused_adam_.default,
        *([_f(2)], [_f(2)], [_f(2)], [_f(2).abs()], [], [torch.tensor(1.0)]),
        **{
            "lr": 0.1,
            "beta1": 0.9,
            "beta2": 0.99,
            "weight_decay": 0.0,
            "eps": 1e-8,
            "amsgrad": False,
            "maximize": False,
        },
    ),
    _case(aten.frexp.Tensor_out, _f(3), mantissa=_f(3), exponent=torch.zeros(3, dtype=torch.int32)),
    # draws: run on copies
    _case(aten.normal_.default, _f(4, 6)[:, ::2]),
    _case(aten.bernoulli_.float, _f(4), 0.5),
    _case(aten.rand.out, [3], out=_f(3)),
]


def _copied(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.clone, tree)


def _written(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    names = [a.name for a in schema_of(op).arguments]
    held = [args[i] if i < len(args) else kwargs[names[i]] for i in facts_of(op).writes]
    return [leaf for leaf in pytree.tree_leaves(held) if isinstance(leaf, Tensor)]


def _equal(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("op", "args", "kwargs"), CASES)
def test_a_variant_gives_what_the_operator_writes(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    mine, my_keywords = _copied((args, kwargs))
    torch.manual_seed(0)
    returned = op(*mine, **my_keywords)
    state = torch.get_rng_state()
    wanted = _written(op, mine, my_keywords)

    variant = functional_variant(op, facts_of(op).writes)
    before = _copied((args, kwargs))
    passed, keywords = args, dict(kwargs)
    if variant.drops_out:
        keywords = {k: v for k, v in kwargs.items() if k not in {a.name for a in schema_of(op).arguments if a.is_out}}
    elif isinstance(variant.target, Overload):
        passed = spell_out_defaults(op, variant.target, args)
    torch.manual_seed(0)
    results: Any = variant.target(*passed, **keywords)
    assert torch.equal(torch.get_rng_state(), state)

    for old, now in zip(pytree.tree_leaves(before), pytree.tree_leaves((args, kwargs)), strict=True):
        assert not isinstance(old, Tensor) or _equal(old, now), "an operand was written"
    assert isinstance(results, tuple | list) == variant.returns_list
    made = list(results) if variant.returns_list else [results]
    assert len(made) == variant.fresh + len(wanted)
    fresh = [
        r for r in (returned if isinstance(returned, tuple | list) else [returned]) if all(r is not w for w in wanted)
    ]
    for actual, expected in zip(made[variant.fresh :], wanted, strict=True):
        assert _equal(actual.to(expected.dtype), expected)
    for actual, expected in zip(made[: variant.fresh], fresh, strict=False):
        assert _equal(actual, expected)


def test_defaults_that_differ_are_spelled_out() -> None:
    for op in aten_overloads():
        if not schema_of(op).is_mutable:
            continue
        variant = functional_variant(op, facts_of(op).writes)
        if isinstance(variant.target, Prim) or variant.drops_out:
            continue
        assert isinstance(variant.target, Overload)
        required = [a for a in schema_of(op).arguments if not a.has_default and not a.kwarg_only]
        given = tuple(object() for _ in required)
        spelled = spell_out_defaults(op, variant.target, given)
        for mine, other in zip(
            schema_of(op).arguments[len(spelled) :], schema_of(variant.target).arguments[len(spelled) :], strict=True
        ):
            assert mine.default == other.default, op


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _random_arguments(op: Overload, dtype: torch.dtype, second: tuple[int, ...]) -> list[Any] | None:
    """Arguments for an operator over tensors and numbers; None where others are needed."""
    made: list[Any] = []
    for place, argument in enumerate(schema_of(op).arguments):
        if argument.type == "Tensor":
            made.append(_random((37,) if place == 0 else second, dtype))
        elif argument.type in ("number", "Scalar", "float"):
            made.append(0.6)
        elif not argument.has_default:
            return None
        else:
            break
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_an_elementwise_operator_gives_the_same_bits_in_place(dtype: torch.dtype) -> None:
    compared = 0
    for op in aten_overloads():
        variant = inplace_variant(op, dtype) if facts_of(op).pointwise and not facts_of(op).draws else None
        for second in ((37,), ()) if variant is not None else ():
            arguments = _random_arguments(op, dtype, second)
            try:
                result = op(*(arguments or ()))
            except RuntimeError:  # it has no kernel for the dtype, or needs arguments of other kinds
                continue
            if arguments is not None and result.dtype == dtype:
                assert variant is not None
                assert _equal(variant(*arguments), result), f"{variant} with a second operand of shape {second}"
                compared += 1
    assert compared > 100


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_with_a_number_rounds_otherwise_in_place(dtype: torch.dtype) -> None:
    x = _random((37,), dtype)
    assert not torch.equal(aten.mul.Scalar(x, 0.6), aten.mul_.Scalar(x.clone(), 0.6)), "the exception is not needed"
    assert inplace_variant(aten.mul.Scalar, dtype) is None
    assert isinstance(exact_variant(aten.mul_.Scalar, (0,), [describe(x, 0)]).target, Prim)
    assert exact_variant(aten.mul_.Scalar, (0,), [describe(x.float(), 0)]).target is aten.mul.Scalar
    assert inplace_variant(aten.mul.Scalar, torch.float32) is aten.mul_.Scalar


def test_a_write_into_another_layout_keeps_its_operator_unless_it_is_elementwise() -> None:
    rows, columns = describe(_f(2, 3), 0), describe(_f(3, 2).t(), 0)
    assert exact_variant(aten.addmm_.default, (0,), [rows]).target is aten.addmm.default
    assert isinstance(exact_variant(aten.addmm_.default, (0,), [columns]).target, Prim)
    assert exact_variant(aten.exp_.default, (0,), [columns]).target is aten.exp.default
