"""One forged file: is it refused, or does it do exactly what it says?

What may happen, and nothing else:

refused          `load` (or the reader of dumps) raises one of dovetail's errors.
not for this     it loads; a call raises one of dovetail's errors, or a TypeError because the forged signature takes
                 other arguments; `file_text` agrees that the file is not for this call.
equal            it loads, and every result, written argument, state and draw has the bits of the honest file's.
another program  it loads, and has the bits of what the file *says*: of its JSON evaluated node by node in eager mode by
                 `file_text`, which shares no code with the reader. Memory that an operator leaves unwritten
                 (`aten.empty`) has no right contents; only shapes and dtypes are compared then.
fails as eager   it loads, and an operator refuses these numbers (an index that is too large, say) with the error that
                 eager raises in `file_text`.

A step of a dump whose descriptions are not true is run too, which is how a wrong pass is found; all that is asked of it
is that it does no harm.

Everything else is a finding: another error, a crash, more than some seconds or bytes, other bits, an audit event, a
file that was touched, a process that is not as it was.
"""

from __future__ import annotations

import copy
import io
import json
import os
import signal
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dovetail
from dovetail.artifact.program_json import program_from_json
from dovetail.errors import DovetailError
from dovetail.inspect.dump_folder import calls_in, read_dump, read_step
from dovetail.inspect.explain_dump import explain_dump
from dovetail.inspect.minify_files import read_source
from dovetail.inspect.plain_run import run_program
from dovetail.inspect.replay import replay
from tests.file_corpus import FROZEN, Subject
from tests.file_forgeries import Forgery, forgery, packed
from tests.file_text import Evaluation, FrozenText, NotForThisCall, leaves_of
from tests.file_watch import Folder, Watch, process_state

REFUSED, NOT_FOR_THIS, EQUAL, ANOTHER, FAILS = (
    "refused",
    "not for this call",
    "equal",
    "another program",
    "fails as eager",
)
OUTCOMES = (REFUSED, NOT_FOR_THIS, EQUAL, ANOTHER, FAILS)
_SECONDS = 5.0
_SEED = 11
_UNWRITTEN = (b"aten.empty", b"aten.new_empty", b"aten.resize", b"aten._efficientzero", b"aten.set_", b"aten._empty")


class Finding(Exception):
    """What must not happen."""


