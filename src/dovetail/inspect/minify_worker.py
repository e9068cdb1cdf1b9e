"""A process that checks programs, each in its own child process: `python -m dovetail.inspect.minify_worker`.

Reads a line of JSON per request, `{"folder", "what", "seconds"}`, and answers each with one: `{"end"}`, how the child
ended (`exit status 0`, `signal SIGSEGV`, `time limit`). The child's findings are in the folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from dovetail.artifact.call import load_call
from dovetail.artifact.json_text import read_json_file
from dovetail.artifact.program_json import program_from_json
from dovetail.inspect.minify_failure import process_ending
from dovetail.inspect.minify_oracles import oracle_from_json
from dovetail.inspect.minify_recording import repeatable, run_node, size_numbers
from dovetail.ir.program import Program, Value

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
    command = [sys.executable, "-m", "dovetail.inspect.minify_worker", str(folder), what]
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
