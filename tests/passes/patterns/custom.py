"""Custom operators that write, as torch hands them to a backend."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.passes.patterns.pattern import AHEAD_OF_TIME, Pattern

_LIBRARY = torch.library.Library("dovetail_patterns", "DEF")
_LIBRARY.define("write_two(Tensor(a!) x, Tensor(b!) y, Tensor by, float scale=1.0) -> ()")
_LIBRARY.define("write_list(Tensor(a!)[] xs, Tensor by) -> Tensor")
_LIBRARY.define("write_cache(Tensor key, Tensor(a!) cache, Tensor slots) -> ()")
ops = torch.ops.dovetail_patterns


def _write_two(x: Tensor, y: Tensor, by: Tensor, scale: float = 1.0) -> None:
    x.add_(by, alpha=scale)
    y.mul_(by)


def _write_list(xs: list[Tensor], by: Tensor) -> Tensor:
    for x in xs:
        x.add_(by)
    return by * 2


def _write_cache(key: Tensor, cache: Tensor, slots: Tensor) -> None:
    cache[slots] = key


for _name, _function in (("write_two", _write_two), ("write_list", _write_list), ("write_cache", _write_cache)):
    _LIBRARY.impl(_name, _function, "CPU")
_LIBRARY.impl("write_two", lambda x, y, by, scale=1.0: None, "Meta")
_LIBRARY.impl("write_list", lambda xs, by: torch.empty_like(by), "Meta")
_LIBRARY.impl("write_cache", lambda key, cache, slots: None, "Meta")


def two_slices(x: Tensor, by: Tensor) -> None:
    ops.write_two(x[:4], x[4:], by)


def split_of_an_input(x: Tensor, by: Tensor) -> None:
    first, second = x.split(4)
    ops.write_two(first, second, by, 2.0)


def split_of_a_temporary(x: Tensor, by: Tensor) -> Tensor:
    y = x * 2
    first, second = y.split(4)
    ops.write_two(first, second, by)
    return y


def whole_inputs(x: Tensor, y: Tensor, by: Tensor) -> Tensor:
    ops.write_two(x, y, by)
    return x + y


def columns_of_an_input(x: Tensor, by: Tensor) -> None:
    ops.write_two(x.t()[:4], x.t()[4:], by)


def list_of_an_input_and_a_temporary(x: Tensor, by: Tensor) -> Tensor:
    result: Tensor = ops.write_list([x, x * 2], by)
    return result


def list_of_parts(x: Tensor, by: Tensor) -> None:
    ops.write_list([x[:4], x[4:]], by)


def one_layer_of_a_cache(cache: Tensor, key: Tensor, slots: Tensor) -> Tensor:
    ops.write_cache(key, cache[1], slots)
    return cache[1].sum(0)


def two_layers_in_turn(cache: Tensor, key: Tensor, slots: Tensor) -> Tensor:
    ops.write_cache(key, cache[0], slots)
    key = key + cache[0].mean(0)
    ops.write_cache(key, cache[1], slots)
    return key


def old_contents_are_read(cache: Tensor, key: Tensor, slots: Tensor) -> Tensor:
    old = cache.view(32, 4)[3] * 2
    ops.write_cache(key, cache.view(32, 4), slots)
    return old


def old_contents_are_kept(cache: Tensor, key: Tensor, slots: Tensor) -> Tensor:
    old = cache.clone()
    ops.write_cache(key, cache.view(32, 4), slots)
    return old


def result_of_a_chain(x: Tensor, by: Tensor) -> Tensor:
    y = torch.relu(x)
    ops.write_two(y[:4], y[4:], by)
    z = y + 1
    ops.write_two(z[4:], z[:4], by)
    return z


def _halves() -> tuple[Tensor, ...]:
    return torch.randn(8, 6), torch.randn(4, 6)


def _cache() -> tuple[Tensor, ...]:
    return torch.randn(2, 16, 4), torch.randn(2, 4), torch.tensor([7, 2])


PATTERNS = (
    Pattern("custom: two slices", two_slices, _halves, AHEAD_OF_TIME, report="pytorch#127660"),
    Pattern("custom: split of an input", split_of_an_input, _halves, AHEAD_OF_TIME, report="vllm#8480"),
    Pattern("custom: split of a temporary", split_of_a_temporary, _halves, AHEAD_OF_TIME, report="vllm#8480"),
    Pattern(
        "custom: whole inputs",
        whole_inputs,
        lambda: (torch.randn(8, 6), torch.randn(8, 6), torch.randn(8, 6)),
        AHEAD_OF_TIME,
    ),
    Pattern(
        "custom: columns of an input",
        columns_of_an_input,
        lambda: (torch.randn(6, 8), torch.randn(4, 6)),
        AHEAD_OF_TIME,
    ),
    Pattern(
        "custom: a list", list_of_an_input_and_a_temporary, lambda: (torch.randn(8, 6), torch.randn(8, 6)), ("aot_v2",)
    ),
    Pattern("custom: a list of parts", list_of_parts, _halves, ("aot_v2",)),
    Pattern("custom: one layer of a cache", one_layer_of_a_cache, _cache, AHEAD_OF_TIME, report="pytorch#136269"),
    Pattern("custom: two layers in turn", two_layers_in_turn, _cache, AHEAD_OF_TIME, report="pytorch#131192"),
    Pattern("custom: old contents are read", old_contents_are_read, _cache, AHEAD_OF_TIME, report="pytorch#132995"),
    Pattern(
        "custom: old contents are kept",
        old_contents_are_kept,
        _cache,
        AHEAD_OF_TIME,
        copies=1,
        why="old and new contents are both kept",
    ),
    Pattern("custom: a chain", result_of_a_chain, _halves, AHEAD_OF_TIME, report="pytorch#112440"),
)
