"""Batch norms in the weights of the layers before them: what is folded, how exactly, and what stays."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail.passes
from dovetail.ir.program import Program
from dovetail.passes.fold_batch_norms import FoldBatchNormsReport, NormRow, fold_batch_norms
from tests.passes.recorded_models import Recorded, assert_rounded_as, record
from tests.rotation import rotated
from tests.rounding import in_float64

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def _settled(model: nn.Module) -> nn.Module:
    """The model for inference, with statistics and parameters as after training."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None and module.running_var is not None:
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.3, 3.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.eval()


def _fold(recorded: Recorded, **options: Any) -> tuple[Program, FoldBatchNormsReport]:
    options = {"contents": recorded.tensors, **options}
    return fold_batch_norms(recorded.program, recorded.constants, recorded.infer, **options)


def _added(report: FoldBatchNormsReport) -> int:
    """How many shifts are added to finished sums."""
    return sum("afterwards" in row.because for row in report.folded)


def _codes(model: nn.Module, *inputs: Any, **options: Any) -> list[str]:
    return [row.code for row in _fold(record(model, *inputs), **options)[1].rows]


def _norms(program: Program) -> int:
    return sum("batch_norm" in str(node.target) for node in program.nodes)


def _check(model: nn.Module, *inputs: Any, others: tuple[Any, ...] = (), folded: int = 1, **options: Any) -> Program:
    """Fold `folded` norms, no more, and compare with eager on each input. others: one-input calls of other sizes."""
    recorded = record(model, *inputs, dynamic=bool(others))
    program, report = _fold(recorded, **options)
    assert len(report.folded) == folded, str(report)
    assert _norms(program) == len(report.rows) - folded
    assert set(report.asked) <= {v.name for node in program.nodes for v in node.results()}
    assert len(report.asked) == len(set(report.asked))
    shift = "added once" if _added(report) == folded else "added up"
    for call in (inputs, *((other,) for other in others)):
        with torch.no_grad():
            eager = model(*call)
        (found,) = recorded.run(program, *call)
        assert_rounded_as(found, eager, in_float64(model, *call, shift=shift))
    return program


def _conv_norm(**changes: Any) -> nn.Sequential:
    options = {"bias": True, "groups": 1, **changes}
    return nn.Sequential(nn.Conv2d(4, 6, 3, **options), nn.BatchNorm2d(6))


# --- what is folded -------------------------------------------------------------------------------------------------


def test_before_and_after() -> None:
    recorded = record(_settled(_conv_norm(bias=False)), torch.randn(2, 4, 7, 7))
    program, report = _fold(recorded)
    last = program.nodes[-1]
    assert last.target is aten.convolution.default
    assert [str(operand) for operand in last.args[:3]] == ["arg_0", *report.asked]
    assert report.asked == ("native_batch_norm_weight", "native_batch_norm_bias")
    (row,) = report.rows
    assert row == NormRow(
        "native_batch_norm",
        "convolution",
        "FOLDED",
        "its scale and shift are in the weight and bias of convolution",
        row.origin,
    )
    assert "recorded_models.py" in row.origin
    assert row.origin.endswith("(1)")
    assert str(report).startswith("folded 1 of 1 batch norms\n  native_batch_norm: FOLDED: its scale")
    assert str(last.origin).endswith("(0)")


@pytest.mark.parametrize(
    ("dims", "groups", "affine", "bias"), rotated([*product([1, 2, 3], [1, 2, 4], [True, False], [True, False])], 4)
)
def test_convolutions(dims: int, groups: int, affine: bool, bias: bool) -> None:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    model = nn.Sequential(conv(4, 8, 3, padding=1, stride=2, groups=groups, bias=bias), norm(8, affine=affine))
    _check(_settled(model), torch.randn(3, 4, *[7] * dims))


