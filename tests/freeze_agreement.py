"""What must hold of a frozen module, checked on random ones (`freeze_programs`)."""

from __future__ import annotations

import copy
import gc
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dovetail
from dovetail.pipeline.differential import same_bits
from tests.freeze_programs import BATCHES, FreezeProgram, RandomModule, arguments

_SLACK_BYTES = 64  # of padding


class Differs(AssertionError):
    """A frozen module did something else than its model."""


def check_program(program: FreezeProgram) -> None:
    """Freeze it, and check its calls and, by its seed, one thing more. Raises: Differs; DovetailError."""
    _check_calls(program)
    _MORE[program.seed % len(_MORE)](program)


def frozen_of(model: RandomModule, **options: Any) -> dovetail.FrozenModule:
    """The module, all methods frozen."""
    calls = {name: (arguments(1, BATCHES[0]), {}) for name in model.program.methods}
    return dovetail.freeze(model, calls, **options)


def _check_calls(program: FreezeProgram) -> None:
    model, twin = program.model(), program.model()
    before = _facts(model)
    frozen = frozen_of(model, verify=1)
    if _facts(model) != before:
        raise Differs("freezing changed the model")
    own = _bytes(model)
    if frozen.constant_bytes() > own * 1.01 + _SLACK_BYTES + _made_bytes(program):
        raise Differs(f"{frozen.constant_bytes()} bytes of constants, and the model has {own}")
    _same_calls(frozen, twin, "frozen", writes_results=True)
    if _facts(model) != before:
        raise Differs("a call changed the model")


def _check_swapped(program: FreezeProgram) -> None:
    kinds = {held.kind for held in program.held}
    if kinds & {"transient", "plain"} and any(held.of for held in program.held):
        return  # no state dict says what is a part of what
    frozen = frozen_of(program.model())
    if not kinds & {"transient", "plain"}:
        frozen(*arguments(5, BATCHES[0]))  # state that no state dict has would stay
    other = program.model(1)
    frozen.swap_weights(other.state_dict())
    anew = frozen_of(program.model(1))
    _same_state(frozen, anew, program)
    _same_calls(frozen, _as_model(anew, program), "swapped")


def _check_saved(program: FreezeProgram) -> None:
    frozen = frozen_of(program.model())
    with tempfile.TemporaryDirectory() as folder:
        frozen.save(Path(folder) / "model.dovetail")
        loaded = dovetail.load(Path(folder) / "model.dovetail")
        _same_calls(loaded, program.model(), "loaded")


def _check_copied(program: FreezeProgram) -> None:
    model = program.model()
    frozen = frozen_of(model, on_stale="ignore")
    copied = copy.deepcopy(frozen)
    _same_calls(frozen, program.model(), "frozen with copies")
    _same_calls(copied, program.model(), "copied")


def _check_stale(program: FreezeProgram) -> None:
    model = program.model()
    frozen = frozen_of(model)
    if frozen.check_stale():
        raise Differs(f"{frozen.check_stale()} changed by nothing")
    pool, number = frozen._pool, program.seed // len(_MORE)
    wanted = sorted(dotted for name in pool.constants for dotted in pool.origins.get(name, ()))
    wanted = [dotted for dotted in wanted if not dotted.startswith("constant")]
    change = _CHANGES[number % len(_CHANGES)]
    if wanted and change(model, wanted[number % len(wanted)]) and not frozen.check_stale():
        raise Differs(f"{change.__name__} of a tensor was not noticed")
    model.linear = nn.Linear(4, 4)
    if not frozen.check_stale():
        raise Differs("another module was not noticed")


def _check_discarded(program: FreezeProgram) -> None:
    model = program.model()
    seen = [weakref.ref(parameter) for parameter in model.parameters()]
    frozen = frozen_of(model, discard_originals=True)
    gc.collect()
    if any(ref() is not None for ref in seen):
        raise Differs("a discarded parameter is alive")
    _same_calls(frozen, program.model(), "discarded")


_MORE = (_check_swapped, _check_saved, _check_copied, _check_stale, _check_discarded)


# --- comparing --------------------------------------------------------------------------------------------------------


def _same_calls(
    frozen: Callable[..., Any], model: Callable[..., Any], what: str, *, writes_results: bool = False
) -> None:
    """Three rounds of calls give the same bits, write the same and share the same."""
    program = model.program  # type: ignore[attr-defined]
    for round_, batch in enumerate(BATCHES):
        for name in program.methods:
            mine, theirs = arguments(round_ + 10, batch), arguments(round_ + 10, batch)
            torch.manual_seed(round_)
            found: Sequence[Any] | None = None
            failed: IndexError | None = None
            try:
                found = getattr(frozen, name)(*mine)
            except IndexError as error:
                failed = error  # eager must raise as well
            except dovetail.DovetailError as error:
                if batch != BATCHES[0] and error.code == "DT-FREEZE-003":
                    continue
                raise
            torch.manual_seed(round_)
            try:
                with torch.no_grad():
                    wanted = getattr(model, name)(*theirs)
            except IndexError:
                return  # what was written is no index any more, and frozen programs do not look up what nobody reads
            if found is None:
                raise Differs(f"{what}: {name}, call {round_}: {failed}, and eager gives results") from failed
            where = f"{what}: {name}, call {round_}"
            _compare(found, wanted, where)
            _compare(mine, theirs, f"{where}, arguments")
            if _shared([*mine, *found]) != _shared([*theirs, *wanted]):
                raise Differs(f"{where}: other results share memory")
            if writes_results:
                _write_alike(found, wanted)


