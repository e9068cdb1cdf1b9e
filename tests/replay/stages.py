"""What every stage of a compilation makes of the models of the zoo, through each front end, as text.

    python -m tests.replay.stages --write              # note digests of every stage in tests/data/stages.json
    python -m tests.replay.stages --texts before       # the texts themselves, a file for each stage

A change of the compiler's structure must not change a program. To see what differs, write the texts before and after
the change, and compare the two folders.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dovetail
from dovetail.ir.program import Meta, Program, ScalarMeta
from dovetail.ir.text import emit, plain_call
from dovetail.pipeline.compile_trace import CompileTrace
from tests.models.zoo import MORE, ZOO, Entry, loss_of

PATH = Path(__file__).resolve().parents[1] / "data" / "stages.json"
# On fakes, the backward of oneDNN's LSTM gives one result more or less, by what ran in the process before.
MODELS = tuple(entry for entry in (*ZOO, *MORE) if entry.name != "lstm")
Stages = list[tuple[str, str]]


def text_of(program: Program) -> str:
    """A program as text: its nodes, and the descriptions of its values."""
    values = [*program.inputs, *(value for node in program.nodes for value in node.results())]
    lines = [program.stage.value, emit(program, plain_call, {}, comments=False).text]
    lines += [f"{value.name}: {_described(value.meta)}" for value in values]
    lines += [f"{role}" for role in (*program.signature.inputs, *program.signature.outputs)]
    return "\n".join(lines) + "\n"


def _described(meta: Meta) -> str:
    if isinstance(meta, ScalarMeta):
        return str(meta.expr)
    sizes = f"shape {meta.shape} stride {meta.stride} offset {meta.offset}"
    return f"{sizes} {meta.dtype} {meta.device} storage {meta.storage}"


def _stages(trace: CompileTrace) -> Stages:
    return [
        (f"{lowering.name} {number} {step.name} {step.program.name}", text_of(step.program))
        for lowering in trace.lowerings
        for number, step in enumerate(lowering.steps)
    ]


FIXED: dict[str, Any] = {"partition": "min_cut", "skip": "recompute"}
"""Other choices are by what operators take for themselves on this machine."""


def _by_function(entry: Entry) -> Stages:
    trace, model = CompileTrace(), entry.model()
    run = dovetail.compile(model, **FIXED).with_options(compile_trace=trace)
    loss_of(run(**entry.batches(1)[0])).backward()
    return _stages(trace)


def _by_backend(entry: Entry) -> Stages:
    trace, model = CompileTrace(), entry.model()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        run: Any = torch.compile(
            model, backend="dovetail", fullgraph=True, dynamic=False, options={"compile_trace": trace, **FIXED}
        )
        loss_of(run(**entry.batches(1)[0])).backward()
    torch._dynamo.reset()
    return _stages(trace)


def _by_step(entry: Entry) -> Stages:
    model = entry.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    @dovetail.compile_step(skip="recompute")  # which decides by what operators take on this machine
    def step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(**batch))
        loss.backward()
        optimizer.step()
        return loss.detach()

    for batch in entry.batches(3):
        step(batch)
    return _stages(step.compile_trace)


def _by_freezing(entry: Entry) -> Stages:
    frozen = dovetail.freeze(entry.model().eval(), {"forward": ((), entry.batches(1)[0])}, dynamic_shapes="static")
    assert frozen.compile_trace is not None
    return _stages(frozen.compile_trace)


FRONT_ENDS: dict[str, Callable[[Entry], Stages]] = {
    "compile": _by_function,
    "backend": _by_backend,
    "compile_step": _by_step,
    "freeze": _by_freezing,
}
CASES = [f"{entry.name} {name}" for entry in MODELS for name in FRONT_ENDS]


def stages(case: str) -> Stages:
    """The stages of one case by name, oldest first; an error is a stage, too."""
    model, name = case.rsplit(" ", 1)
    entry = next(entry for entry in MODELS if entry.name == model)
    torch.manual_seed(0)
    try:
        return FRONT_ENDS[name](entry)
    except dovetail.DovetailError as error:
        return [(f"refused: {error.code}", "")]


def digests(case: str) -> list[str]:
    """A line for each stage: its name, and a digest of its text."""
    return [f"{name} {hashlib.sha256(text.encode()).hexdigest()[:16]}" for name, text in stages(case)]


def known() -> dict[str, list[str]]:
    """What was noted for each case."""
    found: dict[str, list[str]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def _write_texts(folder: Path, cases: list[str]) -> Iterator[str]:
    for case in cases:
        place = folder / case.replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        for number, (name, text) in enumerate(stages(case)):
            (place / f"{number:03}-{name.replace(' ', '-').replace('/', '-')}.txt").write_text(text, encoding="utf-8")
        yield case


def main(argv: list[str] | None = None) -> None:
    """Write digests, or texts."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay.stages", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="note what every stage makes now")
    parser.add_argument("--texts", type=Path, help="folder for the texts")
    parser.add_argument("--only", nargs="*", default=CASES, help="cases; all by default")
    options = parser.parse_args(argv)
    if options.texts is not None:
        for case in _write_texts(options.texts, options.only):
            print(case, flush=True)
    if options.write:
        found = known() if PATH.exists() else {}
        for case in options.only:
            found[case] = digests(case)
            print(f"{case}: {len(found[case])} stages", flush=True)
            PATH.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
