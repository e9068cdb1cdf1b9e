"""Options of a compilation. Frozen and keyword-only; the environment is read when they are created.

| option | environment | read by | meaning |
|---|---|---|---|
| dump | DOVETAIL_DUMP | all but load | folder for the text of the program after every pass |
| dump_calls | DOVETAIL_DUMP_CALLS | all but load | also the tensors of the first call of each program |
| verify | DOVETAIL_VERIFY | all but load | 1: stage rules and purity of every pass; 2: also run both sides of each |
| skip | DOVETAIL_SKIP | all | names of passes to leave out, separated by commas |
| stop_after | DOVETAIL_STOP_AFTER | all | name of the last pass to run |
| partition | DOVETAIL_PARTITION | graphs, step | auto, min_cut: save least; default: save all; or a function |
| recompute | DOVETAIL_RECOMPUTE | graphs | what may run again: cheap (pointwise, copies), or all; auto: see docs |
| memory_limit | - | compile, backend, step, freeze | bytes of a call at most: "6GiB"; above state: "transient:2GiB" |
| arena | - | compile, backend, step, freeze | results lie in one block, at planned offsets: docs/memory.md |
| offload | - | step | a folder for a file to which values go that are dear to make again; beside memory_limit |
| policy | - | compile, backend, step, freeze, aot | what runs again: {pattern: "SAVE", "RECOMPUTE", "MUST_..."} |
| max_variants | - | graphs, step | limit on kinds of calls of a function, and on programs of each kind; default: 8 |
| dynamic | - | compile, step, aot | one program for all sizes above 1 of the arguments |
| double_backward | - | graphs | keep the inputs of each call, so that backward works with create_graph=True |
| donate | - | compile, aot | arguments, by name or position, that calls may overwrite; see docs/inplace.md |
| numerics | - | compile, backend, step | eager: eager's bits; fast: results may differ by rounding: docs/native.md |
| keep_grads | - | step | False: do not leave gradients in `.grad` where the step begins by clearing it |
| executors | DOVETAIL_EXECUTORS | all but aot | executors, or names ("native,aten"), in order: docs/native.md |
| compile_trace | - | all but load | a `CompileTrace` that keeps the result of every pass; see `dovetail.explain` |
| compilers | - | compile, backend | user-supplied `Compilers`, called instead of executors |

Graphs: `dovetail.compile`, the backend, and `dovetail.aot_function` with its relatives. `pipeline.doors` says the same
in code: an option that is given where nothing reads it is refused. Variables are for all doors.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dovetail.deferred import deferred
from dovetail.errors import BadOptionValue, UnknownOption
from dovetail.execute.installed import default_executors, executor_by_name
from dovetail.execute.protocol import Executor
from dovetail.partition.patterns import Patterns, patterns_of
from dovetail.pipeline.compile_trace import CompileTrace
from dovetail.pipeline.doors import Door
from dovetail.pipeline.memory_limit import memory_limit

if TYPE_CHECKING:
    from dovetail.execute import foreign
    from dovetail.execute.foreign import Compilers
    from dovetail.partition.problem import Problem
    from dovetail.pipeline import dump_folder, offload
    from dovetail.torch_compat.decompositions import Decompositions
else:
    foreign = deferred("dovetail.execute.foreign")
    dump_folder, offload = deferred("dovetail.pipeline.dump_folder"), deferred("dovetail.pipeline.offload")

_NO_LIMIT_BESIDE = {
    "dynamic": "one program is for all sizes of the arguments, and a limit is kept for those that it was made for",
    "double_backward": "backward with create_graph=True runs in eager mode, which keeps no limit",
    "compilers": "they make the code, and what it needs is not known",
}
_NO_ARENA_BESIDE = {
    "dynamic": "one program is for all sizes of the arguments, and an arena is planned for those that it was made for",
    "offload": "what comes back from a file lies in memory of its own",
    "compilers": "they make the code, and where it puts results is theirs to say",
}
_VERIFY_LEVELS = (0, 1, 2)
_OBJECTS = (
    (
        "compilers",
        lambda: foreign.Compilers,
        "dovetail.aot_function creates it",
        "Compilers(forward, backward, inference)",
    ),
    (
        "compile_trace",
        lambda: CompileTrace,
        "it keeps the steps of a compilation",
        "a CompileTrace of dovetail.pipeline.compile_trace",
    ),
)
_CHOICES = {
    "partition": ("default", "min_cut", "auto"),
    "recompute": ("auto", "cheap", "all"),
    "numerics": ("eager", "fast"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options; see the table of `dovetail.pipeline.options`. Created by `resolve_options`."""

    dump: str | None = None
    dump_calls: bool = False
    verify: int = 0
    skip: tuple[str, ...] = ()
    stop_after: str | None = None
    partition: str | Callable[[Problem], Collection[int]] = "auto"
    recompute: str = "auto"
    memory_limit: str | int | None = None
    arena: bool = False
    offload: str | os.PathLike[str] | None = None
    policy: Patterns = field(default_factory=lambda: Patterns({}))
    max_variants: int = 8
    dynamic: bool = False
    double_backward: bool = False
    donate: tuple[str | int, ...] = ()
    keep_grads: bool = True
    numerics: str = "eager"
    executors: tuple[str | Executor, ...] = ("aten",)
    compilers: Compilers | None = None
    compile_trace: CompileTrace | None = None

    @property
    def recomputes(self) -> str:
        """What backward may run again: "cheap" or "all"."""
        if self.recompute != "auto":
            return self.recompute
        return "cheap" if self.memory_limit is None else "all"


