"""`dovetail inspect`: what is in a frozen program's file, and what it says of files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.artifact.container import open_container, write_container
from dovetail.cli.app import main
from dovetail.inspect.frozen_file import inspect_file


class Net(nn.Module):
    """A convolution with a norm, a counter, a flag, and a fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, images: Tensor, scaled: bool = False) -> dict[str, Tensor]:
        self.calls.add_(1)
        hidden = self.norm(self.conv(images)).relu().mean(-1).flatten(1)
        return {"scores": self.out(hidden) * (2 if scaled else 1), "calls": self.calls.clone()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    found = tmp_path_factory.mktemp("inspect") / "net.dovetail"
    dovetail.freeze(Net().eval(), (torch.rand(3, 3, 4, 4), True), passes=["fold_batch_norms"]).save(found)
    return found


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, arguments)])
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


def test_what_is_in_a_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, path, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["model"], found["torch"], found["format_version"]) == ("Net", torch.__version__, 1)
    assert found["bytes"] == path.stat().st_size
    (method,) = found["methods"]
    assert method["signature"] == "forward(images, scaled=False)"
    assert method["passes"] == ["fold_batch_norms"]
    many, one = method["programs"]
    (symbol,) = many["sizes"]
    assert many["takes"] == {"images": f"f32[{symbol}, 3, 4, 4]", "scaled": "True"}
    assert many["gives"] == [f"f32[{symbol}, 2]", "f32[]"]
    assert one["takes"]["images"] == "f32[1, 3, 4, 4]"
    assert one["arena_bytes"] <= one["peak_bytes"]
    assert many["operators"]["torch.ops.aten.convolution.default"] == 1
    assert not any("batch_norm" in name for name in many["operators"])
    assert sum(many["operators"].values()) == many["nodes"]
    constants = {row["name"]: row for row in found["constants"]}
    assert constants["calls"] == {
        "name": "calls", "tensor": "f32[]", "bytes": 4, "weights": ["calls"], "is_state": True
    }  # fmt: skip
    sizes = [row["bytes"] for row in found["constants"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == found["constant_bytes"]


def test_memory_follows_the_sizes(path: Path) -> None:
    symbol = next(iter(inspect_file(path).methods[0].programs[0].sizes))
    small, large = (inspect_file(path, sizes={symbol: n}).methods[0].programs[0] for n in (4, 40))
    assert dict(large.sizes) == {symbol: 40}
    assert small.peak_bytes is not None
    assert large.peak_bytes is not None
    assert 5 < large.peak_bytes / small.peak_bytes <= 10


def test_as_text(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, path, "--all")
    assert code == 0
    for part in ("passes: fold_batch_norms", "aten.convolution.default", "out.bias", "memory of a call", "state"):
        assert part in out


def _changed(path: Path, to: Path, member: str, old: str, new: str) -> Path:
    """The file with a text of one member replaced; all checksums are right."""
    container = open_container(path)
    members = {name: container.read(name) for name in container.names}
    assert old.encode() in members[member]
    members[member] = members[member].replace(old.encode(), new.encode())
    write_container(to, members)
    return to


def test_files_of_other_makers(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = path.read_bytes()
    wrong = {
        "cut.dovetail": whole[: len(whole) // 2],
        "flipped.dovetail": whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
        "text.dovetail": b"weights",
        "empty.dovetail": b"",
    }
    for name, content in wrong.items():
        (tmp_path / name).write_bytes(content)
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.pt")
    _changed(path, tmp_path / "forged", "programs/forward.0.json", "torch.ops.aten.relu.default", "os.system")
    _changed(path, tmp_path / "lying", "programs/forward.0.json", '"shape":[4]', '"shape":[5]')
    for name in (*wrong, "weights.pt", "forged", "lying", "absent.dovetail"):
        code, out, err = _run(capsys, tmp_path / name, "--json")
        assert (code, out) == (2, ""), name
        assert err.startswith("DT-ARTIFACT-002 BadArtifact: "), name
    code, _, err = _run(
        capsys, _changed(path, tmp_path / "later", "frozen.json", '"version":1', '"version":7'), "--json"
    )
    assert code == 2
    assert "version 7" in err


def test_a_file_of_another_torch_is_shown(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = _changed(path, tmp_path / "other", "frozen.json", f'"torch":"{torch.__version__}"', '"torch":"2.11.9"')
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-010"):
        dovetail.load(other)
    named = _changed(other, tmp_path / "named", "frozen.json", '"name":"Net"', r'"name":"\u001b[31mNet"')
    code, out, _ = _run(capsys, named)
    assert code == 0
    assert "torch 2.11.9" in out
    assert "?[31mNet" in out
    assert "\x1b[31m" not in out


def test_files_that_do_not_say_their_passes(path: Path, tmp_path: Path) -> None:
    older = _changed(path, tmp_path / "older", "frozen.json", '"passes":["fold_batch_norms"],', "")
    assert inspect_file(older).methods[0].passes == ()
    again = tmp_path / "again.dovetail"
    dovetail.load(path).save(again)
    assert inspect_file(again).methods[0].passes == ("fold_batch_norms",)


@pytest.mark.parametrize("size", ["batch", "batch=", "=3", "batch=x", "nothing=3", "s0=1"])
def test_sizes_that_are_none(path: Path, capsys: pytest.CaptureFixture[str], size: str) -> None:
    code, _, err = _run(capsys, path, "--size", size)
    assert code == 2
    assert err.startswith("DT-OPTION-"), err
