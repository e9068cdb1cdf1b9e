"""Run the whole lists of cases of which `make test` takes slices.

    python -m tests.list_sweep --minutes 20
    python -m tests.list_sweep --minutes 20 --shard 1/2 --state lists-1.json

A case is a test of pytest. With a state file, the run goes on where it stopped; a case that ended the process is noted
as a failure. The exit status is 1 when a case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from tests import rotation, slow_tests

LISTS = (
    "tests/analysis/test_propagate_layouts.py",
    "tests/artifact/test_container.py",
    "tests/artifact/test_fuzz.py",
    "tests/benchmarks/test_benchmarks.py",
    "tests/benchmarks/test_freeze.py",
    "tests/capture/test_operator_trace.py",
    "tests/capture/test_resizing.py",
    "tests/compat/test_debug_nop.py",
    "tests/differential/test_alias_programs.py",
    "tests/differential/test_inplace_programs.py",
    "tests/differential/test_operators.py",
    "tests/differential/test_random_programs.py",
    "tests/distributed/test_checkpoints.py",
    "tests/distributed/test_faults.py",
    "tests/distributed/test_gradient_options.py",
    "tests/distributed/test_pretrain_gpt.py",
    "tests/distributed/test_random_programs.py",
    "tests/distributed/test_ranks_sweep.py",
    "tests/examples/test_demo.py",
    "tests/execute/native/test_blocked_products.py",
    "tests/execute/native/test_attention_rows.py",
    "tests/execute/native/test_call_memory.py",
    "tests/execute/native/test_clusters.py",
    "tests/execute/native/test_convolutions.py",
    "tests/execute/native/test_grids.py",
    "tests/execute/native/test_group_norms.py",
    "tests/execute/native/test_kernels.py",
    "tests/execute/native/test_large_copies.py",
    "tests/execute/native/test_int8_rows.py",
    "tests/execute/native/test_panels.py",
    "tests/execute/native/test_pixel_means.py",
    "tests/execute/native/test_max_pools.py",
    "tests/execute/native/test_plane_convolutions.py",
    "tests/execute/native/test_norms.py",
    "tests/execute/native/test_products.py",
    "tests/execute/native/test_recurrent_rows.py",
    "tests/execute/native/test_row_loops.py",
    "tests/execute/native/test_repeats.py",
    "tests/execute/native/test_sums.py",
    "tests/execute/test_arena.py",
    "tests/frontends/freezing/test_drawn_images.py",
    "tests/frontends/freezing/test_recurrent.py",
    "tests/frontends/generation/test_generate.py",
    "tests/frontends/step/test_agreement.py",
    "tests/frontends/step/test_bound_slots.py",
    "tests/frontends/step/test_cases.py",
    "tests/frontends/step/test_changes.py",
    "tests/frontends/step/test_data_sizes.py",
    "tests/frontends/step/test_first_recording.py",
    "tests/frontends/step/test_handed_on.py",
    "tests/frontends/step/test_number_places.py",
    "tests/frontends/step/test_offload.py",
    "tests/frontends/step/test_reachable_state.py",
    "tests/frontends/step/test_refusals.py",
    "tests/frontends/step/test_scripts.py",
    "tests/frontends/step/test_sparse_gradients.py",
    "tests/frontends/step/test_sparse_operands.py",
    "tests/frontends/test_aliasing.py",
    "tests/frontends/test_aot.py",
    "tests/frontends/test_autograd_contract.py",
    "tests/frontends/test_checkpoint.py",
    "tests/frontends/test_donation.py",
    "tests/frontends/test_dynamic_sizes.py",
    "tests/frontends/test_input_changes.py",
    "tests/frontends/test_memory_limit.py",
    "tests/frontends/test_number_places.py",
    "tests/frontends/test_size_programs.py",
    "tests/frontends/test_sparse_gradients.py",
    "tests/frontends/test_sparse_matrices.py",
    "tests/harness/test_aliasing.py",
    "tests/inspect/test_minify.py",
    "tests/inspect/test_subgraphs.py",
    "tests/models/test_freeze_models.py",
    "tests/models/test_models.py",
    "tests/ops/test_writing_forms.py",
    "tests/passes/test_channels_last.py",
    "tests/passes/test_early_updates.py",
    "tests/passes/test_fold_batch_norms.py",
    "tests/passes/test_fold_bits.py",
    "tests/passes/test_fold_programs.py",
    "tests/passes/test_inplace_oracle.py",
    "tests/passes/test_inplace_patterns.py",
    "tests/passes/test_merge_linears.py",
    "tests/passes/test_overlap.py",
    "tests/passes/test_prepack.py",
    "tests/passes/test_row_blocks.py",
    "tests/programs/test_programs.py",
    "tests/replay/test_stages.py",
    "tests/semantics/test_control_flow.py",
    "tests/semantics/test_loops.py",
    "tests/semantics/test_modes.py",
    "tests/semantics/test_modules.py",
    "tests/semantics/test_transforms.py",
    "tests/test_construct_sweep.py",
    "tests/test_gapped_programs.py",
    "tests/test_layout_sweep.py",
    "tests/test_opdb.py",
    "tests/test_sweep.py",
    "tests/testing/test_sanitizer.py",
)


@dataclass
class State:
    """Where a run stands. running: the case that was begun last. failures: what went wrong, by the name of the case."""

    done: list[str] = field(default_factory=list)
    running: str = ""
    failures: dict[str, str] = field(default_factory=dict)


class _Run:
    """Plugin of pytest: leaves out what is done or belongs to another shard, and stops when the time is up."""

    def __init__(self, state: State, shard: str, end: float, path: Path | None) -> None:
        self.state, self.end, self.path = state, end, path
        self.index, self.shards = map(int, shard.split("/"))
        self.left = 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = set(self.state.done)
        chosen = [item for item in items[self.index :: self.shards] if item.nodeid not in done]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen
        self.left = len(chosen)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.state.running = nodeid
        self.keep()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.state.failures[report.nodeid] = str(report.longrepr).strip().split("\n")[-1]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        result = yield
        self.state.done.append(item.nodeid)
        self.state.running = ""
        self.left -= 1
        self.keep()
        if time.monotonic() >= self.end:
            item.session.shouldstop = "the time is up"
        return result

    def keep(self) -> None:
        if self.path is not None:
            self.path.write_text(json.dumps(asdict(self.state), indent=2) + "\n")


def run(state: State, options: argparse.Namespace) -> int:
    """Run cases that are not done until all are, or the time is up: how many are left."""
    plugin = _Run(state, options.shard, time.monotonic() + options.minutes * 60, options.state)
    with mock.patch.dict(os.environ, {rotation.EVERYTHING: "1"}):
        status = pytest.main(["--no-header", "-p", "no:cacheprovider", *options.lists], plugins=[plugin])
    if status in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        raise SystemExit(int(status))
    return plugin.left


def rotating() -> list[str]:
    """Files with lists of which runs take slices, and slow tests elsewhere."""
    return [*LISTS, *(name for name in slow_tests.names() if name.partition("::")[0] not in LISTS)]


def main(argv: list[str] | None = None) -> int:
    """Run cases; print what failed, those before included."""
    parser = argparse.ArgumentParser(prog="python -m tests.list_sweep", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th case, beginning with the i-th (from 0)")
    parser.add_argument("--state", type=Path, help="file to go on from, and to write")
    parser.add_argument("lists", nargs="*", default=rotating(), help="files of tests; those that rotate if left out")
    options = parser.parse_args(argv)
    state = State()
    if options.state is not None and options.state.exists():
        state = State(**json.loads(options.state.read_text()))
    if state.running:
        state.failures[state.running] = "ended the process"
        state.done.append(state.running)
        state.running = ""
    left = run(state, options)
    print(f"{len(state.done)} cases done, {left} left, {len(state.failures)} failures")
    for name, why in state.failures.items():
        print(f"{name}: {why}")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
