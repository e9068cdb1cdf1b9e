"""Search for models that do something else when they are compiled: architectures of `transformers`, through each door.

    python -m tests.model_sweep --minutes 60 --state models.json
    python -m tests.model_sweep --case "causal llama"
    python -m tests.model_sweep --state models.json --write

Each model is trained for a few steps by `torch.compile(backend="dovetail")` and by `dovetail.compile_step`, and served
by `dovetail.freeze`. Losses, parameters, buffers, optimizer states and random numbers have to be eager mode's, bit by
bit. Models of `transformers` do something else while Dynamo looks at them, so the first door is held against Dynamo's
own graphs (`backend="eager"`). `--write` writes docs/models.md. The exit status is 1 when something was wrong.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailError
from tests.architectures import Batch, batch, listed, model
from tests.searching import Standing, begin, keep, parser_of

STEPS = 3
DOORS = ("backend", "step", "freeze")
SAME = "same"
_PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"


@dataclass
class State(Standing):
    """Where a search stands. verdicts: by architecture, what each door gave."""

    verdicts: dict[str, dict[str, str]] = field(default_factory=dict)


def verdicts_of(task: str, name: str, doors: tuple[str, ...] = DOORS) -> dict[str, str]:
    """What each door makes of an architecture: `same`, or what is wrong; "refused" begins what was refused by name."""
    torch.manual_seed(0)
    try:
        first, given = model(task, name), batch(task)
        with torch.random.fork_rng(devices=[]):
            wanted = _trained(copy.deepcopy(first), given, lambda step, _: step)
    except Exception as error:  # whatever it is, there is nothing to compare with
        return dict.fromkeys(doors, f"eager mode fails: {_told(error)}")
    ways: dict[str, Callable[[], str]] = {
        "backend": lambda: _through_dynamo(first, given),
        "step": lambda: _difference(wanted, _trained(copy.deepcopy(first), given, _by_step)),
        "freeze": lambda: _served(copy.deepcopy(first).eval(), given),
    }
    return {door: _verdict(ways[door]) for door in doors}


def _verdict(way: Callable[[], str]) -> str:
    torch.compiler.reset()
    with torch.random.fork_rng(devices=[]):
        try:
            return way() or SAME
        except Exception as error:
            return f"{'refused' if isinstance(error, DovetailError) else 'fails'}: {_told(error)}"


def _through_dynamo(first: nn.Module, given: Batch) -> str:
    def by(backend: str) -> dict[str, Any]:
        return _trained(copy.deepcopy(first), given, lambda _, net: torch.compile(net, backend=backend))

    found = by("dovetail")
    difference = _difference(by("eager"), found)
    return f"as aot_eager: {difference}" if difference and not _difference(by("aot_eager"), found) else difference


Step = Callable[[], Tensor]


def _trained(net: nn.Module, given: Batch, compiled: Callable[[Step, nn.Module], Any]) -> dict[str, Any]:
    """Everything that a few steps leave. compiled: makes the step that is called."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    called: list[Any] = [net]

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = called[0](**given).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compiled(step, net)
    if run is not step and isinstance(run, nn.Module):
        called[0], run = run, step
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    losses = [run() for _ in range(STEPS)]
    left = {f"loss {n}": loss for n, loss in enumerate(losses)} | dict(net.state_dict())
    for n, state in optimizer.state_dict()["state"].items():
        left |= {f"{key} of parameter {n}": value for key, value in state.items()}
    return left | {"random numbers": torch.get_rng_state()}


def _by_step(step: Step, net: nn.Module) -> Step:
    return dovetail.compile_step(step)


