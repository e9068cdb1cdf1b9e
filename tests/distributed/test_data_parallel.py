"""Modules of `DistributedDataParallel` in a step give what eager mode gives, and leave it able to go on."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import dovetail
from dovetail.errors import UnsupportedDistributed
from tests.distributed.ranks import Ranks
from tests.distributed.steps import Trained, compare, optimizer_of, run, same, state_of

_IN_EAGER_MODE = 2  # until the reducer has sorted its buckets


class _Tokens(nn.Module):
    """A small GPT with tied weights and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        logits: torch.Tensor = self.head(self.block(self.embedding(x), src_mask=mask, is_causal=True))
        return logits


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def _convolutional() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5))
    return net.to(memory_format=torch.channels_last)


def _partly_frozen() -> nn.Module:
    net = _mlp()
    for weight in net[3].parameters():  # type: ignore[index]
        weight.requires_grad_(False)
    return net


_SHAPES: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    _mlp: (5, 6),
    _convolutional: (3, 2, 5, 5),
    _partly_frozen: (5, 6),
}
_NETS = (_mlp, _convolutional, _partly_frozen, _Tokens)


def _batches(rank: int, net: Callable[[], nn.Module], count: int) -> list[Any]:
    generator = torch.Generator().manual_seed(100 + rank)
    if net is _Tokens:
        return [(torch.randint(11, (3, 7), generator=generator),) for _ in range(count)]
    return [(torch.randn(_SHAPES[net], generator=generator),) for _ in range(count)]


def _made(net: Callable[[], nn.Module], optimizer_name: str, clips: bool = False, **options: Any) -> Trained:
    torch.manual_seed(3)
    model = DistributedDataParallel(net(), bucket_cap_mb=0.0005, **options)
    optimizer = optimizer_of(optimizer_name, model)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        out = model(x)
        loss = out.square().mean() if out.dim() != 3 else F.cross_entropy(out.flatten(0, 1), x.flatten())
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        return loss.detach()

    return Trained(step, model, optimizer)


def _agrees(rank: int, net: Callable[[], nn.Module], optimizer: str, clips: bool, options: dict[str, Any]) -> int:
    warnings.simplefilter("ignore")
    batches = _batches(rank, net, 7)
    return compare(lambda: _made(net, optimizer, clips, **options), batches, seed=rank).eager_calls


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("net", _NETS)
def test_two_ranks_train_as_in_eager_mode(two_ranks: Ranks, net: Callable[[], nn.Module], optimizer: str) -> None:
    assert two_ranks(_agrees, net, optimizer, net is _mlp, {}) == [_IN_EAGER_MODE] * 2


@pytest.mark.parametrize("net", _NETS)
def test_four_ranks_train_as_in_eager_mode(four_ranks: Ranks, net: Callable[[], nn.Module]) -> None:
    """Here the sum depends on which gradients share a bucket."""
    assert four_ranks(_agrees, net, "adamw", net is _Tokens, {}) == [_IN_EAGER_MODE] * 4


@pytest.mark.parametrize("options", [{"static_graph": True}, {"broadcast_buffers": False}, {"bucket_cap_mb": 25}])
def test_options_of_the_module(two_ranks: Ranks, options: dict[str, Any]) -> None:
    assert max(two_ranks(_with_options, options)) <= _IN_EAGER_MODE + 1  # for a static graph, once more


def _with_options(rank: int, options: dict[str, Any]) -> int:
    warnings.simplefilter("ignore")

    def make() -> Trained:
        made = _made(_convolutional, "sgd")
        wrapped = DistributedDataParallel(made.model.module, **options)  # type: ignore[arg-type]
        optimizer = optimizer_of("sgd", wrapped)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = wrapped(x).square().mean()
            loss.backward()
            optimizer.step()
            loss_now: torch.Tensor = loss.detach()
            return loss_now

        return Trained(step, wrapped, optimizer)

    return compare(make, _batches(rank, _convolutional, 6), seed=rank).eager_calls


