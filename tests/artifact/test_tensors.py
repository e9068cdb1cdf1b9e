"""Tensors come back over the mapped file as they were: bits, layout, and who shares memory with whom."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from dovetail.artifact.container import Container, open_container, write_container
from dovetail.artifact.tensors import load_tensors, save_tensors
from dovetail.errors import BadArtifact, NotSerializable
from dovetail.pipeline.differential import same_bits


def _saved(folder: Path, tensors: dict[str, torch.Tensor]) -> Container:
    write_container(folder / "t.dovetail", save_tensors(tensors))
    return open_container(folder / "t.dovetail", verify="full")


def _same(before: torch.Tensor, after: torch.Tensor) -> bool:
    laid = [(t.dtype, t.shape, t.stride(), t.storage_offset(), t.is_conj(), t.is_neg()) for t in (before, after)]
    storages = [torch.empty(0, dtype=torch.uint8).set_(t.detach().untyped_storage()) for t in (before, after)]
    return laid[0] == laid[1] and torch.equal(*storages) and type(before) is type(after)


_DTYPES = [
    dtype
    for dtype in sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
    if not str(dtype).startswith(("torch.qint", "torch.quint"))
]


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    content = torch.tensor([0, 1], dtype=torch.uint8).repeat(64)
    container = _saved(tmp_path, {"x": content.view(dtype), "part": content.view(dtype)[1:2]})
    read = load_tensors(container)
    assert _same(content.view(dtype), read["x"])
    assert read["part"].storage_offset() == 1
    assert safetensors.torch.load(container.read("constants.safetensors"))


def test_every_layout(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    tensors = {
        "whole": base, "transposed": base.t(), "row": base[2], "steps": base[::2, 1::2],
        "expanded": base[0].expand(3, 6),
        "nothing": torch.empty(0, 3), "none of it": base[4:], "number": torch.tensor(3.0), "0-dim view": base[1, 1],
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conj": torch.randn(3, dtype=torch.complex64).conj(), "imag": torch.randn(3, dtype=torch.complex64).conj().imag,
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "frozen": torch.nn.Parameter(torch.randn(3), requires_grad=False),
        "grad": torch.randn(3, requires_grad=True), "nan": torch.tensor([float("nan"), -0.0]),
        "strided": torch.randn(20).as_strided((3, 3), (2, 1), 4), "ünïcode \n": torch.ones(1),
        "storage.0": torch.ones(2),
        "__metadata__": torch.ones(3), "overlap a": base[:3], "overlap b": base[1:],
    }  # fmt: skip
    read = load_tensors(_saved(tmp_path, tensors))
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        assert _same(tensor, read[name]), name
        assert same_bits(tensor.detach(), read[name].detach()), name
        assert tensor.requires_grad == read[name].requires_grad
        assert read[name].is_leaf
        assert read[name].data_ptr() % 64 == tensor.storage_offset() * tensor.itemsize % 64 or not tensor.numel()
    assert load_tensors(_saved(tmp_path, {})) == {}


def test_tensors_that_shared_memory_share_it_again(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    read = load_tensors(
        _saved(tmp_path, {"a": base[:6], "b": base.view(3, 4)[1], "c": torch.zeros(6), "a too": base[:6]})
    )
    read["a"][4] = 100
    assert read["b"][0] == read["a too"][4] == 100
    assert not read["c"].any()
    assert base[4] == 4


def test_nothing_is_copied_but_what_will_be_written(tmp_path: Path) -> None:
    state = torch.zeros(8)
    tensors = {"weight": torch.randn(8), "state": state, "part of state": state[2:4]}
    container = _saved(tmp_path, tensors)
    before = (tmp_path / "t.dovetail").read_bytes()
    mapped = container.map("constants.safetensors")
    begin = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()
    read = load_tensors(container, private=("part of state",))
    inside = {name: begin <= t.data_ptr() < begin + len(mapped) for name, t in read.items()}
    assert inside == {"weight": True, "state": False, "part of state": False}
    read["state"].fill_(7)
    read["weight"].fill_(7)
    assert read["part of state"].tolist() == [7, 7]
    again = load_tensors(open_container(tmp_path / "t.dovetail"))
    assert same_bits(again["weight"], tensors["weight"])
    assert not again["state"].any()
    assert (tmp_path / "t.dovetail").read_bytes() == before
    with pytest.raises(KeyError):
        load_tensors(container, private=("other",))


def test_where_it_is_read_does_not_matter(tmp_path: Path) -> None:
    container = _saved(tmp_path, {"x": torch.ones(2), "p": torch.nn.Parameter(torch.ones(2))})
    with torch.inference_mode(), torch.device("meta"):
        read = load_tensors(container, private=("x",))
    assert not any(tensor.is_inference() or tensor.is_meta for tensor in read.values())
    (read["x"].mul_(2) * read["p"]).sum().backward()
    assert read["p"].grad is not None


def test_mapped_memory_lives_as_long_as_its_tensors(tmp_path: Path) -> None:
    read = load_tensors(_saved(tmp_path, {"x": torch.arange(1000)}))
    (tmp_path / "t.dovetail").unlink()
    assert read["x"].sum() == 499_500


def test_readers_of_safetensors_show_weights_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1, dtype=torch.float64)
    )
    tensors = dict(model.state_dict(keep_vars=True))
    shown = safetensors.torch.load(_saved(tmp_path, tensors).read("constants.safetensors"))
    assert {name for name in shown if not name.startswith("filling.")} == set(tensors)
    for name, tensor in tensors.items():
        assert same_bits(shown[name], tensor.detach())


def test_each_storage_is_there_once(tmp_path: Path) -> None:
    base = torch.randn(1 << 16)
    container = _saved(tmp_path, {"a": base, "b": base.view(256, 256), "c": base[::2]})
    assert len(container.map("constants.safetensors")) < 1.01 * base.nbytes


class _Subclass(torch.Tensor):
    pass


_ARRAY = np.zeros(64)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"x": torch.empty(2, device="meta")}, "tensor x cannot be written to a file: it is a Tensor .*meta"),
        ({"x": torch.eye(2).to_sparse()}, "sparse_coo"),
        ({"x": torch.ones(2).as_subclass(_Subclass)}, "_Subclass"),
        ({"x": [1]}, "it is a list"),
        ({"x": torch.from_numpy(_ARRAY), "y": torch.from_numpy(_ARRAY[8:])}, "partly overlaps another"),
        ({"x": torch.from_numpy(_ARRAY), "y": torch.from_numpy(_ARRAY[:8])}, "tensor y .* partly overlaps another"),
    ],
)
def test_what_cannot_be_written(tensors: dict[str, Any], match: str) -> None:
    with pytest.raises(NotSerializable, match=match):
        save_tensors(tensors)


def _forged(folder: Path, change: Any, head: bytes | None = None) -> Container:
    """A file whose index was changed by someone who could also write the checksums."""
    members = {name: bytes(content) for name, content in save_tensors({"x": torch.ones(4), "y": torch.ones(3)}).items()}
    index = json.loads(members["constants.json"])
    change(index)
    members["constants.json"] = json.dumps(index).encode()
    if head is not None:
        members["constants.safetensors"] = head + members["constants.safetensors"][len(head) :]
    write_container(folder / "forged", members)
    return open_container(folder / "forged", verify="full")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tensors", "x", "offset"), 1),
        (("tensors", "x", "offset"), -1),
        (("tensors", "x", "shape"), [1 << 40, 1 << 40]),
        (("tensors", "x", "shape"), [5]),
        (("tensors", "x", "shape"), [True]),
        (("tensors", "x", "stride"), [2]),
        (("tensors", "x", "stride"), [-1]),
        (("tensors", "x", "stride"), [1, 1]),
        (("tensors", "x", "storage"), 2),
        (("tensors", "x", "storage"), 1),
        (("tensors", "x", "dtype"), "load"),
        (("tensors", "x", "dtype"), "complex128"),
        (("tensors", "x", "dtype"), "int64"),
        (("tensors", "x", "is_conj"), True),
        (("tensors", "x", "requires_grad"), 1),
        (("tensors", "x", "more"), 1),
        (("tensors", "x"), None),
        (("storages",), {}),
        (("storages", 0, "bytes"), 1 << 50),
        (("storages", 0, "bytes"), 12),
        (("storages", 0, "name"), "z"),
        (("storages", 0), []),
        (("version",), 2),
        (("format",), "other"),
    ],
)
def test_forged_indices(tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    def change(index: Any) -> None:
        for key in path[:-1]:
            index = index[key]
        index[path[-1]] = value

    with pytest.raises(BadArtifact, match="member constants"):
        load_tensors(_forged(tmp_path, change))


def test_forged_heads(tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match=r"does not hold what constants.json lists"):
        load_tensors(_forged(tmp_path, lambda index: None, head=b"\xff" * 8))
    with pytest.raises(BadArtifact, match="not in the file"):
        load_tensors(open_container(tmp_path / "forged"), "other")


def test_random_views(tmp_path: Path) -> None:
    choose = random.Random(1)
    for _ in range(20):
        bases = [torch.randn(choose.randrange(1, 50)) for _ in range(3)]
        tensors = {}
        for number in range(8):
            base = choose.choice(bases)
            size = choose.randrange(0, len(base) + 1)
            step = choose.randrange(1, 4)
            tensors[f"t{number}"] = base[choose.randrange(0, len(base)) :][:size:step]
        read = load_tensors(_saved(tmp_path, tensors))
        assert all(_same(tensors[name], read[name]) for name in tensors)
        for a in tensors:
            for b in tensors:
                shared = [
                    t[a].untyped_storage().data_ptr() == t[b].untyped_storage().data_ptr() for t in (tensors, read)
                ]
                assert shared[0] == shared[1]
