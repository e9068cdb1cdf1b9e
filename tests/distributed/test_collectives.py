"""Collectives that a step calls are part of its program, and give what eager mode gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.errors import UnsupportedDistributed
from dovetail.inspect.memory import measure_peak
from dovetail.ops.collectives import collective_of
from dovetail.torch_compat.collectives import reduction, start_to_scatter_sums
from tests.distributed.ranks import Ranks
from tests.distributed.steps import Trained, compare, optimizer_of, same


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 4))


def _batches(rank: int, count: int = 5) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    return [(torch.randn(3, 4, generator=generator),) for _ in range(count)]


def _group() -> Any:
    """A group of all ranks that is not the default one; each rank makes it once."""
    if "group" not in _KEPT:
        _KEPT["group"] = dist.new_group(list(range(dist.get_world_size())))
    return _KEPT["group"]


_KEPT: dict[str, Any] = {}


def _made(body: Callable[..., Any], optimizer_name: str) -> Trained:
    model = _model()
    optimizer = optimizer_of(optimizer_name, model)

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        result = body(model, x)
        optimizer.step()
        return result

    return Trained(step, model, optimizer)


def _averaged(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().sum()
    loss.backward()
    for weight in model.parameters():
        assert weight.grad is not None
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
    return loss.detach()


def _started_first(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().sum()
    loss.backward()
    group = _KEPT["group"]
    gradients = [weight.grad for weight in model.parameters()]
    works: list[Any] = [dist.all_reduce(g, dist.ReduceOp.MAX, group, async_op=True) for g in gradients if g is not None]
    for work in works:
        work.wait()
        assert work.is_completed()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return loss.detach()


def _every_kind(model: nn.Module, x: torch.Tensor) -> Any:
    count, group = dist.get_world_size(), _KEPT["group"]
    whole = torch.empty(count * len(x), 4)
    dist.all_gather_into_tensor(whole, x)
    parts = [torch.empty_like(x) for _ in range(count)]
    dist.all_gather(parts, x, group=group)
    part = torch.empty_like(x)
    dist.reduce_scatter_tensor(part, whole)
    other = torch.empty_like(x)
    dist.reduce_scatter(other, parts, group=group)
    exchanged = torch.empty(count, 4)
    dist.all_to_all_single(exchanged, whole[:count].clone())
    first = x.clone()
    dist.broadcast(first, src=count - 1, group=group)
    dist.reduce(other, dst=0)
    dist.barrier()
    loss = model(first + parts[0] + part + exchanged[:1]).square().sum()
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total, dist.ReduceOp.PRODUCT)
    return loss.detach(), total, exchanged, part


def _functional(model: nn.Module, x: torch.Tensor) -> Any:
    count, group = dist.get_world_size(), _KEPT["group"]
    whole = functional.all_gather_tensor(x, 0, group)
    part = functional.reduce_scatter_tensor(whole, "sum", 0, group)
    exchanged = functional.all_to_all_single(whole[:count].clone(), None, None, group)
    first = functional.broadcast(x, 0, group)
    loss = model(first + part + exchanged[:1]).square().sum()
    loss.backward()
    for weight in model.parameters():
        weight.grad = functional.all_reduce(weight.grad, "sum", group) * 1
    return loss.detach(), functional.all_reduce(loss.detach(), "max", group) + 0


def _in_place_gather(model: nn.Module, x: torch.Tensor) -> Any:
    """What a rank sends lies in what it receives."""
    rows, rank = len(x), dist.get_rank()
    whole = torch.zeros(dist.get_world_size() * rows, 4)
    whole[rank * rows : (rank + 1) * rows] = x
    dist.all_gather_into_tensor(whole, whole[rank * rows : (rank + 1) * rows])
    loss = model(whole).square().sum()
    loss.backward()
    return loss.detach(), whole


def _pipelined(model: nn.Module, x: torch.Tensor) -> Any:
    """Each rank is a stage: activations go on to the next rank, in parts of the batch, and gradients back."""
    rank, last, group = dist.get_rank(), dist.get_world_size() - 1, _KEPT["group"]
    held = []
    for tag, part in enumerate(x.chunk(3)):
        given = part.clone()
        if rank:
            dist.recv(given, rank - 1, group, tag)
        given.requires_grad_()
        out = model(given)
        if rank < last:
            dist.send(out.detach(), dst=rank + 1, group=group, tag=tag)
        held.append((given, out))
    losses = []
    for given, out in held:
        if rank == last:
            losses.append(out.square().sum())
            losses[-1].backward()
        else:
            gradient = torch.empty_like(out)
            dist.recv(gradient, rank + 1)
            out.backward(gradient)
        if rank:
            assert given.grad is not None
            dist.send(given.grad, rank - 1)
    if losses:
        return torch.stack(losses).detach()
    return x.sum()


def _from_and_to_one_rank(model: nn.Module, x: torch.Tensor) -> Any:
    rank, count, group = dist.get_rank(), dist.get_world_size(), _KEPT["group"]
    root = count - 1
    whole = [torch.empty_like(x) for _ in range(count)] if rank == root else None
    dist.gather(x * 2, whole, dst=root, group=group)
    mine = torch.empty_like(x)
    dist.scatter(mine, None if whole is None else [part + 1 for part in whole], src=root)
    loss = model(mine).square().sum()
    loss.backward()
    return loss.detach(), whole


def _exchanged_at_once(model: nn.Module, x: torch.Tensor) -> Any:
    """Each rank sends to the next and receives from the one before: both are under way before one is waited for."""
    rank, count, group = dist.get_rank(), dist.get_world_size(), _KEPT["group"]
    after, before = (rank + 1) % count, (rank - 1) % count
    rows = x.repeat(20_000, 1)  # more than what is on its way without a reader
    arriving, other = torch.empty_like(rows), torch.zeros(3, 4)
    receiving = dist.irecv(arriving, before)
    sending = dist.isend(rows * 2, after)
    assert sending is not None
    assert receiving is not None
    total = rows.sum()
    dist.all_reduce(total)
    sending.wait()
    receiving.wait()
    operations = [dist.P2POp(dist.irecv, other, before, group), dist.P2POp(dist.isend, arriving[:3] + 1, after, group)]
    under_way = dist.batch_isend_irecv(operations)
    loss = model(arriving[:3]).square().sum()
    loss.backward()
    for work in under_way:
        work.wait()
    return loss.detach(), other, total


def _through_futures(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What arrives is taken from the future of the work, and some of it is computed with there."""
    loss = model(x).square().sum()
    loss.backward()
    whole: Any = dist.all_gather_into_tensor(torch.empty(dist.get_world_size() * len(x), 4), x, async_op=True)
    futures = []
    for weight in model.parameters():
        assert weight.grad is not None
        work: Any = dist.all_reduce(weight.grad, async_op=True)
        futures.append(work.get_future().then(lambda future: future.value()[0].div_(2)))
    torch.futures.wait_all(futures)
    return loss.detach() + whole.get_future().wait()[0].sum()


