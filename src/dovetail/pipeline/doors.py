"""Which options each way into the compiler reads; every other one that a user gives to it is refused.

The environment is for all of them: a variable whose option a door does not read is no mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dovetail.errors import BadOptionValue


@dataclass(frozen=True, slots=True, eq=False)
class Door:
    """One way in.

    name: as a user writes it. reads: options that have an effect there. reasons: why others have none, where there is
    more to say than that. instead: what to give in their place. parameters: what else it takes by name. choices: of an
    option, where they are fewer than elsewhere. prefers: the executor before `aten` by default, where it can be used.
    """

    name: str
    reads: frozenset[str]
    reasons: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prefers: Literal["aten", "auto", "native"] = "aten"

    def refuse_unread(self, given: Mapping[str, object]) -> None:
        """Raises: BadOptionValue for an option that has no effect here, with the doors where it has one."""
        for option, value in given.items():
            if option not in self.reads:
                reason = self.reasons.get(option, f"{self.name} does not read it")
                readers = [door.name for door in DOORS if option in door.reads]
                expected = self.instead.get(option) or f"it to {_either(readers)}; leave it out here"
                raise BadOptionValue(option=option, value=value, reason=reason, expected=expected)
            if value not in self.choices.get(option, (value,)):
                reason = self.reasons.get(option, "it must be one of the choices")
                raise BadOptionValue(option=option, value=value, reason=reason, expected=_either(self.choices[option]))


def _either(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


_EVERYWHERE = frozenset({"dump", "dump_calls", "verify", "skip", "stop_after", "executors", "compile_trace"})
_PARAMETERS_OF_FREEZE = frozenset(
    {
        "example_kwargs",
        "dynamic_shapes",
        "discard_originals",
        "keep_sources",
        "passes",
        "on_stale",
        "on_grad",
        "measure",
    }
)
_GRAPHS = frozenset(
    {"partition", "recompute", "max_variants", "double_backward", "memory_limit", "policy", "arena", "numerics"}
)

_NO_FILE = {
    "offload": "values go to a file within one program, and come back; only a step runs forward and backward as one"
}
_BY_NAME = {"options": "each option by its own name, as in verify=1"}

COMPILE = Door(
    "dovetail.compile",
    _EVERYWHERE | _GRAPHS | {"dynamic", "donate", "compilers"},
    reasons=_NO_FILE,
    instead=_BY_NAME,
    prefers="native",
)
BACKEND = Door(
    'torch.compile(backend="dovetail")',
    _EVERYWHERE | _GRAPHS | {"compilers"},
    reasons={
        **_NO_FILE,
        "donate": "Dynamo chooses the inputs of its graphs, which can be parameters",
        "dynamic": "Dynamo chooses which sizes are dynamic",
    },
    instead={"dynamic": "torch.compile(dynamic=True)"},
    prefers="native",
)
COMPILE_STEP = Door(
    "dovetail.compile_step",
    _EVERYWHERE
    | {"arena", "max_variants", "dynamic", "keep_grads", "memory_limit", "numerics", "offload", "partition", "policy"},
    reasons={
        "donate": "a step does not overwrite its arguments",
        "partition": "a step's program runs forward and backward: it is not split",
        "recompute": "a step computes again what costs the least for the memory that it gives",
        "double_backward": "backward runs within the step",
    },
    instead=_BY_NAME,
    parameters=frozenset({"state", "on_unsupported"}),
    choices={"partition": ("auto", "default")},
    prefers="native",
)
FREEZE = Door(
    "dovetail.freeze",
    _EVERYWHERE | {"arena", "memory_limit", "policy"},
    reasons={
        "offload": "what a frozen program makes is needed soon after; nothing is kept for a backward",
        "donate": "a frozen program does not overwrite its arguments",
        **dict.fromkeys(("partition", "recompute", "double_backward"), "a frozen program has no backward"),
        "max_variants": "a frozen module has the programs that its example needs, and gets no others",
    },
    instead={
        **_BY_NAME,
        "dynamic": "dynamic_shapes=, by which sizes are symbolic",
    },
    parameters=_PARAMETERS_OF_FREEZE,
    prefers="auto",
)
LOAD = Door("dovetail.load", frozenset({"executors", "skip", "stop_after"}), prefers="auto")
AOT = Door(
    "dovetail.aot_function",
    COMPILE.reads - {"arena", "executors", "compilers", "memory_limit", "numerics"},
    reasons={
        **_NO_FILE,
        **dict.fromkeys(("arena", "memory_limit"), "your compilers make the code, and what it needs is not known"),
        "executors": "your compilers make the code, in place of executors",
        "numerics": "your compilers make the code, and how it rounds is theirs to say",
        "compilers": "it creates them of its arguments",
    },
    instead=_BY_NAME,
)
DOORS = (COMPILE, BACKEND, COMPILE_STEP, FREEZE, LOAD, AOT)
