"""Sizes that change from call to call, and sizes that depend on data."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributions import Binomial, Dirichlet, Gamma

import dovetail
from dovetail.errors import DataDependentControlFlow, UnexpectedSize
from dovetail.torch_compat.own_fakes import OWN_FAKES
from tests.rotation import rotated

Function = Callable[..., Any]


class Attention(nn.Module):
    """Causal attention with two heads over (batch, steps, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        q, k, v = self.inner(self.norm(x)).view(batch, steps, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.outer(mixed.transpose(1, 2).reshape(batch, steps, width))


class Experts(nn.Module):
    """Each row goes to the expert that its router prefers."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight, choice = self.router(x).softmax(-1).topk(1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, _ = torch.where(choice == number)
            result.index_add_(0, rows, expert(x[rows]) * weight[rows])
        return result


def outcome(function: Function, x: Tensor) -> list[Any]:
    """Result and gradients of one call."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_(x.is_floating_point())
    result = function(x)
    wanted = [x, *(function.parameters() if isinstance(function, nn.Module) else ())]
    if not result.requires_grad:
        return [result]
    return [result.detach(), *torch.autograd.grad(result.square().sum(), wanted[:1])]


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        assert torch.equal(mine.nan_to_num(77), theirs.nan_to_num(77))
        assert mine.stride() == theirs.stride()


# --- through Dynamo ---------------------------------------------------------------------------------------------------

DRAWN = random.Random(0)
SIZES = [(DRAWN.randint(2, 20), DRAWN.randint(2, 20)) for _ in range(50)]


def padded_and_joined(x: Tensor) -> Tensor:
    return torch.cat([F.pad(x, (1, x.shape[0] % 3)), x.new_zeros(x.shape[0], 1)], 1).cumsum(1)


def random_in_the_middle(x: Tensor) -> Tensor:
    return F.dropout(x, 0.3) * torch.rand_like(x) + torch.randn(x.shape[1], x.shape[0]).t()


def windows(x: Tensor) -> Tensor:
    return x.reshape(-1).unfold(0, 2, 1).sum(1)[: x.shape[0] * x.shape[1] // 2]


CHANGING: dict[str, tuple[Function, Callable[..., Any]]] = {
    "batch": (Attention(), lambda batch, steps: (batch, 5, 8)),
    "steps": (Attention(), lambda batch, steps: (3, steps, 8)),
    "both": (Attention(), lambda batch, steps: (batch, steps, 8)),
    "padding": (padded_and_joined, lambda rows, columns: (rows, columns)),
    "random": (random_in_the_middle, lambda rows, columns: (rows, columns)),
    "windows": (windows, lambda rows, columns: (rows, columns)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("function", "shape"), [pytest.param(*CHANGING[name], id=name) for name in rotated([*CHANGING], 3)]
)
def test_fifty_sizes_take_two_compilations(function: Function, shape: Callable[..., Any], dynamic: bool | None) -> None:
    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(function, backend="dovetail", dynamic=dynamic, fullgraph=True)
    for sizes in SIZES:
        x = torch.randn(shape(*sizes))
        assert_same(outcome(compiled, x), outcome(function, x))
    assert counters["stats"]["unique_graphs"] <= (2 if dynamic is None else 1)


@pytest.mark.parametrize("through", rotated(["Dynamo", "dovetail.compile"], 2))
def test_sizes_zero_and_one(through: str) -> None:
    torch.compiler.reset()
    function = Attention()
    compiled = (
        torch.compile(function, backend="dovetail", dynamic=True)
        if through == "Dynamo"
        else dovetail.compile(function, dynamic=True, max_variants=16)
    )
    for sizes in [(3, 4), (5, 6), (1, 7), (7, 1), (0, 3), (3, 0), (1, 1), (0, 1), (2, 2)]:
        x = torch.randn(*sizes, 8)
        assert_same(outcome(compiled, x), outcome(function, x))


def test_a_marked_size() -> None:
    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(Attention(), backend="dovetail", dynamic=False)
    for batch in (4, 9, 6):
        x = torch.randn(batch, 5, 8)
        torch._dynamo.mark_dynamic(x, 0)
        assert compiled(x).shape == x.shape
    assert counters["stats"]["unique_graphs"] == 1


# --- sizes that depend on data ----------------------------------------------------------------------------------------


def with_positives(count: int) -> Tensor:
    """(3, 4), with this many elements above zero."""
    x = -torch.ones(3, 4)
    x.view(-1)[:count] = torch.arange(1.0, count + 1)
    return x


DATA_DEPENDENT: list[Function] = [
    lambda x: x[x > 0] * 2,
    lambda x: x.masked_select(x > 0).exp(),
    lambda x: x[(x > 0).any(1)] @ x.t(),
    lambda x: x[(x > 0).any(1)].t().reshape(-1),
    lambda x: torch.outer(x[x > 0], x[x > 0]).sum(0),
    lambda x: x[x > 0].softmax(0),
    lambda x: x[x > 0].mean() * 2,
    lambda x: torch.stack([x[x > 0], x[x > 0]]).transpose(0, 1) * 1,
    lambda x: x[x > 0].expand(2, -1).contiguous().view(-1),
    lambda x: x.nonzero() + 1,
    lambda x: torch.unique(x.detach().round()) + 1,
    lambda x: x.new_ones(x[x > 0].shape[0] + 1).cumsum(0),
    lambda x: x * x.detach().sum().item(),
    lambda x: x.repeat_interleave(x.detach().abs().long()[:, 0], 0) * 2,
    Experts(),
]


def written_where(x: Tensor, values: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0] = values
    return y.sin()


@pytest.mark.parametrize("wrap", [dovetail.compile, lambda f: torch.compile(f, backend="dovetail", fullgraph=True)])
def test_a_size_that_only_backward_meets(wrap: Callable[..., Any]) -> None:
    """Without any of Dynamo's settings: forward has no size that depends on data."""
    torch.compiler.reset()
    compiled = wrap(written_where)
    for count in (3, 0, 5):
        found = []
        for function in (compiled, written_where):
            x, values = with_positives(count).requires_grad_(), torch.arange(float(count)).requires_grad_()
            found.append(torch.autograd.grad(function(x, values).sum(), [x, values]))
        assert_same(list(found[0]), list(found[1]))


WAYS = {
    "by recording": lambda f: dovetail.compile(f, dynamic=True),
    "through Dynamo": lambda f: torch.compile(f, backend="dovetail", dynamic=True, fullgraph=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_size_that_only_a_gradient_fixes(way: str) -> None:
    """The gradient of `cumprod` makes zeros of a plain size: a program is for that size."""
    torch.compiler.reset()
    compiled = WAYS[way](lambda x: x.cumprod(0) * 2)
    for rows in (5, 7):
        x = torch.rand(rows, 3, requires_grad=True)
        (made,) = torch.autograd.grad(compiled(x).sum(), [x])
        (wanted,) = torch.autograd.grad((x.cumprod(0) * 2).sum(), [x])
        torch.testing.assert_close(made, wanted)  # torch records another formula than it runs


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shrink", [F.hardshrink, F.softshrink])
def test_gradients_that_torchs_fakes_give_for_known_sizes_only(way: str, shrink: Function) -> None:
    torch.compiler.reset()
    compiled = WAYS[way](lambda x: shrink(x.t()) * 2)
    for rows in (5, 7, 9):
        x = torch.randn(rows, 3, requires_grad=True)
        made, wanted = compiled(x), shrink(x.t()) * 2
        arriving = torch.randn_like(wanted)
        found = [torch.autograd.grad(y, [x], arriving)[0] for y in (made, wanted)]
        assert torch.equal(*found)
        assert found[0].stride() == found[1].stride()
    if way == "by recording":
        assert compiled.stats.captures == 1


OWN: dict[str, Function] = {
    "margins": lambda x: F.multi_margin_loss(x, torch.zeros(x.shape[0], dtype=torch.int64), reduction="none"),
    "margins of sets": lambda x: F.multilabel_margin_loss(x, torch.zeros(x.shape, dtype=torch.int64)),
    "gamma": lambda x: Gamma(x.exp(), 2.0, validate_args=False).rsample(),
    "dirichlet": lambda x: Dirichlet(x.exp(), validate_args=False).rsample(),
    "binomial": lambda x: Binomial(5, x.sigmoid(), validate_args=False).sample() * x,
}


@pytest.mark.parametrize("name", OWN)
def test_operators_without_fakes_of_symbolic_sizes(name: str) -> None:
    compiled = dovetail.compile(OWN[name], dynamic=True)
    for rows in (5, 7):
        for x in (torch.randn(rows, 3).requires_grad_(), torch.randn(3, rows).t().requires_grad_()):
            found = []
            for function in (compiled, OWN[name]):
                torch.manual_seed(1)
                found += [y := function(x), torch.autograd.grad(y.square().sum(), [x])[0]]
            for made, wanted in zip(found[:2], found[2:], strict=True):
                assert torch.equal(made, wanted)
                assert made.stride() == wanted.stride()
    assert compiled.stats.captures <= 2


def test_what_a_gradient_cannot_do_with_symbols_is_recorded_with_known_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OWN_FAKES, torch.ops.aten.hardshrink_backward.default)
    compiled = dovetail.compile(F.hardshrink, dynamic=True)
    for rows in (5, 7):
        x = torch.randn(rows, 3, requires_grad=True)
        assert torch.equal(*(torch.autograd.grad(f(x).sum(), [x])[0] for f in (compiled, F.hardshrink)))
    assert compiled.stats.captures == 2


@contextmanager
def dynamo_takes_data() -> Iterator[None]:
    torch.compiler.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield
    torch.compiler.reset()


NUMBERS: list[Function] = [
    lambda x: x.narrow(0, 0, 1 + (x.detach() > 3).sum().item()) * 2,
    lambda x: torch.zeros((x.detach() > 0).sum().item(), 2) + x.sum(),
    lambda x: x.clamp(max=(x.detach() > 0).sum().item()),
    lambda x: x.roll((x.detach() > 0).sum().item()),
    lambda x: x[x > 0][None].expand(2, -1),
]


CUTS: list[Function] = [
    lambda x: x[: positives(x).item()].exp(),
    lambda x: x[: positives(x)].exp() + len(x[x > 0]),
    lambda x: x[-int(positives(x)) :].mean(0),
    lambda x: torch.zeros(int(positives(x)) + 1, x.shape[1]) + x[0],
    lambda x: x[positives(x) % x.shape[0]] * 2,
    lambda x: x[int(positives(x)) % x.shape[0], 1:].exp(),
    lambda x: x / max(int(positives(x)), 1),
    lambda x: torch.split_with_sizes(x.reshape(-1), [positives(x).item(), x.numel() - positives(x).item()])[1].exp(),
    lambda x: torch.cat([part.sum(0, keepdim=True) for part in x.view(-1).split(lengths(x).tolist())]),
    lambda x: put(x.clone(), lambda y: y[: min(int(positives(x)), 2)].add_(1)),
    lambda x: put(x.clone(), lambda y: y.view(-1)[positives(x) :].mul_(2)),
    lambda x: put(x.clone(), lambda y: y[: positives(x), 1:].fill_(2.0)),
    lambda x: put(x.clone(), lambda y: y.t()[: positives(x).item()].copy_(x.t()[: positives(x).item()].exp())),
    lambda x: put(x.detach(), lambda y: y[: positives(x)].zero_()).sum() + x.sum(),
    lambda x: put(torch.zeros(int(positives(x)) + 2, 3), lambda y: y[1:-1].add_(x.sum())),
]


def positives(x: Tensor) -> Tensor:
    """How many elements are."""
    return (x.detach() > 0).sum()


def lengths(x: Tensor) -> Tensor:
    """Of the part of as many elements, and of the other one."""
    return torch.stack([positives(x), x.numel() - positives(x)])


def put(x: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    """The tensor, after a write."""
    write(x)
    return x * 2


@pytest.mark.parametrize("function", rotated([*DATA_DEPENDENT, *NUMBERS], 3))
def test_one_program_for_sizes_that_depend_on_data(function: Function) -> None:
    compiled = dovetail.compile(function, verify=2)
    for count in (5, 0, 1, 2):
        assert_same(outcome(compiled, with_positives(count)), outcome(function, with_positives(count)))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("function", rotated(CUTS, 3))
def test_one_program_for_cuts_at_places_that_data_tell(function: Function) -> None:
    compiled = dovetail.compile(function)
    for count in (5, 0, 1, 2, 12):
        assert_same(outcome(compiled, with_positives(count)), outcome(function, with_positives(count)))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("function", [*DATA_DEPENDENT[:3], DATA_DEPENDENT[7], DATA_DEPENDENT[12]])
def test_sizes_that_depend_on_data_through_dynamo(function: Function) -> None:
    with dynamo_takes_data():
        compiled = torch.compile(function, backend="dovetail", fullgraph=True)
        for count in (5, 0, 1, 2):
            assert_same(outcome(compiled, with_positives(count)), outcome(function, with_positives(count)))


def test_a_size_that_is_not_as_the_program_takes_it_to_be() -> None:
    def f(x: Tensor) -> Tensor:
        return x[x > 0] + torch.ones(2)

    compiled = dovetail.compile(f)
    assert_same(outcome(compiled, with_positives(2)), outcome(f, with_positives(2)))
    with pytest.raises(UnexpectedSize, match=r"== 2|2 =="):
        compiled(with_positives(1).requires_grad_())


def test_a_write_to_a_part_of_a_selection() -> None:
    def f(x: Tensor) -> Tensor:
        y = x[x > 0]
        y[1:].add_(5)
        return y

    compiled = dovetail.compile(f)
    for count in (3, 0, 1, 2, 5):
        assert torch.equal(compiled(with_positives(count)), f(with_positives(count)))


def test_a_branch_on_data_is_refused() -> None:
    with pytest.raises(DataDependentControlFlow, match=r"torch\.where"):
        dovetail.compile(lambda x: x * 2 if x.sum() > 0 else x)(torch.ones(2))


def test_outputs_that_share_memory_of_a_size_that_depends_on_data() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x[x > 0]
        return y, y[1:]

    whole, rest = dovetail.compile(f)(with_positives(3))
    assert torch.equal(whole[1:], rest)
    assert whole[1:].data_ptr() == rest.data_ptr()


@pytest.mark.parametrize("size", [0, 1])
def test_a_symbol_is_a_size_above_one(size: int) -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == size else x + 0

    compiled = dovetail.compile(program, dynamic=True)
    for rows in (4, size, 3):
        x = torch.rand(rows, 3)
        assert torch.equal(compiled(x), program(x))


def test_strides_that_no_size_determines() -> None:
    compiled = dovetail.compile(lambda x: x + x.sum(0), dynamic=True)
    for x in (
        torch.rand(8, 6)[::2],
        torch.rand(9, 12)[::3],
        torch.rand(6, 8).t(),
        torch.rand(8, 12)[:, ::3],
        torch.rand(4, 6),
    ):
        assert torch.equal(compiled(x), x + x.sum(0))
        assert compiled(x).stride() == (x + x.sum(0)).stride()


def test_views_of_arguments_whose_sizes_data_decide() -> None:
    compiled = dovetail.compile(lambda x, n: (x[: n.item()], x.narrow(0, 1, int(n)).view(-1)))
    for count in (2, 3, 1, 5):
        x, n = torch.randn(6, 3), torch.tensor(count)
        first, second = compiled(x, n)
        assert torch.equal(first, x[:count])
        first.zero_()  # they are views
        second.add_(1)
        assert first.data_ptr() == x.data_ptr()
        assert second._base is x
    assert compiled.stats.captures == 1


ONE_ROW: dict[str, Callable[..., Any]] = {
    "flattened": lambda x, n: x.t()[: n.item()].flatten(),
    "repeated": lambda x, n: x[x[:, 0] > n].unsqueeze(1).expand(-1, 2, -1).reshape(-1, 6),
    "written": lambda x, n: (y := x.t()[: n.item()], y.contiguous().mul_(2), y + 1)[2],
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_a_copy_that_is_a_view_where_there_is_one_row(name: str) -> None:
    """With one row, eager mode hands out a view of the argument, or other strides."""
    function = ONE_ROW[name]
    compiled = dovetail.compile(function)
    x = torch.arange(24.0).reshape(4, 6)
    several, one = (0.0, 12.0) if name == "repeated" else (3, 1)
    for given in (several, one):
        mine, other = x.clone(), x.clone()
        expected = function(other, torch.tensor(given))
        if given == one:
            with pytest.raises(UnexpectedSize):
                compiled(mine, torch.tensor(given))
            continue
        found = compiled(mine, torch.tensor(given))
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
        assert torch.equal(found.zero_() * 0 + mine.sum(), expected.zero_() * 0 + other.sum())


def test_a_sum_in_the_order_of_strides_tells_a_view_from_a_copy() -> None:
    """Of one row, eager mode takes the mean of an expanded view, which rounds otherwise than that of a copy."""

    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        rows = x.split_with_sizes([int(n), 4 - int(n)])[0]
        return rows * rows.unsqueeze(1).expand(-1, 2, -1).reshape(-1, 6).mean()

    compiled = dovetail.compile(function)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for rows in (2, 3):
        assert torch.equal(compiled(x, torch.tensor(rows)), function(x, torch.tensor(rows)))
    with pytest.raises(UnexpectedSize):
        compiled(x, torch.tensor(1))


def test_columns_that_are_a_view_where_there_is_an_even_number() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        count = int((x > 0).sum())
        return x.new_ones(3, count)[:, ::2].flatten()

    compiled = dovetail.compile(function)
    signs = torch.ones(8)
    for odd in (3, 5, 7):
        x = signs.clone()
        x[odd:] = -1
        assert compiled(x).stride() == function(x).stride() == (1,)
    with pytest.raises(UnexpectedSize, match="!= "):
        compiled(signs)
    assert function(signs).stride() == (2,)


def test_dropout_of_a_selection() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x[x[:, 0] > 0], 0.5)

    compiled = dovetail.compile(function)
    for seed in range(3):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        expected = function(x)
        torch.manual_seed(seed)
        assert torch.equal(compiled(x), expected)
    with pytest.raises(UnexpectedSize):
        compiled(-x.abs())


class Windows(nn.Module):
    """Windows of 2 x 2 pixels, from images of any size: (batch, rows, columns, channels) to (windows, 4, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        return x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c).exp() * 2


def _images() -> list[Tensor]:
    return [torch.randn(2, 4, 6, 3), torch.randn(2, 8, 4, 3)]


def test_sizes_that_divide_sizes() -> None:
    windows = Windows()
    compiled = dovetail.compile(windows, dynamic=True)
    for image in _images():
        assert torch.equal(compiled(image), windows(image))


def test_sizes_that_divide_sizes_in_a_file(tmp_path: Path) -> None:
    windows = Windows()
    any_size = (dict.fromkeys((1, 2), torch.export.Dim.AUTO),)
    dovetail.freeze(windows, _images()[:1], dynamic_shapes=any_size).save(tmp_path / "windows.dovetail")
    loaded = dovetail.load(tmp_path / "windows.dovetail")
    for image in _images():
        assert torch.equal(loaded(image), windows(image))


def test_truth_values_of_data_and_sizes_are_results() -> None:
    def function(x: torch.Tensor) -> Any:
        return (x > 2).any().item(), x[1:].shape, {"all": x.size()}, x * 2

    compiled = dovetail.compile(function, dynamic=True)
    for rows in (3, 4, 5):
        got, expected = compiled(torch.arange(rows)), function(torch.arange(rows))
        assert got[:3] == expected[:3]
        assert [type(item) for item in (*got[:2], got[2]["all"])] == [bool, torch.Size, torch.Size]
    assert compiled.stats.captures == 1


@pytest.mark.parametrize(
    "change",
    [lambda x: x.t_(), lambda x: x.squeeze_(), lambda x: x.unsqueeze_(0), lambda x: x.as_strided((2, 2), (1, 1), 1)],
)
def test_parts_of_tensors_whose_shape_is_changed_in_place(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return change(x) * 2

    compiled = dovetail.compile(f, dynamic=True)
    for rows, first in ((3, 2), (3, 7), (4, 2), (5, 9), (3, 0), (4, 1)):
        base = torch.arange(40.0)
        expected, actual = (call(base[first : first + rows * 3].view(rows, 3)) for call in (f, compiled))
        assert torch.equal(actual, expected)
