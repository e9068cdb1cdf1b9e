"""A check in separate processes, for programs that can crash or hang.

`python -m dovetail.inspect.minify_isolated` is the process that checks programs, each in its own child process. It
reads a line of JSON per request, `{"folder", "what", "seconds"}`, and answers each with one: `{"end"}`, how the child
ended (`exit status 0`, `signal SIGSEGV`, `time limit`). The child's findings are in the folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dovetail.artifact.call import load_call, save_call
from dovetail.artifact.json_text import read_json_file
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.artifact.target_text import other_packages
from dovetail.inspect.minify_oracles import Failure, FailureKind, NamedOracle, oracle_from_json
from dovetail.inspect.minify_recording import repeatable
from dovetail.ir.program import Program, Value
from dovetail.ir.sub_programs import with_inner_nodes
from dovetail.ops.interpret import run_node, size_numbers

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
        allow = sorted(other_packages([node.target for node in with_inner_nodes(program)]))
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
            command = [sys.executable, "-m", "dovetail.inspect.minify_isolated"]
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


_POLL_S = 0.002
_KILLED = "time limit"


def serve() -> None:
    """Answer requests until there are no more."""
    torch.compiler.reset()  # loads Dynamo, once for all the processes that are forked from this one
    answers = os.dup(1)
    os.dup2(2, 1)  # what a check prints is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        end = run_apart(Path(request["folder"]), request["what"], request["seconds"])
        os.write(answers, (json.dumps({"end": end}) + "\n").encode())


def work(folder: Path, what: str) -> None:
    """Do what was asked for, here."""
    allowed = folder / "allow.json"
    allow = read_json_file(allowed) if allowed.exists() else ()
    program = program_from_json(
        read_json_file(folder / "program.json"), allow=allow, believe_descriptions=True, may_be_step=True
    )
    inputs = load_call(folder / "inputs.safetensors")
    if what == "reach":
        _run_plainly(program, inputs, folder / "reach")
        return
    oracle = oracle_from_json(read_json_file(folder / "oracle.json"))
    with repeatable(program):
        failure = oracle(program, inputs)
    verdict = json.dumps(None if failure is None else failure.to_json())
    (folder / "verdict.json").write_text(verdict, encoding="utf-8")


def _run_plainly(program: Program, inputs: list[Any], path: Path) -> None:
    """Run node by node; the file has a line for each node that has run."""
    held: dict[Value, Any] = dict(zip(program.inputs, inputs, strict=True))
    sizes = size_numbers(held.items())
    with path.open("w", encoding="utf-8") as file, repeatable(program), torch.no_grad():
        for node in program.nodes:
            made = run_node(node, held, sizes)
            held.update(made)
            sizes = {**size_numbers(made), **sizes}
            file.write("\n")
            file.flush()


def process_ending(code: int) -> str:
    """How a process ended, by the code that Python gives: `exit status 3`, `signal SIGSEGV`."""
    if code >= 0:
        return f"exit status {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"


def run_apart(folder: Path, what: str, seconds: float) -> str:
    """Do what was asked for in a process of its own; how that ended. seconds: until it is killed."""
    if not hasattr(os, "fork"):
        return _run_in_process(folder, what, seconds)
    child = os.fork()
    if not child:
        _be_child(folder, what)
    stop = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return process_ending(os.waitstatus_to_exitcode(status))
        if time.monotonic() > stop:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return _KILLED
        time.sleep(_POLL_S)


def _run_in_process(folder: Path, what: str, seconds: float) -> str:
    command = [sys.executable, "-m", "dovetail.inspect.minify_isolated", str(folder), what]
    try:
        return process_ending(subprocess.run(command, timeout=seconds, check=False).returncode)
    except subprocess.TimeoutExpired:
        return _KILLED


def _be_child(folder: Path, what: str) -> None:
    """Do what was asked for and end the process, without what the parent would do when it ends."""
    status = 1
    try:
        with (folder / "stderr.txt").open("w") as errors:
            os.dup2(errors.fileno(), 2)
            os.dup2(errors.fileno(), 1)
        work(folder, what)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(Path(sys.argv[1]), sys.argv[2])
    else:
        serve()
