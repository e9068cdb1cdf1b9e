"""The tensors of a call come back as they were: bytes, layout, and who shares memory with whom."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dovetail.artifact.call import load_call, save_call
from dovetail.errors import BadArtifact, NotSerializable
from dovetail.pipeline.differential import same_bits


def _again(folder: Path, *items: Any) -> list[Any]:
    save_call(folder / "call.safetensors", items)
    return load_call(folder / "call.safetensors")


def test_every_kind_of_item(tmp_path: Path) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int8, torch.uint16]
    tensors = [torch.randn(3, 4).to(dtype) for dtype in dtypes]
    tensors += [torch.randn(4, 3).t(), torch.randn(()), torch.empty(0, 3), torch.randn(3).expand(2, 3)]
    tensors += [torch.randn(9)[2::3], torch.randn(3, dtype=torch.complex64).conj(), torch.tensor([math.nan, -0.0])]
    numbers = [3, True, None, 1.5, "text", -math.inf]
    items = _again(tmp_path, *tensors, *numbers, math.nan)
    for before, after in zip(tensors, items, strict=False):
        assert same_bits(before, after)
        assert (before.stride(), before.storage_offset()) == (after.stride(), after.storage_offset())
        assert before.is_conj() == after.is_conj()
    assert items[len(tensors) : -1] == numbers
    assert math.isnan(items[-1])


def test_shared_memory_is_shared_again(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    a, b, c = _again(tmp_path, base[:6], base.view(3, 4)[1], torch.zeros(6))
    a[4] = 100
    assert b[0] == 100
    assert not c.any()
    assert base[4] == 4


def test_leaves(tmp_path: Path) -> None:
    weight, x = _again(tmp_path, torch.nn.Parameter(torch.ones(2)), torch.ones(2))
    assert weight.requires_grad
    assert weight.is_leaf
    assert not x.requires_grad


class _Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (torch.empty(2, device="meta"), "meta"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.ones(2).as_subclass(_Subclass), "_Subclass"),
        (torch.randn(2, dtype=torch.complex64).conj().imag, "Tensor"),
        ([torch.ones(2)], "list"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, item: object, what: str) -> None:
    with pytest.raises(NotSerializable, match=f"item 1 cannot be written to a file: it is a .*{what}"):
        save_call(tmp_path / "x.safetensors", [1, item])
    assert list(tmp_path.iterdir()) == []


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match="No such file"):
        load_call(tmp_path / "none")
    (tmp_path / "text").write_text("hello, this is not a tensor")
    with pytest.raises(BadArtifact, match="DT-ARTIFACT-002"):
        load_call(tmp_path / "text")
    save_file({"x": torch.ones(2)}, str(tmp_path / "other"))
    with pytest.raises(BadArtifact, match="not written by dovetail"):
        load_call(tmp_path / "other")
    save_call(tmp_path / "good", [torch.ones(100)])
    content = (tmp_path / "good").read_bytes()
    (tmp_path / "cut").write_bytes(content[:-50])
    with pytest.raises(BadArtifact):
        load_call(tmp_path / "cut")