@pytest.mark.parametrize(("dims", "groups", "bias"), rotated([*product([1, 2, 3], [1, 2, 4], [True, False])], 4))
def test_transposed_convolutions(dims: int, groups: int, bias: bool) -> None:
    conv = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    model = nn.Sequential(conv(8, 12, 3, stride=2, padding=1, output_padding=1, groups=groups, bias=bias), norm(12))
    _check(_settled(model), torch.randn(2, 8, *[5] * dims))


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
def test_paddings(padding: str, mode: str) -> None:
    conv = nn.Conv2d(4, 6, 3, padding=padding, padding_mode=mode)
    _check(_settled(nn.Sequential(conv, nn.BatchNorm2d(6))), torch.randn(2, 4, 7, 7))


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    model = _settled(nn.Sequential(nn.Linear(5, 7, bias=bias), nn.BatchNorm1d(7)))
    program = _check(model, torch.randn(9, 5))
    assert program.nodes[-1].target is aten.addmm.default
    _check(model, torch.randn(9, 5), others=(torch.randn(3, 5), torch.randn(17, 5)))


class _Ordered(nn.Module):
    """A linear layer, then its features in dimension 1."""

    def __init__(self, norm: nn.Module, order: tuple[int, ...], features: int = 7) -> None:
        super().__init__()
        self.linear = nn.Linear(5, features)
        self.norm = norm
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.linear(x).permute(self.order))
        return result


def test_linear_layers_whose_features_are_moved() -> None:
    model = _settled(_Ordered(nn.BatchNorm2d(7), (0, 3, 1, 2)))
    _check(model, torch.randn(2, 3, 4, 5))
    _check(model, torch.randn(2, 3, 4, 5), others=(torch.randn(4, 2, 6, 5),))


def test_a_norm_over_other_dimensions_than_features_stays() -> None:
    model = _settled(_Ordered(nn.BatchNorm1d(7), (0, 1, 2)))
    assert _codes(model, torch.randn(2, 7, 5)) == ["CHANNEL-MISMATCH"]
    swapped = _settled(_Ordered(nn.BatchNorm2d(7), (0, 2, 3, 1)))
    assert _codes(swapped, torch.randn(2, 3, 7, 5)) == ["CHANNEL-MISMATCH"]


LAYOUTS = [torch.channels_last, torch.contiguous_format]


@pytest.mark.parametrize(
    ("layout", "weight_layout", "channels", "size"),
    rotated([*product(LAYOUTS, LAYOUTS, [(4, 6), (1, 1), (4, 1)], [7, 3])], 4),
)
def test_layouts(layout: Any, weight_layout: Any, channels: tuple[int, int], size: int) -> None:
    model = nn.Sequential(nn.Conv2d(*channels, 3), nn.BatchNorm2d(channels[1]))
    model = _settled(model.to(memory_format=weight_layout))
    x = torch.randn(2, channels[0], size, size).to(memory_format=layout)
    _check(model, x)  # also where eager's norm gives other steps for dimensions of size 1 than its convolution


def test_a_norm_that_lies_otherwise_than_its_layer_is_laid_out_as_before() -> None:
    model = _settled(_Ordered(nn.BatchNorm1d(7), (0, 2, 1)))
    assert _codes(model, torch.randn(2, 3, 5)) == ["FOLDED"]
    _check(model, torch.randn(2, 3, 5))


def test_a_batch_of_another_size() -> None:
    model = _settled(_conv_norm())
    _check(model, torch.randn(2, 4, 7, 7), others=(torch.randn(5, 4, 7, 7), torch.randn(3, 4, 9, 8)))


