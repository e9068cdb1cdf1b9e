"""Arguments of wrong forms, to every door: an error says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.errors import BadOptionValue, UnknownOption

_ROWS = torch.ones(3, 4)
_NO_CALLS: dict[str, Any] = {
    "tensor": _ROWS,
    "number": 3,
    "text": "abc",
    "mapping": {"x": _ROWS},
    "set": {1},
    "generator": (item for item in (_ROWS,)),
}


def _as_it_is(graph: Any, inputs: Any) -> Any:
    return graph


@pytest.mark.parametrize("form", _NO_CALLS)
def test_an_example_call_is_a_sequence(form: str) -> None:
    net: Any = nn.Linear(4, 2)
    with pytest.raises(BadOptionValue, match=r"'example_inputs' cannot be 'a .*\n.*\n.*a tuple or list with"):
        dovetail.compile(net, _NO_CALLS[form])
    with pytest.raises(BadOptionValue, match=r"'args' cannot be 'a .*\n.*\n.*a tuple or list with"):
        dovetail.aot_module_simplified(net, _NO_CALLS[form], _as_it_is)
    if form != "mapping":
        with pytest.raises(BadOptionValue, match=r"'example_inputs' cannot be 'a .*\n.*\n.*give a tuple of arguments"):
            dovetail.freeze(net, _NO_CALLS[form])


def test_the_compiler_in_the_place_of_the_arguments() -> None:
    with pytest.raises(BadOptionValue, match="'fw_compiler' cannot be"):
        dovetail.aot_module_simplified(nn.Linear(4, 2), _as_it_is, (_ROWS,))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [(_ROWS, _ROWS), {"forward": ((), {"rows": _ROWS})}])
def test_an_example_that_the_method_does_not_take(call: Any) -> None:
    with pytest.raises(BadOptionValue, match=r"forward cannot be called so: .*\n.*arguments of forward\(input"):
        dovetail.freeze(nn.Linear(4, 2), call)


@pytest.mark.parametrize("path", [None, 3, b"net.dovetail", nn.Linear(4, 2)], ids=lambda path: type(path).__name__)
def test_a_frozen_program_is_loaded_by_its_path(path: Any) -> None:
    with pytest.raises(BadOptionValue, match="the path of a file"):
        dovetail.load(path)


@pytest.mark.parametrize("path", [None, 3, b"net.dovetail", ""])
def test_a_frozen_program_is_saved_to_a_path(path: Any) -> None:
    frozen = dovetail.freeze(nn.Linear(4, 2), (_ROWS,))
    with pytest.raises(BadOptionValue, match="the path of the new file"):
        frozen.save(path)


@pytest.mark.parametrize("names", [None, 3, True])
def test_passes_and_allowed_operators_are_named(names: Any, tmp_path: Path) -> None:
    with pytest.raises(BadOptionValue, match="it names no passes"):
        dovetail.freeze(nn.Linear(4, 2), (_ROWS,), passes=names)
    dovetail.freeze(nn.Linear(4, 2), (_ROWS,)).save(tmp_path / "net.dovetail")
    with pytest.raises(BadOptionValue, match="it names no operator"):
        dovetail.load(tmp_path / "net.dovetail", allow=names)


_MISSPELT: dict[str, tuple[Callable[..., Any], str]] = {
    "on_unsuported": (lambda **options: dovetail.compile_step(torch.sin, **options), "mean 'on_unsupported'"),
    "keep_source": (lambda **options: dovetail.freeze(nn.Linear(4, 2), (_ROWS,), **options), "mean 'keep_sources'"),
    "example_kwarg": (lambda **options: dovetail.freeze(nn.Linear(4, 2), (_ROWS,), **options), "mean 'example_kwargs'"),
}


@pytest.mark.parametrize("option", _MISSPELT)
def test_options_of_a_door_are_known_by_name(option: str) -> None:
    door, hint = _MISSPELT[option]
    with pytest.raises(UnknownOption, match=hint):
        door(**{option: "eager"})


def test_where_no_line_is_known_no_line_is_shown() -> None:
    with pytest.raises(dovetail.DovetailError) as caught:
        dovetail.compile(nn.Linear(4, 2), [[_ROWS]])
    assert "  from      \n" not in str(caught.value)
