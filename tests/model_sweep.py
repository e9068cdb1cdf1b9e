"""Search for models that do something else when they are compiled: public architectures, through each door.

    python -m tests.model_sweep --minutes 60 --state models.json
    python -m tests.model_sweep --case "causal llama"
    python -m tests.model_sweep --state models.json --again refused
    python -m tests.model_sweep --state models.json --page docs/models.md

Each model is trained for a few steps by `torch.compile(backend="dovetail")` and by `dovetail.compile_step`, and served
by `dovetail.freeze`. Losses, parameters, buffers, optimizer states and random numbers have to be eager mode's, bit by
bit. Models of `transformers` do something else while Dynamo looks at them, so the first door is compared with Dynamo's
own graphs (`backend="eager"`). `--page` writes docs/models.md. The exit status is 1 when something was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailError
from tests.architectures import Batch, batch, listed, model
from tests.model_page import DOORS, SAME, Verdicts, page, told
from tests.searching import Standing, begin, keep, parser_of, quietly

STEPS = 3


@dataclass
class State(Standing):
    """Where a search stands. verdicts: by architecture, what each door gave. versions: of what was measured."""

    verdicts: Verdicts = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def verdicts_of(task: str, name: str, doors: tuple[str, ...] = DOORS) -> dict[str, str]:
    """What each door makes of an architecture: `same`, or what is wrong; "refused" begins what was refused by name."""
    torch.manual_seed(0)
    try:
        first, given = model(task, name), batch(task, name)
        with torch.random.fork_rng(devices=[]):
            wanted = _trained(copy.deepcopy(first), given, lambda step, _: step)
    except Exception as error:  # whatever it is, there is nothing to compare with
        return dict.fromkeys(doors, f"eager mode fails: {told(error)}")
    ways: dict[str, Callable[[], str]] = {
        "backend": lambda: _through_dynamo(first, given),
        "step": lambda: _by_step(first, given, wanted),
        "freeze": lambda: _served(copy.deepcopy(first).eval(), given),
    }
    return {door: _verdict(ways[door]) for door in doors}


def _verdict(way: Callable[[], str]) -> str:
    torch.compiler.reset()
    with torch.random.fork_rng(devices=[]):
        try:
            return way() or SAME
        except Exception as error:
            return f"{'refused' if isinstance(error, DovetailError) else 'fails'}: {told(error)}"


def _through_dynamo(first: nn.Module, given: Batch) -> str:
    def by(backend: str | Callable[..., Any]) -> dict[str, Any]:
        return _trained(copy.deepcopy(first), given, lambda _, net: torch.compile(net, backend=backend))

    graphs = []

    def eager(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    found = by("dovetail")
    difference = _difference(by(eager), found)
    if difference and not _difference(by("aot_eager"), found):
        return f"as aot_eager: {difference}; Dynamo made {len(graphs)} graphs"
    return f"differs: {difference}" if difference else ""


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
    return left | {"random numbers": torch.get_rng_state(), "random numbers outside torch": _drawn_outside()}


def _drawn_outside() -> Tensor:
    _, numbers, position, *_ = np.random.get_state(legacy=True)
    return torch.tensor([*numbers.tolist(), position, *random.getstate()[1]])


def _by_step(first: nn.Module, given: Batch, wanted: dict[str, Any]) -> str:
    found = _trained(copy.deepcopy(first), given, lambda step, _: _compiled(step))
    difference = _difference(wanted, found)
    return f"differs: {difference}" if difference else ""


def _compiled(step: Step) -> Step:
    return dovetail.compile_step(step)


def _served(net: nn.Module, given: Batch) -> str:
    inputs = {name: tensor for name, tensor in given.items() if name != "labels"}
    if "decoder_input_ids" not in inputs and getattr(getattr(net, "config", None), "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = given["labels"]
    with torch.no_grad():
        wanted = net(**inputs).logits
        frozen = dovetail.freeze(net, {"forward": ((), inputs)})
        found = frozen(**inputs).logits
    return "" if _is_same(wanted, found) else "differs: the logits"


def _difference(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    apart = [name for name, value in wanted.items() if not _is_same(value, found.get(name))]
    return f"{apart[0]} and {len(apart) - 1} more differ" if apart else ""


def _is_same(a: Any, b: Any) -> bool:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return a is b
    return a.shape == b.shape and a.stride() == b.stride() and torch.equal(a.nan_to_num(), b.nan_to_num())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with quietly():
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def main(argv: list[str] | None = None) -> int:
    """Search."""
    parser = parser_of("tests.model_sweep", __doc__)
    parser.set_defaults(first=0)
    parser.add_argument("--case", help="try only this one: task and name")
    parser.add_argument("--doors", default=",".join(DOORS))
    parser.add_argument("--tasks", help="only architectures of these tasks, by commas")
    parser.add_argument("--again", help="forget the verdicts of this kind: refused, fails, differs, as aot_eager")
    parser.add_argument("--page", type=Path, help="write the page from the state, and search no more")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="states of other shards, for the page")
    options = parser.parse_args(argv)
    doors = tuple(options.doors.split(","))
    with _quiet():
        if options.case:
            found = verdicts_of(*options.case.split(), doors=doors)
            print(*(f"{door}: {verdict}" for door, verdict in found.items()), sep="\n")
            return int(any(verdict != SAME for verdict in found.values()))
        state, _ = begin(options, State(0))
        if options.page:
            options.page.write_text(_page(state, options.also))
            return 0
        _search(options, state, doors)
    failures = sum(verdict != SAME for found in state.verdicts.values() for verdict in found.values())
    print(f"{len(state.verdicts)} models, {failures} verdicts that are not the same")
    return int(bool(failures))


def _search(options: argparse.Namespace, state: State, doors: tuple[str, ...]) -> None:
    """Try what has no verdict yet."""
    end = time.monotonic() + options.minutes * 60
    state.versions |= _versions()
    if options.again:
        kept = {label: v for label, v in state.verdicts.items() if not _has(v, options.again)}
        state.verdicts = kept
    index, shards = map(int, options.shard.split("/"))
    for case in listed()[index::shards]:
        label = " ".join(case)
        if label in state.verdicts or (options.tasks and case[0] not in options.tasks.split(",")):
            continue
        if time.monotonic() >= end or state.tried == options.programs:
            break
        state.verdicts[label] = verdicts_of(*case, doors=doors)
        for door, verdict in state.verdicts[label].items():
            if verdict != SAME:
                print(f'--case "{label}" --doors {door}: {verdict}', flush=True)
        state.tried += 1
        keep(options, state)


def _has(found: dict[str, str], kind: str) -> bool:
    return any(verdict.partition(":")[0] == kind for verdict in found.values())


def _versions() -> dict[str, str]:
    names = ["torch", "transformers", *(["timm"] if find_spec("timm") else [])]
    return {name: version(name) for name in names}


def _page(state: State, also: list[Path]) -> str:
    states = [state, *(State(**json.loads(path.read_text())) for path in also)]
    verdicts = {label: found for one in states for label, found in one.verdicts.items()}
    return page(verdicts, {name: said for one in states for name, said in one.versions.items()})


if __name__ == "__main__":
    sys.exit(main())