class _Shared(nn.Module):
    """One convolution with two norms, and one of these norms after another convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.other = nn.Conv2d(4, 4, 1, bias=False)
        self.first, self.second = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(self.conv(x)).relu()
        b = self.second(self.conv(a)).relu()
        c = self.first(self.other(b)).relu()
        result: Tensor = self.second(self.conv(c))
        return result


def test_each_call_site_has_its_weight() -> None:
    model = _settled(_Shared())
    program = _check(model, torch.randn(2, 4, 5, 5), folded=4)
    weights = {node.args[1] for node in program.nodes if node.target is aten.convolution.default}
    assert len(weights) == 3  # the pair that occurs twice has one


def test_two_norms_in_a_row() -> None:
    model = _settled(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False)))
    recorded = record(model, torch.randn(2, 4, 7, 7))
    program, report = _fold(recorded)
    assert len(report.folded) == 2
    assert report.asked == tuple(str(operand) for operand in program.nodes[-1].args[1:3])
    _check(model, torch.randn(2, 4, 7, 7), folded=2)


# --- numbers --------------------------------------------------------------------------------------------------------


def _with(model: nn.Sequential, **numbers: Any) -> nn.Module:
    _settled(model)
    for name, number in numbers.items():
        held = getattr(model[1], name)
        with torch.no_grad():
            held.copy_(number if isinstance(number, Tensor) else torch.full_like(held, number))
    return model


@pytest.mark.parametrize(
    "numbers",
    [
        {"running_var": 1e-12},
        {"running_var": 0.0},
        {"running_var": 1e30},
        {"weight": 0.0},
        {"weight": -1.5},
        {"weight": torch.tensor([0.0, -1.0, 1e-20, 1e10, -0.0, 3.0])},
        {"running_mean": 1e6},
        {"running_mean": -1e30},
        {"running_mean": 1e6, "running_var": 1e-12},
        {"bias": 1e20},
        {"running_var": float("nan")},
        {"running_mean": float("inf")},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_extreme_numbers(kind: str, numbers: dict[str, Any]) -> None:
    if kind == "conv":
        _check(_with(_conv_norm(), **numbers), torch.randn(2, 4, 7, 7))
        return
    _check(_with(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)), **numbers), torch.randn(8, 5))


def test_without_an_epsilon() -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, eps=0.0))
    try:
        model.eval()(torch.randn(2, 4, 7, 7))
    except ValueError as error:  # of torch 2.11
        pytest.skip(str(error))
    _check(_with(model, running_var=1e-12), torch.randn(2, 4, 7, 7))


_LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(6, 4, 5), lambda: nn.BatchNorm1d(4), (3, 6, 19)),
    "conv2d without a bias": (lambda: nn.Conv2d(6, 4, 3, bias=False), lambda: nn.BatchNorm2d(4), (2, 6, 9, 9)),
    "conv2d with the channels last": (
        lambda: nn.Conv2d(6, 4, 3).to(memory_format=torch.channels_last),
        lambda: nn.BatchNorm2d(4),
        (2, 6, 9, 9),
    ),
    "conv3d in groups": (lambda: nn.Conv3d(6, 4, 3, groups=2), lambda: nn.BatchNorm3d(4), (2, 6, 5, 5, 5)),
    "transposed in groups": (
        lambda: nn.ConvTranspose2d(6, 4, 3, 2, groups=2),
        lambda: nn.BatchNorm2d(4),
        (2, 6, 5, 5),
    ),
    "linear": (lambda: nn.Linear(48, 4), lambda: nn.BatchNorm1d(4), (9, 48)),
    "linear without a bias": (lambda: nn.Linear(48, 4, bias=False), lambda: nn.BatchNorm1d(4), (9, 48)),
}


@pytest.mark.parametrize("numbers", [{"bias": 3e4}, {"running_mean": -3e4}, {"bias": 1e30}], ids=str)
@pytest.mark.parametrize("name", list(_LAYERS))
def test_a_large_shift_stays_out_of_the_sum(name: str, numbers: dict[str, float]) -> None:
    layer, norm, shape = _LAYERS[name]
    model, x = _with(nn.Sequential(layer(), norm()), **numbers), torch.randn(shape)
    program = _check(model, x)  # by the bound of a shift that is added once
    recorded = record(model, x)
    _, report = _fold(recorded)
    assert _added(report) == 1
    assert program.nodes[-1].target is aten.add.Tensor
    assert [str(node.args[1]) for node in program.nodes[-2:]] == list(report.asked)
    unknown, report = _fold(recorded, contents={})
    assert _added(report) == 0
    assert unknown.nodes[-1].target is not aten.add.Tensor


def test_a_large_shift_behind_views() -> None:
    model = _settled(_Ordered(nn.BatchNorm2d(7), (0, 3, 1, 2)))
    model.linear = nn.Linear(48, 7)
    nn.init.constant_(model.norm.bias, 1e5)  # type: ignore[arg-type]
    _check(model, torch.randn(2, 3, 4, 48), others=(torch.randn(4, 2, 6, 48),))
    assert _added(_fold(record(model, torch.randn(2, 3, 4, 48)))[1]) == 1


def _adding_in_order(model: nn.Sequential, x: Tensor) -> Tensor:
    """A linear layer whose weight and bias do the work of its norm, by a kernel that starts each sum from the bias."""
    linear, norm = model
    scale = norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()  # type: ignore[operator, union-attr]
    weight = (linear.weight.double() * scale[:, None]).float()  # type: ignore[operator, union-attr]
    shift = ((linear.bias.double() - norm.running_mean.double()) * scale + norm.bias.double()).float()  # type: ignore
    found = shift.expand(x.shape[0], -1)
    for k in range(x.shape[1]):
        found = found + x[:, k, None] * weight[:, k]
    return found


def test_what_a_kernel_loses_that_starts_from_a_large_shift() -> None:
    model: Any = _with(nn.Sequential(nn.Linear(400, 6), nn.BatchNorm1d(6)), bias=3e4)
    x = torch.randn(40, 400)
    with torch.no_grad():
        found = _adding_in_order(model, x)
    in_float64(model, x, shift="added up").assert_holds(found)
    with pytest.raises(AssertionError, match="times the bound"):
        in_float64(model, x, shift="added once").assert_holds(found)


def test_shifts_as_large_as_what_they_are_added_to_stay_in_the_bias() -> None:
    """As trained networks have them: the norm's statistics are those of its inputs."""
    for bias in (True, False):
        model = nn.Sequential(nn.Conv2d(8, 16, 3, bias=bias), nn.BatchNorm2d(16, momentum=None), nn.ReLU())
        x = torch.randn(16, 8, 9, 9) + 1
        model.train()(x)
        nn.init.uniform_(model[1].weight, 0.3, 1.0)  # type: ignore[arg-type]
        nn.init.normal_(model[1].bias, 0.0, 0.3)  # type: ignore[arg-type]
        program, report = _fold(record(model.eval(), x))
        assert (len(report.folded), _added(report)) == (1, 0)
        assert [node.target for node in program.nodes[-2:]] == [aten.convolution.default, aten.relu.default]


