"""Modules of `fully_shard` (FSDP2) in a step give what eager mode gives, and leave it able to go on."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dovetail
from dovetail.errors import UnsupportedDistributed
from tests.distributed.ranks import Ranks
from tests.distributed.steps import Trained, compare, optimizer_of, run, same, state_of

_IN_EAGER_MODE = 1  # until `fully_shard` has looked at its modules
_Batch = tuple[torch.Tensor, ...]


class _Block(nn.Module):
    def __init__(self, size: int, checkpoints: bool = False) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(size),
            nn.Linear(size, 2 * size + 1),
            nn.Linear(2 * size + 1, size),
        )
        self.dropout, self.checkpoints = nn.Dropout(0.1), checkpoints

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.narrow(F.gelu(self.wide(self.norm(x))))
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = checkpoint(self._inner, x, use_reentrant=False) if self.checkpoints else self._inner(x)
        out: torch.Tensor = x + self.dropout(inner)
        return out


class _Net(nn.Module):
    """A small GPT without attention: tied weights in the root's own group, blocks that are sharded one by one."""

    def __init__(self, checkpoints: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(_Block(8, checkpoints) for _ in range(2))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.single = nn.Parameter(torch.ones(1))  # the second rank has none of it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(x) * self.single
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def _sharded(net: _Net, **options: Any) -> _Net:
    for block in net.blocks:
        fully_shard(block, **options)
    fully_shard(net, **options)
    return net


def _batches(rank: int, count: int, size: int = 3) -> list[_Batch]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [(torch.randint(11, (size, 5), generator=generator),) for _ in range(count)]


def _loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).float().flatten(0, 1), x.flatten())


def _made(optimizer_name: str = "sgd", clips: bool = False, freezes: bool = False, **options: Any) -> Trained:
    torch.manual_seed(3)
    net = _Net(checkpoints=options.pop("checkpoints", False))
    if freezes:
        net.blocks[0].wide.requires_grad_(False)  # type: ignore[union-attr]
        for weight in net.blocks[1].parameters():
            weight.requires_grad_(False)
    model = _sharded(net, **options)
    optimizer = optimizer_of(optimizer_name, model)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(model, x)
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        return loss.detach()

    return Trained(step, model, optimizer)


_KINDS: dict[str, dict[str, Any]] = {
    "as it is": {"optimizer_name": "adamw"},
    "gathered again": {"reshard_after_forward": True},
    "kept": {"reshard_after_forward": False},
    "clipped, checkpointed": {"clips": True, "checkpoints": True},
    "frozen": {"freezes": True},
    "alone": {},
    "mixed precision": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
}


def _agrees(rank: int, kind: str) -> int:
    warnings.simplefilter("ignore")
    options = dict(_KINDS[kind])
    if kind == "alone":  # each rank is a group of its own
        options["mesh"] = init_device_mesh("cpu", (2, 1), mesh_dim_names=("others", "own"))["own"]
    return compare(lambda: _made(**options), _batches(rank, 3), seed=rank).eager_calls


@pytest.mark.parametrize("kind", _KINDS)
def test_two_ranks_train_as_in_eager_mode(two_ranks: Ranks, kind: str) -> None:
    assert two_ranks(_agrees, kind) == [_IN_EAGER_MODE] * 2


def test_four_ranks_train_as_in_eager_mode(four_ranks: Ranks) -> None:
    assert four_ranks(_agrees, "clipped, checkpointed") == [_IN_EAGER_MODE] * 4


