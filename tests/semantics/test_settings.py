"""Settings of torch that code asks for: another answer is another kind of call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import deterministic
from torch.utils.data._utils import worker

import dovetail
from dovetail.errors import DovetailError
from dovetail.torch_compat.settings import setting_functions, setting_of

DOORS = [dovetail.compile, dovetail.compile_step]
Get = Callable[[], Any]


class Setting(NamedTuple):
    """A setting: what asks for it in code of the user's, what sets it, and its other value."""

    ask: Get
    put: Callable[[Any], Any]
    other: Any


def _attribute(owner: Any, name: str, other: Any) -> Setting:
    def put(value: Any) -> None:
        with torch.backends.__allow_nonbracketed_mutation():  # torch's own tests, where imported, forbid it
            setattr(owner, name, value)

    return Setting(lambda: getattr(owner, name), put, other)


def _by_functions() -> Iterator[tuple[str, Setting]]:
    """Every flag that a function of C tells and another one sets."""
    for function in sorted(setting_functions(), key=lambda function: function.__name__):
        name = function.__name__.lstrip("_")
        stem = name.partition("_")[2]
        setter = next((x for n in (f"_set_{stem}", f"set_{stem}") if (x := getattr(torch._C, n, None))), None)
        asked = setting_of(function)
        if setter is not None and asked is not None and isinstance(now := asked(), bool):
            yield name, Setting(function, setter, not now)


def _by_properties() -> Iterator[tuple[str, Setting]]:
    """Every flag that is a property of a module of `torch.backends`."""
    for home, module in sorted(vars(torch.backends).items()):
        if isinstance(module, ModuleType) and type(module) is not ModuleType:
            for name in sorted(vars(type(module))):
                now = getattr(module, name)
                if isinstance(now, bool) and name not in ("m", "is_opt_einsum_available"):
                    yield f"{home}.{name}", _attribute(module, name, not now)


def _put_printing(value: int) -> None:
    torch.set_printoptions(precision=value)


class Worker(NamedTuple):
    id: int


_TEXT = torch.ones(1) / 3
OF_PYTHON: dict[str, Setting] = {
    "fill": _attribute(deterministic, "fill_uninitialized_memory", False),
    "overwrite": Setting(
        torch.__future__.get_overwrite_module_params_on_conversion,
        torch.__future__.set_overwrite_module_params_on_conversion,
        True,
    ),
    "swap": Setting(
        torch.__future__.get_swap_module_params_on_conversion,
        torch.__future__.set_swap_module_params_on_conversion,
        True,
    ),
    "text": Setting(lambda: str(_TEXT), lambda value: _put_printing(4 if value == "tensor([0.3333])" else 7), 7),
    "printing": Setting(lambda: torch._tensor_str.get_printoptions()["precision"], _put_printing, 7),
    "warn always": Setting(torch.is_warn_always_enabled, torch.set_warn_always, True),
    "worker": Setting(
        lambda: torch.utils.data.get_worker_info() is None,
        lambda value: setattr(worker, "_worker_info", None if value is True else value),
        Worker(3),
    ),
    "sharing": Setting(
        torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy, "file_system"
    ),
    "folder": Setting(torch.hub.get_dir, torch.hub.set_dir, "/models"),
    "engine": _attribute(torch.backends.quantized, "engine", "onednn"),
    "options": _attribute(torch._dynamo.config, "recompile_limit", 3),
    "seed": Setting(torch.default_generator.initial_seed, torch.default_generator.manual_seed, 5),
    "product": Setting(
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
        lambda value: setattr(torch.backends.mkldnn.matmul, "fp32_precision", value),
        "bf16",
    ),
}
SETTINGS: dict[str, Setting] = {**dict(_by_functions()), **dict(_by_properties()), **OF_PYTHON}


def _can_be_set(setting: Setting) -> bool:
    """Whether a setting is one of this machine's."""
    before = setting.ask()
    try:
        setting.put(setting.other)
    except RuntimeError:
        return False
    is_other = bool(setting.ask() != before)
    setting.put(before)
    return is_other


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_another_answer_is_another_kind_of_call(door: Callable[..., Any]) -> None:
    wrong = []
    settings = {name: setting for name, setting in SETTINGS.items() if _can_be_set(setting)}
    for name, setting in settings.items():
        before = setting.ask()
        answers = list[Any]()

        def program(x: Tensor, ask: Get = setting.ask) -> tuple[Tensor, Any]:
            return x + 1, ask()

        compiled = door(program)
        try:
            for value in (before, before, setting.other, before, setting.other):
                setting.put(value)
                answers.append((compiled(torch.ones(1))[1], setting.ask()))
        finally:
            setting.put(before)
        if any(a != b for a, b in answers) or compiled.stats.captures > 2:
            wrong.append((name, answers, compiled.stats.captures))
    assert not wrong
    assert len(settings) > 30


def test_settings_that_nobody_asks_for_keep_the_program() -> None:
    compiled = dovetail.compile(lambda x: x * torch.get_num_threads())
    for benchmark in (True, False, True):
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, benchmark=benchmark):
            assert compiled(torch.ones(1)).item() == torch.get_num_threads()
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("door", [*DOORS, lambda f: torch.compile(f, backend="dovetail")])
def test_precision_that_one_name_cannot_tell(door: Callable[..., Any]) -> None:
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    torch.compiler.reset()
    compiled = door(lambda x: x @ x)
    x = torch.randn(3, 3)
    try:
        for precision in ("tf32", "ieee", "tf32"):
            products.fp32_precision = precision
            for _ in range(2):
                assert torch.equal(compiled(x), x @ x)
    finally:
        products.fp32_precision = before


OF_NUMBERS: dict[str, Callable[[Tensor, list[Any]], Any]] = {
    "result": lambda x, _: (x, f"loss {x.sum()}"),
    "inside": lambda x, _: (x, {"log": [str(x)]}),
    "kept": lambda x, kept: (x, kept.append(repr(x)))[0],
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_texts_of_numbers_that_a_program_computes_are_refused(name: str) -> None:
    kept = list[Any]()
    with pytest.raises(DovetailError, match="text of a tensor's numbers"):
        dovetail.compile(lambda x: OF_NUMBERS[name](x * 2, kept))(torch.ones(2))
    assert kept == []


def _is_captured() -> bool:
    try:
        return bool(torch.cuda.is_current_stream_capturing())  # raises where torch was built without CUDA
    except RuntimeError:
        return False


@pytest.mark.parametrize("door", DOORS)
def test_a_question_that_raises_is_not_asked_before_calls(door: Any) -> None:
    compiled = door(lambda x: x.mul(3.0) if _is_captured() else x.mul(2.0))
    for number in range(3):
        assert compiled(torch.full((2,), float(number))).tolist() == [2.0 * number] * 2
    assert compiled.stats.captures == 1
