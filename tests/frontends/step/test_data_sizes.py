"""Steps in which data decide sizes: selections, cuts, counts, and numbers off tensors as sizes.

Each runs in eager mode and compiled, on the same batches; losses, other results, state and arguments are compared bit
by bit after every call. The number of selected rows differs from call to call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import dovetail
from dovetail.frontends.step.step import CompiledStep
from tests.frontends.step.agreement import programs_of
from tests.rotation import rotated

pytestmark = pytest.mark.filterwarnings("ignore::dovetail.errors.DovetailWarning")


class Parts:
    """What a step works with."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD([*self.net.parameters(), *self.head.parameters()], lr=0.1, momentum=0.9)
        self.buffer = torch.zeros(8, 4)
        self.count, self.fraction = 0, 0.5
        self.seen: list[Any] = []

    def train(self, loss: Tensor) -> Tensor:
        """Backward and update."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[Any]:
        """All that the step may change."""
        tensors = [*self.net.parameters(), *self.head.parameters(), self.buffer]
        return [*(tensor.detach() for tensor in tensors), self.count, self.seen]


Body = Callable[[Parts, Tensor, Tensor, Tensor], Any]


def batches(counts: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, labels, and a mask with so many rows."""
    drawn = torch.Generator().manual_seed(1)
    for count in counts:
        mask = torch.zeros(8, dtype=torch.bool)
        mask[torch.randperm(8, generator=drawn)[:count]] = True
        yield torch.randn(8, 4, generator=drawn), torch.randint(0, 3, (8,), generator=drawn), mask


def agree(body: Body, counts: Sequence[int], **options: Any) -> CompiledStep:
    """Run both ways, compare after each call."""
    plain, other = Parts(), Parts()
    compiled = dovetail.compile_step(lambda *batch: body(other, *batch), **options)
    for number, batch in enumerate(batches(counts)):
        given = [[tensor.clone() for tensor in batch] for _ in range(2)]
        torch.manual_seed(number)
        expected = body(plain, *given[0])
        torch.manual_seed(number)
        same((compiled(*given[1]), other.state(), given[1]), (expected, plain.state(), given[0]))
    return compiled


def same(actual: Any, expected: Any) -> None:
    """Compare values, types, layouts."""
    pairs = zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
    for a, b in pairs:
        assert type(a) is type(b)
        if isinstance(a, Tensor):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), (a - b).abs().max()
        else:
            assert a == b


# --- selections -------------------------------------------------------------------------------------------------------


