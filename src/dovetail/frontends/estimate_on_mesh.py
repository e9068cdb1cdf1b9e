"""`dovetail.estimate(build, mesh={"data": 64, "tensor": 8})`: what each rank needs and sends, without any process.

There is a process group that sends nothing, and this process is its first rank. What `build` makes is fakes, of which a
first call is made as eager mode makes it: `fully_shard` looks at its modules then, and optimizers make their state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from dovetail.errors import BadOptionValue
from dovetail.torch_compat.collectives import default_group, is_available
from dovetail.torch_compat.fakes import new_fake_mode
from dovetail.torch_compat.paper_ranks import names_of_groups, ranks_on_paper


def is_mesh(item: object) -> bool:
    """Whether something names the dimensions of a mesh, with their sizes."""
    return isinstance(item, Mapping) and bool(item) and all(type(size) is int for size in item.values())


def estimate_on_mesh(estimate: Callable[..., Any], build: Any, mesh: Mapping[str, int]) -> Any:
    """See the module docstring. estimate: of a step and its arguments. Raises: BadOptionValue; DovetailError."""
    if not is_available or default_group() is not None:
        reason = "torch.distributed is missing" if not is_available else "this process is in a process group"
        expected = "a process without init_process_group"
        raise BadOptionValue(option="mesh", value=dict(mesh), reason=reason, expected=expected)
    if min(mesh.values()) < 1:
        raise BadOptionValue(option="mesh", value=dict(mesh), reason="it has no ranks", expected="sizes of 1 or more")
    with ranks_on_paper(mesh) as ranks:
        with new_fake_mode():
            built = build(ranks)
            if not isinstance(built, tuple) or not built or not callable(built[0]):
                reason, expected = (
                    "with mesh= it is called with a DeviceMesh",
                    "a function that gives (step, *arguments)",
                )
                raise BadOptionValue(option="step_or_model", value=build, reason=reason, expected=expected)
            step, *args = built
            step(*args)
        found = estimate(step, *args)
        names = names_of_groups(ranks)
    sent = {(what, names.get(group, group)): size for (what, group), size in found.bytes_sent.items()}
    return replace(found, bytes_sent=sent, _again=_no_other_batch)


def _no_other_batch(*_: object) -> NoReturn:
    reason, expected = "the ranks are not there any more", "an estimate without mesh="
    raise BadOptionValue(option="max_batch", value="mesh=", reason=reason, expected=expected)