def _of_another_epsilon(model: Any) -> None:
    model[1].eps = 1e-4


def _shift_in_bfloat16(model: Any) -> None:
    model[1].bias.copy_(model[1].bias.bfloat16())


def _weight_in_bfloat16(model: Any) -> None:
    model[0].weight.copy_(model[0].weight.bfloat16())


def _mean_without_a_channel(model: Any) -> None:
    model[1].running_mean[1] = 0.0


@pytest.mark.parametrize(
    "wrong", [_of_another_epsilon, _shift_in_bfloat16, _weight_in_bfloat16, _mean_without_a_channel]
)
@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_the_bounds_notice_a_wrong_fold(kind: str, wrong: Callable[[Any], None]) -> None:
    layers = {"conv": (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), "linear": (nn.Linear(64, 6), nn.BatchNorm1d(6))}
    model, x = _settled(nn.Sequential(*layers[kind])), torch.randn((2, 4, 7, 7) if kind == "conv" else (9, 64))
    rounded = in_float64(model, x)
    with torch.no_grad():
        rounded.assert_holds(model(x))
        wrong(model)
        recorded = record(model, x)
        (found,) = recorded.run(_fold(recorded)[0], x)
    with pytest.raises(AssertionError, match="times the bound"):
        rounded.assert_holds(found)