class Bench:
    """Where forged files are written and tried: a folder for them, another to stand in, the watchers."""

    def __init__(self, subjects: Sequence[Subject], folder: Path) -> None:
        self._subjects = list(subjects)
        self._path = folder / "forged.dovetail"
        self._descriptors: dict[Path, int] = {}
        self._dumps = {}
        for subject in subjects:
            if subject.kind != FROZEN:
                self._dumps[subject.name] = folder / f"dump-{subject.name}"
                self._dumps[subject.name].mkdir(exist_ok=True)
                for name, content in subject.members.items():
                    self._write(self._dumps[subject.name] / name, content)
        self._write(self._path, b"")
        self._readable = [str(self._path), *(f"{place}/" for place in self._dumps.values())]
        self._expected = {subject.name: self._of_text(subject.members, subject) for subject in self._models()}
        self.folder = Folder(folder / "here")
        os.chdir(self.folder.path)
        self.watch: Watch | None = None
        self._state = process_state()

    def _models(self) -> list[Subject]:
        return [subject for subject in self._subjects if subject.kind == FROZEN]

    def _write(self, path: Path, content: bytes) -> None:
        """Into a file that is open already: a watched process opens none to write."""
        if path not in self._descriptors:
            self._descriptors[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._descriptors[path], 0)
        os.pwrite(self._descriptors[path], content, 0)

    def start_watching(self) -> None:
        """Install the audit hook, for the rest of this process's life."""
        self.watch = Watch(self._readable)
        self._state = process_state()

    def try_seed(self, seed: int) -> str:
        """One of `OUTCOMES`. Raises: Finding."""
        forged = forgery(self._subjects, seed)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, _SECONDS)  # ends the process, also inside C++
        try:
            outcome = self._tried(forged, seed)
        finally:
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_PROF, 0)
        self._look_around()
        return outcome

    def _look_around(self) -> None:
        events = self.watch.seen if self.watch is not None else []
        if events:
            found = list(dict.fromkeys(events))
            events.clear()
            raise Finding(f"event: {'; '.join(found[:3])}")
        changes = self.folder.changes()
        if changes:
            raise Finding(f"files: {'; '.join(changes[:3])}")
        now = process_state()
        if now != self._state:
            differs = {key: (self._state[key], now[key]) for key in now if now[key] != self._state[key]}
            self._state = now
            raise Finding(f"process: {differs}")

    def _watched(self, call: Callable[[], Any]) -> Any:
        if self.watch is None:
            return call()
        with self.watch.on():
            return call()

    def _tried(self, forged: Forgery, seed: int) -> str:
        return (self._try_model if forged.subject.kind == FROZEN else self._try_dump)(forged, seed)

    # --- frozen models ------------------------------------------------------------------------------------------------

    def _try_model(self, forged: Forgery, seed: int) -> str:
        self._write(self._path, packed(forged.members) if forged.packed is None else forged.packed)
        verify = "full" if seed % 4 == 0 else "fast"
        try:
            model = self._watched(lambda: dovetail.load(self._path, verify=verify, prepack=seed % 3 == 0))
        except DovetailError as error:
            _check_error(error)
            return REFUSED
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise Finding(f"load raises {_said(error)}") from error
        members = forged.members if forged.packed is None else _members_of(forged.packed)
        outcome = self._compared(model, members, forged.subject)
        if any(name.endswith(".unfolded.json") and content != forged.subject.members.get(name)
               for name, content in members.items()) or seed % 16 == 0:  # fmt: skip
            self._swap(model, forged.subject)
        return outcome

    def _compared(self, model: Any, members: Mapping[str, bytes], subject: Subject) -> str:
        text = FrozenText(members)
        found = []
        for method, arguments in subject.calls:
            given, expected_given = copy.deepcopy(arguments), copy.deepcopy(arguments)
            actual = _outcome_of(lambda m=method, g=given: self._watched(lambda: _call(model, m, g)))
            if isinstance(actual, DovetailError):  # the text may say what eager would not survive
                _check_error(actual)
                found.append(NOT_FOR_THIS)
                continue
            expected = _outcome_of(lambda m=method, g=expected_given: text.call(m, g))
            found.append(_agreed(actual, expected, text, method))
            if found[-1] in (EQUAL, ANOTHER) and not _is_vague(text.members):
                _compare("an argument", list(given), list(expected_given))
        if found.count(NOT_FOR_THIS) or found.count(FAILS):
            return FAILS if FAILS in found else NOT_FOR_THIS
        state = self._watched(lambda: dict(model.state_dict()))
        if not _is_vague(text.members):
            _compare("state", [state[k] for k in sorted(state)], [text.tensors[k] for k in sorted(state)])
        return (
            EQUAL
            if all(i == EQUAL for i in found) and _same(self._of_text(members, subject), self._expected[subject.name])
            else ANOTHER
        )

    def _of_text(self, members: Mapping[str, bytes], subject: Subject) -> list[Any]:
        """What the calls of a model give, by its text."""
        text = FrozenText(members)
        found: list[Any] = []
        for method, arguments in subject.calls:
            torch.manual_seed(_SEED)
            with suppress(Exception):
                found.append(copy.deepcopy([text.call(method, copy.deepcopy(arguments))]))
        return found

    def _swap(self, model: Any, subject: Subject) -> None:
        """Other parts of the file are read now: it is refused, or the program is folded again."""
        for step in (
            lambda: model.swap_weights(subject.weights),
            lambda: repr(model),
            model.source_state_dict,
        ):
            try:
                self._watched(step)
            except DovetailError as error:
                _check_error(error)
            except Exception as error:
                raise Finding(f"swapped weights raise {_said(error)}") from error

    # --- dumps --------------------------------------------------------------------------------------------------------

    def _try_dump(self, forged: Forgery, seed: int) -> str:
        folder = self._dumps[forged.subject.name]
        changed = [name for name, content in forged.members.items() if forged.subject.members[name] != content]
        for name in changed:
            self._write(folder / name, forged.members[name])
        try:
            return self._read_dump(folder, changed, forged, seed)
        finally:
            for name in changed:
                self._write(folder / name, forged.subject.members[name])

    def _read_dump(self, folder: Path, changed: Sequence[str], forged: Forgery, seed: int) -> str:
        steps = [folder / name for name in changed if name.endswith(".json")]
        reads: list[Callable[[], Any]] = [lambda: read_dump(folder)]
        if seed % 4 == 0:
            reads.append(lambda: replay(folder))
        if seed % 4 == 1:
            reads += [lambda p=step: replay(p) for step in steps]
        if seed % 4 == 2:
            reads += [lambda: read_source(folder), *(lambda p=step: read_source(p) for step in steps)]
        if seed % 4 == 3:
            reads.append(lambda: [str(explanation) for explanation in explain_dump(folder)])
        for read in reads:
            try:
                self._watched(read)
            except DovetailError as error:
                _check_error(error)
                return REFUSED
            except (Exception, SystemExit) as error:
                raise Finding(f"a reader of dumps raises {_said(error)}") from error
        outcomes = [self._run_step(path, forged) for path in steps]
        return next((outcome for outcome in (FAILS, ANOTHER) if outcome in outcomes), EQUAL)

    def _run_step(self, path: Path, forged: Forgery) -> str:
        """A step that was read runs as its text says, on the inputs of the call that was kept."""
        step = self._watched(lambda: read_step(path))
        data = json.loads(forged.members[path.name])
        call = self._watched(lambda: calls_in(path.parent)).get(step.part)
        if step.program is None or call is None or len(call.inputs) != len(step.program.inputs):
            return NOT_FOR_THIS
        given = copy.deepcopy(list(call.inputs))

        def by_text() -> list[Any]:
            with torch.no_grad():
                return Evaluation(data.get("program", data), given).outputs

        is_told_truly = _is_told_truly(data)
        actual = _outcome_of(
            lambda: self._watched(lambda: list(run_program(step.program, call.inputs, state=call.state)))
        )
        if isinstance(actual, DovetailError):
            _check_error(actual)
            return NOT_FOR_THIS
        if not is_told_truly:
            return FAILS if isinstance(actual, Exception) else ANOTHER
        torch.set_rng_state(call.state)
        try:
            expected: Any = by_text()
        except Exception as error:
            expected = error
        if isinstance(actual, Exception) or isinstance(expected, Exception):
            _check_alike(actual, expected)
            return FAILS
        if not _is_vague({path.name: forged.members[path.name]}):
            _compare("result of a step", actual[0], expected)
        return ANOTHER

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def honest_suite(self) -> list[str]:
        """What honest files and functions give, as texts and bits; equal before and after forged files were read."""
        found = []
        for subject in self._models():
            self._write(self._path, packed(subject.members))
            model = dovetail.load(self._path)
            for method, arguments in subject.calls:
                torch.manual_seed(_SEED)
                found.append(_bits(_call(model, method, copy.deepcopy(arguments))))
        for function, arguments in _FUNCTIONS:
            compiled = dovetail.compile(function)
            torch.manual_seed(_SEED)
            found.append(_bits(compiled(*copy.deepcopy(arguments))))
            found.append(str(compiled.graphs[0].forward.program))
        found.append(_bits(torch.rand(3)))
        return found


