"""Frozen modules in files: equal after loading in a fresh process, without the model's code; bad files refused."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import BadArtifact
from tests.frontends.freezing.models import Cache, Classifier, Counter, Nested, Tied

X = torch.rand(2, 3, 8, 8)


def _eager(model: nn.Module, *args: Any) -> Any:
    with torch.no_grad():
        return model(*args)


def _round(frozen: dovetail.FrozenModule, path: Path, **options: Any) -> dovetail.FrozenModule:
    frozen.save(path / "model.dovetail")
    return dovetail.load(path / "model.dovetail", **options)


@pytest.mark.parametrize("verify", ["fast", "full"])
def test_a_round_trip(tmp_path: Path, verify: Any) -> None:
    model = Classifier().eval()
    frozen = dovetail.freeze(model, {"forward": ((X,), {}), "embed": ((X,), {})})
    loaded = _round(frozen, tmp_path, verify=verify)
    for rows in (2, 5, 1):
        x = torch.rand(rows, 3, 8, 8)
        assert torch.equal(loaded(x), _eager(model, x))
        assert torch.equal(loaded.embed(x), model.embed(x).detach())  # type: ignore[operator]
    assert loaded.state_dict().keys() == frozen.state_dict().keys()
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*relies|shape"):
        loaded(torch.rand(2, 3, 9, 8))
    assert "Classifier" in repr(loaded)
    again = _round(loaded, tmp_path)
    assert torch.equal(again(X), frozen(X))


def test_a_fresh_process_needs_no_model(tmp_path: Path) -> None:
    model = Classifier().eval()
    path = tmp_path / "model.dovetail"
    dovetail.freeze(model, (X,)).save(path)
    torch.save([X, _eager(model, X)], tmp_path / "call.pt")
    code = f"""
import sys, torch
import dovetail
frozen = dovetail.load({str(path)!r})
x, wanted = torch.load({str(tmp_path / "call.pt")!r})
assert torch.equal(frozen(x), wanted)
assert "tests" not in sys.modules
"""
    environment = {**os.environ, "CC": "/nonexistent", "CXX": "/nonexistent"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)


def test_state_goes_along_and_stays_private(tmp_path: Path) -> None:
    model, twin = Counter(), Counter()
    twin.load_state_dict(model.state_dict())
    frozen = dovetail.freeze(model, (torch.rand(2, 3),))
    x = torch.rand(2, 3)
    frozen(x), _eager(twin, x)
    loaded = _round(frozen, tmp_path)
    other = dovetail.load(tmp_path / "model.dovetail")
    before = (tmp_path / "model.dovetail").read_bytes()
    for _ in range(2):
        for found, wanted in zip(loaded(x), _eager(twin, x), strict=True):
            assert torch.equal(found, wanted)
    assert (tmp_path / "model.dovetail").read_bytes() == before
    assert other.state_dict()["calls"] == 1


def test_a_cache(tmp_path: Path) -> None:
    model = Cache()
    frozen = dovetail.freeze(model, (torch.rand(1, 4), torch.tensor([0])), dynamic_shapes="static")
    loaded = _round(frozen, tmp_path)
    for step in range(3):
        x, position = torch.rand(1, 4), torch.tensor([step])
        assert torch.equal(loaded(x, position), _eager(model, x, position))


def test_sizes_among_the_results(tmp_path: Path) -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return {"all": x.shape, "one": x.shape[0], "rest": [x.shape[1:], x.shape[:1]], "x": x + 1}

    model = Sized()
    loaded = _round(dovetail.freeze(model, (torch.rand(2, 3),)), tmp_path)
    for rows in (2, 5, 1):
        found, wanted = loaded(torch.rand(rows, 3)), model(torch.rand(rows, 3))
        assert {**found, "x": 0} == {**wanted, "x": 0}
        assert [type(found["all"]), *map(type, found["rest"])] == [torch.Size] * 3


def test_entries_in_another_order_are_refused(tmp_path: Path) -> None:
    class Joined(nn.Module):
        def forward(self, parts: dict[str, Tensor]) -> Tensor:
            return torch.cat(list(parts.values()), 1)

    x, y = torch.rand(2, 1), torch.rand(2, 3)
    frozen = dovetail.freeze(Joined(), ({"x": x, "y": y},))
    for program in (frozen, _round(frozen, tmp_path)):
        assert torch.equal(program({"x": x, "y": y}), torch.cat([x, y], 1))
        with pytest.raises(dovetail.DovetailError, match=r"DT-FREEZE-003.* in another order: 'y', 'x', not 'x', 'y'"):
            program({"y": y, "x": x})


class _Checked:
    """A container that looks at what it is given."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.rows = x.shape[0]


