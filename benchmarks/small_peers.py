"""Other compilers for small steps, inductor and `jax.jit`, each in a process of its own.

Both are optional. Inductor wants a C++ compiler; `JAX_PYTHON` names a Python that has JAX.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection

import torch

from benchmarks.processes import ROOT, keep_to_processors
from benchmarks.small_steps import SMALL_STEPS, Step
from benchmarks.step_memory import JAX_PYTHON, NO_COMPILER, NO_JAX, has_cpp_compiler
from benchmarks.training_steps import INDUCTOR, JAX

PEERS = (INDUCTOR, JAX)

Turn = Callable[[int], float]
"""Makes so many steps: seconds for each."""


def missing_peers(peers: Collection[str]) -> dict[str, str]:
    """Those of the peers that cannot be measured here, each with the reason."""
    reasons = {
        INDUCTOR: "" if has_cpp_compiler() else NO_COMPILER,
        JAX: "" if os.environ.get(JAX_PYTHON) else NO_JAX,
    }
    return {peer: reasons[peer] for peer in peers if reasons[peer]}


def turn_of(step: Step) -> Turn:
    """Turns of a step of this process."""

    def turn(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - begin) / count

    return turn


class PeerSteps:
    """The step of one workload by another compiler, in a process of its own, on one thread; a context, which ends it.

    first_s: processor seconds of compiling it. Raises: ChildProcessError where the process ends before its time.
    """

    def __init__(self, peer: str, workload: str) -> None:
        command = [sys.executable, "-m", "benchmarks.small_peers", workload]
        if peer == JAX:
            command = [os.environ[JAX_PYTHON], str(ROOT / "benchmarks" / "jax_small_steps.py"), workload]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._peer = peer
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)
        keep_to_processors(self._process, 1)
        self.first_s: float = json.loads(self._line())["compile_s"]

    def __enter__(self) -> PeerSteps:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends where there is nothing more to read

    def turn(self, count: int) -> float:
        """See `Turn`."""
        assert self._process.stdin is not None
        print(count, file=self._process.stdin, flush=True)
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            raise ChildProcessError(f"{self._peer} ended with status {self._process.returncode}")
        return line


def main() -> None:
    """What `jax_small_steps` does, by inductor: Dynamo's graphs of the loss, of its gradient and of the update."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = torch.compile(SMALL_STEPS[sys.argv[1]](), dynamic=False)
    started = time.process_time()
    step()
    print(json.dumps({"version": torch.__version__, "compile_s": time.process_time() - started}), flush=True)
    turn = turn_of(step)
    for line in sys.stdin:
        print(turn(int(line)), flush=True)


if __name__ == "__main__":
    main()