def resolve_options(
    given: Mapping[str, object] | None, pass_names: tuple[str, ...] = (), door: Door | None = None
) -> Options:
    """Options from the environment, overridden by what the user gives. door: the way in that they are given to.

    Raises: UnknownOption, BadOptionValue, DumpNotWritten, OffloadUnavailable, before anything else happens.
    """
    known = {field.name for field in dataclasses.fields(Options)}
    for name in given or {}:
        if name not in known:
            offered = known if door is None else door.reads | door.parameters
            close = difflib.get_close_matches(name, offered, n=1)
            suggestion = f"did you mean {close[0]!r}?" if close else "remove it"
            if door is not None and name in door.instead:
                suggestion = f"give {door.instead[name]}"
            raise UnknownOption(option=name, known=", ".join(sorted(offered)), suggestion=suggestion)
    if door is not None:
        door.refuse_unread(given or {})
    from_environment = {name: value for name, value in _from_environment().items() if name not in (given or {})}
    try:
        return _resolved({**from_environment, **(given or {})}, pass_names, door)
    except BadOptionValue as error:
        option = error.facts["option"]
        if option not in from_environment:
            raise
        reason = f"{error.facts['reason']}, and the environment variable {_VARIABLES[option]} sets it"
        raise BadOptionValue(**{**error.facts, "reason": reason}) from None


def _resolved(values: dict[str, object], pass_names: tuple[str, ...], door: Door | None) -> Options:
    if door is not None and door.prefers != "aten" and "executors" not in values:
        values["executors"] = default_executors() if door.prefers == "native" else (door.prefers, "aten")
    for name in ("skip", "executors"):
        if isinstance(values.get(name), str):
            values[name] = tuple(part for part in str(values[name]).split(",") if part)
        elif isinstance(values.get(name), list):
            values[name] = tuple(values[name])  # type: ignore[arg-type]
    values["policy"] = patterns_of(values.get("policy", {}))
    donate = values.get("donate", ())
    values["donate"] = tuple(donate) if isinstance(donate, list | tuple | set | frozenset) else (donate,)
    options = Options(**values)  # type: ignore[arg-type]
    _check(options, pass_names)
    for executor in options.executors:
        if isinstance(executor, str):
            executor_by_name(executor)
    _check_folders(options, reads_dump=door is None or "dump" in door.reads)
    if options.memory_limit is not None:
        memory_limit(options.memory_limit)
        _refuse_beside("memory_limit", options, _NO_LIMIT_BESIDE)
    if options.arena:
        _refuse_beside("arena", options, _NO_ARENA_BESIDE)
    return options