@pytest.mark.parametrize("norm_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_bfloat16(kind: str, norm_dtype: torch.dtype) -> None:
    if kind == "conv":
        model = _settled(nn.Sequential(nn.Conv2d(16, 32, 3).bfloat16(), nn.BatchNorm2d(32).to(norm_dtype)))
        _check(model, torch.randn(2, 16, 7, 7).bfloat16())
        return
    model = _settled(nn.Sequential(nn.Linear(64, 32).bfloat16(), nn.BatchNorm1d(32).to(norm_dtype)))
    _check(model, torch.randn(8, 64).bfloat16())


def test_float16_only_when_asked_for() -> None:
    model = _settled(nn.Sequential(nn.Conv2d(16, 32, 3).half(), nn.BatchNorm2d(32)))
    x = torch.randn(2, 16, 7, 7).half()
    assert _codes(model, x) == ["HALF-RANGE"]
    _check(model, x, half=True)


def test_double() -> None:
    _check(_settled(_conv_norm().double()), torch.randn(2, 4, 7, 7).double())


# --- what stays -----------------------------------------------------------------------------------------------------


class _Of(nn.Module):
    """A function of a tensor, a convolution and a norm."""

    def __init__(self, function: Callable[[Tensor, nn.Module, nn.Module], Any], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = norm or nn.BatchNorm2d(4)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.conv, self.norm)


def _residual(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    c = conv(x)
    result: Tensor = norm(c) + c
    return result


def _returned(x: Tensor, conv: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    c = conv(x)
    return norm(c), c


def _viewed(x: Tensor, conv: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    c = conv(x)
    return norm(c), c[0]


def _first(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    result: Tensor = conv(norm(x))
    return result


def _between(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    result: Tensor = norm(conv(x).relu())
    return result


def _swapped(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    result: Tensor = norm(conv(x).transpose(1, 2).contiguous())
    return result


def _computed_weight(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    result: Tensor = norm(torch.conv2d(x, conv.weight * x.mean()))  # type: ignore[call-overload]
    return result


def _computed_bias(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    result: Tensor = norm(torch.conv2d(x, conv.weight, x[0, :, 0, 0]))  # type: ignore[call-overload]
    return result


def _computed_mean(x: Tensor, conv: nn.Module, norm: Any) -> Tensor:
    return torch.batch_norm(conv(x), norm.weight, norm.bias, x[0, :, 0, 0], norm.running_var, False, 0.1, 1e-5, False)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (_residual, "CONV-READ-TWICE"),
        (_viewed, "CONV-READ-TWICE"),
        (_returned, "CONV-RETURNED"),
        (_first, "NO-LAYER-BEFORE"),
        (_between, "NO-LAYER-BEFORE"),
        (_swapped, "NO-LAYER-BEFORE"),
        (_computed_weight, "WEIGHT-NOT-CONSTANT"),
        (_computed_bias, "BIAS-NOT-CONSTANT"),
        (_computed_mean, "STATS-NOT-CONSTANT"),
    ],
)
def test_reasons(function: Callable[..., Any], code: str) -> None:
    recorded = record(_settled(_Of(function)), torch.randn(2, 4, 4, 4))
    program, report = _fold(recorded)
    assert program is recorded.program
    assert [row.code for row in report.rows] == [code]
    assert report.asked == ()
    assert "function" not in report.rows[0].because
    assert report.rows[0].because


def test_a_norm_that_trains_stays() -> None:
    recorded = record(_conv_norm().train(), torch.randn(2, 4, 7, 7))
    program, report = _fold(recorded)
    assert program is recorded.program
    assert [row.code for row in report.rows] == ["TRAINING"]
    without = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, track_running_stats=False)).eval()
    assert _codes(without, torch.randn(2, 4, 7, 7)) == ["TRAINING"]


def test_only_constants_are_folded() -> None:
    recorded = record(_settled(_conv_norm()), torch.randn(2, 4, 7, 7))
    names = recorded.constants
    for missing, code in (
        ("_0_weight_0", "WEIGHT-NOT-CONSTANT"),
        ("_0_bias_1", "BIAS-NOT-CONSTANT"),
        ("_1_weight_2", "STATS-NOT-CONSTANT"),
        ("_1_bias_3", "STATS-NOT-CONSTANT"),
        ("_1_running_mean_4", "STATS-NOT-CONSTANT"),
        ("_1_running_var_5", "STATS-NOT-CONSTANT"),
    ):
        assert missing in names
        program, report = fold_batch_norms(recorded.program, set(names) - {missing}, recorded.infer)
        assert program is recorded.program
        assert [row.code for row in report.rows] == [code]


def test_programs_without_norms_stay() -> None:
    recorded = record(nn.Conv2d(4, 6, 3), torch.randn(2, 4, 7, 7))
    program, report = _fold(recorded)
    assert program is recorded.program
    assert report == FoldBatchNormsReport()
    assert str(report) == "folded 0 of 0 batch norms"


# --- models ---------------------------------------------------------------------------------------------------------


class _BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.down(x)
        result: Tensor = self.relu(out)
        return result


def _conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class _Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(16, 8, 1), _conv(8, 8, 3), nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "basic blocks": (lambda: nn.Sequential(_BasicBlock(8, 16, 2), _BasicBlock(16, 16, 1)), (2, 8, 9, 9), 6),
    "bottleneck": (_Bottleneck, (2, 16, 9, 9), 3),
    "depthwise": (
        lambda: nn.Sequential(_conv(3, 8, 3, 2), _conv(8, 8, 3, 1, 8), _conv(8, 16, 1), _conv(16, 16, 3, 2, 16)),
        (2, 3, 17, 17),
        4,
    ),
    "decoder": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(8, 6, 4, 2, 1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 3, 4, 2, 1),
            nn.Tanh(),
        ),
        (2, 8, 5, 5),
        1,
    ),
    "speech": (
        lambda: nn.Sequential(
            nn.Conv1d(5, 8, 5, dilation=2),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Conv1d(8, 8, 3, groups=2),
            nn.BatchNorm1d(8),
        ),
        (2, 5, 40),
        2,
    ),
    "video": (
        lambda: nn.Sequential(
            nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 5)
        ),
        (2, 3, 4, 4, 4),
        1,
    ),
    "classifier": (
        lambda: nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        ),
        (9, 6),
        2,
    ),
}


