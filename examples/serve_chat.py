"""Continue texts over HTTP: requests join and leave a running batch between two tokens, and each is streamed.

    python examples/serve_chat.py save chat.dovetail                       # a tiny model of bytes, not trained
    python examples/serve_chat.py save chat.dovetail --model FOLDER        # a language model of transformers
    python examples/serve_chat.py serve chat.dovetail --port 8000          # --tokenizer FOLDER/tokenizer.json
    curl -N localhost:8000/generate -d '{"prompt": "Once", "max_new_tokens": 20}'

The program has a row of its cache for each of so many texts (`slots=True`). One thread runs it: it reads the prompts
that wait into free rows, and then makes one token for all rows together. Serving needs neither the code of the model
nor transformers. http://localhost:8000 is a page to try it in.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import importlib
import json
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import dovetail

MOST_BYTES = 64 << 10
"""Of a request's body."""

_PAGE = Path(__file__).with_name("serve_chat.html")
_BYTES, _END = 256, 256


# --- text and tokens ------------------------------------------------------------------------------------------------


class Bytes:
    """A token for each byte."""

    def tokens(self, text: str) -> list[int]:
        """Of a prompt."""
        return list(text.encode())

    def reader(self) -> Callable[[int], str]:
        """What turns one token after another into text; parts of a character give nothing until it is whole."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda token: decoder.decode(bytes([token])) if token < _BYTES else ""


class FromFile:
    """The tokens of a `tokenizer.json`."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))

    def tokens(self, text: str) -> list[int]:
        """Of a prompt."""
        return list(self._tokenizer.encode(text).ids)

    def reader(self) -> Callable[[int], str]:
        """What turns one token after another into text."""
        seen: list[int] = []
        told = ""

        def read(token: int) -> str:
            nonlocal told
            seen.append(token)
            text = str(self._tokenizer.decode(seen))
            if text.endswith("\N{REPLACEMENT CHARACTER}"):
                return ""  # a part of a character
            new, told = text[len(told) :], text
            return new

        return read


# --- the batch ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Text:
    """One request. put: takes each token, and at last why it ended; may be called from any thread."""

    prompt: list[int]
    most: int
    options: dict[str, Any]
    generator: torch.Generator
    put: Callable[[int | str], None]
    until: float
    since: float = field(default_factory=time.monotonic)
    is_gone: bool = False
    made: int = 0


