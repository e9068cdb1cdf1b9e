"""Each way in takes the options that it reads, and refuses the others with the names of those that read them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
import dovetail.pipeline.options as options_module
from dovetail.errors import BadOptionValue
from dovetail.execute.foreign import Compilers
from dovetail.frontends.backend import dovetail_backend
from dovetail.pipeline.compile_trace import CompileTrace
from dovetail.pipeline.doors import AOT, BACKEND, COMPILE, COMPILE_STEP, DOORS, FREEZE, LOAD, Door
from dovetail.pipeline.options import Options, resolve_options

OPTIONS = [field.name for field in dataclasses.fields(Options)]
GIVEN: dict[str, Any] = {
    **{"dump": "folder", "dump_calls": True, "verify": 1, "skip": (), "stop_after": "dead_code"},
    **{"partition": "min_cut", "recompute": "all", "max_variants": 3, "dynamic": True, "double_backward": True},
    **{
        "donate": (0,),
        "keep_grads": True,
        "memory_limit": "6GiB",
        "offload": ".",
        "arena": True,
        "policy": {"aten.relu": "SAVE"},
        "numerics": "fast",
        "executors": ("aten",),
        "compile_trace": CompileTrace(),
    },
    "compilers": Compilers(lambda gm, _: gm, lambda gm, _: gm, lambda gm, _: gm),
}
MODEL, X = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), torch.ones(1, 2)


def _through_the_backend(**options: Any) -> Any:
    return dovetail_backend(torch.fx.symbolic_trace(MODEL), (X,), options=options)


def _freeze(**options: Any) -> Any:
    return dovetail.freeze(MODEL, (X,), **options)


CALLS: list[tuple[Door, Callable[..., Any]]] = [
    (COMPILE, lambda **options: dovetail.compile(torch.relu, **options)),
    (COMPILE, lambda **options: dovetail.compile(torch.relu).with_options(**options)),
    (BACKEND, _through_the_backend),
    (COMPILE_STEP, lambda **options: dovetail.compile_step(torch.relu, **options)),
    (FREEZE, _freeze),
    (AOT, lambda **options: dovetail.aot_function(torch.relu, lambda gm, _: gm, **options)),
    (AOT, lambda **options: dovetail.aot_module(MODEL, lambda gm, _: gm, **options)),
]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("door", "call"), CALLS, ids=lambda x: x.name if isinstance(x, Door) else "")
def test_what_a_door_does_not_read_is_refused(door: Door, call: Callable[..., Any], option: str) -> None:
    if option in door.choices:
        expected = " or ".join(door.choices[option])
        with pytest.raises(BadOptionValue, match=f"give {expected}"):
            call(**{option: GIVEN[option]})
        return
    if option in door.reads:
        beside = {"memory_limit": GIVEN["memory_limit"]} if option == "offload" else {}
        resolve_options({option: GIVEN[option], **beside}, (), door)
        return
    with pytest.raises(BadOptionValue, match=f"option '{option}' cannot be") as caught:
        call(**{option: GIVEN[option]})
    readers = [reader.name for reader in DOORS if option in reader.reads]
    assert option in door.instead or all(name in str(caught.value) for name in readers)


def test_loading_reads_few(tmp_path: Path) -> None:
    path = tmp_path / "model.dovetail"
    _freeze().save(path)
    with pytest.raises(BadOptionValue, match=r"dovetail.load does not read it\n.*give it to dovetail.compile"):
        dovetail.load(path, max_variants=3)
    with pytest.raises(BadOptionValue, match="there is no such pass"):
        dovetail.load(path, skip="reinplaces")
    assert torch.equal(dovetail.load(path, skip="reinplace")(X), MODEL(X))


def test_variables_are_for_all_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_PARTITION", "min_cut")
    monkeypatch.setenv("DOVETAIL_RECOMPUTE", "all")
    dovetail.compile_step(torch.relu)
    assert torch.equal(_freeze()(X), MODEL(X))


def test_every_option_is_read_by_a_door() -> None:
    assert frozenset(OPTIONS) == frozenset().union(*(door.reads for door in DOORS))
    assert not any(set(door.reasons) | set(door.instead) & door.reads for door in DOORS if door is LOAD)


def test_the_table_says_the_same() -> None:
    everyone = frozenset(DOORS)
    graphs = frozenset({COMPILE, BACKEND, AOT})
    by_word = {
        **{"all": everyone, "all but load": everyone - {LOAD}, "all but aot": everyone - {AOT}, "graphs": graphs},
        **{"compile": {COMPILE}, "backend": {BACKEND}, "step": {COMPILE_STEP}, "aot": {AOT}, "freeze": {FREEZE}},
    }
    rows = re.findall(r"^\| (\w+) \| [^|]* \| ([^|]+) \|", options_module.__doc__ or "", re.MULTILINE)
    told = {option: frozenset().union(*(by_word[word] for word in text.split(", "))) for option, text in rows[1:]}
    assert told == {option: frozenset(door for door in DOORS if option in door.reads) for option in OPTIONS}


def test_freezing_stops_after_a_pass() -> None:
    trace = CompileTrace()
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.Dropout()).eval()
    x = torch.ones(1, 1, 2, 2)
    frozen = dovetail.freeze(model, (x,), passes="fast", stop_after="remove_dropout", compile_trace=trace)
    steps = [step.name for lowering in trace.lowerings for step in lowering.steps]
    assert "remove_dropout" in steps
    assert not {"fold_batch_norms", "channels_last", "reinplace-forward"} & set(steps)
    assert torch.equal(frozen(x), model(x))
    trace = CompileTrace()
    dovetail.freeze(model, (x,), passes="fast", stop_after="no_ops", compile_trace=trace)
    assert "remove_dropout" not in [step.name for lowering in trace.lowerings for step in lowering.steps]