def _check_folders(options: Options, *, reads_dump: bool) -> None:
    if options.dump is not None and reads_dump:
        dump_folder.check_folder(options.dump)
    if options.offload is not None:
        offload.check_folder(options.offload, has_limit=options.memory_limit is not None)


def _refuse_beside(name: str, options: Options, reasons: Mapping[str, str]) -> None:
    """Refuse options that do not go together with one. reasons: by option."""
    for option, reason in reasons.items():
        value: object = getattr(options, option)
        if value:
            raise BadOptionValue(option=option, value=value, reason=reason, expected=f"no {name} beside it")


def decompositions(options: Options) -> Decompositions | None:
    """The rules by which operators are taken apart while recording, if there are any."""
    return None if options.compilers is None else options.compilers.decompositions


_VARIABLES = {
    "dump": "DOVETAIL_DUMP",
    "dump_calls": "DOVETAIL_DUMP_CALLS",
    "skip": "DOVETAIL_SKIP",
    "stop_after": "DOVETAIL_STOP_AFTER",
    "partition": "DOVETAIL_PARTITION",
    "recompute": "DOVETAIL_RECOMPUTE",
    "executors": "DOVETAIL_EXECUTORS",
    "verify": "DOVETAIL_VERIFY",
}


def _from_environment() -> dict[str, object]:
    found: dict[str, object] = {}
    for option, variable in _VARIABLES.items():
        if os.environ.get(variable):
            found[option] = os.environ[variable]
    if "dump_calls" in found:
        found["dump_calls"] = found["dump_calls"] != "0"
    level = found.get("verify")
    if isinstance(level, str) and level.isdigit():
        found["verify"] = int(level)
    return found


def _foreign_objects(options: Options) -> Iterator[tuple[str, object, str, str]]:
    """Options that are not of the class that they must be: name, value, reason, what is expected."""
    for option, kind, reason, expected in _OBJECTS:
        value = getattr(options, option)
        if value is not None and not isinstance(value, kind()):
            yield option, value, reason, expected


def _check(options: Options, pass_names: tuple[str, ...]) -> None:
    def refuse(option: str, value: object, reason: str, expected: str) -> None:
        raise BadOptionValue(option=option, value=value, reason=reason, expected=expected)

    if options.verify not in _VERIFY_LEVELS or isinstance(options.verify, bool):
        refuse("verify", options.verify, "it is a level", "0, 1 or 2")
    if not isinstance(options.max_variants, int) or isinstance(options.max_variants, bool) or options.max_variants < 1:
        refuse("max_variants", options.max_variants, "at least one program must be kept", "a whole number from 1")
    dump: object = options.dump
    if dump is not None and (not isinstance(dump, str | os.PathLike) or not os.fspath(dump)):
        refuse("dump", dump, "it is a folder", "a path")
    for option, choices in _CHOICES.items():
        is_function = option == "partition" and callable(options.partition)
        if not is_function and getattr(options, option) not in choices:
            refuse(
                option,
                getattr(options, option),
                "it must be one of the choices",
                ", ".join(choices[:-1]) + f" or {choices[-1]}",
            )
    for switch in ("arena", "dump_calls", "dynamic", "double_backward", "keep_grads"):
        value: object = getattr(options, switch)
        if not isinstance(value, bool):
            refuse(switch, value, "it is a flag", "True or False")
    for option, kinds in (("skip", str), ("executors", str | Executor)):
        value = getattr(options, option)
        if not isinstance(value, tuple) or not all(isinstance(item, kinds) for item in value):
            refuse(option, value, "it is a list of names", "a list or a comma-separated string of names")
    for option, value, reason, expected in _foreign_objects(options):
        refuse(option, value, reason, expected)
    for option, names in (("skip", options.skip), ("stop_after", (options.stop_after,))):
        unknown = [name for name in names if name is not None and name not in pass_names]
        if unknown and pass_names:
            refuse(option, unknown[0], "there is no such pass", f"one of {', '.join(pass_names)}")
