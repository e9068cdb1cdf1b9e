"""`dovetail doctor`: what is installed here, and whether what dovetail needs of torch does what it must."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import dovetail
from dovetail.cli.output import AsJson, installed_version, print_json
from dovetail.execute import executors
from dovetail.execute.installed import brought_executors
from dovetail.execute.native import cache as native_cache
from dovetail.torch_compat.selfcheck import CheckResult, run_self_checks
from dovetail.torch_compat.version import OLDEST_SUPPORTED, TESTED, installed_torch_version, release_of

_COMPILERS = ("c++", "g++", "clang++", "cl")
_BACKEND_GROUP = "torch_dynamo_backends"
_UNTESTED = (
    "not tested: dovetail has code for it, but has never been run on it. Compare results with eager, and please open "
    "an issue on the project's page with what you found and this output"
)
# The functions of the public face that take a user's program, and what each of them takes.
_FRONT_DOORS = (
    ("compile", "a function of tensors"),
    ("compile_step", "a whole training step"),
    ("freeze", "a model for inference, with its weights inside"),
    ("aot_function", "a function, with your own compilers"),
    ("aot_module", "a module, with your own compilers"),
)


def doctor(as_json: AsJson = False) -> None:
    """Show what is installed and supported here, and check the private torch functions that dovetail uses."""
    console = Console()
    results = run_self_checks()
    if as_json:
        print_json(_facts(results))
        raise typer.Exit(1 if _problems(results) else 0)
    console.print(_facts_table("versions", _versions()))
    console.print(_facts_table("machine", _machine()))
    console.print(_facts_table("toolchain (not required)", _toolchain()))
    console.print(_facts_table("front doors", _front_doors()))
    console.print(_facts_table("executors", _executors()))
    console.print(_checks_table(results))
    problems = _problems(results)
    for problem in problems:
        console.print(Text(problem, style="red"), soft_wrap=True)
    if problems:
        raise typer.Exit(1)
    console.print(Text(f"dovetail works here: {len(results)} of {len(results)} self-checks pass", style="green"))


def _facts(results: Sequence[CheckResult]) -> dict[str, object]:
    sections = {
        "versions": _versions(),
        "machine": _machine(),
        "toolchain": _toolchain(),
        "front_doors": _front_doors(),
        "executors": _executors(),
    }
    facts: dict[str, object] = {name: dict(rows) for name, rows in sections.items()}
    return {**facts, "checks": [asdict(result) for result in results], "problems": _problems(results)}


def _versions() -> Iterable[tuple[str, str]]:
    version = installed_torch_version()
    yield "dovetail", installed_version()
    yield "torch", f"{version} ({_torch_support(version)})"
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "platform", platform.platform()


def _torch_support(version: str) -> str:
    release = release_of(version)
    if release is None or release < OLDEST_SUPPORTED:
        return f"not supported: dovetail needs torch >= {'.'.join(map(str, OLDEST_SUPPORTED))}"
    return "tested" if release == TESTED else "not tested: supported if every self-check passes"


def _machine() -> Iterable[tuple[str, str]]:
    yield "cpu", f"supported; {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"
    yield "threads", f"{torch.get_num_threads()} in an operator, {torch.get_num_interop_threads()} across operators"
    if not torch.cuda.is_available():
        yield "cuda", f"none here; {_UNTESTED}"
        return
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}", f"{device.name}, {device.total_memory / 2**30:.1f} GiB; {_UNTESTED}"


def _toolchain() -> Iterable[tuple[str, str]]:
    paths = [path for path in map(shutil.which, _COMPILERS) if path is not None]
    yield "C++ compiler", paths[0] if paths else "none"
    yield "triton", _import_state("triton")
    yield "llvmlite", _import_state("llvmlite")
    yield "cache of native code", native_cache.state()


def _import_state(package: str) -> str:
    try:
        module = importlib.import_module(package)
    except Exception as error:  # a broken installation may raise anything
        return f"cannot be imported ({type(error).__name__})"
    return f"importable, version {getattr(module, '__version__', 'unknown')}"


def _front_doors() -> Iterable[tuple[str, str]]:
    yield 'torch.compile(backend="dovetail")', _backend_state()
    for name, what in _FRONT_DOORS:
        yield f"dovetail.{name}", f"yes: {what}" if hasattr(dovetail, name) else "not in this version"


def _backend_state() -> str:
    for backend in importlib.metadata.entry_points(group=_BACKEND_GROUP, name="dovetail"):
        try:
            backend.load()
        except (ImportError, AttributeError) as error:
            return f"registered, but {backend.value} cannot be imported: {error}"
        return "yes: a module or function, graph by graph"
    return "not registered: install the package with pip"


def _executors() -> Iterable[tuple[str, str]]:
    for module in sorted(pkgutil.iter_modules(executors.__path__), key=lambda found: found.name):
        documentation = importlib.import_module(f"{executors.__name__}.{module.name}").__doc__ or ""
        yield module.name, documentation.strip().partition("\n")[0]
    for name, entry in sorted(brought_executors().items()):
        yield name, f"{entry.value}, provided by {entry.dist.name if entry.dist is not None else 'a package'}"


def _problems(results: Sequence[CheckResult]) -> list[str]:
    problems = [f"self-check {result.name} failed: {result.detail}" for result in results if not result.ok]
    version = installed_torch_version()
    release = release_of(version)
    if release is None or release < OLDEST_SUPPORTED:
        problems.insert(0, f"torch {version} is {_torch_support(version)}")
    return problems


def _facts_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(f"  {label}"), Text(value))
    return table


def _checks_table(results: Sequence[CheckResult]) -> Table:
    table = Table(title="self-checks", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("private torch function", no_wrap=True)
    table.add_column("")
    table.add_column("what it must do, or how it differs", overflow="fold")
    for result in results:
        mark = Text("ok", style="green") if result.ok else Text("FAILED", style="bold red")
        table.add_row(Text(result.name), mark, Text(result.detail))
    return table
