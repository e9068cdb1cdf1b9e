"""How many floating-point operations an operator needs, by torch's own formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.utils.flop_counter import flop_registry

from dovetail.torch_compat.dispatch import Overload


def has_formula(op: Overload) -> bool:
    """Whether `flops_of` knows what an operator needs."""
    return op.overloadpacket in flop_registry


def flops_of(op: Overload, args: Sequence[object], kwargs: Mapping[str, object], results: object) -> int | None:
    """Floating-point operations of one call; None for an operator that torch has no formula for.

    args, kwargs, results: as in a call, with a shape (`torch.Size`) in place of each tensor.
    """
    formula = flop_registry.get(op.overloadpacket)
    if formula is None:
        return None
    return int(formula(*args, **kwargs, out_val=results))
