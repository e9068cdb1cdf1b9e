"""Load `examples/serve_chat.py` for minutes, with clients of all kinds, and look whether it keeps its promises.

    python -m tests.serve_soak --minutes 10                  # at 80 % of what it was found to serve

Texts are compared, token by token, with what the same file gives for each prompt alone, and greedy ones with what the
model gives in eager mode. Meanwhile some clients read slowly, go away in the middle, send too much, half of a
request, or no HTTP at all. In the end SIGTERM comes while texts are streamed, which have to be finished. The resident
memory of the server is compared between two quarters of the time: the second and the last. The exit status is 1 where
a text was wrong, an answer was none of those expected, the end was not graceful, or memory has grown by more.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch

import dovetail
from tests.serving.server import Server, serving

_ROWS, _LENGTH = 4, 96
_PROMPTS = ("Once", "a", "upon a time", "€ and ü", "x" * 40, "0123456789" * 3)
_MANNERS = {"plain": 0.76, "slow": 0.08, "leaves": 0.06, "large": 0.03, "wrong": 0.03, "half": 0.02, "garbage": 0.02}
_REFUSED = {"large": (413,), "wrong": (400,)}
_WRONG = (
    b"{",
    b"[]",
    b'{"prompt": 1}',
    b'{"prompt": "x", "colour": 3}',
    b'{"prompt": ""}',
    b'{"prompt": "x", "seed": -1}',
)
_SHARE = 0.8  # of what it serves
_LEAST_GROWTH_S = 240  # of a run that says something about growth


@dataclass(frozen=True, slots=True)
class Case:
    """A request with the tokens that it has to give."""

    request: dict[str, Any]
    tokens: tuple[int, ...]


@dataclass
class Report:
    """What was seen. counts: of answers, by manner and how they ended. times: until the last token. wrong: texts."""

    counts: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)
    capacity: float = 0.0
    exit_status: int | None = None

    @property
    def growth(self) -> float:
        """By which part resident memory was larger in the last quarter than in the second one."""
        ends = self.resident[-1][0]
        second, last = ([size for at, size in self.resident if low * ends <= at <= high * ends] for low, high in _TIMES)
        return statistics.fmean(last) / statistics.fmean(second) - 1 if second and last else 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        lines = [f"served alone: {self.capacity:.1f} texts a second; asked for: {_SHARE * self.capacity:.1f}", kinds]
        for name, times in (("first token", self.first_s), ("whole text", self.whole_s)):
            if len(times) > 1:
                parts = statistics.quantiles(times, n=100)
                lines.append(f"{name}, ms: half in {1e3 * parts[49]:.0f}, 99 % in {1e3 * parts[98]:.0f}")
        lines.append(f"resident memory: {self.resident[-1][1] / 1e6:.1f} MB, growth {100 * self.growth:+.2f} %")
        lines.append(f"exit status after SIGTERM: {self.exit_status}; wrong: {len(self.wrong)}")
        return "\n".join([*lines, *self.wrong[:5]])


_TIMES = ((0.25, 0.5), (0.75, 1.0))


# --- what is right --------------------------------------------------------------------------------------------------


def cases_of(path: Path, model: Any) -> list[Case]:
    """Requests, greedy and drawn with a seed, with what the file gives for each by itself.

    Raises: AssertionError where that is not what the model gives in eager mode.
    """
    frozen = dovetail.load(path)
    assert isinstance(frozen, dovetail.FrozenGenerator)
    found = []
    for number, prompt in enumerate(_PROMPTS):
        for options in ({"temperature": 0}, {"temperature": 0.8, "top_k": 20, "seed": number}):
            request = {"prompt": prompt, "max_new_tokens": 8 + 5 * number, **options}
            found.append(Case(request, tuple(_alone(frozen, request))))
            if "seed" not in options:
                ids = torch.tensor([list(prompt.encode())])
                with torch.no_grad():
                    eager = model.generate(
                        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8 + 5 * number
                    )
                assert found[-1].tokens == tuple(eager[0, ids.shape[1] :].tolist()[: len(found[-1].tokens)]), prompt
    return found


def _alone(frozen: dovetail.FrozenGenerator, request: dict[str, Any]) -> list[int]:
    generator = torch.Generator()
    generator.manual_seed(request.get("seed", 0))
    options: dict[str, Any] = {"do_sample": False}
    if "seed" in request:
        options = {"do_sample": True, "temperature": request["temperature"], "top_k": request["top_k"]}
    prompt = list(request["prompt"].encode())
    most = min(request["max_new_tokens"], frozen.max_length - len(prompt))
    logits, found = frozen.start(0, torch.tensor(prompt)), list[int]()
    while len(found) < most:
        token = int(frozen.choose(logits[None], generator=generator, **options))
        if token in frozen.eos_token_ids:
            break
        found.append(token)
        if len(found) < most:
            logits = frozen.step(torch.tensor([token] + [0] * (frozen.batch - 1)))[0]
    frozen.release(0)
    return found


# --- clients --------------------------------------------------------------------------------------------------------


class Clients:
    """Asks one server, and notes what comes back."""

    def __init__(self, server: Server, cases: Sequence[Case], report: Report, seed: int) -> None:
        self._server, self.cases, self._report = server, cases, report
        self._random = random.Random(seed)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, limits=limits)

    def case(self) -> Case:
        """One of them."""
        return self._random.choice(self.cases)

    async def any(self) -> None:
        """A client of some kind."""
        manner = self._random.choices(list(_MANNERS), list(_MANNERS.values()))[0]
        if manner in _REFUSED:
            await self._refused(manner)
        elif manner in ("half", "garbage"):
            await self._raw(manner)
        else:
            await self.text(manner, self.case())

    async def text(self, manner: str, case: Case, begun: asyncio.Event | None = None) -> None:
        """Read a text: plainly, slowly, or only its beginning."""
        since, tokens, why = time.monotonic(), list[int](), ""
        leaves_after = self._random.randrange(len(case.tokens) + 1) if manner == "leaves" else None
        async with self.client.stream("POST", "/generate", json=case.request) as answer:
            if answer.status_code == 503 and "retry-after" in answer.headers:
                self._report.counts[f"{manner}: busy"] += 1
                return
            if answer.status_code != 200:
                self._wrong(manner, case, f"status {answer.status_code}")
                return
            async for line in answer.aiter_lines():
                if leaves_after is not None and len(tokens) >= leaves_after:
                    why = "left"
                    break
                if not line.startswith("data: "):
                    continue
                data = json.loads(line.removeprefix("data: "))
                if "why" in data:
                    why = data["why"]
                    break
                tokens.append(data["token"])
                if len(tokens) == 1:
                    self._report.first_s.append(time.monotonic() - since)
                    if begun is not None:
                        begun.set()
                if manner == "slow":
                    await asyncio.sleep(0.05)
        self._report.counts[f"{manner}: {why}"] += 1
        expected = case.tokens[: len(tokens)] if why == "left" else case.tokens
        if tuple(tokens) != expected or why not in ("length", "end", "left"):
            self._wrong(manner, case, f"{why!r} after {tokens}")
        elif manner == "plain":
            self._report.whole_s.append(time.monotonic() - since)

    async def _refused(self, manner: str) -> None:
        body = b'{"prompt": "' + b"x" * 100_000 + b'"}' if manner == "large" else self._random.choice(_WRONG)
        try:
            answer = await self.client.post("/generate", content=body)
        except (httpx.WriteError, httpx.ReadError):  # it does not read on
            self._report.counts[f"{manner}: closed"] += 1
            return
        self._report.counts[f"{manner}: {answer.status_code}"] += 1
        if answer.status_code not in _REFUSED[manner]:
            self._report.wrong.append(f"{manner}: {body[:40]!r} gives {answer.status_code} {answer.text[:80]}")

    async def _raw(self, manner: str) -> None:
        """A request that ends in the middle, or what is no request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\n" + b"x" * 200
        writer.write(head if manner == "half" else self._random.randbytes(300) + b"\r\n\r\n")
        await writer.drain()
        answer = b""
        if manner == "garbage":
            answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        self._report.counts[f"{manner}: {'answered' if answer else 'closed'}"] += 1
        if answer and b" 400 " not in answer.partition(b"\r\n")[0]:
            self._report.wrong.append(f"{manner}: {answer[:80]!r}")

    def _wrong(self, manner: str, case: Case, what: str) -> None:
        self._report.wrong.append(f"{manner}: {case.request}: {what}, and not {list(case.tokens)}")


