"""Measure dovetail side by side with its peers: `python -m benchmarks [SUBCOMMAND] [options]`.

Subcommands: aot-capture, first-step, step, step-capture, step-memory, step-limits, graph-memory, small-calls, overlap,
overhead, inplace, arena, offload, planning, estimates, native, kernels, artifact and freeze. Without one every
benchmark runs with its defaults. Each measurement of a first step, a step, of decoding or of a frozen model has a fresh
process with empty caches.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.aot_capture import aot_capture
from benchmarks.arena import CAPACITY, measure_problem, measure_steps, published_problems, run_steps, write_arena_report
from benchmarks.arguments import DEFAULT_OUT, Backends, Device, Models, Out, Threads, Timeout, split_names
from benchmarks.artifact import measure_files, write_artifact_report
from benchmarks.decode import BACKENDS as DECODE_BACKENDS
from benchmarks.decode import DecodeCost, DecodeSettings
from benchmarks.estimates import SHAPES, write_estimates_report
from benchmarks.freeze import FreezeSettings, Measured, measure_frozen
from benchmarks.freeze_artifact import ArtifactCost
from benchmarks.freeze_models import FREEZE_MODELS
from benchmarks.freeze_report import write_freeze_report
from benchmarks.freeze_worker import EAGER, FREEZE_BACKENDS
from benchmarks.inplace import GraphCost, capture_model, capture_optimizer, measure_graph, measure_scaling
from benchmarks.inplace_report import write_inplace_report
from benchmarks.kernels import write_kernels_report
from benchmarks.measure import BACKENDS
from benchmarks.models import MODELS
from benchmarks.native import WORKLOADS, write_native_report
from benchmarks.offload import write_offload_report
from benchmarks.optimizer_steps import BACKENDS as STEP_BACKENDS
from benchmarks.optimizer_steps import OPTIMIZERS, measure_optimizers
from benchmarks.overhead import BACKENDS as CALL_BACKENDS
from benchmarks.overhead import measure_calls, measure_guards
from benchmarks.overhead_report import write_overhead_report
from benchmarks.overlap import measure_groups, measure_pairs, write_overlap_report
from benchmarks.planning import write_planning_report
from benchmarks.processes import ask_fresh_process, describe_machine
from benchmarks.report import write_report
from benchmarks.small_calls import small_calls
from benchmarks.small_peers import PEERS
from benchmarks.step_commands import graph_memory, step_capture, step_limits, step_memory
from benchmarks.summary import FirstStep, Step, summarize_first_steps, summarize_steps

app = typer.Typer(help=__doc__, add_completion=False)

_DEFAULT_MODELS = "gpt2-4,gpt2-12,resnet18,bert"
_DEFAULT_BACKENDS = ",".join(BACKENDS)
_TORCH_PASS_S = 120.0
_DECODE_S = 600.0
_ARTIFACT_S = 600.0
app.command()(aot_capture)
app.command()(small_calls)
app.command()(step_capture)
app.command()(step_memory)
app.command()(step_limits)
app.command()(graph_memory)


@app.callback(invoke_without_command=True)
def run_all(context: typer.Context) -> None:
    """Measure dovetail side by side with eager and with other compilers."""
    if context.invoked_subcommand is None:
        first_step()
        step()
        step_capture()
        step_memory()
        step_limits()
        graph_memory()
        overlap()
        overhead()
        inplace()
        arena()
        offload()
        planning()
        estimates()
        native()
        kernels()
        artifact()
        freeze()


@app.command()
def first_step(
    models: Models = _DEFAULT_MODELS,
    backends: Backends = _DEFAULT_BACKENDS,
    processes: Annotated[int, typer.Option(min=1, help="Processes for each backend but inductor.")] = 5,
    inductor_processes: Annotated[int, typer.Option(min=1, help="Processes for inductor, which takes long.")] = 1,
    threads: Threads = None,
    device: Device = "cpu",
    out: Out = DEFAULT_OUT,
    timeout: Timeout = 900.0,
) -> None:
    """Time the cold first training step: compilation, forward and backward."""
    console = Console(stderr=True)
    machine = describe_machine(device)
    chosen = split_names(backends, BACKENDS, "--backends")
    counts = {name: inductor_processes if name == "inductor" else processes for name in chosen}
    rows: list[FirstStep] = []
    raw: dict[str, Any] = {}
    for model in split_names(models, MODELS, "--models"):
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
        # In turn, so that a change of the machine's load meets all backends.
        for number in range(max(counts.values())):
            for name in (name for name in chosen if number < counts[name]):
                arguments = {"model": model, "backend": name, "device": device}
                answer = ask_fresh_process("first-step", arguments, threads=threads, timeout_s=timeout)
                answers[name].append(answer)
                console.print(f"{model} {name} {number + 1}/{counts[name]}: {_shown(answer)}", markup=False)
        raw[model] = answers
        rows += summarize_first_steps(model, answers)
    settings = {"processes": counts, "threads": threads, "timeout_s": timeout}
    record = {"machine": machine, "machine_after": describe_machine(device), "settings": settings, "answers": raw}
    write_report("first-step", rows, record, out)


@app.command()
def step(
    models: Models = _DEFAULT_MODELS,
    backends: Backends = _DEFAULT_BACKENDS,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each one gives every backend its turn.")] = 20,
    steps_per_round: Annotated[int, typer.Option(min=1, help="Training steps in one turn.")] = 2,
    threads: Threads = None,
    device: Device = "cpu",
    out: Out = DEFAULT_OUT,
    timeout: Timeout = 1800.0,
) -> None:
    """Time the steady training step and measure its exact peak memory."""
    console = Console(stderr=True)
    machine = describe_machine(device)
    chosen = split_names(backends, BACKENDS, "--backends")
    rows: list[Step] = []
    raw: dict[str, Any] = {}
    for model in split_names(models, MODELS, "--models"):
        console.print(f"{model}: {rounds} rounds of {', '.join(chosen)}", markup=False)
        arguments = {"model": model, "device": device, "rounds": rounds, "steps_per_round": steps_per_round}
        answers = _ask_for_steps(arguments, chosen, threads=threads, timeout_s=timeout)
        raw[model] = answers
        rows += summarize_steps(model, answers)
    settings = {"rounds": rounds, "steps_per_round": steps_per_round, "threads": threads, "timeout_s": timeout}
    record = {"machine": machine, "machine_after": describe_machine(device), "settings": settings, "answers": raw}
    write_report("step", rows, record, out)


@app.command()
def artifact(
    megabytes: Annotated[int, typer.Option(min=4, help="Size of the tensors.")] = 400, out: Out = DEFAULT_OUT
) -> None:
    """Time files of tensors: written, checked, mapped; next to safetensors and torch.save."""
    write_artifact_report(measure_files(megabytes), describe_machine("cpu"), out)


@app.command()
def overlap(
    views: Annotated[str, typer.Option(help="How many views at once, with commas between.")] = "10,100,1000,10000",
    wait_for_numpy: Annotated[bool, typer.Option(help="Let NumPy finish its hard case: more than a minute.")] = False,
    out: Out = DEFAULT_OUT,
) -> None:
    """Time the question which views share bytes, next to torch and NumPy."""
    machine = describe_machine("cpu")
    groups = measure_groups([int(count) for count in views.split(",")])
    write_overlap_report(groups, measure_pairs(wait_for_numpy=wait_for_numpy), machine, out)


@app.command()
def planning(
    layers: Annotated[str, typer.Option(help="Numbers of layers, with commas between.")] = "100,400,1600",
    out: Out = DEFAULT_OUT,
) -> None:
    """Plan the memory of long programs, without a limit and under one."""
    write_planning_report([int(count) for count in layers.split(",")], describe_machine("cpu"), out)


@app.command()
def estimates(
    models: Annotated[str, typer.Option(help="1B, 7B, 13B, with commas between.")] = "1B,7B,13B", out: Out = DEFAULT_OUT
) -> None:
    """Estimate the peaks of steps of large models, on paper."""
    write_estimates_report(split_names(models, SHAPES, "--models"), describe_machine("cpu"), out)


@app.command()
def native(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each one gives every way its turn.")] = 200,
    peers: Annotated[str, typer.Option(help="inductor, jax.jit, with a comma between; none without it.")] = "",
    steps: Annotated[str, typer.Option(help="Beginnings of names of steps, with semicolons between.")] = "",
    out: Out = DEFAULT_OUT,
) -> None:
    """Time steps whose pointwise operators are machine code, beside eager mode and the operators themselves."""
    wanted = tuple(steps.split(";"))
    chosen = [name for name in WORKLOADS if name.startswith(wanted)]
    write_native_report(rounds, out, split_names(peers, PEERS, "--peers") if peers else (), chosen)


@app.command()
def kernels(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each one gives every way its turn.")] = 30,
    threads: Annotated[str, typer.Option(help="Numbers of threads, with a comma between.")] = "1,2",
    out: Out = DEFAULT_OUT,
) -> None:
    """Time groups of operators by themselves, beside eager mode, inductor and a copy of as many bytes."""
    write_kernels_report(rounds, [int(each) for each in threads.split(",")], out)


@app.command()
def arena(models: Models = "gpt2-4,gpt2-12,bert,llama,resnet18,small-gpt,mlp", out: Out = DEFAULT_OUT) -> None:
    """Place the buffers of steps, and of published problems, in arenas, and run steps there."""
    names = split_names(models, MODELS, "--models")
    rows = [measure_problem(name, problem, CAPACITY) for name, problem in published_problems()]
    rows += measure_steps(names)
    write_arena_report(rows, list(run_steps(names)), describe_machine("cpu"), out)


@app.command()
def offload(out: Out = DEFAULT_OUT) -> None:
    """Steps whose values go to a file, beside steps that only compute them again."""
    write_offload_report(describe_machine("cpu"), out)


@app.command()
def overhead(
    inputs: Annotated[str, typer.Option(help="Numbers of inputs, with commas between.")] = "1,4,16,64",
    views: Annotated[str, typer.Option(help="How many views the guard is asked about.")] = "1,10,100,1000,2000",
    backends: Annotated[str, typer.Option(help="Which backends; dynamo is torch.compile with nothing behind.")] = (
        ",".join(CALL_BACKENDS)
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each one gives every backend its turn.")] = 15,
    calls: Annotated[int, typer.Option(min=1, help="Calls in one turn.")] = 200,
    inductor_s: Annotated[float, typer.Option(help="Seconds that inductor may compile, all functions together.")] = 120,
    out: Out = DEFAULT_OUT,
) -> None:
    """Time calls that do next to nothing, and the question how written inputs lie; on one thread."""
    torch.set_num_threads(1)
    machine = describe_machine("cpu")
    chosen = split_names(backends, CALL_BACKENDS, "--backends")
    counts = [int(count) for count in inputs.split(",")]
    costs = measure_calls(counts, chosen, rounds=rounds, calls=calls, inductor_s=inductor_s)
    guards = measure_guards([int(count) for count in views.split(",")], repeats=5)
    write_overhead_report(costs, guards, machine, out)


@app.command()
def inplace(
    models: Models = "gpt2-4,gpt2-12,resnet18,bert,small-gpt",
    optimizers: Annotated[str, typer.Option(help="Which optimizers; of AdamW and SGD, graphs as well.")] = (
        ",".join(OPTIMIZERS)
    ),
    parameters: Annotated[str, typer.Option(help="Number x rows of square parameters to step.")] = "10x256",
    nodes: Annotated[str, typer.Option(help="Nodes of long graphs for dovetail's pass.")] = "5000,20000",
    torch_nodes: Annotated[str, typer.Option(help="Nodes of long graphs for both passes.")] = "800,1600,3200",
    caches: Annotated[str, typer.Option(help="Batch x length of key-value caches.")] = "1x512,4x1024",
    backends: Annotated[str, typer.Option(help="Backends that decode.")] = ",".join(DECODE_BACKENDS),
    repeats: Annotated[int, typer.Option(min=1, help="How often a pass, and decoding, is timed.")] = 3,
    out: Out = DEFAULT_OUT,
) -> None:
    """Measure re-inplacing: graphs, decoding with a cache, optimizer steps, long graphs; on one thread."""
    torch.set_num_threads(1)
    console = Console(stderr=True)
    machine = describe_machine("cpu")
    number, rows = map(int, parameters.split("x"))
    names = split_names(optimizers, OPTIMIZERS, "--optimizers")
    console.print("long graphs", markup=False)
    counts = [[int(count) for count in text.split(",") if count] for text in (nodes, torch_nodes)]
    scales = measure_scaling(*counts, repeats=repeats, torch_s=_TORCH_PASS_S)
    graphs: list[GraphCost] = []
    captures = [partial(capture_model, name) for name in split_names(models, MODELS, "--models")] if models else []
    captures += [
        partial(capture_optimizer, name, foreach, number, rows)
        for name in names
        if name in ("AdamW", "SGD")
        for foreach in (False, True)
    ]
    for capture in captures:
        for captured in capture():
            console.print(captured.name, markup=False)
            graphs.append(measure_graph(captured, repeats))
    steps = measure_optimizers(names, STEP_BACKENDS, parameters=number, size=rows)
    chosen = split_names(backends, DECODE_BACKENDS, "--backends") if caches else []
    decodes: list[DecodeCost] = []
    for cache in caches.split(",") if caches else []:
        console.print(f"decode {cache}", markup=False)
        batch, length = map(int, cache.split("x"))
        settings = DecodeSettings(batch=batch, length=length, rounds=repeats)
        decodes += _ask_for_decoding(settings, chosen)
    write_inplace_report(graphs, decodes, steps, scales, machine, out)


@app.command()
def freeze(
    models: Annotated[
        str, typer.Option(help=f"Which models: {', '.join(FREEZE_MODELS)}.")
    ] = "minilm,bert,resnet50,vit",
    backends: Annotated[str, typer.Option(help="Which backends; eager is always one of them.")] = (
        ",".join(FREEZE_BACKENDS)
    ),
    threads: Annotated[str, typer.Option(help="Numbers of threads, with commas between.")] = "1,2",
    sizes: Annotated[str, typer.Option(help="Batch x tokens of calls; models of images have the batch only.")] = (
        "1x16,16x16,1x128,16x128"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each one gives every backend its turn.")] = 10,
    turn_s: Annotated[float, typer.Option(help="Seconds of a turn; at least one call.")] = 0.1,
    inductor_s: Annotated[float, typer.Option(help="Seconds after which inductor compiles for no further case.")] = 60,
    megabytes: Annotated[int, typer.Option(help="Size of the large model; 0 leaves it out.")] = 400,
    out: Out = DEFAULT_OUT,
) -> None:
    """Measure frozen models: latency, cold start, load time, memory, and a large file."""
    console = Console(stderr=True)
    machine = describe_machine("cpu")
    chosen = list(dict.fromkeys([EAGER, *split_names(backends, FREEZE_BACKENDS, "--backends")]))
    counts = [int(count) for count in threads.split(",")]
    calls = [(int(batch), int(length)) for batch, length in (size.split("x") for size in sizes.split(","))]
    settings = FreezeSettings(tuple(chosen), tuple(calls), rounds=rounds, turn_s=turn_s, inductor_s=inductor_s)
    artifact = _ask_for_artifact(megabytes) if megabytes else None
    found = Measured()
    for model in split_names(models, FREEZE_MODELS, "--models"):
        console.print(model, markup=False)
        measure_frozen(model, counts, settings, found)
        write_freeze_report(found, artifact, machine, {**asdict(settings), "threads": counts}, out)


def _ask_for_artifact(megabytes: int) -> ArtifactCost:
    """Each step in a process of its own, on one thread. Raises: RuntimeError when one fails."""

    def asked(kind: str, **arguments: Any) -> dict[str, Any]:
        answer = ask_fresh_process(kind, arguments, threads=1, timeout_s=_ARTIFACT_S)
        if "error" in answer:
            raise RuntimeError(f"{kind}: {answer['error']}")
        return answer

    with tempfile.TemporaryDirectory(prefix="dovetail-artifact-") as folder:
        written = asked("write-artifact", folder=folder, megabytes=megabytes)
        read = asked("read-artifact", folder=folder)
    peaks = {
        discards: asked("discarding", megabytes=megabytes, discards=discards)["peak_share"]
        for discards in (True, False)
    }
    return ArtifactCost(**written, **read, peak_share=peaks[True], kept_peak_share=peaks[False])


def _ask_for_decoding(settings: DecodeSettings, backends: list[str]) -> list[DecodeCost]:
    """Decode with all backends in one process; inductor, which may find no compiler or take long, has its own."""
    groups = [[name for name in backends if name != "inductor"], [name for name in backends if name == "inductor"]]
    rows: list[DecodeCost] = []
    for group in filter(None, groups):
        arguments = {"backends": group, "settings": asdict(settings)}
        answers = ask_fresh_process("decode", arguments, threads=1, timeout_s=_DECODE_S)
        for name in group:
            fields = answers if "error" in answers else answers[name]
            rows.append(DecodeCost(settings.batch, settings.length, name, **fields))
    return rows


def _ask_for_steps(
    arguments: dict[str, Any], backends: list[str], *, threads: int | None, timeout_s: float
) -> dict[str, Any]:
    """Measure all backends in one process; where that process dies, find out who killed it and go on without."""
    answer = ask_fresh_process("step", {**arguments, "backends": backends}, threads=threads, timeout_s=timeout_s)
    if "error" not in answer:
        return answer
    answers: dict[str, Any] = {}
    for name in backends:
        alone = {**arguments, "backends": [name], "rounds": 1}
        probe = ask_fresh_process("step", alone, threads=threads, timeout_s=timeout_s)
        answers[name] = probe if "error" in probe else answer
    survivors = [name for name in backends if answers[name] is answer]
    if survivors and survivors != backends:
        alive = {**arguments, "backends": survivors}
        second = ask_fresh_process("step", alive, threads=threads, timeout_s=timeout_s)
        answers |= dict.fromkeys(survivors, second) if "error" in second else second
    return answers


def _shown(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return f"failed. {answer['error']}"
    return f"wall {answer['wall_s']:.2f} s, cpu {answer['cpu_s']:.2f} s"
