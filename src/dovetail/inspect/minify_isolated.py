"""A check in separate processes, for programs that can crash or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.artifact.call import save_call
from dovetail.artifact.program_json import program_to_json
from dovetail.artifact.target_text import other_packages
from dovetail.inspect.minify_failure import Failure, FailureKind
from dovetail.inspect.minify_oracles import NamedOracle
from dovetail.ir.program import Program

_LAST_LINES = 20
_FINE = "exit status 0"


class Isolated:
    """Runs a check of `minify_oracles` in a fresh process for each program.

    A process that dies, or runs for more than `seconds`, is a failure of its own kind. Where the system can fork, one
    process imports torch and each check runs in a child of it. Close it, or use it as a context manager.
    Raises on a call: NotSerializable for a program that cannot be handed to another process.
    """

    def __init__(self, oracle: NamedOracle, seconds: float = 60.0) -> None:
        self.oracle = oracle
        self.seconds = seconds
        self.identity = f"{oracle.identity}, isolated"
        self._server: subprocess.Popen[str] | None = None

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        """How the program fails."""
        with tempfile.TemporaryDirectory(prefix="dovetail-check-") as name:
            folder = Path(name)
            end = self._run(folder, "check", program, inputs)
            verdict = folder / "verdict.json"
            if end == _FINE and verdict.exists():
                found = json.loads(verdict.read_text(encoding="utf-8"))
                return None if found is None else Failure.from_json(found)
            errors = folder / "stderr.txt"
            text = errors.read_text(encoding="utf-8", errors="replace") if errors.exists() else ""
            last = "\n".join(text.splitlines()[-_LAST_LINES:])
            return Failure(FailureKind.CRASHED, end, last)

    def reach(self, program: Program, inputs: Sequence[Any]) -> int:
        """How many nodes run one after the other, as they are, before one ends the process."""
        with tempfile.TemporaryDirectory(prefix="dovetail-check-") as name:
            self._run(Path(name), "reach", program, inputs)
            reached = Path(name) / "reach"
            return len(reached.read_bytes()) if reached.exists() else 0

    def close(self) -> None:
        """End the process that checks run in."""
        if self._server is not None:
            _end(self._server)
            self._server = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, folder: Path, what: str, program: Program, inputs: Sequence[Any]) -> str:
        """How the process of one check ended."""
        data = json.dumps(program_to_json(program), allow_nan=False)
        (folder / "program.json").write_text(data, encoding="utf-8")
        allow = sorted(other_packages([node.target for node in program.nodes]))
        (folder / "allow.json").write_text(json.dumps(allow), encoding="utf-8")
        (folder / "oracle.json").write_text(json.dumps(self.oracle.to_json()), encoding="utf-8")
        save_call(folder / "inputs.safetensors", inputs)
        server = self._started()
        assert server.stdin is not None, "it is a pipe"
        assert server.stdout is not None, "it is a pipe"
        request = {"folder": str(folder), "what": what, "seconds": self.seconds}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        if not answer:
            self.close()
            raise RuntimeError(f"the process that runs checks ended with status {server.returncode}")
        return str(json.loads(answer)["end"])

    def _started(self) -> subprocess.Popen[str]:
        if self._server is None:
            command = [sys.executable, "-m", "dovetail.inspect.minify_worker"]
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
            weakref.finalize(self, _end, self._server)
        return self._server


def _end(server: subprocess.Popen[str]) -> None:
    for pipe in (server.stdin, server.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()
    server.kill()
    server.wait()