_BODIES = (
    _through_futures,
    *(_averaged, _started_first, _every_kind, _functional, _in_place_gather),
    *(_pipelined, _from_and_to_one_rank, _exchanged_at_once),
)


class _Noted(TorchDispatchMode):
    """The collectives that eager mode runs, in order, and in which groups."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace in ("c10d", "_c10d_functional") and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            self.names.append(_short(name))
        return func(*args, **(kwargs or {}))


_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "allgather_base": "gather_into"}
_NAMES |= {"reduce_scatter_base": "scatter_from", "alltoall_base": "exchange", "all_gather_into_tensor": "gather_into"}
_NAMES |= {"reduce_scatter_tensor": "scatter_from", "all_to_all_single": "exchange"}
_NAMES |= {"receive": "recv", "start_receive": "recv", "start_send": "send"}
_NAMES |= {"scatter_in": "scatter_from", "gather_own": "gather_into"}  # of programs, with the same contents


def _short(name: str) -> str:
    return _NAMES.get(name.strip("_"), name.strip("_"))


def _agrees(rank: int, body: Callable[..., Any], optimizer: str) -> tuple[int, int]:
    warnings.simplefilter("ignore")
    _group()
    stats = compare(lambda: _made(body, optimizer), _batches(rank), seed=rank)
    return stats.eager_calls, stats.captures


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("body", _BODIES)
def test_two_ranks_agree_with_eager_mode(two_ranks: Ranks, body: Callable[..., Any], optimizer: str) -> None:
    for eager_calls, captures in two_ranks(_agrees, body, optimizer):
        assert eager_calls == 0
        assert captures <= 2  # momentum of SGD begins as a gradient


@pytest.mark.parametrize("body", [_averaged, _every_kind, _pipelined, _exchanged_at_once])
def test_four_ranks_agree_with_eager_mode(four_ranks: Ranks, body: Callable[..., Any]) -> None:
    assert [eager for eager, _ in four_ranks(_agrees, body, "adamw")] == [0] * 4


def _orders(rank: int, body: Callable[..., Any]) -> tuple[list[str], list[str]]:
    warnings.simplefilter("ignore")
    _group()
    made = _made(body, "adamw")
    (batch,) = _batches(rank, 1)
    with _Noted() as noted:
        made.step(*batch)
    other = _made(body, "adamw")
    compiled = dovetail.compile_step(other.step)
    compiled(*batch)
    found = [collective_of(node) for node in compiled.program.nodes]
    names = [str(op).split(".")[1] for op in found if op is not None]
    return noted.names, [_short(name) for name in names if not name.startswith("end_")]


@pytest.mark.parametrize("body", _BODIES)
def test_collectives_keep_their_order(two_ranks: Ranks, body: Callable[..., Any]) -> None:
    for expected, found in two_ranks(_orders, body):
        assert found == expected


def _unread(rank: int) -> int:
    model = _model()

    def step(x: torch.Tensor) -> torch.Tensor:
        unread = x * 2
        dist.all_reduce(unread)
        return model(x).sum().detach()

    compiled = dovetail.compile_step(step)
    compiled(torch.ones(2, 4))
    return sum("all_reduce" in line for lines in compiled.compiled.collectives.values() for line in lines)


def test_a_collective_that_nobody_reads_runs(two_ranks: Ranks) -> None:
    assert two_ranks(_unread) == [1, 1]


def _only_rank_0_captures(rank: int) -> str:
    if rank:
        return ""
    made = _made(_averaged, "adamw")
    return str(dovetail.estimate(made.step, *_batches(0, 1)[0]))


def test_nothing_is_sent_while_a_step_is_recorded(two_ranks: Ranks) -> None:
    assert two_ranks(_only_rank_0_captures, seconds=40)[0]


def _knows_numbers(rank: int) -> tuple[list[Any], str]:
    """Collectives of numbers that are known while the step is recorded, by one rank alone; and what comes of them."""

    def step(x: torch.Tensor) -> Any:
        count, part, (first, second) = torch.tensor([len(x)]), torch.tensor([2]), torch.zeros(2).split(1)
        dist.all_reduce(count)
        dist.send(part, 1) if rank == 0 else dist.recv(part, 0)
        outs = [torch.tensor([0]), torch.tensor([0])]
        dist.all_gather(outs, torch.tensor([rank + 5]))
        return x.sum() / count, part, outs, first + second, outs[1].item()

    made = str(dovetail.estimate(step, torch.ones(3))) if rank == 0 else "step"
    compiled = dovetail.compile_step(step)
    found: list[Any] = []
    for number in range(3):
        x = torch.ones(3 + rank) * number
        found.append(same(compiled(x), step(x)))
    return found, made


def test_known_numbers_are_not_sent_while_a_step_is_recorded(two_ranks: Ranks) -> None:
    for found, made in two_ranks(_knows_numbers, seconds=40):
        assert found == [True] * 3
        assert "step" in made


def _by_a_schedule(rank: int) -> int:
    """Torch's own pipelining: its schedule and stages note what they have begun, and agree on numbers at first."""
    warnings.simplefilter("ignore")

    def make() -> Trained:
        torch.manual_seed(3)
        model = nn.Linear(4, 4)
        optimizer = optimizer_of("adamw", model)
        stage = PipelineStage(model, rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, wanted: (out - wanted).square().mean())

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            schedule.step(*(() if rank else (x,)), target=x if rank else None, losses=losses if rank else None)
            optimizer.step()
            return torch.stack(losses).detach() if losses else x.sum()

        return Trained(step, model, optimizer)

    return compare(make, [(torch.arange(16.0).view(4, 4) / number,) for number in range(1, 5)], seed=rank).eager_calls


