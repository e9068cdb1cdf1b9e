"""A server in a process of its own, and a plain client."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_START_S = 240


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Server:
    """A process and its port."""

    process: subprocess.Popen[bytes]
    port: int

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Answer:
        """One request, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": kind} if body is not None else {})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """GET."""
        return self.ask("GET", path)

    def post(self, path: str, data: Any) -> Answer:
        """POST as JSON."""
        return self.ask("POST", path, json.dumps(data).encode())

    def raw(self) -> socket.socket:
        """A connection, to send anything."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextmanager
def serving(command: Sequence[str], folder: Path) -> Iterator[Server]:
    """A server that runs meanwhile. command: what follows Python; `--port` is added."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = folder / f"server-{port}.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *command, "--port", str(port)],
            cwd=folder,
            env=dict(os.environ),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        server = Server(process, port)
        try:
            _wait(server, log)
            yield server
        finally:
            process.terminate()
            process.wait(60)


def _wait(server: Server, log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        assert server.process.poll() is None, log.read_text()
        try:
            if server.get("/health").status == 200:
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())
