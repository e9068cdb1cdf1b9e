"""Functions of torch's library as rows: the same results as the operators that they are, and their errors."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.errors import StepInterrupted
from dovetail.execute.native.kernel_text import Taken, kernel_function
from dovetail.execute.native.kernels import kernel_claim
from dovetail.execute.native.machine import driver
from dovetail.execute.native.rows import table_row
from dovetail.execute.partly_run import PartlyRun
from dovetail.ir.program import Value
from dovetail.torch_compat.native_kernels import kernel_address
from tests.execute.native.programs import aten, calls_counted, compiled, drawn_elements, drive_by, outcome
from tests.execute.native.segments import Segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.skipif(kernel_address("softmax") is None, reason="this torch has no such symbols")

_SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65)
_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class _Drawn:
    """A program of such operators as it grows."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.draft = Segment()
        self.dtype = self.generator.choice((torch.float32, torch.float32, torch.float64))
        self.outputs: list[Value] = []

    def size(self) -> int:
        return self.generator.choice(_SIZES)

    def tensor(self, *shape: int, positive: bool = False) -> Value:
        """Elements, some of them special, at any address; seldom turned round."""
        count, start = torch.Size(shape).numel(), self.generator.randrange(3)
        flat = drawn_elements(self.generator, count + start, self.dtype)
        if self.generator.random() < 0.7:
            flat = torch.randn(len(flat), dtype=self.dtype)
        return self.draft.input((flat.abs() if positive else flat)[start:].view(shape))

    def indices(self, high: int, *shape: int) -> Value:
        return self.draft.input(torch.randint(0, high, shape))

    def keep(self, *values: Value) -> None:
        self.outputs += [value for value in values if self.generator.random() < 0.7]

    def softmax(self) -> None:
        shape = [self.size() for _ in range(self.generator.randint(1, 3))]
        x, dim = self.tensor(*shape), self.generator.randrange(len(shape))
        name = self.generator.choice(("_softmax", "_log_softmax"))
        made = self.draft.call(getattr(aten, name).default, x, dim, False)
        back = getattr(aten, f"{name}_backward_data").default
        self.keep(made, self.draft.call(back, self.tensor(*shape), made, dim, self.dtype))
        if self.generator.random() < 0.5:  # into its operand
            self.draft.call(getattr(aten, name).out, x, dim, False, out=x)

    def layer_norm(self) -> None:
        shape = [self.size() for _ in range(self.generator.randint(1, 3))]
        some = self.generator.randint(1, min(2, len(shape)))
        x, weight, bias = self.tensor(*shape), self.tensor(*shape[-some:]), self.tensor(*shape[-some:])
        made = self.draft.several(aten.native_layer_norm.default, x, shape[-some:], weight, bias, 1e-5)
        grad, mask = self.tensor(*shape), [True, True, True]
        back = aten.native_layer_norm_backward.default
        more = self.draft.several(back, grad, x, shape[-some:], made[1], made[2], weight, bias, mask)
        self.keep(*made, *more)

    def gelu(self) -> None:
        shape = [self.size() for _ in range(self.generator.randint(1, 3))]
        x = self.tensor(*shape)
        self.keep(self.draft.call(aten.gelu.default, x))
        self.keep(self.draft.call(aten.gelu_backward.default, self.tensor(*shape), x))
        self.draft.call(aten.gelu_.default, x)

    def bmm(self) -> None:
        count, m, k, n = self.generator.randint(1, 4), self.size(), self.size(), self.size()
        first, second = self.tensor(count, m, k), self.tensor(count, n, k)
        turned = self.draft.call(aten.transpose.int, second, 1, 2)
        self.keep(self.draft.call(aten.bmm.default, first, turned))

    def attention(self) -> None:
        batch, heads, queries, keys, width = 2, self.generator.choice((1, 4)), self.size(), self.size(), self.size()
        causal = self.generator.random() < 0.5
        sizes = (queries, queries if causal else keys, queries if causal else keys)
        q, k, v = (self.draft.call(aten.transpose.int, self.tensor(batch, size, heads, width), 1, 2) for size in sizes)
        scale = self.generator.choice((None, 0.3))
        more: dict[str, Any] = {"scale": scale}
        if not causal and self.generator.random() < 0.5:
            masks = ((queries, keys), (batch, 1, queries, keys), (1, heads, queries, keys))
            more["attn_mask"] = self.tensor(*self.generator.choice(masks))
        made = self.draft.several(_ATTENTION, q, k, v, 0.0, causal, **more)
        grad = self.draft.call(aten.transpose.int, self.tensor(batch, queries, heads, width), 1, 2)
        self.keep(*made, *self.draft.several(_ATTENTION_BACKWARD, grad, q, k, v, *made, 0.0, causal, **more))

    def loss(self) -> None:
        rows, classes, reduction = self.size(), self.size(), self.generator.randrange(3)
        x, target = self.tensor(rows, classes), self.indices(classes, rows)
        ignored = self.generator.choice((-100, 0))
        total, weight = self.draft.several(aten.nll_loss_forward.default, x, target, None, reduction, ignored)
        grad = self.draft.call(aten.mul.Tensor, total, total)
        back = aten.nll_loss_backward.default
        self.keep(total, weight, self.draft.call(back, grad, x, target, None, reduction, ignored, weight))

    def gathers(self) -> None:
        rows, columns, count = self.size(), self.size(), self.size()
        table, indices = self.tensor(rows, columns), self.indices(rows, 2, count)
        made = self.draft.call(aten.embedding.default, table, indices)
        grad, padding = self.tensor(2, count, columns), self.generator.choice((-1, 0))
        scaled = self.generator.random() < 0.3
        self.keep(made, self.draft.call(aten.embedding_dense_backward.default, grad, indices, rows, padding, scaled))
        self.keep(self.draft.call(aten.gather.default, table, 1, self.indices(columns, rows, 2)))
        self.keep(self.draft.call(aten.index_select.default, table, 1, self.indices(columns, count)))

    def extremes(self) -> None:
        rows, columns = self.size(), self.size()
        x, dim, keeps = self.tensor(rows, columns), self.generator.randrange(-2, 2), self.generator.random() < 0.5
        self.keep(*self.draft.several(self.generator.choice((aten.max.dim, aten.min.dim)), x, dim, keeps))
        beta, reduction = self.generator.choice((1.0, 0.3)), self.generator.randrange(3)
        other = self.tensor(rows, columns)
        loss = self.draft.call(aten.smooth_l1_loss.default, x, other, reduction, beta)
        back = aten.smooth_l1_loss_backward.default
        self.keep(loss, self.draft.call(back, loss, x, other, reduction, beta))
        self.draft.call(aten.scatter_add_.default, x, 1, self.indices(columns, rows, 2), self.tensor(rows, 2))

    def pooling(self) -> None:
        count, channels = self.generator.randint(1, 3), self.generator.choice((1, 3, 8))
        x = self.tensor(count, channels, self.generator.randint(5, 12), self.generator.randint(5, 12))
        kernel, stride, padding, dilation = self.generator.choice(
            (([2], [], [0], [1]), ([3, 2], [2, 1], [0, 1], [1, 2]), ([2, 3], [], [1, 1], [2, 1]))
        )
        forward = aten.max_pool2d_with_indices.default
        made, indices = self.draft.several(forward, x, kernel, stride, padding, dilation, False)
        grad = self.tensor(*made.tensor.shape)  # type: ignore[arg-type]
        back = aten.max_pool2d_with_indices_backward.default
        more = self.draft.call(back, grad, x, kernel, stride, padding, dilation, False, indices)
        self.keep(made, indices, more)


