"""What is recorded is what eager executes: operator by operator, operand by operand, stride by stride.

The reference is a real training step under a dispatch mode: forward and backward on real tensors, no tracing. Both
sides are brought to one form: the overload, its arguments with tensors described by dtype, shape and stride, its
results with their offset as well, and for each tensor the number of its value and of its storage by first appearance.
So equal traces mean equal operators, order, layouts, data flow and sharing of memory.

Operators of AccumulateGrad are left out: they belong to the caller's `backward()`. Where the engine adds two gradients
in place, both sides show `add`: torch does not add in place while a dispatch mode is active.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.capture.recording import Recording
from dovetail.ir.program import Node, Value
from dovetail.pipeline import alias_graphs
from tests.models.zoo import ZOO, Batch, Entry, loss_of
from tests.rotation import rotated

# Operators of eager's trace that the recorded program leaves out, each with the reason.
NOT_RECORDED = {
    "aten.detach.default": "another name of the same value",
    "aten.alias.default": "another name of the same value",
}

# The others make tensors of Python numbers (a program has a copy of those) or pick operators by the mode they run in.
TRACED = ("gpt2", "llama", "bert", "vit", "resnet", "mlp", "minilm", "unet", "autoencoder")

# Runs of operators, per way in, that Dynamo does not hand over.
DROPPED_BY_DYNAMO = {
    ("aten.unsqueeze.default",) * 3: "masks in transformers are functions of batch, head and places; none reads the "
    "head, and Dynamo drops an x[...] that nobody reads",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One operator. operands: nested tuples; results: one entry per result, None for what is not a new tensor."""

    operator: str
    operands: object
    results: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.operator} {self.operands} -> {self.results}"