# --- the run --------------------------------------------------------------------------------------------------------


async def _capacity(clients: Clients, seconds: float) -> float:
    """How many texts it serves a second, with twice as many clients as rows."""
    ends, done = 0.0, 0

    async def ask() -> None:
        nonlocal done
        while time.monotonic() < ends:
            await clients.text("plain", clients.case())
            done += 1

    await asyncio.gather(
        *(clients.text("plain", case) for case in clients.cases)
    )  # what first calls take does not count
    since = time.monotonic()
    ends = since + seconds
    await asyncio.gather(*(ask() for _ in range(2 * _ROWS)))
    return done / (time.monotonic() - since)


async def _look_at_memory(process: psutil.Process, report: Report, since: float) -> None:
    while True:
        report.resident.append((time.monotonic() - since, process.memory_info().rss))
        await asyncio.sleep(1)


async def _load(clients: Clients, report: Report, seconds: float, seed: int) -> None:
    """Clients come as they like, on average so many a second, whether those before are done or not."""
    draws, ends = random.Random(seed), time.monotonic() + seconds
    rate = (
        _SHARE
        * report.capacity
        / sum(part for manner, part in _MANNERS.items() if manner in ("plain", "slow", "leaves"))
    )
    due = time.monotonic()
    async with asyncio.TaskGroup() as group:
        while due < ends:
            due += draws.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(clients.any())


