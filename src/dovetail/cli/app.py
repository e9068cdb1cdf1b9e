"""The commands, and how they end.

| exit status | means |
|---|---|
| 0 | it worked; what was compared agrees |
| 1 | it worked, and found what it looks for: `doctor` something wrong, others say in their `--help` |
| 2 | wrong usage, or an error that dovetail raises on purpose, printed without a traceback |
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dovetail.cli.bench import bench_command
from dovetail.cli.bisect import bisect_command
from dovetail.cli.cache import cache_app
from dovetail.cli.doctor import doctor
from dovetail.cli.draw import draw_command
from dovetail.cli.explain import explain_command
from dovetail.cli.fit import fit_command
from dovetail.cli.inspect import inspect_command
from dovetail.cli.minify import minify_command
from dovetail.cli.output import installed_version
from dovetail.cli.replay import replay_command
from dovetail.cli.serve import serve_command
from dovetail.errors import DovetailError

_USER_ERROR_STATUS = 2

app = typer.Typer(
    name="dovetail",
    help="An ahead-of-time compiler for PyTorch programs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for name, command in (
    ("doctor", doctor),
    ("explain", explain_command),
    ("draw", draw_command),
    ("replay", replay_command),
    ("bisect", bisect_command),
    ("minify", minify_command),
    ("bench", bench_command),
    ("fit", fit_command),
    ("inspect", inspect_command),
    ("serve", serve_command),
):
    app.command(name)(command)
app.add_typer(cache_app, name="cache")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit.

    Args:
        arguments: what follows `dovetail` on the command line; `sys.argv` when not given.

    Raises:
        SystemExit: always, with a status of the table above.
    """
    try:
        app(args=None if arguments is None else list(arguments), prog_name="dovetail")
    except Exception as error:
        cause = _dovetail_error_in(error)
        if cause is None:
            raise
        Console(stderr=True).print(Text(str(cause), style="red"), soft_wrap=True)
        sys.exit(_USER_ERROR_STATUS)


def _dovetail_error_in(error: BaseException | None) -> DovetailError | None:
    """The error that dovetail raised, also where Dynamo wraps it in one of its own."""
    while error is not None and not isinstance(error, DovetailError):
        error = error.__cause__ or error.__context__
    return error


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        Console().print(f"dovetail {installed_version()}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """An ahead-of-time compiler for PyTorch programs."""