def _compare(found: Sequence[Any], wanted: Sequence[Any], where: str) -> None:
    if len(found) != len(wanted):
        raise Differs(f"{where}: {len(found)} results, eager has {len(wanted)}")
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if not same_bits(_plain(a), _plain(b)):
            raise Differs(f"{where}: result {number} differs: eager has {b}, and here is {a}")


def _plain(item: Any) -> Any:
    return item.detach() if isinstance(item, Tensor) else item


def _shared(items: Sequence[Any]) -> list[tuple[int, int]]:
    tensors = [(k, x.untyped_storage().data_ptr()) for k, x in enumerate(items) if isinstance(x, Tensor) and x.numel()]
    return [(j, k) for j, a in tensors for k, b in tensors if j < k and a == b]


def _write_alike(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for a, b in zip(found, wanted, strict=True):
        if isinstance(b, Tensor):
            try:
                with torch.no_grad():
                    b.add_(1)
            except RuntimeError:
                continue
            a.add_(1)


def _same_state(frozen: dovetail.FrozenModule, anew: dovetail.FrozenModule, program: FreezeProgram) -> None:
    mine, theirs = frozen.state_dict(), anew.state_dict()
    if mine.keys() != theirs.keys():
        raise Differs(f"swapped: holds {sorted(mine)}, and again it is {sorted(theirs)}")
    kept = {held.name for held in program.held if held.kind in ("transient", "plain")}
    for name in mine.keys() - kept:
        if not frozen._pool.state & {name} and not same_bits(mine[name], theirs[name]):
            raise Differs(f"swapped: {name} differs")


def _as_model(frozen: Any, program: FreezeProgram) -> Any:
    object.__setattr__(frozen, "program", program)
    return frozen


def _facts(model: nn.Module) -> list[Any]:
    """What must not change. Recording counts writes of plain attributes, so that their versions say nothing."""
    plain = {t.untyped_storage().data_ptr() for t in vars(model).values() if isinstance(t, Tensor)}
    held = [
        (name, tensor, -1 if tensor.untyped_storage().data_ptr() in plain else tensor._version)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    ]
    return [(n, id(t), version, t.requires_grad, t.grad, str(t.tolist()), t.stride()) for n, t, version in held]


def _bytes(model: nn.Module) -> int:
    plain = [t for module in model.modules() for t in vars(module).values() if isinstance(t, Tensor)]
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in [*_tensors(model), *plain]}
    return sum(storage.nbytes() for storage in storages.values())


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _made_bytes(program: FreezeProgram) -> int:
    """Bytes of constants that the methods make themselves."""
    return sum(64 for method in program.methods.values() for op, _ in method.steps if op in ("made", "constant"))


# --- changes ----------------------------------------------------------------------------------------------------------


def _write(model: nn.Module, name: str) -> bool:
    tensor = _at(model, name)
    if not _is_writable(tensor):
        return False
    with torch.no_grad():
        tensor.copy_(tensor.clone())
    return True


def _new_data(model: nn.Module, name: str) -> bool:
    tensor = _at(model, name)
    tensor.data = tensor.data.clone()
    return bool(tensor.numel())


def _assign(model: nn.Module, name: str) -> bool:
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    return name in state


def _load(model: nn.Module, name: str) -> bool:
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    if not all(_is_writable(tensor) for tensor in model.state_dict().values()):
        return False
    model.load_state_dict(state)
    return name in state


def _delete(model: nn.Module, name: str) -> bool:
    owner, _, key = name.rpartition(".")
    delattr(model.get_submodule(owner), key)
    return True


def _replace(model: nn.Module, name: str) -> bool:
    owner, _, key = name.rpartition(".")
    module = model.get_submodule(owner)
    old = getattr(module, key)
    is_parameter = isinstance(old, nn.Parameter)
    new = old.detach().clone()
    setattr(module, key, nn.Parameter(new, requires_grad=old.requires_grad) if is_parameter else new)
    return True


_CHANGES: tuple[Callable[[nn.Module, str], bool], ...] = (_write, _new_data, _assign, _load, _delete, _replace)


def _at(model: nn.Module, name: str) -> Tensor:
    owner, _, key = name.rpartition(".")
    found: Tensor = getattr(model.get_submodule(owner), key)
    return found


def _is_writable(tensor: Tensor) -> bool:
    return all(step > 0 or size < 2 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
