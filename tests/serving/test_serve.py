"""`dovetail serve`: results are the program's, and requests that are wrong, slow or too many are answered so."""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import dovetail
from dovetail.cli.app import main
from tests.serving.server import Answer, Server, serving

_NEEDED = ("starlette", "uvicorn", "prometheus_client")
needs_server = pytest.mark.skipif(
    any(find_spec(name) is None for name in _NEEDED), reason="pip install dovetail[serve]"
)
_SLOW = 2000  # rows: a good part of a second of work


class Net(nn.Module):
    """Two methods; the work of `slow` grows with its rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, tokens: Tensor, scaled: bool = False) -> dict[str, Any]:
        return {"scores": self.layer(x) / tokens[:, None], "both": (tokens + 1, x > 0)}

    def slow(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = (x @ x.T).sin() @ x
        return x.sum()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("serve") / "net.dovetail"
    example = (torch.rand(2, 4), torch.arange(2))
    dovetail.freeze(Net().eval(), {"forward": (example, {}), "slow": ((torch.rand(3, 64),), {})}).save(found)
    return found


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    options = ["--queue", "0", "--timeout", "3", "--max-body", "0.1", "--threads", "1"]
    with serving(["-m", "dovetail", "serve", str(path), *options], path.parent) as found:
        yield found


@needs_server
def test_results_are_the_programs(server: Server, path: Path) -> None:
    x, tokens = torch.rand(3, 4), torch.tensor([0, 1, 2])
    expected = dovetail.load(path)(x, tokens)
    answer = server.post("/call", {"inputs": {"x": x.tolist(), "tokens": tokens.tolist()}})
    assert answer.status == 200
    outputs = answer.data["outputs"]
    assert set(outputs) == {"scores", "both.0", "both.1"}
    assert torch.equal(torch.tensor(outputs["scores"][1:]), expected["scores"][1:])
    assert all(value in ("Infinity", "-Infinity") for value in outputs["scores"][0])
    assert outputs["both.0"] == [1, 2, 3]
    assert outputs["both.1"] == (x > 0).tolist()

    kind = "application/safetensors"
    answer = server.ask("POST", "/call/forward", safetensors.torch.save({"x": x, "tokens": tokens}), kind)
    assert (answer.status, answer.headers["content-type"]) == (200, kind)
    found = safetensors.torch.load(answer.body)
    assert torch.equal(found["scores"], expected["scores"])
    assert torch.equal(found["both.1"], expected["both"][1])
    assert server.post("/call/slow", {"inputs": {"x": [[0.0] * 64]}}).data == {"outputs": {"output": 0.0}}


@needs_server
@pytest.mark.parametrize(
    ("path_", "body", "status", "said"),
    [
        ("/call", b"{", 400, "not JSON"),
        ("/call", b"[" * 50_000, 400, "not JSON"),
        ("/call", b"[]", 400, "inputs"),
        ("/call", b'{"inputs": {"x": [[1, 2, 3, 4]]}}', 400, "no input 'tokens'"),
        ("/call", b'{"inputs": {"x": [[1, 2, 3, 4]], "tokens": [1], "y": [1]}}', 400, "there is an input 'y'"),
        ("/call", b'{"inputs": {"x": [[1, 2], [3]], "tokens": [1]}}', 400, "'x' is not a tensor of float32"),
        ("/call", b'{"inputs": {"x": [["a"]], "tokens": [1]}}', 400, "not a number"),
        ("/call", b'{"inputs": {"x": [[1, 2, 3, 4]], "tokens": [1.5]}}', 400, "1.5 is not a whole number"),
        ("/call", b'{"inputs": {"x": [[1, 2, 3, 4]], "tokens": ["NaN"]}}', 400, "nan is not a whole number"),
        ("/call", b'{"inputs": {"x": [[1, 2, 3, 4]], "tokens": [9223372036854775808]}}', 400, "is not within"),
        ("/call", b'{"inputs": {"x": [[1, 2, 3]], "tokens": [1]}}', 400, "DT-FREEZE-003"),
        ("/call", b'{"inputs": {"x": [1], "tokens": [1]}}', 400, "DT-FREEZE-003"),
        ("/call", b'{"inputs": {"x": [[1, 2, 3, 4]], "tokens": [1], "scaled": true}}', 400, "scaled is True"),
        ("/call/train", b"{}", 404, "there is no method 'train'"),
        ("/call", b" " * 120_000, 413, "at most 104857 bytes"),
    ],
)
def test_requests_that_are_wrong(server: Server, path_: str, body: bytes, status: int, said: str) -> None:
    answer = server.ask("POST", path_, body)
    assert (answer.status, said in answer.data["error"]) == (status, True), answer


@needs_server
def test_other_kinds_and_lying_lengths(server: Server) -> None:
    assert server.ask("POST", "/call", b"x=1", "text/plain").status == 415
    assert server.ask("POST", "/call", b"\xff" * 9, "application/safetensors").status == 400
    for described, said in (
        ({"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]}, "not safetensors"),
        ({"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}, "no dtype F4"),
    ):
        head = json.dumps({"x": described}).encode()
        body = len(head).to_bytes(8, "little") + head + bytes(described["data_offsets"][1])
        answer = server.ask("POST", "/call", body, "application/safetensors")
        assert (answer.status, said in answer.data["error"]) == (400, True), answer
    with server.raw() as connection:  # in chunks, without a length
        connection.sendall(b"POST /call HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"1e848\r\n" + b" " * 125_000 + b"\r\n0\r\n\r\n")
        assert b" 413 " in connection.recv(1000)
    with server.raw() as connection:
        connection.sendall(b"what is this\r\n\r\n")
        assert b" 400 " in connection.recv(1000)


@needs_server
def test_clients_that_are_slow_or_gone(server: Server) -> None:
    head = b"POST /call HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    with server.raw() as gone:
        gone.sendall(head)
    with server.raw() as slow:
        slow.sendall(head)
        assert server.get("/health").status == 200
        assert b" 408 " in slow.recv(1000)
    counted = server.get("/metrics").body.decode()
    assert 'dovetail_requests_total{method="forward",status="408"} 1.0' in counted
    assert "dovetail_request_seconds_bucket" in counted


def _slow(rows: int) -> Any:
    return {"inputs": {"x": [[0.5] * 64] * rows}}


@needs_server
def test_a_full_queue_and_the_end(path: Path) -> None:
    """One call runs; another is refused at once; the end waits for the first."""
    command = ["-m", "dovetail", "serve", str(path), "--queue", "0", "--timeout", "60", "--threads", "1"]
    with serving(command, path.parent) as server:
        found: list[Answer] = []
        running = threading.Thread(target=lambda: found.append(server.post("/call/slow", _slow(_SLOW))))
        running.start()
        while not server.get("/health").data["pending"]:
            assert running.is_alive()
            time.sleep(0.01)
        refused = server.post("/call/slow", _slow(1))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        server.process.send_signal(signal.SIGTERM)
        running.join(60)
        assert server.process.wait(60) == 0
        assert found[0].status == 200


@needs_server
def test_a_call_that_takes_too_long(path: Path) -> None:
    """Its caller gets 504; it keeps its place in the queue until it ends, and what fails in it is 500."""
    app = importlib.import_module("dovetail.serving.app")
    frozen, goes_on = dovetail.load(path), threading.Event()

    class Waits:
        call_forms, is_stateful = frozen.call_forms, True

        def slow(self, x: Tensor) -> Tensor:
            if not goes_on.wait(60 if x[0, 0] else 0):
                raise RuntimeError("it did not go on")
            return x

    made = app.make_app(Waits(), app.Limits(queue=0, timeout_s=0.2))

    async def asked(value: float) -> int:
        sent: list[Any] = []
        body = json.dumps({"inputs": {"x": [[value] * 64]}}).encode()
        scope = {"type": "http", "method": "POST", "path": "/call/slow", "headers": [], "query_string": b""}

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await made(scope, receive, send)
        return int(sent[0]["status"])

    async def all_of_them() -> list[int]:
        found = [await asked(0.0), await asked(1.0), await asked(1.0)]
        goes_on.set()
        while await asked(1.0) == 503:
            await asyncio.sleep(0.01)
        return [*found, await asked(1.0)]

    assert asyncio.run(all_of_them()) == [500, 504, 503, 200]


def test_without_its_packages(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dovetail.cli.serve.find_spec", lambda name: None if name == "uvicorn" else sys)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(path)])
    assert ended.value.code == 2
    assert "dovetail[serve]" in capsys.readouterr().err.replace("\n", "")


def test_what_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.dovetail").write_text(json.dumps({}))
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tmp_path / "x.dovetail")])
    assert ended.value.code == 2
    assert "DT-ARTIFACT-002" in capsys.readouterr().err
