"""What was dumped runs again, in another process too, and gives what it gave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import dovetail
from dovetail import cli
from dovetail.artifact.call import load_call, save_call
from dovetail.compat import functorch
from dovetail.errors import BadArtifact
from dovetail.inspect.dump_folder import read_dump
from dovetail.inspect.replay import ReplayRow, replay


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        h = torch.nn.functional.dropout(self.first(x).tanh(), 0.3)
        return torch.log_softmax(self.second(h), 1).mul(x[:, :4]).sum() + self.calls.sum()


def _dump(folder: Path, **options: object) -> Path:
    torch.manual_seed(0)
    net = dovetail.compile(_Net(), dump=str(folder), **options)
    net(torch.randn(4, 8)).backward()
    return folder


def _verdicts(rows: list[ReplayRow]) -> dict[str, int]:
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in {row.verdict for row in rows}}


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"partition": "min_cut"}, {"dump_calls": True}])
def test_every_step_gives_what_the_first_one_gives(tmp_path: Path, options: dict[str, object]) -> None:
    rows = replay(_dump(tmp_path, **options))
    assert len(rows) >= 12
    assert _verdicts(rows) == {"ran": 1, "equal": len(rows) - 1}
    assert {row.inputs for row in rows} == {"recorded" if options.get("dump_calls") else "random"}


def test_calls_give_what_they_gave(tmp_path: Path) -> None:
    rows = {row.step: row for row in replay(_dump(tmp_path, dump_calls=True))}
    assert rows["forward call"].verdict == rows["backward call"].verdict == "equal"
    (path,) = tmp_path.rglob("forward.results.safetensors")
    first, *others = load_call(path)
    save_call(path, [first + 1, *others])
    rows = {row.step: row for row in replay(tmp_path)}
    assert rows["forward call"].verdict == "differs"
    assert rows["forward call"].detail.startswith("result 0 differs by up to 1")
    assert rows["backward call"].verdict == "equal"
    (loose,) = [row for row in replay(tmp_path, rtol=10.0) if row.step == "forward call"]
    assert loose.verdict == "equal"


def test_a_call_with_another_gradient_uses_the_inputs_of_the_first_forward(tmp_path: Path) -> None:
    linear = torch.nn.Linear(4, 4)
    compiled = dovetail.compile(linear, dump=str(tmp_path), dump_calls=True)
    compiled(torch.randn(2, 4)).sum().backward()  # arrives expanded, which was not foreseen
    last = read_dump(tmp_path)[-1]
    assert sorted(last.calls) == ["backward", "forward"]
    assert not list(last.folder.glob("forward.*.safetensors"))
    assert {row.inputs for row in replay(tmp_path) if row.program == last.folder.name} == {"recorded"}


def test_gpt2_forward_and_backward_in_a_fresh_process(tmp_path: Path) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, 64, (2, 12))
    compiled = torch.compile(model, backend=functorch.graph_dumper_aot("gpt2", tmp_path, dump_example_input=True))
    compiled(input_ids=tokens, labels=tokens).loss.backward()
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "replay", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["program"]: row for row in json.loads(done.stdout)}
    for half in ("forward", "backward"):
        assert rows[f"gpt2_{half}_0"]["verdict"] == "equal"
        assert rows[f"gpt2_{half}_0"]["nodes"] > 80
    assert rows["gpt2_joint_0"]["verdict"] == "ran"


def test_what_cannot_be_written_is_left_out_and_said(tmp_path: Path) -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.clone().unsqueeze_(0), lambda x: x[None] * 2, (x,))

    torch.compile(branches, backend=dovetail.dovetail_backend, options={"dump": str(tmp_path)})(torch.ones(3))
    rows = replay(tmp_path)
    assert rows
    assert {row.verdict for row in rows} == {"skipped"}
    with pytest.raises(SystemExit, match="2"):
        cli.main(["replay", str(tmp_path)])
    assert all("calls subgraphs" in row.detail for row in rows)


def test_an_operator_that_fails(tmp_path: Path) -> None:
    dovetail.compile(lambda x: x.reshape(2, 3) + 1, dump=str(tmp_path))(torch.ones(6))
    for path in tmp_path.rglob("*-functional.json"):
        facts = json.loads(path.read_text())
        (node,) = [node for node in facts["program"]["nodes"] if node["target"] == "torch.ops.aten.view.default"]
        node["args"][1] = [4, 3]
        path.write_text(json.dumps(facts))
    rows = {row.step: row for row in replay(tmp_path)}
    assert rows["functional"].verdict == "differs"
    assert "shape '[4, 3]' is invalid for input of size 6" in rows["functional"].detail
    assert rows["dead_code"].verdict == "equal"
    assert replay(path)[0].verdict == "failed"


@pytest.mark.parametrize("what", ["missing", "empty", "other json", "no json", "old"])
def test_other_folders(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "folder"
    if what != "missing":
        folder.mkdir()
    if what == "other json":
        (folder / "000-x.json").write_text("[1, 2]")
    if what == "no json":
        (folder / "000-x.json").write_text("{")
    if what == "old":
        (folder / "000-x.json").write_text('{"program": {"format": "dovetail program", "version": 0}}')
    with pytest.raises(BadArtifact, match=r"no such folder|no programs|has no program|Expecting|version 0"):
        replay(folder)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"hints": [1]}, "its hints are not an object"),
        ({"part": "middle"}, "its part is 'middle'"),
        ({"part": []}, "its part is"),
    ],
)
def test_damaged_steps(tmp_path: Path, facts: dict[str, object], reason: str) -> None:
    path = next(iter(_dump(tmp_path).rglob("*-forward.json")))
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    with pytest.raises(BadArtifact, match=reason):
        replay(tmp_path)


def test_results_in_place_of_inputs(tmp_path: Path) -> None:
    (path,) = _dump(tmp_path, dump_calls=True).rglob("forward.inputs.safetensors")
    save_call(path, load_call(path)[:-1])
    with pytest.raises(BadArtifact, match="state of the random generator is not its last tensor"):
        replay(tmp_path)


def test_a_state_that_no_generator_has(tmp_path: Path) -> None:
    (path,) = _dump(tmp_path, dump_calls=True).rglob("forward.inputs.safetensors")
    *inputs, state = load_call(path)
    save_call(path, [*inputs, torch.full_like(state, 255)])
    with pytest.raises(BadArtifact, match="state of the random generator"):
        replay(tmp_path)


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    path = next(iter(_dump(tmp_path).rglob("*-forward.json")))
    with pytest.raises(BadArtifact, match=f"give its folder: {path.parent}"):
        read_dump(path)


def test_one_step_uses_the_call_that_was_kept(tmp_path: Path) -> None:
    folder = _dump(tmp_path, dump_calls=True)
    (path,) = folder.rglob("*-reinplace-forward.json")
    (row,) = replay(path)
    assert (row.inputs, row.verdict) == ("recorded", "equal")


def test_a_program_by_itself(tmp_path: Path) -> None:
    path = next(iter(_dump(tmp_path / "dump").rglob("*-forward.json")))
    alone = tmp_path / "program.json"
    alone.write_text(json.dumps(json.loads(path.read_text())["program"]))
    (row,) = replay(alone)
    assert (row.program, row.inputs, row.verdict) == ("program", "random", "ran")


def test_details_are_not_squeezed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = _dump(tmp_path, dump_calls=True).rglob("forward.results.safetensors")
    first, *others = load_call(path)
    save_call(path, [first + 1, *others])
    with pytest.raises(SystemExit) as caught:
        cli.main(["replay", str(tmp_path)])
    out = capsys.readouterr().out
    assert caught.value.code == 1
    assert f"{path.parent.name} forward call: result 0 differs by up to 1" in out
    assert "1 differs" in out


def test_calls_run_with_as_many_threads_as_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _dump(tmp_path, dump_calls=True)
    for path in folder.rglob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "threads": 3}))
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    replay(folder)
    assert counts.count(3) == 2
    assert counts[-1] == torch.get_num_threads()
