"""The demo runs end to end at its quick size, and its parts say what is so."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import io
import re
import shlex
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from demo.data import read_standard_library, sample_batches
from demo.model import Gpt, GptConfig
from demo.run import DemoConfig, DemoResult, run_demo
from demo.table import table_rows, verdicts
from demo.train import Column, TrainingPlan, describe_failure, train_columns
from dovetail.cli.app import app
from tests.rotation import rotated
from train_gpt import config_of

_TINY = GptConfig(context=16, layers=1, width=16, heads=2)
_EAGER = Column("eager", (3.0, 2.5), (0.5, 0.2), peak_bytes=2 << 20, live_bytes=(2 << 20, 0), weights_digest="a")


def _run(tmp_path: Path, **options: object) -> tuple[DemoResult, str]:
    config = dataclasses.replace(DemoConfig(steps=3, quick=True, out_dir=tmp_path / "out"), **options)  # type: ignore[arg-type]
    output = io.StringIO()
    return run_demo(config, Console(file=output, width=160)), output.getvalue()


@pytest.mark.parametrize("backend", rotated(["eager", "aot_eager", "dovetail"], 3))
def test_quick_demo_writes_everything_and_matches_eager(tmp_path: Path, backend: str) -> None:
    result, output = _run(tmp_path, backend=backend)

    assert [column.name for column in result.columns] == ["eager", backend]
    assert result.is_bitwise_equal
    assert all(len(column.losses) == 3 and column.peak_bytes > 0 for column in result.columns)
    assert f"{backend}: all 3 losses and the final weights are bitwise equal to eager's." in output
    assert str(result.page_path) in output
    assert str(result.picture_path) in output

    picture = result.picture_path.read_bytes()
    assert picture.startswith(b"\x89PNG")
    page = result.page_path.read_text(encoding="utf-8")
    embedded = re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", page)
    assert embedded is not None
    assert base64.b64decode(embedded.group(1)) == picture
    assert torch.__version__ in page
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert f"sha256-{digest}" in html.unescape(page)
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?!data:|report\.html)', page), "the page must not load anything"


def test_the_demo_ends_with_commands_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    result, output = _run(tmp_path, opens=True)
    assert result.report_path is not None
    assert opened == [result.report_path.resolve().as_uri()]
    assert "demo/model.py:" in result.report_path.read_text(encoding="utf-8"), "lines of the model, not of who calls it"
    assert 'href="report.html"' in result.page_path.read_text(encoding="utf-8")
    lines = output[output.index("Try next:") :].splitlines()[1:]
    assert len(lines) == 3
    for line in lines:
        _, _, arguments = line.partition("dovetail ")
        answer = CliRunner().invoke(app, shlex.split(arguments))
        assert answer.exit_code == 0, (line, answer.output)
    assert [*(tmp_path / "out").glob("program*.svg")]


def test_the_demo_gives_threads_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    _run(tmp_path, backend="eager", threads=before + 1)
    assert torch.get_num_threads() == before


def test_an_extra_backend_that_fails_is_a_column_that_says_so(tmp_path: Path) -> None:
    result, output = _run(tmp_path, backend="eager", extra=("no_such_backend",))
    assert result.columns[2].failure is not None
    assert "no_such_backend: failed. InvalidBackend" in output
    assert "failed" in result.page_path.read_text(encoding="utf-8")


def test_a_shown_backend_that_fails_raises(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no_such_backend"):
        _run(tmp_path, backend="no_such_backend")


def test_the_demo_leaves_the_random_state_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    _run(tmp_path, backend="eager")
    assert torch.equal(torch.get_rng_state(), before)


def _train(plan: TrainingPlan, *names: str) -> dict[str, Column]:
    text = read_standard_library(100_000)
    columns = train_columns(plan, [(name, None) for name in names], text, lambda place, loss: None)
    return {column.name: column for column in columns}


def test_columns_depend_neither_on_each_other_nor_on_what_ran_before() -> None:
    plan = TrainingPlan(_TINY, steps=3, batch=2, seed=7)
    alone = _train(plan, "eager")["eager"]
    torch.rand(5)
    beside = _train(plan, "eager", "aot_eager")
    other_seed = _train(dataclasses.replace(plan, seed=8), "eager")["eager"]
    for column in beside.values():
        assert (column.losses, column.weights_digest) == (alone.losses, alone.weights_digest)
    assert beside["eager"].live_bytes == alone.live_bytes
    assert alone.losses != other_seed.losses


def test_columns_take_turns_and_stop_together() -> None:
    heard: list[int] = []
    plan = TrainingPlan(_TINY, steps=50, batch=2, seed=0, seconds=0.0, least_steps=7)
    text, runs = read_standard_library(100_000), [("eager", None), ("aot_eager", None)]
    columns = train_columns(plan, runs, text, lambda place, loss: heard.append(place))
    assert [len(column.losses) for column in columns] == [7, 7]
    rounds = [heard[start : start + 2] for start in range(0, len(heard), 2)]
    assert all(set(places) == {0, 1} for places in rounds)
    assert len({tuple(places) for places in rounds}) == 2, "each goes first at times"


def test_batches_are_text_and_its_continuation() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    batches = list(sample_batches(text, count=2, batch=3, time=8, seed=0))
    again = list(sample_batches(text, count=2, batch=3, time=8, seed=0))
    for (tokens, targets), (tokens_again, _) in zip(batches, again, strict=True):
        assert tokens.shape == targets.shape == (3, 8)
        assert torch.equal(targets, tokens + 1)
        assert torch.equal(tokens, tokens_again)


def test_the_text_is_the_standard_library_and_honours_its_bound() -> None:
    text = read_standard_library(50_000)
    assert text.dtype is torch.uint8
    assert len(text) == 50_000
    assert b"import" in bytes(text.tolist())


@pytest.mark.parametrize("tie_head", [True, False])
def test_model_is_causal_and_starts_near_the_uniform_loss(tie_head: bool) -> None:
    torch.manual_seed(0)
    model = Gpt(dataclasses.replace(_TINY, tie_head=tie_head)).eval()
    tokens = torch.randint(256, (2, 16))
    loss = model(tokens, tokens)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(torch.log(torch.tensor(256.0)).item(), abs=0.3)
    assert (model.head.weight is model.token_embedding.weight) == tie_head

    changed = tokens.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 256
    ignored = torch.full_like(tokens, -100)
    ignored[:, :8] = tokens[:, :8]
    assert torch.equal(model(tokens, ignored), model(changed, ignored))


def test_table_shows_ratios_and_failures() -> None:
    half = dataclasses.replace(_EAGER, name="half", peak_bytes=1 << 20)
    broken = Column("broken", failure="ValueError: why")
    cells = {row.label: row.cells for row in table_rows([_EAGER, half, broken])}
    slow = Column("slow", (3.0,) * 12, (1.0,) * 2 + (0.21,) * 10)
    quick = Column("eager", (3.0,) * 12, (1.0,) * 2 + (0.2, 0.4) * 5)
    assert {row.label: row.cells for row in table_rows([quick, slow])}["median step"] == (
        "300.0 ms",
        "210.0 ms (0.79x)",
    )
    assert cells["peak memory of a step"] == ("2.0 MiB", "1.0 MiB (0.50x)", "failed")
    assert cells["losses bitwise equal to eager's"] == ("reference", "yes", "failed")


def test_verdict_says_where_losses_part() -> None:
    other = dataclasses.replace(_EAGER, name="other", losses=(3.0, 2.25), weights_digest="b")
    rounded = dataclasses.replace(_EAGER, name="rounded", weights_digest="b")
    few = "2 pairs of steps are too few to compare times."
    assert verdicts([_EAGER, other, rounded]) == [
        "other: losses differ from eager's from step 2 on; the largest difference is 0.25.",
        f"other: {few}",
        "rounded: all 2 losses are bitwise equal to eager's.",
        f"rounded: {few}",
    ]


def test_verdict_says_when_times_cannot_be_told_apart() -> None:
    eager = Column("eager", (3.0,) * 42, (1.0,) * 42, weights_digest="a")
    steady = dataclasses.replace(eager, name="steady", step_seconds=(9.0, 9.0, *(0.97, 0.98) * 20))
    noisy = dataclasses.replace(eager, name="noisy", step_seconds=(9.0, 9.0, *(0.7, 1.3) * 20))
    assert verdicts([eager, steady])[1] == (
        "steady: a step takes 0.97x eager's time, between 0.97x and 0.98x (95 % confidence, 40 pairs of steps)."
    )
    assert verdicts([eager, noisy])[1] == (
        "noisy: the machine was too noisy to tell the times apart: a step takes between 0.70x and 1.30x "
        "(95 % confidence, 40 pairs of steps) of eager's."
    )


def test_failure_is_one_line_and_names_a_missing_compiler() -> None:
    assert describe_failure(ValueError("first\nsecond")) == "ValueError: first"
    assert describe_failure(ValueError()) == "ValueError: no message"
    missing = RuntimeError("InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx")
    assert describe_failure(missing).startswith("needs a C++ compiler, and none was found on this machine")


def test_the_script_passes_its_options_on(tmp_path: Path) -> None:
    assert config_of([]) == DemoConfig()
    options = "--with inductor --with eager --steps 7 --out somewhere --seed 3 --quick --no-open"
    extra = ("inductor", "eager")
    assert config_of(options.split()) == DemoConfig(steps=7, seed=3, out_dir=Path("somewhere"), extra=extra, quick=True)


@pytest.mark.parametrize("options", [["--steps", "0"], ["--steps", "many"], ["--unknown"]])
def test_wrong_options_end_with_status_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        config_of(options)
    assert caught.value.code == 2
    assert options[0] in capsys.readouterr().err
