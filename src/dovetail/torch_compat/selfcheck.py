"""Run one small check for each private torch function that this package wraps.

A check calls the wrapper on a tiny case and compares with what the rest of dovetail relies on. It says what differs,
so that a report from another version of torch names the function to look at. The checks lie in `checks/`, one file
for each file of this package, and are called `check_<wrapper>`.

Cost: well under a second for all of them. `dovetail doctor` runs them, and so does the first use of a torch that is
not the tested one.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.torch_compat.checks import (
    acting,
    arenas,
    autograd,
    boxed,
    collectives,
    control_flow,
    convolutions,
    copies,
    cudnn_layers,
    data_parallel,
    data_sizes,
    decompositions,
    dispatch,
    dtensors,
    dynamo,
    fake_layouts,
    fakes,
    flops,
    fully_sharded,
    fx_graphs,
    graph_leaves,
    guards,
    hidden_fakes,
    kernel_strides,
    modes,
    modules,
    native_kernels,
    native_symbols,
    native_tensors,
    nested,
    onednn,
    onednn_low_precision,
    optimizers,
    over_operands,
    paper_ranks,
    plain_numbers,
    profiler,
    python_kernels,
    pytree,
    recurrent,
    resampling,
    rng,
    rows_alone,
    settings,
    sized_fakes,
    sparse,
    spectral,
    subclasses,
    swapping,
    symbolic_strides,
    symbolic_views,
    symbols,
    taken_dtypes,
    tensor_hooks,
    traced_maths,
    traced_numbers,
    traced_sequences,
    values_alone,
    view_nodes,
    zero_tensors,
)

Check = Callable[[], str | None]

# What compiling and running programs relies on.
COMPILER_CHECKS: tuple[Check, ...] = (
    *acting.CHECKS,
    *arenas.CHECKS,
    *autograd.CHECKS,
    *boxed.CHECKS,
    *collectives.CHECKS,
    *control_flow.CHECKS,
    *copies.CHECKS,
    *convolutions.CHECKS,
    *cudnn_layers.CHECKS,
    *data_parallel.CHECKS,
    *paper_ranks.CHECKS,
    *data_sizes.CHECKS,
    *decompositions.CHECKS,
    *dispatch.CHECKS,
    *dtensors.CHECKS,
    *dynamo.CHECKS,
    *fakes.CHECKS,
    *fake_layouts.CHECKS,
    *flops.CHECKS,
    *fully_sharded.CHECKS,
    *fx_graphs.CHECKS,
    *graph_leaves.CHECKS,
    *guards.CHECKS,
    *hidden_fakes.CHECKS,
    *kernel_strides.CHECKS,
    *modes.CHECKS,
    *modules.CHECKS,
    *native_kernels.CHECKS,
    *native_symbols.CHECKS,
    *native_tensors.CHECKS,
    *nested.CHECKS,
    *onednn.CHECKS,
    *onednn_low_precision.CHECKS,
    *optimizers.CHECKS,
    *over_operands.CHECKS,
    *pytree.CHECKS,
    *plain_numbers.CHECKS,
    *python_kernels.CHECKS,
    *recurrent.CHECKS,
    *resampling.CHECKS,
    *values_alone.CHECKS,
    *view_nodes.CHECKS,
    *zero_tensors.CHECKS,
    *rng.CHECKS,
    *rows_alone.CHECKS,
    *settings.CHECKS,
    *sized_fakes.CHECKS,
    *sparse.CHECKS,
    *spectral.CHECKS,
    *subclasses.CHECKS,
    *swapping.CHECKS,
    *symbolic_strides.CHECKS,
    *symbolic_views.CHECKS,
    *symbols.CHECKS,
    *taken_dtypes.CHECKS,
    *tensor_hooks.CHECKS,
    *traced_maths.CHECKS,
    *traced_numbers.CHECKS,
    *traced_sequences.CHECKS,
)

# What only measuring relies on: a program compiles and runs without it.
MEASURING_CHECKS: tuple[Check, ...] = (*autograd.PROFILER_CHECKS, *profiler.CHECKS)

CHECKS: tuple[Check, ...] = COMPILER_CHECKS + MEASURING_CHECKS


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found.

    Attributes:
        name: file and function of the wrapper: `dispatch.schema_of`.
        ok: whether the wrapper behaves as dovetail needs.
        detail: what was checked if it does, what differs if it does not.
    """

    name: str
    ok: bool
    detail: str


def run_self_checks() -> tuple[CheckResult, ...]:
    """Run every check of `CHECKS`, in order; one that raises has failed."""
    return (*run_compiler_checks(), *map(_run, MEASURING_CHECKS))


def run_compiler_checks() -> tuple[CheckResult, ...]:
    """Run every check of `COMPILER_CHECKS`, in order; one that raises has failed.

    The checks run in a thread of their own: grad mode, dispatch modes and the tracing context of the caller belong to
    the caller's thread, so that they neither disturb the checks nor are disturbed by them. No check may compile with
    Dynamo, whose lock the caller may hold.

    The thread never ends. With the thread of the first fake mode, torch 2.11 frees what it takes for a GPU where there
    is none, and fake modes of other threads call that. A thread that ran a backward takes Python's lock as it ends,
    which aborts a process that ends at that moment.
    """
    found: list[CheckResult] = []
    is_done = threading.Event()

    def check_and_stay() -> None:
        try:
            found.extend(map(_run, COMPILER_CHECKS))
        finally:
            is_done.set()
            threading.Event().wait()

    threading.Thread(target=check_and_stay, name="dovetail-self-check", daemon=True).start()
    is_done.wait()
    assert len(found) == len(COMPILER_CHECKS), "a check has ended its thread"
    return tuple(found)


def _run(check: Check) -> CheckResult:
    name = f"{check.__module__.rpartition('.')[2]}.{check.__name__.removeprefix('check_')}"
    try:
        difference = check()
    except Exception as error:  # whatever another torch raises is the finding
        first_line = str(error).partition("\n")[0]
        return CheckResult(name, False, f"raised {type(error).__name__}: {first_line}")
    if difference is not None:
        return CheckResult(name, False, difference)
    return CheckResult(name, True, (inspect.getdoc(check) or "").partition("\n")[0])