async def _end(server: Server, clients: Clients, report: Report) -> None:
    """SIGTERM while all rows are in use: each text is finished, and nobody else is let in."""
    longest = max(clients.cases, key=lambda case: len(case.tokens))
    begun = [asyncio.Event() for _ in range(_ROWS)]
    texts = [asyncio.create_task(clients.text("at the end", longest, event)) for event in begun]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), 60)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*texts)
    report.exit_status = await asyncio.to_thread(server.process.wait, 60)
    try:
        await clients.client.get("/health")
        report.wrong.append("it answers after its end")
    except httpx.ConnectError:
        pass


async def _run(server: Server, cases: Sequence[Case], seconds: float, seed: int) -> Report:
    report = Report()
    clients = Clients(server, cases, report, seed)
    async with clients.client:
        report.capacity = await _capacity(clients, max(1.0, min(10.0, seconds / 4)))
        report.counts.clear(), report.first_s.clear(), report.whole_s.clear()
        looks = asyncio.create_task(_look_at_memory(psutil.Process(server.process.pid), report, time.monotonic()))
        try:
            await _load(clients, report, seconds, seed)
        finally:
            looks.cancel()
        await _end(server, clients, report)
    return report


def soak(seconds: float, seed: int, folder: Path) -> Report:
    """Save a model, serve it, and load the server for some seconds.

    Raises: AssertionError where the file does not give eager's tokens.
    """
    example = importlib.import_module("examples.serve_chat")
    path = folder / "chat.dovetail"
    example.save(path, rows=_ROWS, length=_LENGTH)
    cases = cases_of(path, example.bytes_model(_LENGTH))
    with serving([str(example.__file__), "serve", str(path), "--timeout", "30"], folder) as server:
        return asyncio.run(_run(server, cases, seconds, seed))


def main(argv: list[str] | None = None) -> int:
    """Print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.serve_soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--most-growth", type=float, default=0.01, help="of resident memory, in runs of 4 minutes and more"
    )
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        report = soak(60 * given.minutes, given.seed, Path(folder))
    print(report)
    grows = 60 * given.minutes >= _LEAST_GROWTH_S and report.growth > given.most_growth
    return int(bool(report.wrong) or report.exit_status != 0 or grows)


if __name__ == "__main__":
    sys.exit(main())