_KINDS: tuple[Callable[[_Drawn], None], ...] = (
    _Drawn.softmax,
    _Drawn.layer_norm,
    _Drawn.gelu,
    _Drawn.bmm,
    _Drawn.attention,
    _Drawn.loss,
    _Drawn.gathers,
    _Drawn.extremes,
    _Drawn.pooling,
)


@pytest.mark.parametrize("seed", rotated(range(90), of=9))
def test_drawn_kernels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is claimed gives torch's bits, in memory of the cluster and in tensors that are returned."""
    answers = calls_counted(monkeypatch)
    drawn = _Drawn(seed)
    _KINDS[seed % len(_KINDS)](drawn)
    for _ in range(2):
        drawn.generator.choice(_KINDS)(drawn)
    program = drawn.draft.program([*drawn.outputs, *drawn.draft.inputs])
    code = compiled(program)
    claims = [claim for node in program.nodes if (claim := kernel_claim(node)) is not None]
    assert claims
    assert all(claim.is_proven() for claim in claims)
    assert any(node in code.executors.executors[0].nodes for node in program.nodes)  # type: ignore[attr-defined]
    assert outcome(code, drawn.draft.arguments()) == outcome(compiled(program, native=False), drawn.draft.arguments())
    assert set(answers) == {0}


def test_others_are_not_claimed() -> None:
    draft = Segment()
    x, weight, target = draft.input(torch.randn(4, 6)), draft.input(torch.rand(6)), draft.input(torch.arange(4))
    half, none = draft.input(torch.randn(4, 6).half()), draft.input(torch.randn(0, 6))
    draft.call(aten._softmax.default, half, 1, False)
    draft.call(aten._softmax.default, none, 1, False)
    draft.several(aten.nll_loss_forward.default, x, target, weight, 1, -100)
    draft.several(aten.native_layer_norm.default, x, [6], None, None, 1e-5)
    draft.call(aten.gelu.default, x, approximate="tanh")
    draft.call(aten._softmax.default, draft.input(torch.randn(400, 400)), 1, False)
    assert [kernel_claim(node) for node in draft.nodes] == [None] * len(draft.nodes)