def _accumulates(rank: int, within: bool) -> int:
    """Gradients of several batches are added up before ranks exchange them: in one call, or over several."""
    warnings.simplefilter("ignore")

    def make() -> Trained:
        made = _made(_convolutional, "adamw")
        model, optimizer = made.model, made.optimizer
        assert isinstance(model, DistributedDataParallel)

        def one(x: torch.Tensor, is_last: bool) -> torch.Tensor:
            with nullcontext() if is_last else model.no_sync():
                loss = model(x).square().mean()
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
            detached: torch.Tensor = loss.detach()
            return detached

        def whole(x: torch.Tensor) -> torch.Tensor:
            return one(x, False) + one(x * 2, False) + one(x * 3, True)

        return Trained(whole if within else one, model, optimizer)

    batches = _batches(rank, _convolutional, 6 if within else 15)
    if not within:
        batches = [(*batch, number % 3 == 2) for number, batch in enumerate(batches)]
    return compare(make, batches, seed=rank).eager_calls


@pytest.mark.parametrize("within", [True, False])
def test_gradients_are_added_up_without_an_exchange(two_ranks: Ranks, within: bool) -> None:
    assert max(two_ranks(_accumulates, within)) < (4 if within else 10)


def _goes_on(rank: int) -> bool:
    """Calls in eager mode before, between and after compiled ones."""
    warnings.simplefilter("ignore")
    batches = _batches(rank, _convolutional, 12)
    eager, other = _made(_convolutional, "sgd"), _made(_convolutional, "sgd")
    compiled = dovetail.compile_step(other.step)
    expected = run(eager.step, eager, batches, rank)
    torch.manual_seed(rank)
    found = []
    for number, batch in enumerate(batches):
        step = other.step if number in (0, 1, 2, 5, 6, 9, 11) else compiled
        result = step(*batch)
        found.append(copy.deepcopy((result, state_of(other), torch.get_rng_state())))
    assert compiled.stats.eager_calls == 0, compiled.stats
    return all(map(same, found, expected))


def test_eager_mode_goes_on_at_any_time(two_ranks: Ranks) -> None:
    assert two_ranks(_goes_on) == [True, True]


def _sent(rank: int) -> tuple[list[str], list[int]]:
    warnings.simplefilter("ignore")
    made = _made(_mlp, "adamw")
    compiled = dovetail.compile_step(made.step)
    for batch in _batches(rank, _mlp, 3):
        compiled(*batch)
    model: Any = made.model
    told = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    explained = compiled.explain()
    assert explained.bytes_sent == sum(map(int, told.split(",")))
    assert f"collectives, {explained.bytes_sent:,} bytes from each rank: all_reduce(float32[" in str(explained)
    return [line for lines in compiled.compiled.collectives.values() for line in lines], [
        int(size) // 4 for size in told.split(",")
    ]


def test_buckets_are_those_of_the_reducer(two_ranks: Ranks) -> None:
    for lines, sizes in two_ranks(_sent):
        assert lines == [f"all_reduce(float32[{size}], SUM)" for size in sizes]
        assert len(sizes) > 1


def _refused(rank: int) -> tuple[str, ...]:
    """Refused by name, before anything is sent."""
    warnings.simplefilter("ignore")
    found = []
    for attribute, held in (("_delay_all_reduce_params", [None]), ("batched_grad_copy", True)):
        made = _made(_mlp, "sgd")
        setattr(made.model, attribute, held)
        compiled = dovetail.compile_step(made.step)
        text = ""
        for batch in _batches(rank, _mlp, 3):
            try:
                compiled(*batch)
            except UnsupportedDistributed as error:
                text = str(error)
        found.append(text)
    found.append(_replicated(rank))
    return tuple(found)


def _replicated(rank: int) -> str:
    """A module whose first call fails to be recorded is as eager mode leaves it, and later ones are refused."""
    made = []
    for compiles in (False, True):
        torch.manual_seed(3)
        net = replicate(_mlp())

        def step(x: torch.Tensor, net: nn.Module = net) -> torch.Tensor:
            loss: torch.Tensor = net(x).square().mean()
            loss.backward()
            return loss.detach()

        first, second = _batches(rank, _mlp, 2)
        compiled: Any = dovetail.compile_step(step) if compiles else step
        torch.manual_seed(rank)
        made.append([compiled(*first), *(weight.grad for weight in net.parameters())])
    assert same(*made)
    try:
        compiled(*second)
    except UnsupportedDistributed as error:
        return str(error)
    return ""


