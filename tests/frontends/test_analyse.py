"""What `dovetail.analyse` says about inputs and outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import dovetail
from dovetail.errors import BadOptionValue, UnsupportedInputMutation
from dovetail.ir.signature import Buffer, Parameter, WriteKind


def _writes(function: object, *args: object) -> list[WriteKind | None]:
    return [report.written for report in dovetail.analyse(function, *args).inputs]  # type: ignore[arg-type]


def test_how_an_input_is_written() -> None:
    def tracked(x: Tensor) -> None:
        x.mul_(2)

    def without_gradient(x: Tensor) -> None:
        with torch.no_grad():
            x.mul_(2)

    def in_inference_mode(x: Tensor) -> None:
        with torch.inference_mode():
            x.view(-1)[0].mul_(2)

    def hidden(x: Tensor) -> None:
        x.data[:1].fill_(1)

    leaf = torch.ones(3, requires_grad=True)
    assert _writes(tracked, leaf * 1) == [WriteKind.TRACKED]
    assert _writes(tracked, torch.ones(3)) == [WriteKind.UNTRACKED]
    assert _writes(without_gradient, leaf) == [WriteKind.UNTRACKED]
    assert _writes(in_inference_mode, torch.ones(3)) == [WriteKind.UNTRACKED]
    assert _writes(hidden, leaf) == [WriteKind.HIDDEN]
    assert _writes(lambda x: x + 1, leaf) == [None]
    assert torch.equal(leaf, torch.ones(3))


def test_what_an_input_is_and_becomes() -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x.t_().unsqueeze_(0)
        z.requires_grad_()
        return x * y.sum()

    leaf = torch.ones(2, requires_grad=True)
    x, y, z = dovetail.analyse(f, torch.ones(2, 3), leaf * 1, torch.ones(1)).inputs
    assert x.metadata == ("aten.t_.default", "aten.unsqueeze_.default")
    assert (x.is_leaf, x.requires_grad, x.requires_grad_after) == (True, False, None)
    assert (y.is_leaf, y.requires_grad) == (False, True)
    assert z.requires_grad_after is True


def test_duplicates_and_shared_bytes() -> None:
    def f(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
        a.mul_(2)

    base = torch.ones(8)
    x, y = base[:4], base[2:6]
    report = dovetail.analyse(f, x, y, x, base[6:])
    assert [(r.places, r.shares_with) for r in report.inputs] == [(2, ("arg_1",)), (1, ("arg_0",)), (1, ())]
    assert "passed 2 times; shares written bytes with arg_1" in str(report)


def test_where_outputs_lie() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[object, ...]:
        first, second = y.split(2)
        product = x * 2
        return x, first, second.t(), product, product[0], product, y.detach(), 3, None, y + 1

    report = dovetail.analyse(f, torch.ones(4, requires_grad=True), torch.ones(4))
    kinds = [(output.kind, output.base if output.kind != "view of intermediate" else "") for output in report.outputs]
    assert kinds == [
        ("input", "arg_0"),
        ("view of input", "arg_1"),
        ("view of input", "arg_1"),
        ("fresh", ""),
        ("view of intermediate", ""),
        ("same as output", "3"),
        ("view of input", "arg_1"),
        ("constant", "3"),
        ("constant", "None"),
        ("fresh", ""),
    ]
    assert report.outputs[2].views == ("aten.split.Tensor[1]", "aten.t.default")
    assert [output.requires_grad for output in report.outputs[:5]] == [True, False, False, True, True]


def test_a_module_and_its_signature() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    report = dovetail.analyse(module, torch.randn(4, 3))
    written = [r.name for r in report.inputs if r.written is not None]
    assert len(written) == 3
    assert isinstance(report.inputs[0].role, Parameter)
    assert all(isinstance(r.role, Buffer) for r in report.inputs if r.written)
    assert set(report.signature.buffers_to_mutate.values()) == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    assert module[1].num_batches_tracked == 0


def test_a_wrapper() -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    report = dovetail.analyse(f, TwoTensor(torch.ones(2), torch.ones(2)))
    assert [r.written for r in report.inputs] == [WriteKind.UNTRACKED, WriteKind.HIDDEN, WriteKind.HIDDEN]
    assert [output.kind for output in report.outputs] == ["wrapper"]


def test_bad_input() -> None:
    with pytest.raises(BadOptionValue, match="it is called"):
        dovetail.analyse(3)  # type: ignore[arg-type]
    x = torch.ones(3)
    with pytest.raises(UnsupportedInputMutation, match="size or storage"):
        dovetail.analyse(lambda x: x.resize_(6), x)
    assert x.shape == (3,)