def _served(net: nn.Module, given: Batch) -> str:
    inputs = {name: tensor for name, tensor in given.items() if name != "labels"}
    if "decoder_input_ids" not in inputs and getattr(getattr(net, "config", None), "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = given["labels"]
    with torch.no_grad():
        wanted = net(**inputs).logits
        frozen = dovetail.freeze(net, {"forward": ((), inputs)})
        found = frozen(**inputs).logits
    return "" if _is_same(wanted, found) else "the logits differ"


def _difference(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    apart = [name for name, value in wanted.items() if not _is_same(value, found.get(name))]
    return f"{apart[0]} and {len(apart) - 1} more differ" if apart else ""


def _is_same(a: Any, b: Any) -> bool:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return a is b
    return a.shape == b.shape and a.stride() == b.stride() and torch.equal(a.nan_to_num(), b.nan_to_num())


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' / '.join(line.strip() for line in str(error).splitlines())[:400]}"


def page(state: State) -> str:
    """docs/models.md."""
    counts = {door: Counter(v[door].partition(":")[0] for v in state.verdicts.values() if door in v) for door in DOORS}
    rows = [
        f"| {name} | " + " | ".join(_cell(verdicts.get(door, "")) for door in DOORS) + " |"
        for name, verdicts in sorted(state.verdicts.items())
    ]
    total = len(state.verdicts)
    summary = "; ".join(f"`{door}`: {counts[door][SAME]} of {total}" for door in DOORS)
    notes = [
        f"- {name}, {door}: {verdict}"
        for name, verdicts in sorted(state.verdicts.items())
        for door, verdict in verdicts.items()
        if verdict != SAME
    ]
    table = ["| model | " + " | ".join(DOORS) + " |", "|---|" + "---|" * len(DOORS), *rows]
    rest = ["", "## Not the same", "", *notes] if notes else []
    return "\n".join([_INTRODUCTION.format(summary=summary), *table, *rest, ""])


_INTRODUCTION = """# Models

Architectures of `transformers` in tiny configurations, and the smallest model of each family of `timm`, on the CPU, in
float32. *backend* and *step*: three training steps with AdamW through `torch.compile(backend="dovetail")` and
`dovetail.compile_step`. *freeze*: one call of the frozen model. `=`: the same bits as in eager mode (losses,
parameters, buffers, optimizer states, random numbers, logits); for *backend*, as Dynamo's own graphs give
(`backend="eager"`). `python -m tests.model_sweep --write` writes this page.

Same bits: {summary}.

"as aot_eager": Dynamo breaks the model into several graphs, and gradients that meet between graphs are added in another
order than in eager mode. Every back end for training graphs gives these bits.
"""


def _cell(verdict: str) -> str:
    return "=" if verdict == SAME else verdict.partition(":")[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    transformers.logging.set_verbosity_error()
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main(argv: list[str] | None = None) -> int:
    """Search."""
    parser = parser_of("tests.model_sweep", __doc__)
    parser.set_defaults(first=0)
    parser.add_argument("--case", help="try only this one: task and name")
    parser.add_argument("--doors", default=",".join(DOORS))
    parser.add_argument("--write", action="store_true", help="write docs/models.md from the state, and search no more")
    options = parser.parse_args(argv)
    doors = tuple(options.doors.split(","))
    torch.set_num_threads(1)
    with _quiet():
        if options.case:
            found = verdicts_of(*options.case.split(), doors=doors)
            print(*(f"{door}: {verdict}" for door, verdict in found.items()), sep="\n")
            return int(any(verdict != SAME for verdict in found.values()))
        state, step = begin(options, State(0))
        if options.write:
            _PAGE.write_text(page(state))
            return 0
        end = time.monotonic() + options.minutes * 60
        cases = listed()
        while time.monotonic() < end and state.next < len(cases) and state.tried != options.programs:
            label = " ".join(cases[state.next])
            state.verdicts[label] = verdicts_of(*cases[state.next], doors=doors)
            bad = {door: verdict for door, verdict in state.verdicts[label].items() if verdict != SAME}
            state.failures |= {f"{label}, {door}": verdict for door, verdict in bad.items()}
            for door, verdict in bad.items():
                print(f'--case "{label}" --doors {door}: {verdict[:300]}', flush=True)
            state.next += step
            state.tried += 1
            keep(options, state)
    print(f"{state.tried} models, {len(state.failures)} failures")
    return int(bool(state.failures))


if __name__ == "__main__":
    sys.exit(main())
