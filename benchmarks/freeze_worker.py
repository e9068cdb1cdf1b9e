"""One backend in a process of its own: its cold start, and then turns of calls, whenever it is asked for one.

`python -m benchmarks.freeze_worker REQUEST.json` answers the cold start in a line of JSON, and each line of its
standard input with another one. `benchmarks/freeze.py` gives the workers of all backends their turns.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

from benchmarks.freeze_models import Case, build_frozen_workload

Json = dict[str, Any]
Call = Callable[[], Any]

EAGER, INDUCTOR, INDUCTOR_FREEZING = "eager", "inductor", "inductor freezing"
ONNXRUNTIME, OPENVINO = "onnxruntime", "openvino"
BITWISE, FAST, LOADED = "dovetail bitwise", "dovetail fast", "dovetail loaded"
INT8, BF16 = "dovetail int8", "dovetail bf16"
DOVETAIL = (BITWISE, FAST, INT8, BF16, LOADED)
FREEZE_BACKENDS = (EAGER, INDUCTOR, INDUCTOR_FREEZING, ONNXRUNTIME, OPENVINO, *DOVETAIL)
FROM_FILES = (ONNXRUNTIME, OPENVINO, LOADED)
"""These read a program from a file, and need neither the model nor its code."""

_PACKAGES = {ONNXRUNTIME: "onnxruntime", OPENVINO: "openvino", **dict.fromkeys(DOVETAIL, "dovetail")}
_WARM_UP_CALLS = 2


class Worker:
    """A backend and the calls that it is measured with."""

    def __init__(self, request: Json) -> None:
        self._backend: str = request["backend"]
        self._threads: int = request["threads"]
        self._folder = Path(request["folder"])
        self._cases = [Case(*sizes) for sizes in request["cases"]]
        self._model_name: str = request["model"]
        self._model: Any = None
        self._package: Any = None
        self._by_inductor: Any = None
        self._arguments: dict[int, tuple[Any, ...]] = {}
        self._calls: dict[int, Call] = {}

    def cold_start(self) -> Json:
        """Everything up to the first result of the first case, and the memory that it takes."""
        before_bytes = memory_bytes("VmRSS")
        build_s, _ = timed(self._build)
        import_s, _ = timed(self._import)
        answer = self.prepare(0)
        after_bytes = memory_bytes("VmRSS")
        return {
            "import_s": import_s,
            "build_s": build_s,
            "cold_s": import_s + answer["prepare_s"] + answer["first_s"],
            "rss_bytes": after_bytes - before_bytes,
            "peak_bytes": memory_bytes("VmHWM") - before_bytes,
            **answer,
        }

    def prepare(self, case: int) -> Json:
        """Make the program for a case and call it; eager's result is written down, others are compared with it."""
        prepare_s, call = timed(partial(self._prepared, case))
        first_s, result = timed(call)
        self._calls[case] = call
        for _ in range(_WARM_UP_CALLS):
            call()
        return {"prepare_s": prepare_s, "first_s": first_s, **self._compared(case, result)}

    def turn(self, case: int, seconds: float) -> Json:
        """Calls one after the other for that long: milliseconds of each, and processor time of one in the mean."""
        call, clock = self._calls[case], time.perf_counter
        passed_ms: list[float] = []
        start, cpu = clock(), time.process_time()
        while not passed_ms or clock() - start < seconds:
            began = clock()
            call()
            passed_ms.append((clock() - began) * 1e3)
        cpu_ms = (time.process_time() - cpu) * 1e3 / len(passed_ms)
        return {"ms": passed_ms[1:] or passed_ms, "cpu_ms": cpu_ms}  # the first call finds caches full of other data

    def _build(self) -> None:
        if self._backend in FROM_FILES:
            return
        self._model, arguments = build_frozen_workload(self._model_name, self._cases)
        self._arguments = dict(enumerate(arguments))

    def _import(self) -> None:
        name = _PACKAGES.get(self._backend)
        self._package = None if name is None else importlib.import_module(name)

    def _prepared(self, case: int) -> Call:
        """The call without arguments."""
        if self._backend == ONNXRUNTIME:
            return self._onnxruntime(case)
        if self._backend == OPENVINO:
            return self._openvino(case)
        if self._backend == LOADED:
            program: Any = self._package.load(self._folder / f"{case}.dovetail")
            arguments = self._read_arguments(case)
        else:
            program, arguments = self._compiled(case), self._arguments[case]
        return partial(program, *arguments)

    def _compiled(self, case: int) -> Any:
        if self._backend == EAGER:
            return self._model
        if self._backend in DOVETAIL:
            passes = self._backend.removeprefix("dovetail ")
            return self._package.freeze(self._model, self._arguments[case], passes=passes)
        if self._by_inductor is None:  # with dynamic=False it compiles for the sizes of each case
            importlib.import_module("torch._inductor.config").freezing = self._backend == INDUCTOR_FREEZING
            self._by_inductor = torch.compile(self._model, dynamic=False)
        return self._by_inductor

    def _onnxruntime(self, case: int) -> Call:
        options = self._package.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        path = str(self._folder / f"{case}.onnx")
        session = self._package.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [item.name for item in session.get_inputs()]
        arrays = [tensor.numpy() for tensor in self._read_arguments(case)]
        return partial(session.run, None, dict(zip(names, arrays, strict=True)))

    def _openvino(self, case: int) -> Call:
        core = self._package.Core()
        settings = {"INFERENCE_NUM_THREADS": self._threads, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(str(self._folder / f"{case}.onnx"), "CPU", settings)
        request = compiled.create_infer_request()
        arrays = [tensor.numpy() for tensor in self._read_arguments(case)]
        return lambda: request.infer(arrays, share_inputs=True)[0]

    def _read_arguments(self, case: int) -> tuple[Any, ...]:
        return tuple(torch.load(self._folder / f"{case}.arguments.pt", weights_only=True))

    def _compared(self, case: int, result: Any) -> Json:
        found = (
            result if isinstance(result, torch.Tensor) else torch.as_tensor(result[0] if _is_list(result) else result)
        )
        path = self._folder / f"{case}.eager-{self._threads}.pt"
        if self._backend == EAGER:
            torch.save(found, path)
        wanted = torch.load(path, weights_only=True)
        difference = (found.double() - wanted.double()).abs().max().item()
        return {"equal": torch.equal(found, wanted), "difference": difference / wanted.abs().max().item()}


def _is_list(result: Any) -> bool:
    return isinstance(result, list | tuple)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the action gave."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def memory_bytes(field: str) -> int:
    """A field of /proc/self/status, such as VmRSS (now) or VmHWM (the most so far). 0 where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), 0)


def write_files(request: Json) -> Json:
    """Write what backends read from files: arguments, ONNX, and frozen modules. Returns seconds, or errors."""
    folder = Path(request["folder"])
    cases = [Case(*sizes) for sizes in request["cases"]]
    model, arguments = build_frozen_workload(request["model"], cases)
    answer: Json = {"export_s": 0.0, "freeze_s": 0.0}
    for number, call in enumerate(arguments):
        torch.save(list(call), folder / f"{number}.arguments.pt")
        if LOADED in request["backends"]:
            passed_s, frozen = timed(
                lambda call=call: importlib.import_module("dovetail").freeze(model, call, passes="fast")
            )
            frozen.save(folder / f"{number}.dovetail")
            answer["freeze_s"] += passed_s
        if {ONNXRUNTIME, OPENVINO} & set(request["backends"]):
            try:
                answer["export_s"] += timed(lambda call=call, n=number: _export(model, call, folder / f"{n}.onnx"))[0]
            except Exception as error:
                answer["export_error"] = f"{type(error).__name__}: {error}"[:300]
    return answer


def _export(model: torch.nn.Module, arguments: tuple[Any, ...], path: Path) -> None:
    export: Any = torch.onnx.export
    export(model, arguments, str(path), dynamo=True, verbose=False)


def _answers(request: Json, requests: IO[str]) -> Any:
    """An answer for the cold start, and one for each further line."""
    worker = Worker(request)
    actions: dict[str, Callable[..., Json]] = {"prepare": worker.prepare, "turn": worker.turn}
    pending: list[Callable[[], Json]] = [worker.cold_start]
    while True:
        try:
            with torch.no_grad():
                answer = pending.pop()()
        except Exception as error:
            traceback.print_exc()
            first = str(error).strip().splitlines()
            answer = {"error": f"{type(error).__name__}: {first[0] if first else ''}"[:300]}
        yield answer
        line = requests.readline()
        if not line.strip():
            return
        asked = json.loads(line)
        pending.append(partial(actions[asked.pop("do")], **asked))


def main() -> None:
    """Read the request named by the first argument; answer on what was standard output, which others may not use."""
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(request["threads"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        if request.get("writes_files"):
            print(json.dumps(write_files(request)), file=answers, flush=True)
            return
        for answer in _answers(request, sys.stdin):
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
