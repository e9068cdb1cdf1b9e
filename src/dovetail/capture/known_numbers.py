"""What tensors of one number hold while a step runs on fakes, where that follows from the state before it.

A step count, a loss scale, the number of averaged models: code branches on them, and the branch is known before the
step runs. So each tensor of one number among the state gets a twin with the number, and operators whose operands all
have twins run on those as well. What comes from other tensors is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.ops.facts import facts_of
from dovetail.torch_compat.dispatch import Overload, without_modes
from dovetail.torch_compat.fakes import has_no_numbers
from dovetail.torch_compat.nested import tensors_in


class KnownNumbers:
    """Twins of fake tensors, by identity; the fakes are kept alive by whoever records."""

    def __init__(self) -> None:
        self._twins: dict[int, torch.Tensor] = {}

    def learn(self, fake: torch.Tensor, number: torch.Tensor) -> None:
        """A fake of one element stands for this number, which is copied, if there is one."""
        if fake.numel() == 1 and not has_no_numbers(number):
            with without_modes(), torch.no_grad():
                self._twins[id(fake)] = number.detach().cpu().clone()

    def learn_number(self, fake: torch.Tensor, number: int) -> None:
        """A fake of one element stands for this number."""
        with without_modes():
            self._twins[id(fake)] = torch.tensor(number)

    def end(self) -> None:
        """Nothing is asked any more: let go of the twins, which are real tensors."""
        self._twins.clear()

    def number(self, fake: torch.Tensor) -> bool | int | float | None:
        """The number that a fake holds now; None where it is not known."""
        twin = self._twins.get(id(fake))
        if twin is None:
            return None
        with without_modes():
            number = twin.item()
        return number if isinstance(number, bool | int | float) else None

    def follow(self, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> None:
        """An operator ran on fakes and gave fakes: run it on twins, or forget what it wrote."""
        facts = facts_of(func)
        given = list(tensors_in((*args, *keywords.values())))
        made = list(tensors_in((result,)))
        is_small = all(tensor.numel() == 1 for tensor in (*given, *made)) and len(made) > 0
        if is_small and not (facts.draws or facts.effect) and all(id(tensor) in self._twins for tensor in given):
            self._run(func, args, keywords, given, made, result)
            return
        if not facts.writes:
            return
        for tensor in (*given, *made):  # what is written is not known any more, nor is what shares its memory
            twin = self._twins.pop(id(tensor), None)
            if twin is not None:
                self._forget(twin)

    def _run(
        self,
        func: Overload,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        given: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        result: Any,
    ) -> None:
        with without_modes(), torch.no_grad():
            try:
                found = func(*self._swapped(args), **{name: self._swapped(value) for name, value in keywords.items()})
            except (RuntimeError, NotImplementedError, TypeError):  # a device that is not here, say
                for tensor in (*given, *made):
                    self._twins.pop(id(tensor), None)
                return
            twins = list(tensors_in((found,)))
            if len(twins) == len(made):
                self._twins.update((id(tensor), twin) for tensor, twin in zip(made, twins, strict=True))

    def _forget(self, twin: torch.Tensor) -> None:
        storage = twin.untyped_storage().data_ptr()
        for key in [k for k, other in self._twins.items() if other.untyped_storage().data_ptr() == storage]:
            del self._twins[key]

    def _swapped(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return self._twins[id(argument)]
        if isinstance(argument, list | tuple):
            return type(argument)(self._swapped(item) for item in argument)
        return torch.device("cpu") if isinstance(argument, torch.device) else argument