torch.utils._pytree.register_pytree_node(_Checked, lambda box: ([box.x], None), lambda leaves, _: _Checked(*leaves))


def test_containers_that_refuse_other_contents_are_not_saved(tmp_path: Path) -> None:
    class Wraps(nn.Module):
        def forward(self, x: Tensor) -> _Checked:
            return _Checked(x + 1)

    frozen = dovetail.freeze(Wraps(), (torch.zeros(2),))
    assert frozen(torch.zeros(3)).rows == 3
    with pytest.raises(dovetail.DovetailError, match=r"DT-ARTIFACT-001.*own code"):
        frozen.save(tmp_path / "model.dovetail")


def test_attention_over_padded_rows(tmp_path: Path) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor, padding: Tensor) -> Any:
            return self.layer(x, x, x, key_padding_mask=padding)

    model = Attends().eval()
    x, padding = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [1]])
    loaded = _round(dovetail.freeze(model, (x, padding), dynamic_shapes="static"), tmp_path)
    for found, wanted in zip(loaded(x, padding), _eager(model, x, padding), strict=True):
        assert torch.equal(found, wanted)


def test_containers_and_defaults(tmp_path: Path) -> None:
    model = Nested()
    batch = {"x": torch.rand(3, 4), "mask": torch.ones(3, dtype=torch.bool)}
    loaded = _round(dovetail.freeze(model, (batch,)), tmp_path)
    found, wanted = loaded(batch=batch, factor=2.0), _eager(model, batch)
    assert torch.equal(found["x"], wanted["x"])
    assert found["pair"][0] is batch["mask"]
    assert found["pair"][1].data_ptr() == batch["x"].data_ptr()
    for args, kwargs, reason in (
        ((batch,), {"factor": 3.0}, "factor is 3.0"),
        (({"x": batch["x"]},), {}, "nested differently.*mask"),
    ):
        with pytest.raises(dovetail.DovetailError, match=f"(?s)DT-FREEZE-003.*{reason}"):
            loaded(*args, **kwargs)


Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Output:
    logits: Tensor
    pair: Pair


class Returns(nn.Module):
    def forward(self, x: Tensor) -> Output:
        return Output(x * 2, Pair(x + 1, x.topk(1)))


def test_classes_of_results(tmp_path: Path) -> None:
    frozen = dovetail.freeze(Returns(), (torch.rand(2, 3),))
    x = torch.rand(2, 3)
    assert type(frozen(x)) is Output
    loaded = _round(frozen, tmp_path)(x)
    assert torch.equal(loaded.logits, x * 2)
    assert torch.equal(loaded.pair.first, x + 1)
    assert torch.equal(loaded.pair.second.values, x.topk(1).values)
    classes = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in (Output, Pair)}
    named = dovetail.load(tmp_path / "model.dovetail", containers=classes)(x)
    assert type(named) is Output
    assert type(named.pair) is Pair
    other = dict.fromkeys(classes, Pair)
    for wrong, said in ((5, "names no classes"), ({"x": 5}, "names no classes"), (other, "has other fields than the ")):
        with pytest.raises(dovetail.DovetailError, match=rf"(?s)DT-OPTION-002.*'containers'.*{said}"):
            dovetail.load(tmp_path / "model.dovetail", containers=wrong)  # type: ignore[arg-type]
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-OPTION-002.*'any_torch'"):
        dovetail.load(tmp_path / "model.dovetail", any_torch="2.13")  # type: ignore[arg-type]


