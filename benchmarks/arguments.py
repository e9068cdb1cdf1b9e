"""Arguments that several subcommands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.models import MODELS

DEFAULT_OUT = Path(__file__).resolve().parent / "results"

Models = Annotated[str, typer.Option(help=f"Which models, with commas between: {', '.join(MODELS)}.")]
Backends = Annotated[str, typer.Option(help="Which backends; dynamo is torch.compile with nothing behind Dynamo.")]
Threads = Annotated[int | None, typer.Option(help="Threads of torch; its own default when not given.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Out = Annotated[Path, typer.Option(help="Folder for the JSON, the markdown table and the plot.")]
Timeout = Annotated[float, typer.Option(help="Seconds after which a process is given up.")]


def split_names(text: str, known: Any, option: str) -> list[str]:
    """The names in a text with commas between.

    Raises:
        typer.BadParameter: one of them is not known, or there is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise typer.BadParameter(
            f"{', '.join(unknown) or 'nothing'} given; known: {', '.join(known)}", param_hint=option
        )
    return names