def _of_two_dimensions(rank: int, is_parallel: bool) -> int:
    """Weights are sharded over two ranks, and replicated over two, or spread over them by a tensor parallel plan."""
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))

    def make() -> Trained:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        if is_parallel:
            parallelize_module(net, mesh["columns"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        model: nn.Module = fully_shard(net, mesh=mesh["rows"] if is_parallel else mesh)
        optimizer = optimizer_of("adamw", model)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            detached: torch.Tensor = loss.detach()
            return detached

        return Trained(step, model, optimizer)

    generator = torch.Generator().manual_seed(rank // 2 if is_parallel else rank)
    return compare(make, [(torch.randn(2, 6, generator=generator),) for _ in range(3)], seed=0).eager_calls


@pytest.mark.parametrize("is_parallel", [False, True])
def test_meshes_of_two_dimensions(four_ranks: Ranks, is_parallel: bool) -> None:
    assert four_ranks(_of_two_dimensions, is_parallel) == [_IN_EAGER_MODE] * 4


def _accumulates(rank: int) -> int:
    """Gradients of several batches are added up, whole, before they are reduced; then shards of several steps are."""
    warnings.simplefilter("ignore")

    def make() -> Trained:
        made = _made()
        model: Any = made.model

        def step(x: torch.Tensor, updates: bool) -> torch.Tensor:
            total = torch.zeros(())
            for number, part in enumerate((x, x.flip(0))):
                model.set_requires_gradient_sync(number == 1)
                loss = _loss(model, part)
                loss.backward()
                total = total + loss.detach()
            if updates:
                made.optimizer.step()
                made.optimizer.zero_grad()
            return total

        return Trained(step, model, made.optimizer)

    batches = [(*batch, number % 2 == 1) for number, batch in enumerate(_batches(rank, 6))]
    return compare(make, batches, seed=rank).eager_calls


def test_gradients_are_added_up_without_an_exchange(two_ranks: Ranks) -> None:
    assert max(two_ranks(_accumulates)) <= 2


def _goes_on(rank: int, between: str) -> tuple[int, int]:
    """Calls in eager mode before, between and after compiled ones, evaluations and saved states among them.

    between: what happens to weights after some evaluations: those that were gathered are written, or the shards are.
    """
    warnings.simplefilter("ignore")
    batches = _batches(rank, 9)
    made = []
    for compiles in (False, True):
        trained = _made()
        compiled: Any = dovetail.compile_step(trained.step)
        torch.manual_seed(rank)
        found = []
        for number, batch in enumerate(batches):
            step = trained.step if not compiles or number in (0, 1, 4, 8) else compiled
            found.append((step(*batch), state_of(trained), torch.get_rng_state()))
            if number in (2, 3, 6):
                with torch.no_grad():
                    found.append(trained.model(*batch).sum())
                    if between != "nothing":
                        for weight in _SHOWN[between](trained):
                            weight.mul_(0.5)
            if number == 5:
                trained.model.load_state_dict({k: v * 0.5 for k, v in trained.model.state_dict().items()})
        made.append(copy.deepcopy(found))
    assert same(*made)
    return int(compiled.stats.eager_calls), int(compiled.stats.captures)


_SHOWN: dict[str, Callable[[Trained], Iterable[torch.Tensor]]] = {
    "gathered": lambda trained: [x for x in trained.model.parameters() if not isinstance(x, DTensor)],
    "shards": lambda trained: [x.to_local() for x in trained.optimizer.param_groups[0]["params"]],
}


@pytest.mark.parametrize(("between", "eager_calls"), [("nothing", 0), ("gathered", 2), ("shards", 2)])
def test_eager_mode_goes_on_at_any_time(two_ranks: Ranks, between: str, eager_calls: int) -> None:
    """An evaluation leaves the root's weights gathered, which a program gives up unless they are written then."""
    assert two_ranks(_goes_on, between) == [(eager_calls, 1)] * 2


def _used_before_it_is_called(rank: int, first: str) -> int:
    """What a step does to a module that was never called, before it calls it."""
    warnings.simplefilter("ignore")

    def make() -> Trained:
        torch.manual_seed(3)
        net: Any = _sharded(_Net())
        net.logits = net.forward
        register_fsdp_forward_method(net, "logits")
        optimizer = optimizer_of("adamw", net)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            if first == "unshard":
                net.unshard()
            elif first == "no exchange":
                net.set_requires_gradient_sync(False)
                _loss(net, x * 0).backward()
                net.set_requires_gradient_sync(True)
            loss = _loss(net.logits if first == "a method" else net, x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Trained(step, net, optimizer)

    return compare(make, _batches(rank, 4), seed=rank).eager_calls


@pytest.mark.parametrize("first", ["unshard", "a method", "no exchange"])
def test_modules_may_be_used_before_they_are_called(two_ranks: Ranks, first: str) -> None:
    assert two_ranks(_used_before_it_is_called, first) == [_IN_EAGER_MODE] * 2


def _another_batch(rank: int) -> int:
    """One rank gets a batch of another size, captures, or runs in eager mode, while the other runs its program."""
    warnings.simplefilter("ignore")
    batches = [
        (x[: 2 if number % 3 == 2 and rank == number % 2 else 3],) for number, (x,) in enumerate(_batches(rank, 7))
    ]
    return compare(lambda: _made(reshard_after_forward=True), batches, seed=rank).captures


def test_ranks_may_have_batches_of_different_sizes(two_ranks: Ranks) -> None:
    assert max(two_ranks(_another_batch)) == 2


def _peaks(rank: int, **options: Any) -> tuple[int, list[str]]:
    """The peak of a step of eight layers, and what it gathers and scatters."""
    warnings.simplefilter("ignore")
    keeps = options.pop("keeps", False)
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)))
    for layer in net:
        fully_shard(layer, reshard_after_forward=not keeps)
    optimizer = torch.optim.SGD(fully_shard(net).parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = dovetail.compile_step(step, **options)
    for _ in range(2):
        compiled(torch.ones(2, 64))
    lines = [line.partition("(")[0] for lines in compiled.compiled.collectives.values() for line in lines]
    return compiled.explain().peak_bytes, lines


def _with_room(rank: int) -> list[tuple[int, list[str]]]:
    """Of weights that are kept, and that are gathered again: without a limit, with one that is high, and a low one."""
    kept, again = _peaks(rank, keeps=True), _peaks(rank)
    return [kept, again, *(_peaks(rank, memory_limit=f"transient:{peak}B") for peak in (2 * kept[0], again[0]))]


def test_weights_are_gathered_again_where_that_saves_memory(two_ranks: Ranks) -> None:
    """What is kept under a high limit is what `reshard_after_forward=False` keeps."""
    weights = 8 * (64 * 64 + 64) * 4
    for kept, again, high, low in two_ranks(_with_room):
        assert kept[0] >= weights
        assert again[0] <= kept[0] - weights // 4
        assert high[1].count("gather_into") == kept[1].count("gather_into") == 8
        assert 8 < again[1].count("gather_into") < 15
        assert low[0] <= again[0]
        assert all(lines.count("scatter_from") == 8 for _, lines in (kept, again, high, low))


def _keeps_alone(rank: int) -> tuple[int, int, list[int]]:
    """Ranks whose programs keep different weights, because of limits of their own, gather as eager mode does."""
    warnings.simplefilter("ignore")
    made: list[Any] = []
    for compiles in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))
        for layer in net:
            fully_shard(layer)
        optimizer = torch.optim.AdamW(fully_shard(net).parameters(), lr=0.1)

        def step(x: torch.Tensor, net: Any = net, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            detached: torch.Tensor = loss.detach()
            return detached

        limit: Any = {"memory_limit": "1GiB"} if rank else {"skip": ("gather_once",)}
        compiled: Any = dovetail.compile_step(step, **limit) if compiles else step
        made.append(run(compiled, Trained(step, net, optimizer), [(torch.ones(2, 16) + rank,)] * 4, seed=1))
    assert same(*made)
    reasons = [reason for reason in compiled.stats.eager_reasons if "gathers weights again" in reason]
    return compiled.stats.calls, compiled.stats.eager_calls, [len(reasons)]


def test_ranks_that_keep_other_weights_gather_as_in_eager_mode(two_ranks: Ranks) -> None:
    (calls, first, _), (_, second, reasons) = two_ranks(_keeps_alone)
    assert (calls, first, second) == (4, _IN_EAGER_MODE, 4)
    assert reasons == [1]


def _gives_up(rank: int, is_apart: bool) -> tuple[int, int]:
    """A step evaluates, in calls of their own or behind its backward, and gives up what that has gathered."""
    warnings.simplefilter("ignore")

    def make() -> Trained:
        trained = _made()

        def step(x: torch.Tensor, trains: bool) -> torch.Tensor:
            loss: Any = trained.step(x) if trains else 0
            if trains and is_apart:
                return loss
            with torch.no_grad():
                total: torch.Tensor = trained.model(x).sum()
            assert isinstance(trained.model, FSDPModule)
            trained.model.reshard()
            return total + loss

        return Trained(step, trained.model, trained.optimizer)

    batches = [(*batch, not is_apart or number % 3 != 2) for number, batch in enumerate(_batches(rank, 7))]
    stats = compare(make, batches, seed=rank)
    return stats.eager_calls, stats.captures


@pytest.mark.parametrize("is_apart", [True, False])
def test_a_step_may_evaluate_and_give_up_what_is_gathered(two_ranks: Ranks, is_apart: bool) -> None:
    assert two_ranks(_gives_up, is_apart) == [(_IN_EAGER_MODE, 2 if is_apart else 1)] * 2


def _refused(rank: int) -> list[str]:
    warnings.simplefilter("ignore")
    found = []
    evaluated = _made()

    def evaluates(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = evaluated.step(x)
        with torch.no_grad():
            return loss + evaluated.model(x).sum()

    offloaded = _made(offload_policy=CPUOffloadPolicy(pin_memory=False))
    for step, model in ((offloaded.step, offloaded.model), (evaluates, evaluated.model)):
        assert isinstance(model, FSDPModule)
        text = ""
        offloaded.step(*_batches(rank, 1)[0])
        evaluated.step(*_batches(rank, 1)[0])
        compiled = dovetail.compile_step(step)
        for batch in _batches(rank, 2):
            try:
                compiled(*batch)
            except UnsupportedDistributed as error:
                text = str(error)
        found.append(text)
    return found


def test_what_is_not_supported_is_refused_by_name(two_ranks: Ranks) -> None:
    for offloads, evaluates in two_ranks(_refused):
        assert "an offload policy" in offloads
        assert "leaves modules of fully_shard gathered" in evaluates


def _raises(rank: int) -> bool:
    """A step that raises while it is recorded, or before it has a program, leaves modules that eager mode trains on."""
    warnings.simplefilter("ignore")
    batches, made = _batches(rank, 4), []
    for compiles in (False, True):
        trained = _made()

        def step(x: torch.Tensor, ends: bool, trained: Trained = trained) -> torch.Tensor:
            loss = _loss(trained.model, x)
            if ends:
                raise ValueError("before backward")
            loss.backward()
            raise ValueError("before the update")

        torch.manual_seed(rank)
        trained.step(*batches[0])
        raising: Any = dovetail.compile_step(step, on_unsupported="eager") if compiles else step
        for number, batch in enumerate(batches[1:3]):
            try:
                raising(*batch, number == 1)
            except ValueError:
                trained.optimizer.zero_grad()
        made.append(run(trained.step, trained, batches, rank))
    return same(*made)


def test_a_step_that_raises_leaves_modules_as_they_were(two_ranks: Ranks) -> None:
    assert two_ranks(_raises) == [True, True]
