"""Functions of `math`, `statistics` and NumPy that code holds by names of its own: `from math import exp`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dovetail.frontends.step.containers import Fixed
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.torch_compat.traced_maths import STAND_INS


@contextlib.contextmanager
def maths_by_name(reachable: ReachableState) -> Iterator[None]:
    """While active, what holds such a function holds what the module has while numbers are followed."""
    with contextlib.ExitStack() as stack:
        for slot, held in reachable.holding_any(STAND_INS):
            if not isinstance(slot.container, Fixed):
                with contextlib.suppress(TypeError, AttributeError):
                    slot.write(STAND_INS[id(held)])
                    stack.callback(slot.write, held)
        yield
