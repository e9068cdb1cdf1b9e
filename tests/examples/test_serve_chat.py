"""The example that continues texts over HTTP: each text is what it is alone, whoever else comes, goes or misbehaves."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import shutil
import signal
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import dovetail
from tests.serving.server import Server, serving

_NEEDED = ("starlette", "uvicorn", "prometheus_client", "transformers")
pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in _NEEDED), reason="pip install dovetail[examples]"
)
_BROWSER, _DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
LENGTH = 64
PROMPTS = ("Once", "a", "upon a time", "€ and ü", "x" * 40)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return importlib.import_module("serve_chat")


@pytest.fixture(scope="module")
def path(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("chat") / "chat.dovetail"
    example.save(found, rows=2, length=LENGTH)
    return found


@pytest.fixture(scope="module")
def server(example: ModuleType, path: Path) -> Iterator[Server]:
    with serving([str(example.__file__), "serve", str(path), "--timeout", "20"], path.parent) as found:
        yield found


def _stream(server: Server, **request: Any) -> tuple[list[int], dict[str, Any]]:
    answer = server.post("/generate", request)
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.body.decode().split("\n\n")[:-1]
    assert events[-1].startswith("event: done\n")
    return [json.loads(one.removeprefix("data: "))["token"] for one in events[:-1]], _done(events[-1])


def _done(event: str) -> dict[str, Any]:
    return dict(json.loads(event.partition("data: ")[2]))


def _alone(path: Path, prompt: str) -> list[int]:
    frozen = dovetail.load(path)
    text = list(prompt.encode())
    logits, found = frozen.start(0, torch.tensor(text)), []
    while len(text) + len(found) < LENGTH:
        found.append(int(logits.argmax()))
        if len(text) + len(found) < LENGTH:
            logits = frozen.step(torch.tensor([found[-1], 0]))[0]
    return found


def test_texts_are_what_they_are_alone(server: Server, path: Path) -> None:
    """More at a time than there are rows."""
    found: dict[str, Any] = {}

    def ask(prompt: str) -> None:
        found[prompt] = _stream(server, prompt=prompt, temperature=0)

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for prompt in PROMPTS:
        tokens, done = found[prompt]
        assert tokens == [token for token in _alone(path, prompt) if token != 256][: len(tokens)]
        assert done["why"] in ("length", "end")
        assert len(tokens) == LENGTH - len(prompt.encode()) or done["why"] == "end"


def test_draws_follow_the_seed(server: Server) -> None:
    request = {"prompt": "Once", "max_new_tokens": 12, "temperature": 1.5, "top_k": 0, "top_p": 0.9}
    first, again, other = (_stream(server, **request, seed=seed)[0] for seed in (7, 7, 8))
    assert first == again != other
    assert len(first) <= 12


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 60_000, 400, "not JSON"),
        (b"[]", 400, "prompt"),
        (b'{"prompt": 1}', 400, "prompt"),
        (b'{"prompt": ""}', 400, "1 to 63 tokens"),
        (json.dumps({"prompt": "x" * 64}).encode(), 400, "1 to 63 tokens"),
        (b'{"prompt": "x", "n": 2}', 400, "there is no option 'n'"),
        (b'{"prompt": "x", "max_new_tokens": 0}', 400, "max_new_tokens"),
        (b'{"prompt": "x", "temperature": -1}', 400, "temperature"),
        (b'{"prompt": "x", "temperature": "hot"}', 400, "temperature"),
        (b'{"prompt": "x", "seed": -1}', 400, "seed"),
        (b" " * 70_000, 413, "at most 65536 bytes"),
    ],
)
def test_requests_that_are_wrong(server: Server, body: bytes, status: int, said: str) -> None:
    answer = server.ask("POST", "/generate", body)
    assert (answer.status, said in answer.data["error"]) == (status, True), answer


def test_clients_that_go(server: Server) -> None:
    """Their rows are free for others, and metrics count them."""
    body = json.dumps({"prompt": "Once", "temperature": 0}).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for sent in (head + body[:5], head + body, head + body, head + body):
        with server.raw() as connection:
            connection.sendall(sent)
    assert _stream(server, prompt="Once", max_new_tokens=2, temperature=0)[1] == {"why": "length", "tokens": 2}
    counted = server.get("/metrics").body.decode()
    assert "chat_first_token_seconds_count" in counted
    assert 'chat_requests_total{end="400"}' in counted
    page = server.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert b"Continue a text" in page.body


@pytest.mark.skipif(None in (_BROWSER, _DRIVER), reason="no chromium and chromedriver here")
def test_the_page(server: Server) -> None:
    """In a real browser: it shows a text as it comes, and what is wrong with a request."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not installed")
    service = importlib.import_module("selenium.webdriver.chrome.service").Service(_DRIVER)
    wait = importlib.import_module("selenium.webdriver.support.ui").WebDriverWait
    options = webdriver.ChromeOptions()
    options.binary_location = _BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.get(f"http://127.0.0.1:{server.port}/")
        driver.find_element("id", "send").click()
        wait(driver, 60).until(lambda page: ": " in page.find_element("id", "status").text)
        shown = driver.find_element("id", "text").get_property("textContent")  # with what is drawn as blanks
        assert len(shown) > len("Once upon a time")
        driver.find_element("id", "prompt").send_keys("x" * 70)
        driver.find_element("id", "send").click()
        wait(driver, 60).until(lambda page: "1 to 63 tokens" in page.find_element("id", "status").text)
    finally:
        driver.quit()


def test_a_full_queue(example: ModuleType, path: Path) -> None:
    app = example.make_app(path, queue=0)
    sent: list[Any] = []
    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": [], "query_string": b""}

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"prompt": "x"}'}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]


def test_time_that_is_over(example: ModuleType, path: Path) -> None:
    """A text that waits too long, and one whose client has gone, end without a token."""
    batch = example.Batch(dovetail.load(path), 4)
    try:
        for until, is_gone, why in ((0.0, False, "timeout"), (float("inf"), True, "gone")):
            told, ended = [], threading.Event()

            def put(item: int | str, told: list[Any] = told, ended: threading.Event = ended) -> None:
                told.append(item)
                ended.set()

            text = example.Text([1], 5, {}, torch.Generator(), put, until, is_gone=is_gone)
            assert batch.add(text)
            assert ended.wait(60)
            assert told == [why]
    finally:
        batch.close()


def test_the_end_waits_for_texts(example: ModuleType, path: Path) -> None:
    """SIGTERM while a text is streamed: it is finished, and the exit status is 0."""
    with serving([str(example.__file__), "serve", str(path)], path.parent) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/generate", json.dumps({"prompt": "Once", "temperature": 0}))
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        rest = answer.read().decode()
        assert "event: done\n" in rest
        assert _done(rest.rstrip().rpartition("\n\n")[2])["why"] in ("length", "end")
        connection.close()
        assert server.process.wait(60) == 0