def test_what_is_not_supported_is_refused_by_name(two_ranks: Ranks) -> None:
    for later, copied, replicated in two_ranks(_refused):
        assert all(part in later for part in ("DT-DIST-001", "gradients that are reduced later", "test_data_parallel"))
        assert "batched_grad_copy=True" in copied
        assert "a module of replicate" in replicated


def _another_batch(rank: int) -> int:
    """One rank gets a batch of another size: a program of its own, and the same buckets."""
    warnings.simplefilter("ignore")
    batches = _batches(rank, _mlp, 10)
    batches = [(x[: 3 if number % 4 == 3 and rank == number // 4 else 5],) for number, (x,) in enumerate(batches)]
    return compare(lambda: _made(_mlp, "adamw"), batches, seed=rank).captures


def test_ranks_may_have_batches_of_different_sizes(two_ranks: Ranks) -> None:
    assert two_ranks(_another_batch) == [2, 2]


def _evaluates(rank: int) -> bool:
    """Without gradients nothing is exchanged, and with them buffers come from rank 0 first."""
    warnings.simplefilter("ignore")

    def make() -> Trained:
        made = _made(_convolutional, "adamw")

        def step(x: torch.Tensor) -> Any:
            loss = made.step(x)
            with torch.no_grad():
                return loss, made.model(x).sum()

        return Trained(step, made.model, made.optimizer)

    compare(make, _batches(rank, _convolutional, 6), seed=rank)
    assert dist.is_initialized()
    return True


def test_a_step_may_evaluate_as_well(two_ranks: Ranks) -> None:
    assert two_ranks(_evaluates) == [True, True]


def _settings_change(rank: int) -> list[int]:
    """What the module is set to between two calls counts."""
    warnings.simplefilter("ignore")
    batches, made, captures = _batches(rank, _convolutional, 8), [], []
    for compiles in (False, True):
        trained = _made(_convolutional, "adamw")
        module: Any = trained.model
        step: Any = dovetail.compile_step(trained.step) if compiles else trained.step
        torch.manual_seed(rank)
        results = []
        for number, batch in enumerate(batches):
            if number == 5:
                module.broadcast_buffers = False
            results.append((step(*batch), state_of(trained)))
        made.append(results)
        captures.append(step.stats.captures if compiles else 0)
    assert same(*made)
    module._comm_hooks.append((None, None))
    try:
        step(*batches[0])
    except UnsupportedDistributed as error:
        assert "a communication hook" in str(error)  # noqa: PT017
    else:
        captures.append(-1)
    return captures


def test_settings_of_the_module_are_guarded(two_ranks: Ranks) -> None:
    assert two_ranks(_settings_change) == [[0, 2]] * 2


def _keeps_a_limit(rank: int) -> tuple[int, int]:
    warnings.simplefilter("ignore")
    batches = [(torch.randn(256, 6, generator=torch.Generator().manual_seed(rank + k)),) for k in range(5)]
    free = dovetail.compile_step(_made(_mlp, "adamw").step)
    for batch in batches[:3]:
        free(*batch)
    peak = free.explain().peak_bytes
    stats = compare(lambda: _made(_mlp, "adamw"), batches, seed=rank, memory_limit="1MB", keep_grads=True)
    tight = dovetail.compile_step(_made(_mlp, "adamw").step, memory_limit=f"transient:{peak * 9 // 10}B")
    for batch in batches[:4]:
        tight(*batch)
    return stats.eager_calls, tight.explain().peak_bytes - peak


def test_a_memory_limit_holds_with_collectives(two_ranks: Ranks) -> None:
    for eager_calls, more in two_ranks(_keeps_a_limit):
        assert eager_calls == _IN_EAGER_MODE
        assert more <= 0


def _averages(rank: int) -> int:
    """Each rank trains on its own, and weights are averaged in every second step: an object of torch's counts them."""
    warnings.simplefilter("ignore")

    def make() -> Trained:
        torch.manual_seed(3)
        net = _mlp()
        optimizer = optimizer_of("adamw", net)
        averager = PeriodicModelAverager(period=2, warmup_steps=1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            averager.average_parameters(net.parameters())
            return loss.detach()

        return Trained(step, net, optimizer)

    return compare(make, _batches(rank, _mlp, 7), seed=rank).eager_calls


def test_weights_are_averaged_now_and_then(two_ranks: Ranks) -> None:
    assert two_ranks(_averages) == [0, 0]