class Numbers:
    """Numbers by first appearance, so that two traces can be compared."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}

    def of(self, key: object) -> int:
        return self._known.setdefault(key, len(self._known))


class EagerTrace(TorchDispatchMode):
    """Writes down every operator that real tensors meet, and keeps the tensors, so that identity means something."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._alive: list[Tensor] = []
        self._identities: dict[int, int] = {}
        self._values, self._storages = Numbers(), Numbers()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = self._operands(args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        items = list(result) if isinstance(result, tuple | list) else [result]
        if str(func) in NOT_RECORDED:
            self._keep(result, self._identities[id(args[0])])
        elif not _in_accumulate_grad():
            self.steps.append(Step(str(func), operands, tuple(map(self._result, items))))
        return result

    def _keep(self, tensor: Tensor, identity: int) -> None:
        self._alive.append(tensor)
        self._identities[id(tensor)] = identity

    def _operands(self, args: Any, kwargs: dict[str, Any]) -> object:
        return self._operand(args), tuple((name, self._operand(a)) for name, a in sorted(kwargs.items()))

    def _operand(self, item: object) -> object:
        if isinstance(item, Tensor):
            if id(item) not in self._identities:
                self._keep(item, id(item))
            return _layout(item.dtype, item.shape, item.stride()), *self._place(item)
        if isinstance(item, tuple | list):
            return tuple(map(self._operand, item))
        return _plain(item)

    def _result(self, item: object) -> object:
        if not isinstance(item, Tensor) or id(item) in self._identities:
            return None
        self._keep(item, id(item))
        layout = _layout(item.dtype, item.shape, item.stride())
        return layout, item.storage_offset(), *self._place(item)

    def _place(self, tensor: Tensor) -> tuple[int, int]:
        return self._values.of(self._identities[id(tensor)]), self._storages.of(tensor.untyped_storage()._cdata)


def _in_accumulate_grad() -> bool:
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"


def _layout(dtype: torch.dtype, shape: Sequence[Any], stride: Sequence[Any]) -> str:
    return f"{dtype}{list(shape)}{list(stride)}"


def _plain(item: object) -> object:
    return f"{type(item).__name__} {item}" if isinstance(item, bool | int | float) else str(item)


def recorded_steps(nodes: Sequence[Node]) -> list[Step]:
    """A recorded program in the form of an eager trace."""
    values, storages = Numbers(), Numbers()

    def place(value: Value) -> tuple[int, int]:
        return values.of(id(value)), storages.of(value.tensor.storage)

    def operand(item: object) -> object:
        if isinstance(item, Value):
            meta = item.tensor
            return _layout(meta.dtype, meta.shape, meta.stride), *place(item)
        if isinstance(item, tuple | list):
            return tuple(map(operand, item))
        return _plain(item)

    def result(value: Value | None) -> object:
        if value is None:
            return None
        meta = value.tensor
        return _layout(meta.dtype, meta.shape, meta.stride), meta.offset, *place(value)

    steps = []
    for node in nodes:
        operands = operand(node.args), tuple((name, operand(a)) for name, a in sorted(node.kwargs))
        steps.append(Step(str(node.target), operands, tuple(map(result, node.outputs)) or (None,)))
    return steps


# --- the two arms --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _as_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models that ask whether they are compiled are answered alike in both arms."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        yield


def eager_steps(model: nn.Module, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The operators of one real step."""
    gradient = torch.ones(())
    with _as_compiled(monkeypatch), EagerTrace() as trace:
        loss = loss_of(model(**batch))
        loss.backward(gradient)
    return trace.steps


def recordings_of(run: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """The recordings that dovetail makes while `run()` gives a loss and its backward runs."""
    caught: list[Recording] = []
    original = alias_graphs.compile_recording

    def catch(recording: Recording, *rest: Any) -> Any:
        caught.append(recording)
        return original(recording, *rest)

    monkeypatch.setattr(alias_graphs, "compile_recording", catch)
    run().backward()
    return caught


def difference(eager: Sequence[Step], recorded: Sequence[Step], dropped: dict[tuple[str, ...], str]) -> str:
    """Where two traces part, "" where they do not; `dropped` may be missing from the recorded one.

    A dropped step takes its number of a value with it, so steps are compared by what follows from the steps so far: a
    mapping between the numbers of one side and the other, which must stay one to one.
    """
    pairs: dict[tuple[str, int], int] = {}
    i = j = 0
    while i < len(eager) and j < len(recorded):
        if _same_step(eager[i], recorded[j], pairs):
            i, j = i + 1, j + 1
            continue
        run = next((r for r in dropped if tuple(s.operator for s in eager[i : i + len(r)]) == r), None)
        if run is None:
            return f"step {i} of eager, {j} recorded:\n  {eager[i]}\n  {recorded[j]}"
        i += len(run)
    if i < len(eager) or j < len(recorded):
        return f"left over: {[str(s) for s in (*eager[i:], *recorded[j:])]}"
    return ""


def _same_step(a: Step, b: Step, pairs: dict[tuple[str, int], int]) -> bool:
    if a.operator != b.operator or len(a.results) != len(b.results):
        return False
    fresh = dict(pairs)
    if not _same((a.operands, a.results), (b.operands, b.results), fresh):
        return False
    pairs.update(fresh)
    return True


def _same(a: object, b: object, pairs: dict[tuple[str, int], int]) -> bool:
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return a == b
    if len(a) != len(b):
        return False
    if a and isinstance(a[-1], int):  # a tensor: its layout, then numbers; the last two are of its value and storage
        kinds = (("value", a[-2], b[-2]), ("storage", a[-1], b[-1]))
        if a[:-2] != b[:-2]:
            return False
        for kind, mine, other in kinds:
            if (
                pairs.setdefault((kind, mine), other) != other
                or pairs.setdefault((f"{kind} back", other), mine) != mine
            ):
                return False
        return True
    return all(_same(x, y, pairs) for x, y in zip(a, b, strict=True))


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("entry", "way_in"),
    rotated([(entry, way) for entry in ZOO if entry.name in TRACED for way in ("backend", "function")], 5),
    ids=str,
)
def test_recorded_operators_are_eagers(entry: Entry, way_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = entry.batches(1)
    expected = eager_steps(entry.model(), batch, monkeypatch)
    model = entry.model()
    if way_in == "backend":
        compiled = torch.compile(model, backend="dovetail", fullgraph=True)
        (recording,) = recordings_of(lambda: loss_of(compiled(**batch)), monkeypatch)
    else:
        with _as_compiled(monkeypatch):
            compiled = dovetail.compile(model)
            (recording,) = recordings_of(lambda: loss_of(compiled(**batch)), monkeypatch)
    actual = recorded_steps(recording.programs(way_in, recording.likely_pattern()).recorded.nodes)
    assert len(actual) > 40
    parted = difference(expected, actual, DROPPED_BY_DYNAMO if way_in == "backend" else {})
    assert not parted, parted


# --- the comparison itself can fail --------------------------------------------------------------------


def _steps() -> list[Step]:
    """x.sin(), its exp() and its transpose; the product of the last two; the gradient of all."""
    x = torch.rand(2, 3, requires_grad=True)
    with EagerTrace() as trace:
        y = x.sin()
        (y.exp() * y.t().t()).sum().backward(torch.ones(()))
    return trace.steps


def _changed(steps: list[Step], index: int, **changes: object) -> list[Step]:
    return [*steps[:index], replace(steps[index], **changes), *steps[index + 1 :]]


def _other_operand(steps: list[Step]) -> list[Step]:
    return _changed(steps, 1, operands=steps[0].operands)  # exp of x


def _other_layout(steps: list[Step]) -> list[Step]:
    ((_, *rest),) = steps[2].results
    return _changed(steps, 2, results=(("torch.float32[3, 2][2, 1]", *rest),))


def _other_storage(steps: list[Step]) -> list[Step]:
    ((*rest, storage),) = steps[2].results
    return _changed(steps, 2, results=((*rest, storage + 100),))  # a transpose that copies


@pytest.mark.parametrize(
    "corrupt",
    [
        pytest.param(lambda steps: steps[:-1], id="a-step-less"),
        pytest.param(lambda steps: [*steps, steps[-1]], id="a-step-more"),
        pytest.param(lambda steps: [steps[0], steps[2], steps[1], *steps[3:]], id="another-order"),
        pytest.param(lambda steps: _changed(steps, 1, operator="aten.cos.default"), id="another-operator"),
        pytest.param(_other_operand, id="another-operand"),
        pytest.param(_other_layout, id="another-layout"),
        pytest.param(_other_storage, id="another-storage"),
    ],
)
def test_a_corrupted_trace_is_told_apart(corrupt: Callable[[list[Step]], list[Step]]) -> None:
    expected, same = _steps(), _steps()
    assert [step.operator for step in same[:3]] == ["aten.sin.default", "aten.exp.default", "aten.t.default"]
    assert not difference(expected, same, {})
    assert difference(expected, corrupt(same), {})
