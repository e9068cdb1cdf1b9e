"""Frozen modules as files: writing them; `freezing.loading` reads them.

    frozen.json                 what it is, its methods and how they are called, guards, where weights come from
    programs/forward.0.json     the folded program and its call plan; ...unfolded.json: what it was made from
    programs/forward.0.py       the same as text, for people
    constants.safetensors       constants and state; constants.json: how they lie there
    sources.safetensors         weights as they were before folding, as far as they are kept; sources.json

Nothing is pickled and nothing in a file is executed: programs are data, and their operators are looked up among those
of this torch. See `artifact.container` for what is checked before anything is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from dovetail.artifact.container import write_container
from dovetail.artifact.json_text import json_bytes
from dovetail.artifact.operand_json import operand_to_json
from dovetail.artifact.plan_json import plan_to_json
from dovetail.artifact.program_json import program_to_json
from dovetail.artifact.tensors import save_tensors
from dovetail.artifact.tree_json import tree_to_json
from dovetail.errors import BadOptionValue, NotSerializable
from dovetail.frontends.freezing.call_form import CallForm
from dovetail.frontends.freezing.method import FrozenMethod
from dovetail.frontends.freezing.pool import Pool
from dovetail.frontends.freezing.variant import FrozenProgram
from dovetail.frontends.freezing.weights import Sources
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import to_json as size_to_json
from dovetail.ops import prims
from dovetail.pipeline.driver import program_text
from dovetail.pipeline.freezing import Unfolded
from dovetail.torch_compat.version import installed_torch_version

FORMAT = "dovetail frozen module"
VERSION = 1
INDEX = "frozen.json"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a frozen module consists of. generation: how it generates, if it does: `generation.habits` as JSON."""

    name: str
    methods: Mapping[str, FrozenMethod]
    pool: Pool
    sources: Sources | None
    generation: Mapping[str, Any] | None = None


def check_path(path: object, reason: str, expected: str) -> None:
    """Raises: BadOptionValue for what is no path."""
    if not isinstance(path, str | PathLike) or path == "":
        kind = f"a {type(path).__name__}" if path != "" else path
        raise BadOptionValue(option="path", value=kind, reason=reason, expected=f"{expected}: str or Path")


def save(contents: Contents, path: str | Path) -> None:
    """Write what a frozen module consists of to a file. It may be called, not changed, while it is written.

    Raises: BadOptionValue for what is no path; NotSerializable for what only code can make again (arguments that are
    objects, subgraphs of control flow, containers of the user's own kind), before anything is written; OSError.
    """
    check_path(path, "files are written to a path", "the path of the new file")
    members, methods = _described(contents.methods)
    pool, sources = contents.pool, contents.sources
    kept = sources.read() if sources is not None else {}
    index = {
        "format": FORMAT,
        "version": VERSION,
        "torch": installed_torch_version(),
        "name": contents.name,
        "methods": methods,
        "origins": {name: list(dotted) for name, dotted in pool.origins.items()},
        "state": sorted(pool.state),
        "unused": sorted(pool.unused),
        "sources_complete": sources is not None and sources.is_complete,
    }
    if contents.generation is not None:
        index["generation"] = dict(contents.generation)
    members = {INDEX: json_bytes(index), **members, **save_tensors(pool.stored())}
    write_container(path, {**members, **save_tensors(kept, "sources")})


def seeding_in(program: Program) -> Node | None:
    """Where a program sets the state of the process's generator, which one that is read from a file may not."""
    return next((node for node in program.nodes if node.target in (prims.SET_RNG_STATE, prims.MANUAL_SEED)), None)


def refusal(method: FrozenMethod) -> NotSerializable | None:
    """Why a method cannot be written to a file, if it cannot."""
    try:
        _described({method.form.method: method})
    except NotSerializable as error:
        return error
    return None


def _described(methods: Mapping[str, FrozenMethod]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The members with the programs of methods, and what the index says of each. Raises: NotSerializable."""
    members: dict[str, Any] = {}
    described = {}
    for name, method in methods.items():
        entries = []
        for number, frozen in enumerate(method.programs):
            stem = f"programs/{name}.{number}"
            folded = frozen.folded
            members[f"{stem}.json"] = json_bytes(_program(folded.program, folded.plan))
            _refuse_seeding(folded.program)  # subgraphs of control flow do so, too, and have a reason of their own
            members[f"{stem}.py"] = program_text(folded.program).encode()
            unfolded = frozen.unfolded()
            members[f"{stem}.unfolded.json"] = json_bytes(_program(unfolded.program, unfolded.plan))
            entries.append(_entry(frozen, unfolded, stem))
        described[name] = {**_form(method.form), "notes": list(method.notes), "passes": list(method.passes)}
        described[name]["variants"] = entries
    return members, described


def _refuse_seeding(program: Program) -> None:
    seeding = seeding_in(program)
    if seeding is not None:
        raise NotSerializable(
            what=f"program {program.name}",
            reason=f"it sets the state of the process's generator, at {seeding.origin}",
            hint="seed before the call (torch.manual_seed), not in the model; without a file, it may",
        )


def _program(program: Program, plan: Any) -> dict[str, Any]:
    return {"program": program_to_json(program, of_dump=False), "plan": plan_to_json(plan, program)}


def _entry(frozen: FrozenProgram, unfolded: Unfolded, stem: str) -> dict[str, Any]:
    return {
        "program": stem,
        "held": list(frozen.folded.held),
        "arguments": list(frozen.arguments),
        "results": tree_to_json(frozen.results.tree()),
        "facts": [size_to_json(fact) for fact in frozen.shapes.facts],
        "written": sorted(frozen.written),
        "same": [list(pair) for pair in frozen.same],
        "asked": sorted(unfolded.asked),
    }


def _form(form: CallForm) -> dict[str, Any]:
    leaves = []
    for leaf in form.leaves:
        if leaf.kind is not None:
            dtype, device, rank = leaf.kind
            kind = [operand_to_json(dtype), operand_to_json(device), rank]
            leaves.append({"name": leaf.name, "tensor": kind})
        else:
            leaves.append({"name": leaf.name, "value": _plain(leaf.value, leaf.name)})
    parameters = [
        {"name": p.name, "kind": p.kind.name, "default": _default(p, form)} for p in form.signature.parameters.values()
    ]
    return {"signature": parameters, "structure": tree_to_json(form.structure.tree()), "leaves": leaves}


def _default(parameter: inspect.Parameter, form: CallForm) -> list[Any]:
    """The default in a list, which is empty where there is none, or where it is not a plain value."""
    if parameter.default is inspect.Parameter.empty:
        return []
    return [_plain(parameter.default, f"the default of {parameter.name}")]


def _plain(value: object, name: str) -> Any:
    try:
        return operand_to_json(value)
    except ValueError as error:
        hint = "pass numbers, strings, None, dtypes and devices next to tensors"
        raise NotSerializable(what=f"a call with {name}", reason=str(error), hint=hint) from error
