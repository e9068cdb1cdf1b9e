"""`dovetail serve`: a frozen program's file over HTTP."""

from __future__ import annotations

import importlib
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import dovetail
from dovetail.cli.output import Allow

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `frozen.save(path)` wrote.")]
_Host = Annotated[str, typer.Option(help="The address to listen at.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")]
_Workers = Annotated[int, typer.Option(min=1, help="Calls that run at a time; a program with state runs one.")]
_Queue = Annotated[int, typer.Option(min=0, help="Calls that wait; one more is answered with 503.")]
_Body = Annotated[float, typer.Option(min=0.001, help="The largest body of a request, in MiB.")]
_Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds for a body to arrive, and for a call's answer.")]
_Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch in each call. Default: torch's.")]
_NEEDED = ("starlette", "uvicorn", "prometheus_client")


def serve_command(
    file: _File,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    workers: _Workers = 1,
    queue: _Queue = 64,
    max_body: _Body = 16.0,
    timeout: _Timeout = 30.0,
    threads: _Threads = None,
    allow: Allow = None,
) -> None:
    """Serve a frozen program: tensors by name, as JSON or safetensors, at `/call/METHOD`; `/health`, `/metrics`.

    At SIGTERM it takes no more requests, and ends once those that it has are answered, or after `--timeout` seconds.

    Exit status: 0 after SIGTERM or Ctrl-C; 2 for a file that `dovetail.load` refuses, or without `dovetail[serve]`.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise typer.BadParameter(f"{', '.join(missing)} missing: pip install 'dovetail[serve]'", param_hint="serve")
    frozen = dovetail.load(file, allow=allow or ())
    if isinstance(frozen, dovetail.FrozenGenerator):
        raise typer.BadParameter("it generates texts: see examples/serve_chat.py", param_hint="FILE")
    if threads is not None:
        torch.set_num_threads(threads)
    app: Any = importlib.import_module("dovetail.serving.app")  # after the check: it imports what is needed
    uvicorn: Any = importlib.import_module("uvicorn")
    limits = app.Limits(body=int(max_body * (1 << 20)), queue=queue, timeout_s=timeout, workers=workers)
    config = uvicorn.Config(
        app.make_app(frozen, limits),
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=max(1, round(timeout)),
        limit_concurrency=queue + workers + _OTHERS,
        h11_max_incomplete_event_size=_MOST_HEADERS,
    )
    server = uvicorn.Server(config)
    Console(stderr=True).print(f"serving {file} at http://{host}:{port}", highlight=False)
    # uvicorn ends gracefully, and then raises the signal once more, for the handler that was there before.
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    server.run()


_OTHERS = 64  # connections beside those of calls: for /health and /metrics, and for 503
_MOST_HEADERS = 64 << 10
