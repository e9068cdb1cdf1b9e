"""Each operator with a rule, against eager: drawn elements, numbers, sizes and starts; and the probes that choose."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.native import probes
from dovetail.execute.native.claims import claim_of
from dovetail.execute.native.formula import compared, constant, fma, operand, select, substituted
from dovetail.execute.native.probes import ARRAY, NUMBER, Question, formula_of
from dovetail.execute.native.rules import RULES
from dovetail.inspect.memory import measure_peak
from dovetail.torch_compat.native_kernels import kernel_address
from tests.execute.native.programs import CPU, Drafted, aten, calls_counted, compiled, drawn_elements, outcome
from tests.execute.native.segments import Segment

pytest.importorskip("llvmlite")

T, N, S, B = "tensor", "number", "single", "truths"
_FORMS: dict[str, tuple[Any, tuple[Any, ...], dict[str, str]]] = {
    "add": (aten.add.Tensor, (T, T), {"alpha": N}),
    "add of a number": (aten.add.Tensor, (T, N), {}),
    "add_": (aten.add_.Tensor, (T, T), {"alpha": N}),
    "sub": (aten.sub.Tensor, (T, T), {"alpha": N}),
    "sub of one": (aten.sub.Tensor, (T, S), {}),
    "rsub": (aten.rsub.Scalar, (T, N), {}),
    "mul": (aten.mul.Tensor, (T, T), {}),
    "mul of a number": (aten.mul.Tensor, (T, N), {}),
    "mul_ of a number": (aten.mul_.Scalar, (T, N), {}),
    "mul of one": (aten.mul.Tensor, (S, T), {}),
    "div": (aten.div.Tensor, (T, T), {}),
    "div of a number": (aten.div.Tensor, (T, N), {}),
    "div_ of one": (aten.div_.Tensor, (T, S), {}),
    "neg": (aten.neg.default, (T,), {}),
    "abs": (aten.abs.default, (T,), {}),
    "reciprocal": (aten.reciprocal.default, (T,), {}),
    "square": (aten.square.default, (T,), {}),
    "sqrt": (aten.sqrt.default, (T,), {}),
    "sqrt_": (aten.sqrt_.default, (T,), {}),
    "rsqrt": (aten.rsqrt.default, (T,), {}),
    "exp": (aten.exp.default, (T,), {}),
    "log": (aten.log.default, (T,), {}),
    "tanh": (aten.tanh.default, (T,), {}),
    "erf": (aten.erf.default, (T,), {}),
    "sin": (aten.sin.default, (T,), {}),
    "cos": (aten.cos.default, (T,), {}),
    **{
        name: (getattr(aten, name).default, (T,), {})
        for name in (
            *("sigmoid", "silu", "mish", "hardswish", "hardsigmoid", "gelu", "expm1", "log1p", "log2", "log10", "asin"),
            *(
                "acos",
                "atan",
                "tan",
                "sinh",
                "cosh",
                "exp2",
                "floor",
                "ceil",
                "trunc",
                "round",
                "frac",
                "sign",
                "sigmoid_",
            ),
        )
    },
    "sigmoid_": (aten.sigmoid_.default, (T,), {}),
    "gelu by tanh": (aten.gelu.default, (T,), {"approximate": "tanh"}),
    "gelu_backward": (aten.gelu_backward.default, (T, T), {}),
    "gelu_backward by tanh": (aten.gelu_backward.default, (T, T), {"approximate": "tanh"}),
    "silu_backward": (aten.silu_backward.default, (T, T), {}),
    "softplus": (aten.softplus.default, (T, N, N), {}),
    "softplus_backward": (aten.softplus_backward.default, (T, T, N, N), {}),
    "elu": (aten.elu.default, (T, N, N, N), {}),
    "elu by defaults": (aten.elu.default, (T,), {}),
    "elu_backward": (aten.elu_backward.default, (T, N, N, N, False, T), {}),
    "elu_backward of a result": (aten.elu_backward.default, (T, 1.0, 1.0, 1.0, True, T), {}),
    "clamp": (aten.clamp.default, (T, N, N), {}),
    "clamp from below": (aten.clamp.default, (T, N), {}),
    "clamp from above": (aten.clamp.default, (T, None, N), {}),
    "hardtanh": (aten.hardtanh.default, (T, N, N), {}),
    "hardtanh_backward": (aten.hardtanh_backward.default, (T, T, N, N), {}),
    "leaky_relu_backward": (aten.leaky_relu_backward.default, (T, T, N, False), {}),
    "native_dropout_backward": (aten.native_dropout_backward.default, (T, B, N), {}),
    "relu": (aten.relu.default, (T,), {}),
    "relu_": (aten.relu_.default, (T,), {}),
    "clamp_min": (aten.clamp_min.default, (T, N), {}),
    "clamp_max": (aten.clamp_max.default, (T, N), {}),
    "maximum": (aten.maximum.default, (T, T), {}),
    "minimum": (aten.minimum.default, (T, T), {}),
    "threshold_backward": (aten.threshold_backward.default, (T, T, N), {}),
    "leaky_relu": (aten.leaky_relu.default, (T, N), {}),
    "tanh_backward": (aten.tanh_backward.default, (T, T), {}),
    "sigmoid_backward": (aten.sigmoid_backward.default, (T, T), {}),
    "addcmul": (aten.addcmul.default, (T, T, T), {"value": N}),
    "addcmul_": (aten.addcmul_.default, (T, T, T), {"value": N}),
    "addcdiv": (aten.addcdiv.default, (T, T, T), {"value": N}),
    "addcdiv_": (aten.addcdiv_.default, (T, T, T), {"value": N}),
    "lerp": (aten.lerp.Scalar, (T, T, N), {}),
    "lerp_": (aten.lerp_.Scalar, (T, T, N), {}),
    "where": (aten.where.self, (B, T, T), {}),
    "masked_fill": (aten.masked_fill.Scalar, (T, B, N), {}),
    "lt": (aten.lt.Tensor, (T, T), {}),
    "le": (aten.le.Scalar, (T, N), {}),
    "gt": (aten.gt.Scalar, (T, N), {}),
    "ge": (aten.ge.Tensor, (T, T), {}),
    "eq": (aten.eq.Scalar, (T, N), {}),
    "ne": (aten.ne.Tensor, (T, T), {}),
    "mse_loss of each": (aten.mse_loss.default, (T, T, 0), {}),
    "mse_loss_backward of each": (aten.mse_loss_backward.default, (T, T, T, 0), {}),
    "mse_loss_backward of the mean": (aten.mse_loss_backward.default, (S, T, T, 1), {}),
    "mse_loss_backward of the sum": (aten.mse_loss_backward.default, (S, T, T, 2), {}),
    "ones_like": (aten.ones_like.default, (T,), {}),
    "zeros_like": (aten.zeros_like.default, (T,), {"memory_format": torch.preserve_format}),
    "full_like": (aten.full_like.default, (T, N), {}),
    "copy_": (aten.copy_.default, (T, T), {}),
    "clone": (aten.clone.default, (T,), {}),
    "zero_": (aten.zero_.default, (T,), {}),
    "fill_": (aten.fill_.Scalar, (T, N), {}),
    **{f"pow {e}": (aten.pow.Tensor_Scalar, (T, e), {}) for e in (0.5, 1, 2, 3, -0.5, -1, -2)},
}
_NUMBERS = st.one_of(
    st.sampled_from([0, 0.0, -0.0, 1, 1.0, 2, -3, 0.1, math.inf, math.nan, 1e-45, 1.0 - 1e-9]),
    st.floats(-10, 10),
    st.integers(-1000, 1000),
)
_LEFT_OUT = {("elu_backward of a result", dtype) for dtype in (torch.float32, torch.float64)}
"""Eager refuses some numbers."""
_BY_KERNEL = {("gelu", torch.float32), ("gelu_backward", torch.float32)}
"""oneDNN's polynomials: torch's own function is called."""
_HAS_SLEEF = torch.backends.cpu.get_cpu_capability() in ("AVX512", "AVX2")


def _of(kind: Any, draft: Drafted, given_: list[Any], elements: random.Random, like: Any) -> Any:
    dtype, count, start = like
    if kind == N:
        return draft.number(given_.pop())
    if kind == S:
        return draft.base(drawn_elements(elements, 1, dtype)[0])
    if kind in (T, B):
        drawn = drawn_elements(elements, count + start, dtype)[start:]
        return draft.base(drawn > 0 if kind == B else drawn)
    return kind


@pytest.mark.parametrize("name", _FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_eagers_bits(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    target, args, kwargs = _FORMS[name]
    count, start = data.draw(st.integers(0, 130), "count"), data.draw(st.integers(0, 3), "start")
    numbers = [data.draw(_NUMBERS, "number") for _ in range(3)]
    elements, draft = random.Random(data.draw(st.integers(0, 10**6), "seed")), Drafted()
    like = (dtype, count, start)
    operands = [_of(kind, draft, numbers, elements, like) for kind in args]
    named = {key: _of(kind, draft, numbers, elements, like) for key, kind in kwargs.items()}
    made = draft.add(target, *operands, **named)
    other = draft.base(drawn_elements(elements, count, dtype))
    draft.add(aten.neg_.default, other)
    if made.tensor.dtype is torch.bool:
        last = draft.add(aten.where.self, made, other, other)
    else:
        last = draft.add(aten.neg.default, made)
    program = draft.program([made, last])
    code = compiled(program)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    is_native = code.executors.owner(program.nodes[0]).name == "native"
    wanted = (name, dtype) not in _LEFT_OUT
    if (name, dtype) in _BY_KERNEL:
        wanted = count > 0 and kernel_address("gelu") is not None
    assert is_native is wanted or not _HAS_SLEEF


def test_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft = Drafted()
    x = draft.base(torch.randn(100))
    y = draft.add(aten.exp.default, draft.add(aten.tanh.default, x))
    code = compiled(draft.program([y]))
    assert isinstance(code, CompiledProgram)
    assert torch.equal(code(draft.arguments())[0], draft.given[0].tanh().exp())
    assert answers == [0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fills_of_given_sizes(dtype: torch.dtype) -> None:
    draft = Segment()
    x, number = draft.input(torch.randn(3, dtype=torch.float64)), draft.input(torch.tensor(2.5, dtype=dtype))
    made = [
        draft.call(aten.ones.default, [], dtype=dtype),
        draft.call(aten.zeros.default, [2, 5], dtype=dtype, layout=torch.strided, pin_memory=False),
        draft.call(aten.full.default, [40], -0.1, dtype=dtype, device=CPU),
        draft.call(aten.full.default, [7], 3, dtype=dtype),
        draft.call(aten.new_ones.default, x, [0, 4], dtype=dtype),
        draft.call(aten.new_full.default, number, [3], float("nan")),
        draft.call(aten.full_like.default, x, float("-inf"), dtype=dtype),
    ]
    last = draft.call(aten.add.Tensor, made[2], made[0])
    program = draft.program([*made, last, *draft.inputs])  # nobody frees them meanwhile
    code = compiled(program)
    assert [code.executors.owner(node).name for node in program.nodes] == ["native"] * 8
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


def test_fills_that_are_not_claimed() -> None:
    draft = Segment()
    x = draft.input(torch.randn(3))
    draft.call(aten.full.default, [3], 1)
    draft.call(aten.full.default, [3], True)
    draft.call(aten.ones_like.default, x, dtype=torch.int32)
    draft.call(aten.zeros_like.default, x, dtype=torch.bfloat16)
    assert [claim_of(node) for node in draft.nodes] == [None] * 4


A, B_, C = operand(0), operand(1), operand(2)


@pytest.mark.parametrize(("target", "wrong"), [(aten.add.Tensor, fma(A, C, B_)), (aten.sub.Tensor, fma(B_, C, A))])
def test_probes_refuse_what_is_rounded_otherwise(target: Any, wrong: Any) -> None:
    """Eager rounds a product and a sum once, or twice, by processor: one formula of the two is right."""
    rule = RULES[target.name().split("::")[1].split(".")[0]]
    avoided, operands = tuple(rule.avoided.items()), (("self", ARRAY), ("other", ARRAY), ("alpha", NUMBER))
    each = [formula_of(Question(target, (x,), torch.float32, operands, (), "", avoided)) for x in rule.candidates]
    assert sum(found is not None for found in each) == 1
    assert formula_of(Question(target, (wrong,), torch.float32, operands, (), "", avoided)) is None
    assert formula_of(Question(target, (wrong, *rule.candidates), torch.float32, operands, (), "", avoided)) in each


def test_probes_tell_whole_numbers_from_fractions() -> None:
    """Minus 0 is 0, and minus 0.0 has another sign: a difference times either of them has, too."""
    minus, zero = torch.tensor([-0.0]), torch.tensor([0.0])
    signs = [torch.sub(minus, zero, alpha=alpha).signbit().item() for alpha in (0, 0.0)]
    assert signs == [False, True]
    operands = (("self", ARRAY), ("other", ARRAY), ("alpha", NUMBER))
    assert formula_of(Question(aten.sub.Tensor, RULES["sub"].candidates, torch.float32, operands, (), "")) is None


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("sqrt", RULES["sqrt"].candidates[1]), ("relu", -A), ("abs", A), ("neg", constant(0.0) - A), ("exp", A + A)],
)
def test_probes_refuse_other_formulas(name: str, wrong: Any) -> None:
    """Among them the square root as IEEE 754 rounds it, where eager's is another, and a minus that makes 0 of 0."""
    target = getattr(aten, name).default
    question = Question(target, (wrong,), torch.float32, (("self", ARRAY),), (), "")
    wanted = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).abs()
    wanted = torch.cat([wanted, wanted * 2.0**-122])  # some library rounds small numbers alone otherwise
    is_ieee = torch.equal(wanted.sqrt(), wanted.double().sqrt().float())
    assert (formula_of(question) is not None) is (name == "sqrt" and is_ieee)