def _lerped(x: Tensor) -> Tensor:
    y = x.clone()
    y.unfold(0, 2, 1)[0].lerp_(torch.ones(2), 0.5)
    return y + torch.rand_like(y)


def _dropped(x: Tensor, y: Tensor) -> Tensor:
    x.t()[0].add_(1)
    return torch.nn.functional.dropout(x @ y, 0.5) * x.shape[0]


_FUNCTIONS: tuple[tuple[Callable[..., Any], tuple[Tensor, ...]], ...] = (
    (_lerped, (torch.linspace(-1, 1, 4),)),
    (_dropped, (torch.linspace(-1, 1, 9).reshape(3, 3), torch.linspace(0, 1, 9).reshape(3, 3))),
)


def _call(model: Any, method: str, arguments: Sequence[Any]) -> Any:
    return model(*arguments) if method == "forward" else getattr(model, method)(*arguments)


def _outcome_of(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error that it raises; with one seed, and the state of the generator afterwards."""
    torch.manual_seed(_SEED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(), torch.get_rng_state()
    except Exception as error:
        return error


def _agreed(actual: Any, expected: Any, text: FrozenText, method: str) -> str:
    if isinstance(expected, NotForThisCall):
        is_ours = isinstance(actual, DovetailError | TypeError | AttributeError)
        if not is_ours:
            raise Finding(f"the file is not for this call ({expected}), which gives {_said(actual)}")
        return NOT_FOR_THIS
    if isinstance(actual, Exception) or isinstance(expected, Exception):
        _check_alike(actual, expected)
        return FAILS
    (found, after), (wanted, wanted_after) = actual, expected
    entry = text.index["methods"][method]
    trees = [leaves_of(found, variant["results"]) for variant in entry["variants"]]
    leaves = next((tree for tree in trees if tree is not None), None)
    if leaves is None:
        raise Finding("the result has another structure than the file says")
    if not _is_vague(text.members):
        _compare("a result", leaves, wanted)
        if not torch.equal(after, wanted_after):
            raise Finding("the generator is in another state than the file says")
    return EQUAL


def _is_told_truly(step: Mapping[str, Any]) -> bool:
    """Whether a step says the truth about its values. Dumps are read to find passes that do not, so it is run anyway.

    What it gives then depends on which of its words are believed: only that it does no harm is asked.
    """
    hints = step.get("hints", {})
    try:
        program_from_json(step.get("program", step), sizes=lambda _: hints)
    except ValueError:
        return False
    return True


def _check_alike(actual: Any, expected: Any) -> None:
    """Both fail, and in the same way."""
    if type(actual) is not type(expected):
        raise Finding(f"a call gives {_said(actual)}, by the text of the file {_said(expected)}")


def _check_error(error: DovetailError) -> None:
    if error.code.startswith("DT-INTERNAL") or len(str(error)) > 20_000:
        raise Finding(f"the error is {_said(error)}")


def _said(outcome: Any) -> str:
    text = f"{type(outcome).__name__}: {str(outcome).splitlines()[0] if str(outcome) else ''}"
    return text[:300] if isinstance(outcome, BaseException) else "results"


def _is_vague(members: Mapping[str, bytes]) -> bool:
    """Whether some operator leaves memory unwritten."""
    return any(name in content for content in members.values() for name in _UNWRITTEN)


def _members_of(content: bytes) -> dict[str, bytes]:
    """The members of a file as any reader of ZIP archives sees them."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def _compare(what: str, actual: Sequence[Any], expected: Sequence[Any]) -> None:
    if len(actual) != len(expected):
        raise Finding(f"{what}: {len(actual)} items, {len(expected)} by the text of the file")
    for place, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if not _same(a, b):
            raise Finding(f"{what} {place} is {_shown(a)}, by the text of the file {_shown(b)}")


def _shown(item: Any) -> str:
    if isinstance(item, Tensor):
        return f"{item.dtype}{list(item.shape)} strides {item.stride()} {item.detach().flatten()[:4].tolist()}"
    return repr(item)[:100]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return type(a) is type(b) and repr(a) == repr(b)
    if (a.dtype, a.shape, a.layout) != (b.dtype, b.shape, b.layout):
        return False
    return a.layout is not torch.strided or a.device.type == "meta" or _bits(a) == _bits(b)


def _bits(item: Any) -> str:
    """Every bit of a result as text; all NaN are one."""
    if isinstance(item, Tensor):
        plain = item.detach().resolve_conj().resolve_neg().contiguous().clone()
        if plain.is_complex() and plain.dtype is not torch.complex32:
            plain = torch.view_as_real(plain)
        if plain.is_floating_point() and plain.dtype.itemsize > 1:
            plain = torch.where(plain.isnan(), torch.full_like(plain, float("nan")), plain)
        return f"{item.dtype} {tuple(item.shape)} {bytes(plain.flatten().view(torch.uint8).numpy()).hex()}"
    if isinstance(item, dict):
        return str({key: _bits(value) for key, value in item.items()})
    if isinstance(item, list | tuple):
        return str([_bits(part) for part in item])
    return (
        repr(item) if isinstance(item, int | float | str | bool | type(None)) else str([_bits(part) for part in item])
    )