@pytest.mark.parametrize(("name", "dynamic"), rotated([*product(_MODELS, [False, True])], 5))
def test_models(name: str, dynamic: bool) -> None:
    make, shape, folded = _MODELS[name]
    model = _settled(make())
    others = (torch.randn(shape[0] + 3, *shape[1:]),) if dynamic else ()
    _check(model, torch.randn(shape), others=others, folded=folded)


class _Random(nn.Module):
    """Convolutions and norms from a small pool in random order, with views, copies, sums and writes between them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1, groups=g, bias=g > 1) for g in (1, 2, 4)])
        self.convs.append(nn.ConvTranspose2d(4, 4, 3, padding=1, groups=2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4)])
        self.linear = nn.Linear(4, 4)
        self.seed = seed

    def forward(self, x: Tensor) -> list[Tensor]:
        choose = random.Random(self.seed)
        values = [x]
        for _ in range(12):
            value = values[-1] if choose.random() < 0.7 else choose.choice(values)
            kind = choose.choice(
                ["conv"] * 4 + ["norm"] * 4 + ["relu", "relu_", "add", "view", "linear", "turn", "layout"]
            )
            match kind:
                case "conv":
                    value = choose.choice(list(self.convs))(value)
                case "norm":
                    value = choose.choice(list(self.norms))(value)
                case "relu":
                    value = value.relu()
                case "relu_":
                    value = (value * 1.5).relu_() if value is x else value.relu_()
                case "add":
                    value = value + choose.choice(values)
                case "view":
                    value = value.reshape(2, 4, 36).view(2, 4, 6, 6)
                case "linear":
                    value = self.linear(value.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
                case "turn":
                    value = value.transpose(2, 3)
                case "layout":
                    value = value.contiguous(memory_format=torch.channels_last)
            values.append(value)
        return [values[-1], *choose.sample(values, 1)]


@pytest.mark.parametrize("seed", rotated(range(40), 4))
def test_random_models(seed: int) -> None:
    model = _settled(_Random(seed))
    x = torch.randn(2, 4, 6, 6)
    recorded = record(model, x)
    program, report = _fold(recorded)
    assert (program is recorded.program) == (not report.folded)
    wanted = recorded.run(recorded.program, x)  # what aliases another result, or the input, is not a result of programs
    for found, eager in zip(recorded.run(program, x), wanted, strict=True):
        torch.testing.assert_close(found, eager, rtol=1e-4, atol=float(1e-5 * eager.abs().max()))
        assert found.stride() == eager.stride()


# --- on graph modules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", rotated([*_MODELS], 3))
def test_graph_modules(name: str) -> None:
    make, shape, folded = _MODELS[name]
    model = _settled(make())
    x = torch.randn(shape)
    with torch.no_grad():
        graph = make_fx(model)(x)
        before = graph.code
        after = dovetail.passes.fold_batch_norms(graph, x)
        assert len(dovetail.passes.plan_fold_batch_norms(graph, x).folded) == folded
        assert graph.code == before
        assert "batch_norm.default" not in after.code
        assert_rounded_as(after(x), model(x), in_float64(model, x))


def test_a_symbolic_graph_module() -> None:
    model = _settled(_conv_norm())
    with torch.no_grad():
        graph = make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(torch.randn(3, 4, 8, 8))
        after = dovetail.passes.fold_batch_norms(graph)
        x = torch.randn(5, 4, 9, 10)
        assert "batch_norm.default" not in after.code
        assert_rounded_as(after(x), model(x), in_float64(model, x))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [True, False])
def test_exported_operators(transposed: bool, dims: int) -> None:
    names = ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d") if transposed else ("Conv1d", "Conv2d", "Conv3d")
    conv = getattr(nn, names[dims - 1])(4, 6, 3, groups=2)
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](6)
    model = _settled(nn.Sequential(conv, norm))
    x = torch.randn(2, 4, *[5] * dims)
    with torch.no_grad():
        graph = make_fx(model, pre_dispatch=True)(x)
        after = dovetail.passes.fold_batch_norms(graph, x)
        assert "batch_norm" not in str([node.target for node in after.graph.nodes if node.op == "call_function"])
        assert_rounded_as(after(x), model(x), in_float64(model, x))


def test_an_unbatched_convolution_has_its_channels_elsewhere() -> None:
    graph = torch.fx.Graph()
    x, w, s = (graph.placeholder("x"), graph.get_attr("w"), graph.get_attr("s"))
    c = graph.call_function(aten.conv2d.default, (x, w))
    graph.output(graph.call_function(aten.batch_norm.default, (c, s, s, s, s, False, 0.1, 1e-5, False)))
    module = nn.Module()
    module.w, module.s = torch.randn(4, 4, 1, 1), torch.rand(4) + 1
    gm = torch.fx.GraphModule(module, graph)
    assert [row.code for row in dovetail.passes.plan_fold_batch_norms(gm, torch.randn(4, 4, 4)).rows] == [
        "NO-LAYER-BEFORE"
    ]


def _written(x: Tensor, w: Tensor, s: Tensor, where: str) -> Tensor:
    c = torch.conv2d(x, w)
    if where == "x":
        x.mul_(2)
    if where == "s":
        s.mul_(2)
    return torch.batch_norm(c, s, s, s, s, False, 0.1, 1e-5, False)


@pytest.mark.parametrize(("where", "code"), [("x", "INPUT-WRITTEN"), ("s", "STATS-NOT-CONSTANT"), ("", "FOLDED")])
def test_nothing_is_folded_across_a_write(where: str, code: str) -> None:
    weight, numbers = torch.randn(6, 4, 3, 3), torch.rand(6) + 1
    graph = make_fx(lambda x: _written(x, weight, numbers, where))(torch.randn(2, 4, 5, 5))
    x = torch.randn(2, 4, 5, 5)
    assert [row.code for row in dovetail.passes.plan_fold_batch_norms(graph, x).rows] == [code]


def test_statistics_that_are_read_keep_the_norm() -> None:
    weight, numbers = torch.randn(6, 4, 3, 3), torch.rand(6) + 1

    def function(x: Tensor) -> Any:
        c = torch.conv2d(x, weight)
        return aten.native_batch_norm.default(c, numbers, numbers, numbers, numbers, False, 0.1, 1e-5)

    graph = make_fx(function)(torch.randn(2, 4, 5, 5))
    (row,) = dovetail.passes.plan_fold_batch_norms(graph, torch.randn(2, 4, 5, 5)).rows
    assert row.code == "STATISTICS-READ"