def test_weights_can_be_swapped_after_loading(tmp_path: Path) -> None:
    model, other = Classifier().eval(), Classifier().eval()
    loaded = _round(dovetail.freeze(model, (X,)), tmp_path)
    loaded.swap_weights(other.state_dict())
    assert torch.equal(loaded(X), dovetail.freeze(other, (X,))(X))
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-009"):
        loaded.refresh()
    assert loaded.check_stale() == ()
    kept = _round(dovetail.freeze(model, (X,), keep_sources="memory"), tmp_path)
    assert torch.equal(kept.source_state_dict()["conv.weight"], model.conv.weight)


def test_other_tools_read_it(tmp_path: Path) -> None:
    model = Tied()
    path = tmp_path / "model.dovetail"
    dovetail.freeze(model, (torch.tensor([[1, 2, 3]]),)).save(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert "aten.embedding.default" in archive.read("programs/forward.0.py").decode()
        archive.extract("constants.safetensors", tmp_path)
        assert not any(name.endswith((".pkl", ".pt")) for name in archive.namelist())
    tensors = safetensors.torch.load_file(tmp_path / "constants.safetensors")
    assert any(torch.equal(tensor, model.out.weight) for tensor in tensors.values() if tensor.shape == (11, 6))


def test_constants_are_mapped(tmp_path: Path) -> None:
    frozen = dovetail.freeze(nn.Linear(64, 64), (torch.rand(2, 64),))
    loaded = _round(frozen, tmp_path)
    weight = next(t for t in loaded.state_dict().values() if t.numel() == 64 * 64)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not list mappings")
    place = weight.data_ptr()
    lines = [line.split() for line in maps.read_text().splitlines()]
    inside = [line for line in lines if int(line[0].split("-")[0], 16) <= place < int(line[0].split("-")[1], 16)]
    assert inside[0][-1].endswith("model.dovetail")
    assert place % 64 == 0


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.dovetail"
    dovetail.freeze(nn.Linear(3, 2), (torch.rand(2, 3),)).save(path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[1:], whole[: len(whole) // 2], b"", b"PK\3\4", bytes(len(whole))):
        path.write_bytes(damaged)
        with pytest.raises(BadArtifact):
            dovetail.load(path)
    generator = torch.Generator().manual_seed(0)
    for position in torch.randint(len(whole), (200,), generator=generator).tolist():
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(BadArtifact):
            dovetail.load(path)
    with pytest.raises(BadArtifact):
        dovetail.load(tmp_path / "missing.dovetail")


def test_another_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.dovetail"
    monkeypatch.setattr("dovetail.frontends.freezing.saving.installed_torch_version", lambda: "2.99.0")
    dovetail.freeze(nn.Linear(3, 2), (torch.rand(2, 3),)).save(path)
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-010.*torch 2\.99\.0"):
        dovetail.load(path)
    dovetail.load(path, any_torch=True)


def test_what_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    class Takes(nn.Module):
        def forward(self, x: Tensor, note: object) -> Tensor:
            return x + 1

    frozen = dovetail.freeze(Takes(), (torch.rand(2), object()))
    path = tmp_path / "model.dovetail"
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-ARTIFACT-001.*note"):
        frozen.save(path)
    assert not path.exists()


def test_what_would_not_be_read_is_not_written(tmp_path: Path) -> None:
    class Seeds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.manual_seed(3)
            return x + torch.rand(2)

    frozen = dovetail.freeze(Seeds(), (torch.rand(2),))
    path = tmp_path / "model.dovetail"
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-ARTIFACT-001.*generator.*test_saving\.py.*seed before"):
        frozen.save(path)
    assert not path.exists()


def test_an_inverse_that_does_not_exist_is_told_by_a_loaded_program(tmp_path: Path) -> None:
    class Inverse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.inv(x)

    x = torch.rand(3, 3) + 3 * torch.eye(3)
    loaded = _round(dovetail.freeze(Inverse(), (x,)), tmp_path)
    assert torch.equal(loaded(x), torch.linalg.inv(x))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        loaded(torch.zeros(3, 3))