def _masked_criterion(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    return p.train(nn.CrossEntropyLoss()(p.net(x)[mask], y[mask]))


def _mean_of_selected(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    return p.train(p.net(x)[mask].mean())


def _masked_select(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    return p.train(torch.masked_select(p.net(x), mask[:, None]).pow(2).mean())


def _nonzero(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    return p.train(p.net(x)[mask.nonzero().squeeze(1)].sum())


def _where(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    (rows,) = torch.where(mask)
    return p.train(p.head(p.net(x)[rows]).pow(2).sum())


def _unique(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    kinds, places, counts = torch.unique(y, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(kinds), 3).index_add(0, places, p.net(x))
    return p.train((sums / counts[:, None]).pow(2).sum())


def _repeated(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    return p.train(torch.repeat_interleave(p.net(x), y, dim=0).pow(2).mean())


def _by_the_loss(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    losses = F.cross_entropy(p.net(x), y, reduction="none")
    return p.train(losses[losses >= losses.mean()].mean())


def _by_several_masks(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    out = p.net(x)
    return p.train(torch.cat([out[mask], out[~mask] * 2]).pow(2).sum() + (out[mask.clone()] @ out[mask].t()).sum())


def _hard_negatives(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    losses = F.cross_entropy(p.net(x), y, reduction="none")
    positive = int(mask.sum())
    wanted = min(3 * positive, losses.shape[0] - positive)
    return p.train((losses[mask].sum() + losses[~mask].topk(wanted)[0].sum()) / max(positive, 1))


def _written_where_selected(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    p.buffer[mask] = x[mask]
    x[mask] = 0.0
    return p.train(p.net(p.buffer + x).pow(2).sum())


def _experts(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    hidden = p.net(x)
    out = torch.zeros_like(hidden)
    for expert in range(2):
        (rows,) = torch.where(mask == bool(expert))
        if rows.numel() > 0:
            out = out.index_add(0, rows, p.head(hidden[rows]) * (expert + 1))
    return p.train(out.pow(2).sum())


def _with_dropout(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    return p.train(F.softmax(F.dropout(p.net(x)[mask], 0.5), 0).pow(2).sum())


def _in_a_checkpoint(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    loss = torch.utils.checkpoint.checkpoint(lambda h: h[mask].exp().sum(), p.net(x), use_reentrant=False)
    return p.train(loss)


def _selected_after_an_update(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    first = p.train(p.net(x)[mask].pow(2).sum())
    out = p.net(x)
    return first, p.train(out[out > out.median()].pow(2).sum())


def _labels_of_lengths(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    rows = p.net(x).log_softmax(1).view(4, 2, 3)
    labels, lengths = torch.ones(2, 2, dtype=torch.int64), torch.stack([mask.any(), mask.all()]) + 1
    picked = labels.masked_select(torch.arange(2) < lengths[:, None])
    return p.train(F.ctc_loss(rows, picked, torch.tensor([4, 3]), lengths))


def _named_by_a_number(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    total = p.net(x).sum()
    for kind in torch.unique(mask):
        layer = {"False": p.head, "True": p.net}[f"{kind}"]
        total = total + layer(x[mask == kind][:, : layer.in_features]).pow(2).sum()
    return p.train(total)


# --- sizes as numbers -------------------------------------------------------------------------------------------------


def _told(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    picked = p.net(x)[mask]
    p.count += len(picked)
    loss = p.train(picked.sum())
    return loss, picked.detach(), picked.shape, picked.size(0), picked.numel(), len(picked), int(mask.sum()) * 2


def _divided_by_counts(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    picked = p.net(x)[mask]
    scale = 0.1 / (picked.shape[0] + 1) ** 0.5 * math.log(3 + picked.size(0)) / len(picked)
    return p.train(picked.sum() * scale)


def _float_of_a_loss(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    loss = p.net(x)[mask].sum() * float(mask.float().mean())
    return float(p.train(loss)) * 0.1


def _text_in_a_host_call(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    dovetail.host_call(lambda *numbers: p.seen.append(str(numbers)))(int(mask.sum()), p.net(x)[mask].shape[0])
    return p.train(p.net(x)[mask].sum())


# --- numbers as sizes -------------------------------------------------------------------------------------------------


def _cut(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    count = mask.sum()
    out = p.net(x)
    return p.train(
        out[:count].pow(2).sum() + out[int(count) :].sum() + out[-count.item() :].mean() + out[:-count].sum()
    )


def _narrowed(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    count = int(mask.sum())
    return p.train(p.net(x).narrow(0, 8 - count, count).pow(2).sum() + p.net(x[mask]).narrow(0, 0, count).sum())


def _as_large_as_the_largest(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    sums = torch.zeros(int(y.max()) + 1, 3).index_add(0, y, p.net(x))
    return p.train((sums / torch.bincount(y, minlength=sums.shape[0]).clamp(min=1)[:, None]).pow(2).sum())


def _split_by_a_list(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    lengths = torch.stack([mask.sum(), (~mask).sum()])
    first, second = torch.split(p.net(x), lengths.tolist())
    return p.train(first.pow(2).sum() + second.exp().mean()), lengths.tolist()


def _ragged(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    out, start, total = p.net(x), 0, torch.zeros(())
    for length in [int(mask.sum()), 8 - int(mask.sum())]:
        total = total + out[start : start + length].softmax(0).pow(2).sum()
        start += length
    return p.train(total)


def _part_of_a_count(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    picked = p.net(x)[mask]
    return p.train(picked.sum(1).topk(max(1, int(p.fraction * picked.shape[0]))).values.sum())


def _padded(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    count = int(mask.sum())
    out = F.pad(p.net(x), (0, 0, 0, 8 - count)).pow(2).sum() + torch.arange(count).sum()
    return p.train(out + torch.ones(count, 3).mm(p.net(x).t()).sum() + p.net(x[0]).expand(count, 3).sum())


def _written_in_part(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
    count = int(mask.sum())
    p.buffer[:count].copy_(x[:count])
    p.buffer[count:].mul_(2)
    x[:count] += 1
    return p.train(p.net(p.buffer + x).pow(2).sum())


PROGRAMS: tuple[Body, ...] = (
    _masked_criterion,
    _mean_of_selected,
    _masked_select,
    _nonzero,
    _where,
    _unique,
    _repeated,
    _by_the_loss,
    _by_several_masks,
    _hard_negatives,
    _written_where_selected,
    _experts,
    _with_dropout,
    _in_a_checkpoint,
    _selected_after_an_update,
    _labels_of_lengths,
    _named_by_a_number,
    _told,
    _divided_by_counts,
    _float_of_a_loss,
    _text_in_a_host_call,
    _cut,
    _narrowed,
    _as_large_as_the_largest,
    _split_by_a_list,
    _ragged,
    _part_of_a_count,
    _padded,
    _written_in_part,
)
_SEVERAL = frozenset(
    (_labels_of_lengths, _text_in_a_host_call, _as_large_as_the_largest, _part_of_a_count, _by_the_loss)
)


@pytest.mark.parametrize("body", rotated(PROGRAMS, 3), ids=lambda body: body.__name__.strip("_"))
def test_one_program_for_all_counts(body: Body) -> None:
    compiled = agree(body, (5, 4, 3, 6, 5))
    if body not in _SEVERAL:
        assert programs_of(compiled.stats) == 1
        assert compiled.stats.eager_calls <= 1  # which shows a size that only a run tells


@pytest.mark.parametrize("body", rotated(PROGRAMS, 9, shift=1), ids=lambda body: body.__name__.strip("_"))
def test_none_one_and_all(body: Body) -> None:
    agree(body, (5, 8, 1, 1, 8, 4, 1, 8))
    if body not in (_hard_negatives, _part_of_a_count, _divided_by_counts):  # which eager mode refuses
        agree(body, (5, 0, 0, 3, 0))


def test_counts_of_0_and_1_have_programs_of_their_own() -> None:
    compiled = agree(_masked_criterion, (5, 3, 0, 0, 0, 7, 1, 1, 1, 0, 2, 8))
    assert (compiled.stats.captures, compiled.stats.eager_calls) == (3, 3)
    assert any("of a size, was True" in variant.reason for variant in compiled.stats.variants)


@pytest.mark.parametrize("body", [_masked_criterion, _cut])
def test_beside_sizes_of_arguments(body: Body) -> None:
    plain, other = Parts(), Parts()
    compiled = dovetail.compile_step(lambda *batch: body(other, *batch), dynamic=True)
    for count, batch in zip((8, 8, 6, 7), batches((4, 3, 4, 5)), strict=True):
        rows = [tensor[:count] if tensor.dtype != torch.bool else tensor.sort().values[-count:] for tensor in batch]
        same((compiled(*rows), other.state()), (body(plain, *rows), plain.state()))


def test_a_size_that_becomes_text_is_that_of_the_run() -> None:
    def body(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
        picked = p.net(x)[mask]
        return p.train(picked.sum()), f"{picked.shape[0]} rows"

    step = agree(body, (5, 5, 9, 7, 5))
    assert step.stats.captures <= 2


def test_a_loop_over_selected_rows_is_a_program_for_each_count() -> None:
    def body(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
        total = p.net(x).sum()
        for row in p.net(x)[mask]:
            total = total + row.exp().sum()
        for place in range(int(mask.sum())):
            total = total + p.net(x)[place].exp().sum() * place
        return p.train(total)

    compiled = agree(body, (5, 5, 3, 3, 3, 5))
    assert (compiled.stats.captures, compiled.stats.eager_calls) == (2, 2)


def test_code_that_asks_for_the_type_int_gets_plain_numbers() -> None:
    def kind(number: Any) -> str:
        return "whole" if type(number) is int else "other"

    def body(p: Parts, x: Tensor, y: Tensor, mask: Tensor) -> Any:
        count = int(mask.sum())
        return p.train(p.net(x)[:count].sum() * (2 if kind(count) == "whole" else 3))

    agree(body, (5, 5, 3, 3, 3))
    assert "int" not in globals()
    assert kind(3) == "whole"