@pytest.mark.parametrize("wrong", [7, -1])
@pytest.mark.parametrize("maker", ["loss", "embedding", "gather"])
def test_numbers_out_of_bounds_are_eagers_errors(maker: str, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the cluster has run: what stands before such a node runs once, then it raises."""
    answers = calls_counted(monkeypatch)
    draft = Segment()
    table, indices = draft.input(torch.randn(5, 5)), draft.input(torch.arange(5))
    draft.call(aten.add_.Tensor, table, 1.0)
    if maker == "loss":
        draft.several(aten.nll_loss_forward.default, table, indices, None, 1, -100)
    elif maker == "embedding":
        draft.call(aten.embedding.default, table, indices)
    else:
        draft.call(aten.gather.default, table, 1, draft.call(aten.view.default, indices, [5, 1]))
    last = [value for value in draft.nodes[-1].outputs if value is not None]
    program = draft.program([*last, *draft.inputs])
    seen = []
    for native in (True, False):
        code = compiled(program, native=native)
        given = draft.arguments()
        code(list(given))
        given[1][3] = wrong
        given[0].fill_(2.0)
        with pytest.raises((IndexError, RuntimeError)) as caught:
            code(list(given))
        seen.append((type(caught.value), str(caught.value).splitlines()[0], given[0].tolist()))
    assert seen[0] == seen[1]
    assert answers[0] == 0


def test_indices_that_a_cluster_makes_are_read_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot be checked before it runs."""
    answers = calls_counted(monkeypatch)
    draft = Segment()
    numbers, table = draft.input(torch.randint(0, 6, (6, 6))), draft.input(torch.randn(6, 6))
    column = draft.call(aten.view.default, draft.input(torch.arange(6)), [6, 1])
    chosen = draft.call(aten.gather.default, numbers, 1, column)
    draft.call(aten.mul_.Tensor, table, 2.0)
    made = draft.call(aten.gather.default, table, 1, chosen)
    program = draft.program([made, draft.call(aten.neg.default, made), chosen, *draft.inputs])
    code = compiled(program)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert set(answers) == {0}
    assert sum("native_call" in line for line in code.source.splitlines()) == 2


def test_an_exception_of_a_function_ends_the_row() -> None:
    """The driver says so, and rows behind do not run."""
    layout = struct.pack("4q", 2, 3, 3, 1)
    function = kernel_function(
        "bmm", [(2, 6)] * 3, [Taken("tensor", at) for at in range(3)]
    )  # it wants three dimensions
    assert function is not None
    tensors = [torch.full((2, 3), 7.0) for _ in range(3)]
    row = table_row(function, 1, [x.data_ptr() for x in tensors], (), layout * 3)
    assert driver()(row * 2, 2, 1, 0) == 2
    assert all((x == 7.0).all() for x in tensors)


def test_a_failed_row_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes do not run again after a part of them has run."""
    drive_by(monkeypatch, lambda *_: 2)
    draft = Segment()
    x = draft.input(torch.randn(4, 4))
    draft.call(aten.add_.Tensor, x, 1.0)
    program = draft.program([draft.call(aten._softmax.default, x, 1, False)])
    with pytest.raises(PartlyRun, match="memory"):
        compiled(program)(draft.arguments())


def test_a_step_whose_row_failed_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Part of it may have been written, so that eager mode must not run it once more."""
    weight = torch.randn(8, 8, requires_grad=True)
    calls: list[int] = []

    def step(x: Tensor) -> Tensor:
        loss = torch.log_softmax(x @ weight, 1).tanh().mean()
        loss.backward()
        with torch.no_grad():
            weight.sub_(torch.softmax(weight, 1), alpha=0.1).mul_(0.9).tanh_()
        weight.grad = None
        return loss.detach()

    def drive(*_: object) -> int:
        calls.append(1)
        return 2

    drive_by(monkeypatch, drive)
    compiled_step = dovetail.compile_step(step, executors=("native", "aten"))
    with pytest.raises(StepInterrupted, match="memory"):
        compiled_step(torch.randn(4, 8))
    assert len(calls) == 1


def test_inference_mode_and_gradients_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    drawn = _Drawn(3)
    drawn.layer_norm()
    drawn.softmax()
    program = drawn.draft.program([*drawn.outputs, *drawn.draft.inputs])
    code, wanted = compiled(program), compiled(program, native=False)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            a, b = (each(drawn.draft.arguments()) for each in (code, wanted))
        assert [_text(x) for x in a] == [_text(x) for x in b]
    assert set(answers) == {0}


def _text(tensor: Tensor) -> Any:
    return str(tensor.tolist())
