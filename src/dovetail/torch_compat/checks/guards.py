"""Checks of `torch_compat.guards`."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from dovetail.torch_compat import guards
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.dispatch import DispatchMode


def check_same_tensors() -> str | None:
    """A tensor like the first is recognised, one that differs in any way is not."""
    example = torch.ones(2, 3)
    same = guards.SameTensors([example])
    others = {
        "sizes": torch.ones(2, 4),
        "strides": torch.ones(3, 2).t(),
        "dtype": torch.ones(2, 3, dtype=torch.float64),
        "device": torch.ones(2, 3, device="meta"),
        "requires_grad": torch.ones(2, 3, requires_grad=True),
        "class": torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
    }
    wrong = [name for name, tensor in others.items() if same.are([tensor])]
    number = torch.ones(2, dtype=torch.complex64)
    complex_numbers = guards.SameTensors([number])
    twins = guards.SameTensors([example, example, number])
    surely = [name for name, tensor in others.items() if same.surely_are(tensor)]
    quick = (same.surely_are(torch.zeros(2, 3)), surely, twins.surely_are(example, example, number))
    return first_difference(
        ("what is said of two tensors in the places of one", twins.are([example, torch.ones(2, 3), number]), False),
        ("what is said of one tensor in both places", twins.are([example, example, number]), True),
        ("the claim that an equal tensor is the same", same.are([torch.zeros(2, 3)]), True),
        ("differences that are not seen", wrong, []),
        ("what C++ alone says of an equal tensor, of others, and of twins", quick, (True, [], False)),
        ("what is said of a conjugate view", complex_numbers.are([number.conj()]), False),
        ("what is said of a tensor in inference mode's grad mode", _without_gradients(same), True),
        ("what is said of an equal tensor while a dispatch mode looks", _looked_at(same, (2, 3)), True),
        ("what is said of another one meanwhile", _looked_at(same, (2, 4)), False),
    )


def check_may_be_asked() -> str | None:
    """About anything but nested tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the API of nested tensors may change
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    found = [guards.may_be_asked(items) for items in ([torch.ones(2), 3, None], [], [torch.ones(2), nested])]
    return first_difference(("about which items", found, [True, True, False]))


class _Looks(DispatchMode):
    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _looked_at(same: guards.SameTensors, shape: tuple[int, int]) -> bool:
    with _Looks():
        return same.are([torch.ones(shape)])


def _without_gradients(same: guards.SameTensors) -> bool:
    with torch.no_grad():
        return same.are([torch.ones(2, 3)])


def check_version_of_dict() -> str | None:
    """A dictionary has another version after each change, and the same one where nothing changed."""
    version_of = guards.version_of_dict
    if version_of is None:
        return None
    one: dict[str, object] = {"a": 1}
    before = version_of(one)
    found = [version_of(one) == before]
    for change in (lambda: one.update(a=2), lambda: one.update(b=1), lambda: one.pop("a"), one.clear):
        change()
        found.append(version_of(one) != before)
        before = version_of(one)
    return first_difference(("what is said of a dictionary that changes", found, [True] * 5))


CHECKS = (check_same_tensors, check_may_be_asked, check_version_of_dict)
