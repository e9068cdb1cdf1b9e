"""Is a step that cannot be compiled refused with the user's line, and is everything as it was then?"""

from __future__ import annotations

import contextlib
import inspect
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dovetail
from dovetail.errors import DovetailError, FreedGraph
from tests.frontends.step.cases.refusals import MARK, Refusal
from tests.frontends.step.twins import Differs, Twin, copied, difference, identities, labelled_tensors

_CALLS = 8  # a step that makes state goes on in eager mode for some calls


def refused(case: Refusal) -> str:
    """Call a compiled step until it is refused, check that, and that eager goes on. Returns the message.

    Raises: Differs when the last call is not refused, when the message does not name the marked line, or what the case
    says instead, or when a refused call changed anything.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        twin = case.build()
    plain = twin.steps["step"]
    compiled = dovetail.compile_step(plain)
    messages = [_refused_call(case, twin, compiled, number) for number in range(_CALLS)]
    if messages[-1] is None:
        raise Differs(f"{case}: no call was refused")
    for row in ("  from      ", "  because   ", "  try       ", "on_unsupported='eager'"):
        if row not in messages[-1] and not (row.startswith("  from") and case.says):
            raise Differs(f"{case}: the message has no {row.strip()!r}:\n{messages[-1]}")
    place = case.says or marked_line(plain)
    if place not in messages[-1]:
        raise Differs(f"{case}: the message does not name {place}:\n{messages[-1]}")
    call = twin.call(_CALLS)
    with pytest.raises(FreedGraph) if case.needs_graph else contextlib.nullcontext():
        plain(*call.arguments, **call.keywords)
    return messages[-1]


def _refused_call(case: Refusal, twin: Twin, compiled: Any, number: int) -> str | None:
    call = twin.call(number)
    held = labelled_tensors(twin.state(grads=True))
    before, places, hooks = copied(_everything(twin)), identities(held), twin.hooks()
    given = copied(call.arguments)
    try:
        compiled(*call.arguments, **call.keywords)
    except DovetailError as error:
        after = labelled_tensors(twin.state(grads=True))
        changed = (
            difference(before, _everything(twin), "state")
            or difference(given, call.arguments, "arguments")
            or difference(places, identities(after), "tensors that are one object")
            or difference(hooks, twin.hooks(), "hooks")
        )
        if changed is None and [id(tensor) for _, tensor in held] != [id(tensor) for _, tensor in after]:
            changed = "tensors of the state are other objects"
        if changed is not None:
            raise Differs(f"{case}: the refused call {number} changed the {changed}") from error
        return str(error)
    return None


def _everything(twin: Twin) -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()
    return {
        **twin.state(grads=True),
        "generator": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "modes": (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype()),
    }


def marked_line(step: Any) -> str:
    """Where the marked line of a step is, as messages name it."""
    lines, first = inspect.getsourcelines(step)
    marked = [first + k for k, line in enumerate(lines) if MARK in line]
    assert len(marked) == 1, "one line of a step is to blame"
    return f"{Path(inspect.getsourcefile(step) or '').name}:{marked[0]}"