class Meters:
    """What Prometheus is told."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("chat_requests", "Requests, by how they ended.", ("end",), registry=self.registry)
        self.tokens = Counter("chat_tokens", "Tokens that were made.", registry=self.registry)
        self.first = Histogram("chat_first_token_seconds", "Until a text's first token.", registry=self.registry)
        self.running = Gauge("chat_running", "Texts that are in the batch.", registry=self.registry)
        self.waiting = Gauge("chat_waiting", "Texts that wait for a row.", registry=self.registry)


class Batch:
    """Runs the program in a thread of its own."""

    def __init__(self, frozen: dovetail.FrozenGenerator, queue: int) -> None:
        self.frozen, self.meters = frozen, Meters()
        self._queue = queue
        self._waiting: deque[Text] = deque()
        self._running: dict[int, Text] = {}
        self._last: dict[int, int] = {}
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="batch", daemon=True)
        self._thread.start()

    def add(self, text: Text) -> bool:
        """Let a text wait for a row; False if too many wait."""
        with self._changed:
            if self._ends or len(self._waiting) >= self._queue:
                return False
            self._waiting.append(text)
            self._changed.notify()
            return True

    def close(self) -> None:
        """End after the token that is being made."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._running or self._ends):
                    self._changed.wait()
                if self._ends:
                    left = [*self._running.values(), *self._waiting]
                    break
            try:
                self._admit()
                self._step()
            except Exception as error:  # no text can go on; the next ones may
                for slot in list(self._running):
                    self._leave(slot, f"error: {error}".partition("\n")[0])
            self.meters.running.set(len(self._running))
            self.meters.waiting.set(len(self._waiting))
        for text in left:
            text.put("closed")

    def _admit(self) -> None:
        """Read prompts into free rows, and let go of those that nobody waits for any more."""
        now = time.monotonic()
        with self._changed:
            late = [text for text in self._waiting if text.is_gone or now > text.until]
            self._waiting = deque(text for text in self._waiting if not any(text is other for other in late))
        for text in late:
            self._told(text, "gone" if text.is_gone else "timeout")
        for slot in range(self.frozen.batch):
            if slot in self._running:
                continue
            with self._changed:
                if not self._waiting:
                    return
                text = self._waiting.popleft()
            self._running[slot] = text
            logits = self.frozen.start(slot, torch.tensor(text.prompt))
            self.meters.first.observe(time.monotonic() - text.since)
            self._take(slot, logits)

    def _step(self) -> None:
        """One token for all texts."""
        for slot, text in list(self._running.items()):
            if text.is_gone or time.monotonic() > text.until:
                self._leave(slot, "gone" if text.is_gone else "timeout")
        if not self._running:
            return
        tokens = [self._last.get(slot, 0) for slot in range(self.frozen.batch)]
        logits = self.frozen.step(torch.tensor(tokens))
        for slot in list(self._running):
            self._take(slot, logits[slot])

    def _take(self, slot: int, logits: torch.Tensor) -> None:
        """Choose the next token of a text, and see whether it ends."""
        text = self._running[slot]
        token = int(self.frozen.choose(logits[None], generator=text.generator, **text.options))
        self.meters.tokens.inc()
        text.made += 1
        if token in self.frozen.eos_token_ids:
            self._leave(slot, "end")
            return
        text.put(token)
        self._last[slot] = token
        if text.made >= text.most:
            self._leave(slot, "length")

    def _leave(self, slot: int, why: str) -> None:
        text = self._running.pop(slot)
        self._last.pop(slot, None)
        self.frozen.release(slot)
        self._told(text, why)

    def _told(self, text: Text, why: str) -> None:
        self.meters.requests.labels(why.partition(":")[0]).inc()
        text.put(why)


# --- HTTP -----------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Chat:
    """The handlers of requests."""

    def __init__(self, batch: Batch, tokenizer: Bytes | FromFile, timeout_s: float) -> None:
        self._batch, self._tokenizer, self._timeout_s = batch, tokenizer, timeout_s

    async def generate(self, request: Request) -> Response:
        """Continue a text: events with its parts, and a last one that says why it ended."""
        queue: asyncio.Queue[int | str] = asyncio.Queue()  # as long as a text at most
        loop = asyncio.get_running_loop()
        try:
            text = self._text(await self._body(request), lambda item: _hand_over(loop, queue, item))
            if not self._batch.add(text):
                raise Refused(503, "too many texts wait")
        except Refused as refused:
            self._batch.meters.requests.labels(str(refused.status)).inc()
            headers = {"Retry-After": "1"} if refused.status == 503 else {}
            return JSONResponse({"error": str(refused)}, refused.status, headers)
        return StreamingResponse(self._events(text, queue), media_type="text/event-stream")

    async def _events(self, text: Text, queue: asyncio.Queue[int | str]) -> AsyncIterator[str]:
        read = self._tokenizer.reader()
        try:
            while not isinstance(item := await queue.get(), str):
                yield f"data: {json.dumps({'token': item, 'text': read(item)})}\n\n"
            yield f"event: done\ndata: {json.dumps({'why': item, 'tokens': text.made})}\n\n"
        finally:
            text.is_gone = True  # where the client has gone, its row is free after the next token

    async def _body(self, request: Request) -> Any:
        found = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                async for chunk in request.stream():
                    found += chunk
                    if len(found) > MOST_BYTES:
                        raise Refused(413, f"a request has at most {MOST_BYTES} bytes")
        except (TimeoutError, ClientDisconnect):
            raise Refused(408, "the request did not arrive") from None
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            raise Refused(400, "it is not JSON") from None

    def _text(self, data: Any, put: Callable[[int | str], None]) -> Text:
        if not isinstance(data, dict) or not isinstance(data.get("prompt"), str):
            raise Refused(400, 'it is not {"prompt": "..."}')
        known = {"prompt", "max_new_tokens", "temperature", "top_k", "top_p", "seed"}
        if not known.issuperset(data):
            raise Refused(400, f"there is no option {min(set(data) - known)!r}")
        prompt, frozen = self._tokenizer.tokens(data["prompt"]), self._batch.frozen
        room = frozen.max_length - len(prompt)
        if not prompt or room < 1:
            raise Refused(400, f"a prompt has 1 to {frozen.max_length - 1} tokens, and this one {len(prompt)}")
        most, seed = data.get("max_new_tokens", room), data.get("seed")
        if type(most) is not int or most < 1:
            raise Refused(400, "max_new_tokens is a number from 1")
        if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
            raise Refused(400, "seed is a number from 0")
        options = {name: data[name] for name in ("temperature", "top_k", "top_p") if name in data}
        if options.get("temperature") == 0:
            options = {"do_sample": False}
        elif options:
            options["do_sample"] = True
        try:
            frozen.choose(torch.zeros(1, 2), **options)  # says what is wrong with them
        except (dovetail.DovetailError, TypeError) as error:
            raise Refused(400, str(error).partition("\n")[0]) from None
        generator = torch.Generator()
        generator.manual_seed(seed) if seed is not None else generator.seed()
        return Text(prompt, min(most, room), options, generator, put, time.monotonic() + self._timeout_s)

    async def page(self, request: Request) -> Response:
        """A page to try it in."""
        return HTMLResponse(_PAGE.read_text())

    async def health(self, request: Request) -> Response:
        """That it serves."""
        return JSONResponse({"status": "ok", "rows": self._batch.frozen.batch})

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        return Response(generate_latest(self._batch.meters.registry), media_type="text/plain; version=0.0.4")


