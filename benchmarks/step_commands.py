"""The subcommands of memory, and of whole training steps."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.arguments import DEFAULT_OUT, Device, Models, Out, Threads, Timeout, split_names
from benchmarks.graph_memory import write_graphs_report
from benchmarks.measure import EAGER
from benchmarks.models import MODELS
from benchmarks.processes import ask_fresh_process, describe_machine
from benchmarks.step_call import StepCall
from benchmarks.step_capture import CaptureCost, summarize_capture
from benchmarks.step_limits import write_limits_report
from benchmarks.step_logging import summarize_logging
from benchmarks.step_memory import StepMemory, ask_for_ways, summarize_ways
from benchmarks.step_report import write_capture_report, write_memory_report
from benchmarks.training_steps import DOVETAIL, WAYS


def step_capture(
    models: Models = "gpt2-12",
    calls_of: Annotated[str, typer.Option(help="Models whose later calls are timed.")] = "mlp-small,mlp,gpt2-4",
    processes: Annotated[int, typer.Option(min=1, help="Processes for each way of running steps.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Later calls of each way.")] = 200,
    threads: Threads = 2,
    out: Out = DEFAULT_OUT,
    timeout: Timeout = 900.0,
) -> None:
    """Time how whole training steps (AdamW) become programs, and what later calls cost beyond their program."""
    console = Console(stderr=True)
    machine = describe_machine("cpu")
    captures: list[CaptureCost] = []
    for model in split_names(models, MODELS, "--models"):
        answers: dict[str, list[dict[str, Any]]] = {EAGER: [], DOVETAIL: []}
        for number in range(processes):
            for way, found in answers.items():
                arguments = {"model": model, "way": way}
                found.append(ask_fresh_process("step-capture", arguments, threads=threads, timeout_s=timeout))
            console.print(f"{model}: {number + 1}/{processes}", markup=False)
        captures += [summarize_capture(model, way, found) for way, found in answers.items()]
    calls: list[StepCall] = []
    for model in split_names(calls_of, MODELS, "--calls-of"):
        console.print(f"calls of {model}", markup=False)
        asked = {"model": model, "rounds": rounds}
        calls.append(StepCall(model, **ask_fresh_process("step-call", asked, threads=1, timeout_s=timeout)))
    settings = {"processes": processes, "rounds": rounds, "threads": threads}
    write_capture_report(captures, calls, machine, settings, out)


def step_memory(  # noqa: PLR0913 (options of a command)
    models: Models = "mlp,gpt2-4-short,gpt2-4,gpt2-12,resnet18,bert,llama",
    clipped: Annotated[str, typer.Option(help="Models whose gradients are clipped as well.")] = "mlp,gpt2-4",
    ways: Annotated[str, typer.Option(help=f"Which ways of running steps: {', '.join(WAYS)}.")] = ",".join(WAYS),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each one gives every way its turn.")] = 10,
    steps_per_round: Annotated[int, typer.Option(min=1, help="Training steps in one turn.")] = 2,
    logging_rounds: Annotated[int, typer.Option(min=1, help="Steps with and without printing.")] = 300,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    device: Device = "cpu",
    out: Out = DEFAULT_OUT,
    timeout: Timeout = 1800.0,
) -> None:
    """Measure the exact peak and the time of whole training steps with AdamW, optimizer included."""
    console = Console(stderr=True)
    machine = describe_machine(device)
    chosen = list(dict.fromkeys([EAGER, *split_names(ways, WAYS, "--ways")]))
    cases = [(model, False) for model in split_names(models, MODELS, "--models")]
    cases += [(model, True) for model in split_names(clipped, MODELS, "--clipped")] if clipped else []
    settings = {"rounds": rounds, "steps_per_round": steps_per_round, "logging_rounds": logging_rounds}
    rows: list[StepMemory] = []
    for model, clip in cases:
        console.print(f"{model}{', clipped' if clip else ''}", markup=False)
        turns = {"rounds": rounds, "steps_per_round": steps_per_round}
        answers = ask_for_ways(model, chosen, clip=clip, **turns, threads=threads, timeout_s=timeout, device=device)
        rows += summarize_ways(model, clip, answers)
    asked = {
        "model": "mlp-small",
        "ways": [way for way in chosen if way in (EAGER, DOVETAIL)],
        "rounds": logging_rounds,
    }
    answers = ask_fresh_process("step-logging", asked, threads=threads, timeout_s=timeout)
    logging = summarize_logging(answers, EAGER)
    write_memory_report(rows, logging, machine, {**settings, "threads": threads}, out)


def step_limits(
    models: Models = "gpt2-4,gpt2-4-short,gpt2-12,llama,bert,vit,resnet18,mlp,lstm,unet,swiglu-8,swiglu-16",
    limits: Annotated[int, typer.Option(min=1, help="Limits of each model, from the lowest to the highest.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls under each limit.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    out: Out = DEFAULT_OUT,
    timeout: Timeout = 3600.0,
) -> None:
    """Measure whole training steps under many limits: whether they are kept, at which cost, with eager's bits."""
    console = Console(stderr=True)
    machine = describe_machine("cpu")
    settings = {"limits": limits, "rounds": rounds, "threads": threads}
    answers: list[dict[str, Any]] = []
    for model in split_names(models, MODELS, "--models"):
        console.print(model, markup=False)
        asked = {"model": model, "limits": limits, "rounds": rounds}
        answers.append({"model": model} | ask_fresh_process("step-limits", asked, threads=threads, timeout_s=timeout))
        write_limits_report(answers, machine, settings, out)


def graph_memory(
    models: Models = "gpt2-4,gpt2-4-short,llama,bert,vit,resnet18,mlp,lstm,unet,swiglu-8,swiglu-16",
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    out: Out = DEFAULT_OUT,
    timeout: Timeout = 1800.0,
) -> None:
    """Measure the peaks of graphs, forward alone and with backward, beside eager's and beside what is predicted."""
    console = Console(stderr=True)
    answers: list[dict[str, Any]] = []
    for model in split_names(models, MODELS, "--models"):
        console.print(model, markup=False)
        found = ask_fresh_process("graph-memory", {"model": model}, threads=threads, timeout_s=timeout)
        answers.append({"model": model} | found)
        write_graphs_report(answers, describe_machine("cpu"), out)