def test_schedules_of_pipelines_go_on(two_ranks: Ranks) -> None:
    assert two_ranks(_by_a_schedule) == [1, 1]


def _refused(rank: int) -> tuple[list[str], list[float]]:
    got = torch.zeros(2)

    def step(x: torch.Tensor) -> torch.Tensor:
        dist.send(x * 4, 0) if rank else dist.recv(got)
        return x + 1

    def leaves_under_way(x: torch.Tensor) -> torch.Tensor:
        dist.isend(x * 4, 1 - rank)
        return x + 1

    def hands_objects(x: torch.Tensor) -> torch.Tensor:
        dist.all_gather_object([None, None], len(x))
        return x + 1

    texts = []
    for refused in (lambda x: dist.recv(x * 2), leaves_under_way, hands_objects):
        try:
            dovetail.estimate(refused, torch.ones(2))
        except UnsupportedDistributed as error:
            texts.append(str(error))
    falls_back = dovetail.compile_step(step, on_unsupported="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            falls_back(torch.ones(2) + rank)
    return texts, got.tolist()


def test_other_collectives_are_refused_by_name(two_ranks: Ranks) -> None:
    first, second = two_ranks(_refused)
    for texts, _ in (first, second):
        assert all("DT-DIST-001" in text and "test_collectives.py" in text for text in texts)
        assert "c10d.recv_any_source_" in texts[0]
        assert "does not wait for a message" in texts[1]
        assert "sends objects to other processes" in texts[2]
    assert first[1] == [8.0, 8.0]


def _checks_late(rank: int) -> str:
    def step(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        if x.sum() > 0:
            return x + 1
        return x - 1

    compiled = dovetail.compile_step(step)
    for _ in range(3):
        try:
            compiled(torch.ones(2))
        except UnsupportedDistributed as error:
            return str(error)
    return ""


def test_a_branch_on_what_ranks_have_summed_up_is_refused(two_ranks: Ranks) -> None:
    assert all("after a collective" in text for text in two_ranks(_checks_late))


def test_single_functions_refuse_collectives_and_data_parallel_modules(two_ranks: Ranks) -> None:
    for texts in two_ranks(_single_functions):
        assert all("DT-DIST-001" in text and "compile_step" in text for text in texts), texts


def _single_functions(rank: int) -> list[str]:
    wrapped = nn.parallel.DistributedDataParallel(_model())

    def summed(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y

    found = []
    for function in (summed, wrapped):
        try:
            dovetail.compile(function)(torch.ones(3, 4))
        except UnsupportedDistributed as error:
            found.append(str(error))
        else:
            found.append("")
    return found


_TAKEN: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    # with what is whole, and a part of it
    "all_reduce": lambda whole, _: dist.all_reduce(whole),
    "broadcast": lambda whole, _: dist.broadcast(whole, 0),
    "gather into": dist.all_gather_into_tensor,
    "gather": lambda whole, part: dist.all_gather(list(whole.chunk(dist.get_world_size())), part),
    "scatter": lambda whole, part: dist.reduce_scatter_tensor(part, whole),
    "scatter list": lambda whole, part: dist.reduce_scatter(part, list(whole.chunk(dist.get_world_size()))),
    "gather to one": lambda whole, part: dist.gather(
        part, list(whole.chunk(dist.get_world_size())) if dist.get_rank() == 0 else None
    ),
    "scatter from one": lambda whole, part: dist.scatter(
        part, list(whole.chunk(dist.get_world_size())) if dist.get_rank() == 0 else None
    ),
    "message under way": lambda _, part: (dist.isend(part, 0) if dist.get_rank() else dist.irecv(part, 1)).wait(),
    "message": lambda _, part: dist.send(part, 0) if dist.get_rank() else dist.recv(part, 1),
    "exchange": lambda whole, _: dist.all_to_all_single(whole, whole.flip(0)),
    "exchange lists": lambda whole, _: dist.all_to_all(
        list(whole.chunk(dist.get_world_size())), list(whole.flip(0).chunk(dist.get_world_size()))
    ),
}


def _peaks(rank: int, name: str) -> tuple[int, int]:
    """What a step of one collective takes, and what its program says."""
    warnings.simplefilter("ignore")
    size = dist.get_world_size()

    def step(x: torch.Tensor) -> torch.Tensor:
        whole, part = x.repeat(size), x * 2
        _TAKEN[name](whole, part)
        return whole.sum() + part.sum()

    compiled = dovetail.compile_step(step, executors=("aten",))
    x = torch.ones(1000)
    compiled(x)
    found = [measure_peak(compiled, x).peak_bytes for _ in range(5)]
    return min(found), compiled.explain().peak_bytes


@pytest.mark.parametrize("name", _TAKEN)
def test_the_peak_counts_what_gloo_takes(two_ranks: Ranks, name: str) -> None:
    for measured, said in two_ranks(_peaks, name):
        assert measured == said


def _scatters(rank: int) -> list[bool]:
    """One rank scatters sums as programs do, the other ones as eager mode does."""
    size, found = dist.get_world_size(), []
    group = dist.group.WORLD
    for count, dtype, op in product((1, 7, 30001), (torch.float32, torch.bfloat16), ("SUM", "AVG", "MAX")):
        whole = torch.randn(size * count, generator=torch.Generator().manual_seed(rank)).to(dtype)
        expected = torch.empty(count, dtype=dtype)
        dist.reduce_scatter_tensor(expected, whole, reduction(op))
        for odd in range(size):
            made = torch.empty(count, dtype=dtype)
            if rank == odd:
                start_to_scatter_sums(made, whole.clone(), op, group).wait()
            else:
                dist.reduce_scatter_tensor(made, whole, reduction(op))
            found.append(made.equal(expected))
    return found


def test_sums_are_scattered_as_eager_mode_scatters_them(four_ranks: Ranks) -> None:
    assert all(all(found) for found in four_ranks(_scatters))
