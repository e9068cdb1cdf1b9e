"""The server's ASGI application.

| request | answer |
|---|---|
| `POST /call/METHOD` | the results; `POST /call` is `forward`. JSON or safetensors, by the request's content type |
| `GET /` | each method, its arguments and free sizes |
| `GET /health` | 200 while it serves |
| `GET /metrics` | for Prometheus |

Errors are JSON, `{"error": "..."}`: 400 for what is not a call, 408 for a body that does not arrive, 413 for one
that is too large, 503 with `Retry-After` when the queue is full, 504 for a call that takes too long.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dovetail.errors import DovetailError
from dovetail.frontends.freezing.module import FrozenModule
from dovetail.serving.messages import JSON, SAFETENSORS, BadRequest, arguments_of, reply_of
from dovetail.serving.workers import TooBusy, Workers

_LOG = logging.getLogger(__name__)
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_GONE = 499  # the client's own end, as nginx calls it


@dataclass(frozen=True, slots=True)
class Limits:
    """body: bytes of a request. queue: calls that wait. timeout_s: for a body to arrive, and for a call's answer.

    workers: calls that run at a time; a program with state runs one.
    """

    body: int = 16 << 20
    queue: int = 64
    timeout_s: float = 30.0
    workers: int = 1


class _Meters:
    def __init__(self, workers: Workers) -> None:
        self.registry = CollectorRegistry()
        names = ("method", "status")
        self.requests = Counter("dovetail_requests", "Requests, by method and status.", names, registry=self.registry)
        self.seconds = Histogram(
            "dovetail_request_seconds",
            "From a request's first byte to its answer.",
            ("method",),
            registry=self.registry,
        )
        pending = Gauge("dovetail_pending_calls", "Calls that run or wait.", registry=self.registry)
        pending.set_function(lambda: workers.pending)


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Server:
    def __init__(self, frozen: FrozenModule, limits: Limits) -> None:
        self._frozen = frozen
        self._forms = frozen.call_forms
        self._limits = limits
        self.workers = Workers(1 if frozen.is_stateful else limits.workers, limits.queue)
        self._meters = _Meters(self.workers)

    async def call(self, request: Request) -> Response:
        """Run a method."""
        start = time.perf_counter()
        name = request.path_params.get("method", "forward")
        label = name if name in self._forms else "unknown"
        headers = {}
        try:
            response = await self._called(request, name)
            status = response.status_code
        except _Refused as refused:
            status = refused.status
            headers = {"Retry-After": "1"} if status == 503 else {}
            response = JSONResponse({"error": str(refused)}, status, headers)
        self._meters.requests.labels(label, str(status)).inc()
        self._meters.seconds.labels(label).observe(time.perf_counter() - start)
        return response

    async def _called(self, request: Request, name: str) -> Response:
        form = self._forms.get(name)
        if form is None:
            raise _Refused(404, f"there is no method {name!r}; there are {', '.join(self._forms)}")
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, SAFETENSORS):
            raise _Refused(415, f"send {JSON} or {SAFETENSORS}, not {kind}")
        if self.workers.is_full:  # before a body is read that would only be refused
            raise _Refused(503, "the queue is full")
        body = await self._body(request)
        try:
            found = await self.workers.run(partial(self._run, name, body, kind), self._limits.timeout_s)
        except TooBusy:
            raise _Refused(503, "the queue is full") from None
        except TimeoutError:
            raise _Refused(504, f"there was no result within {self._limits.timeout_s:g} s") from None
        except BadRequest as error:
            raise _Refused(400, str(error)) from error
        except DovetailError as error:
            raise _Refused(400, str(error).partition("\n")[0]) from error
        except Exception as error:  # of a kernel: an index that is out of range, memory that there is not
            _LOG.exception("a call of %s failed", name)
            raise _Refused(500, f"the call failed: {str(error).partition(chr(10))[0]}") from error
        return Response(found, media_type=kind)

    async def _body(self, request: Request) -> bytes:
        most = self._limits.body
        told = request.headers.get("content-length", "0")
        if told.isdigit() and int(told) > most:
            raise _Refused(413, f"a body has at most {most} bytes")
        found = bytearray()
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                async for chunk in request.stream():
                    found += chunk
                    if len(found) > most:
                        raise _Refused(413, f"a body has at most {most} bytes")
        except TimeoutError:
            raise _Refused(408, f"the body did not arrive within {self._limits.timeout_s:g} s") from None
        except ClientDisconnect:
            raise _Refused(_GONE, "the client has gone") from None
        return bytes(found)

    def _run(self, name: str, body: bytes, kind: str) -> bytes:
        """In a thread: also reading and writing large bodies, which would hold up all other requests."""
        args, kwargs = arguments_of(self._forms[name], body, kind)
        method: Callable[..., Any] = self._frozen if name == "forward" else getattr(self._frozen, name)
        with torch.no_grad():
            return reply_of(method(*args, **kwargs), kind)

    async def describe(self, request: Request) -> Response:
        """What there is to call."""
        methods = {}
        for name, form in self._forms.items():
            tensors = [(leaf.name, leaf.kind) for leaf in form.leaves if leaf.kind is not None]
            inputs = {
                key: {"dtype": str(kind[0]).removeprefix("torch."), "dimensions": kind[2]} for key, kind in tensors
            }
            methods[name] = {"path": f"/call/{name}", "inputs": inputs}
        return JSONResponse({"methods": methods, "stateful": self._frozen.is_stateful})

    async def health(self, request: Request) -> Response:
        """That it serves."""
        return Response(json.dumps({"status": "ok", "pending": self.workers.pending}), media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        return Response(generate_latest(self._meters.registry), media_type=_METRICS)


def make_app(frozen: FrozenModule, limits: Limits | None = None) -> Starlette:
    """The application for a frozen module."""
    server = _Server(frozen, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.workers.close)

    routes = [
        Route("/", server.describe),
        Route("/health", server.health),
        Route("/metrics", server.metrics),
        Route("/call", server.call, methods=["POST"]),
        Route("/call/{method}", server.call, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)
