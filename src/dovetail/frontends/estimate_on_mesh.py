"""`dovetail.estimate(build, mesh={"data": 64, "tensor": 8})`: what each rank needs and sends, without any process.

There is a process group that sends nothing, and this process is its first rank. What `build` makes is fakes, of which a
first call is made as eager mode makes it: `fully_shard` looks at its modules then, and optimizers make their state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from dovetail.errors import BadOptionValue, DovetailError, UnsupportedDistributed
from dovetail.frontends.structure import flatten
from dovetail.torch_compat.collectives import default_group, is_available
from dovetail.torch_compat.fakes import new_fake_mode
from dovetail.torch_compat.paper_ranks import data_parallel_refused, names_of_groups, ranks_on_paper


def is_mesh(item: object) -> bool:
    """Whether something is meant as the dimensions of a mesh, with their sizes, and is no argument of a step."""
    return isinstance(item, Mapping) and not any(isinstance(leaf, torch.Tensor) for leaf in flatten(item)[0])


def estimate_on_mesh(estimate: Callable[..., Any], build: Any, mesh: Mapping[str, int]) -> Any:
    """See the module docstring. estimate: of a step and its arguments. Raises: BadOptionValue; DovetailError."""
    if not is_available or default_group() is not None:
        reason = "torch.distributed is missing" if not is_available else "this process is in a process group"
        expected = "a process without init_process_group"
        raise BadOptionValue(option="mesh", value=dict(mesh), reason=reason, expected=expected)
    _check(mesh)
    with ranks_on_paper(mesh) as ranks:
        with new_fake_mode(), data_parallel_refused(_refuse_data_parallel):
            built = build(ranks)
            if not isinstance(built, tuple) or not built or not callable(built[0]):
                reason, expected = (
                    "with mesh= it is called with a DeviceMesh",
                    "a function that gives (step, *arguments)",
                )
                raise BadOptionValue(option="step_or_model", value=build, reason=reason, expected=expected)
            step, *args = built
            _called_once(build, step, args)
        found = estimate(step, *args)
        names = names_of_groups(ranks)
    sent = {(what, names.get(group, group)): size for (what, group), size in found.bytes_sent.items()}
    return replace(found, bytes_sent=sent, _again=_no_other_batch)


def _refuse_data_parallel() -> NoReturn:
    raise UnsupportedDistributed(
        what="an estimate of ranks makes a DistributedDataParallel module",
        why="its reducer looks at the memory of parameters, which are fakes there",
        hint="estimate the step without it and without mesh=, and add its buckets; or use fully_shard",
    )


def _check(mesh: Mapping[str, int]) -> None:
    names_sizes = bool(mesh) and all(isinstance(name, str) and name for name in mesh)
    if not names_sizes or not all(type(size) is int for size in mesh.values()):
        reason, expected = "it is how large each dimension is, by name", '{"data": 64, "tensor": 8}, say'
        raise BadOptionValue(option="mesh", value=dict(mesh), reason=reason, expected=expected)
    if min(mesh.values()) < 1:
        raise BadOptionValue(option="mesh", value=dict(mesh), reason="it has no ranks", expected="sizes of 1 or more")


def _called_once(build: Any, step: Callable[..., Any], args: Sequence[Any]) -> None:
    """Make the first call, on fakes. Raises: BadOptionValue; DovetailError."""
    try:
        step(*args)
    except DovetailError:
        raise
    except Exception as error:
        reason = f"the step that it gives cannot be called: {type(error).__name__}: {error}"
        expected = "a function that gives (step, *arguments), with which step(*arguments) runs"
        raise BadOptionValue(option="step_or_model", value=build, reason=reason, expected=expected) from error


def _no_other_batch(*_: object) -> NoReturn:
    reason, expected = "the ranks are not there any more", "an estimate without mesh="
    raise BadOptionValue(option="max_batch", value="mesh=", reason=reason, expected=expected)