def test_probes_look_at_the_last_elements_too() -> None:
    """The larger one of two zeros is the first or the second, by whether it is among those that fill a vector."""
    zeros = torch.zeros(33), -torch.zeros(33)
    signs = torch.maximum(*zeros).signbit()
    if not bool((signs != signs[0]).any()):
        pytest.skip("not on this processor")
    operands = (("self", ARRAY), ("other", ARRAY))
    by_place = RULES["maximum"].candidates
    same = tuple(select(compared(how, A, B_), *ab) for how, ab in (("gt", (A, B_)), ("lt", (B_, A))))
    alike = tuple(select(compared("ne", A + B_, A + B_), A + B_, each) for each in same)
    question = Question(aten.maximum.default, (*same, *alike), torch.float32, operands, (), "")
    assert formula_of(question) is None
    if _HAS_SLEEF:
        assert formula_of(Question(aten.maximum.default, by_place, torch.float32, operands, (), "")) is not None


def test_what_probes_found_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question(aten.neg.default, (-A,), torch.float32, (("self", ARRAY),), (), "")
    found = formula_of(question)
    monkeypatch.setattr(probes, "_try_all", lambda _: pytest.fail("it is known"))
    assert formula_of(question) is found


def test_probes_leave_the_generator_where_it_is() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    formula_of(Question(aten.abs.default, (A,), torch.float64, (("self", ARRAY),), (), ""))
    assert torch.equal(torch.get_rng_state(), before)


def test_substitution_closes_the_gap() -> None:
    assert str(substituted(fma(B_, C, A), {1: 2.0})) == "fma(2.0, b, a)"


def test_probes_take_little_memory_and_keep_none() -> None:
    question = Question(aten.neg.default, (A + A, -A), torch.float64, (("self", ARRAY),), (), "", (), "again")
    found = measure_peak(formula_of, question)
    shared = 8 * 8 * 33_000  # with several threads: tensors that torch shares among them
    assert found.peak_bytes < 150_000 + (shared if torch.get_num_threads() > 1 else 0)
    assert found.end_bytes == 0
