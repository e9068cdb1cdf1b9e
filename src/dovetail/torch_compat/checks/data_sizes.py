"""Checks of `torch_compat.data_sizes`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import data_sizes, fakes, symbols
from dovetail.torch_compat.checks.difference import first_difference


def check_with_shape_env() -> str | None:
    """A mode without symbols gets an environment, in which a selection has a size; other fakes stay static."""
    mode = fakes.new_fake_mode()
    with mode:
        mask = torch.empty(4, dtype=torch.bool)
    env = data_sizes.with_shape_env(mode)
    with mode:
        count = mask.nonzero().shape[0]
        other = torch.empty(3).shape[0]
    return first_difference(
        ("the environment", data_sizes.with_shape_env(mode) is env, True),
        ("the type of the size", type(count), torch.SymInt),
        ("the type of another size", type(other), int),
    )


def check_size_with_hint() -> str | None:
    """Questions about it are answered by its number and noted, also where it is 0, 1 or negative."""
    env = symbols.new_shape_env()
    many, one, none, below = (data_sizes.size_with_hint(env, now) for now in (5, 1, 0, -2))
    answers = [bool(many > 3), bool(one == 1), bool(none == 0), bool(below < 0)]
    return first_difference(
        ("the answers", answers, [True] * 4),
        ("the number of noted ones", symbols.guard_count(env), 4),
        ("whether it may be 1", bool(many != 1), True),
        ("what is noted of that", symbols.guard_count(env), 4),
    )


def check_without_hint() -> str | None:
    """Sizes that torch makes for what depends on data have no number; those that were made with one have."""
    env = symbols.new_shape_env()
    with fakes.new_fake_mode(env):
        found = torch.empty(4, dtype=torch.bool).nonzero()
        other = torch.empty(3)
    known = data_sizes.size_with_hint(env, 5)
    values = (found, found.shape[0], other, known, known + 1, 3)
    return first_difference(("which", list(map(data_sizes.without_hint, values)), [True, True, *[False] * 4]))


def check_assume() -> str | None:
    """What is assumed of a number that nothing is known of becomes a fact that programs check."""
    env = symbols.new_shape_env()
    with fakes.new_fake_mode(env):
        number = torch.empty(2, dtype=torch.int64).sum().item()
    before = symbols.expected_trees(env)
    data_sizes.assume(number == 1)
    return first_difference(("facts before and after", (len(before), len(symbols.expected_trees(env))), (0, 1)))


def check_asked_truths() -> str | None:
    """Branches are answered while it is active, and not afterwards."""
    env = symbols.new_shape_env()
    known = data_sizes.size_with_hint(env, 5)
    with fakes.new_fake_mode(env):
        unknown = torch.empty(2, dtype=torch.int64).sum().item()
    with data_sizes.asked_truths(lambda number, _: False if data_sizes.without_hint(number) else None):
        answers = [bool(unknown == 1), bool(known == 5)]
    try:
        bool(unknown == 1)
    except fakes.DATA_DEPENDENT_ERRORS:
        answers.append(True)
    return first_difference(("answers", answers, [False, True, True]))


CHECKS = (check_with_shape_env, check_size_with_hint, check_without_hint, check_assume, check_asked_truths)