def _hand_over(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[int | str], item: int | str) -> None:
    try:
        loop.call_soon_threadsafe(queue.put_nowait, item)
    except RuntimeError:
        return  # the server has ended


def make_app(path: Path, tokenizer: Path | None = None, queue: int = 32, timeout_s: float = 120.0) -> Starlette:
    """The server for a file that `save` wrote."""
    frozen = dovetail.load(path)
    assert isinstance(frozen, dovetail.FrozenGenerator), "save writes one"
    batch = Batch(frozen, queue)
    chat = Chat(batch, Bytes() if tokenizer is None else FromFile(tokenizer), timeout_s)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batch.close)

    routes = [
        Route("/", chat.page),
        Route("/generate", chat.generate, methods=["POST"]),
        Route("/health", chat.health),
        Route("/metrics", chat.metrics),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


# --- commands -------------------------------------------------------------------------------------------------------


def bytes_model(length: int) -> torch.nn.Module:
    """A tiny Llama of bytes, with random weights."""
    transformers = importlib.import_module("transformers")  # only saving needs it
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=_BYTES + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=length,
        bos_token_id=None,
        eos_token_id=_END,
        pad_token_id=_END,
    )
    model: torch.nn.Module = transformers.LlamaForCausalLM(config).eval()
    return model


def save(path: Path, model: Path | None = None, rows: int = 8, length: int = 512) -> None:
    """Freeze a model with its cache, and write it to a file."""
    if model is None:
        found = bytes_model(length)
    else:
        auto = importlib.import_module("transformers").AutoModelForCausalLM
        found = auto.from_pretrained(str(model), local_files_only=True).eval()
    dovetail.freeze_generation(found, max_length=length, batch=rows, padding=False, slots=True).save(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Save a file, or serve it until SIGTERM: texts that are being made are finished."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("save", "serve"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--model", type=Path, help="folder of a model of transformers")
    parser.add_argument("--rows", type=int, default=8, help="texts at a time")
    parser.add_argument("--length", type=int, default=512, help="tokens of a text")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; without it, tokens are bytes")
    parser.add_argument("--queue", type=int, default=32, help="texts that wait")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds of a request")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(arguments)
    if given.action == "save":
        save(given.path, given.model, given.rows, given.length)
        return
    app = make_app(given.path, given.tokenizer, given.queue, given.timeout)
    config = uvicorn.Config(
        app,
        host=given.host,
        port=given.port,
        log_level="warning",
        timeout_graceful_shutdown=round(given.timeout) + 1,
    )
    server = uvicorn.Server(config)
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))  # which uvicorn raises again
    server.run()


if __name__ == "__main__":
    main()
