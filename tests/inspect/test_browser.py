"""The page in a real browser: it loads without errors, answers to the mouse and to the filter, and shows something."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dovetail.inspect.explanation import Explanation
from dovetail.inspect.report_rows import MemoryMap, StorageRow
from tests.inspect import explained

webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not installed")
By = pytest.importorskip("selenium.webdriver.common.by").By
Service = pytest.importorskip("selenium.webdriver.chrome.service").Service
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait

_BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    _BROWSER is None or _DRIVER is None, reason="no chromium and chromedriver here (apt-get install chromium-driver)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = _BROWSER or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def found() -> Explanation:
    """What is shown."""
    return explained.explained_net()


@pytest.fixture
def page(browser: Any, found: Explanation, tmp_path: Path) -> Any:
    """The browser with the page loaded."""
    found.html(tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    assert browser.get_log("browser") == []
    return browser


def _stack(memory: MemoryMap, node: int) -> list[tuple[StorageRow, int]]:
    """The storages at a node from the lowest to the highest, with the bytes below each: the longest lived is lowest."""
    alive = [row for row in memory.storages if row.first <= node <= row.last]
    alive.sort(key=lambda row: (row.first - row.last, row.first, memory.storages.index(row)))
    return [(row, sum(other.bytes for other in alive[:place])) for place, row in enumerate(alive)]


def _point(page: Any, canvas: Any, memory: MemoryMap, node: int, level: float) -> None:
    """Move the mouse to a node and a level in bytes."""
    plot = {key: float(canvas.get_attribute(f"data-{key}")) for key in ("x", "y", "width", "height", "most")}
    assert plot["most"] == memory.peak_bytes
    x = plot["x"] + (node + 0.5) * plot["width"] / len(memory.nodes)
    y = plot["y"] + plot["height"] * (1 - level / plot["most"])
    size = canvas.size
    chain = webdriver.ActionChains(page)
    chain.move_to_element_with_offset(canvas, round(x - size["width"] / 2), round(y - size["height"] / 2)).perform()


def test_the_map_names_what_the_mouse_points_at(page: Any, found: Explanation) -> None:
    memory = found.step
    canvas = page.find_element(By.CSS_SELECTOR, "#map-0 canvas")
    tip = page.find_element(By.ID, "tip")
    assert canvas.get_attribute("data-drawn") == "yes"
    assert not tip.is_displayed()
    seen = set()
    for node in (2, memory.peak_node, len(memory.nodes) - 1):
        for row, below in _stack(memory, node):
            if row.bytes < memory.peak_bytes / 40:  # hardly a few pixels
                continue
            _point(page, canvas, memory, node, below + row.bytes / 2)
            assert tip.is_displayed()
            assert tip.get_attribute("data-storage") == str(row.storage)
            assert f"{row.name}: {row.bytes:,} bytes" in tip.text
            assert row.operator in tip.text
            assert f":{row.origin.line}" in tip.text
            assert found.lines[f"{row.origin.file}:{row.origin.line}"] in tip.text
            readout = page.find_element(By.CSS_SELECTOR, "#map-0 .readout").text
            assert readout.startswith(f"node {node} ")
            assert f"{memory.live_bytes[node]:,} bytes live" in readout
            seen.add(row.storage)
    assert len(seen) >= 5
    webdriver.ActionChains(page).move_to_element(page.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()
    assert page.get_log("browser") == []


def test_tabs_show_forward_and_backward(page: Any, found: Explanation) -> None:
    page.find_element(By.CSS_SELECTOR, '[data-map="2"]').click()
    memory = found.programs[1].memory
    canvas = page.find_element(By.CSS_SELECTOR, "#map-2 canvas")
    assert canvas.is_displayed()
    assert not page.find_element(By.CSS_SELECTOR, "#map-0 canvas").is_displayed()
    row, below = max(_stack(memory, memory.peak_node), key=lambda pair: pair[0].bytes)
    _point(page, canvas, memory, memory.peak_node, below + row.bytes / 2)
    assert row.name in page.find_element(By.ID, "tip").text


@pytest.mark.parametrize(
    "words",
    ["addmm", "op:aten.gelu", "module:norm", "storage:1", "name:div", "mm second", "line:explained.py:24", "no such"],
)
def test_the_filter_hides_the_other_rows(page: Any, found: Explanation, words: str) -> None:
    program = found.programs[0]
    section = page.find_element(By.ID, "program-forward")
    section.find_element(By.TAG_NAME, "input").send_keys(words)
    expected = []
    for node in program.nodes:
        columns = {"op": node.operator, "name": node.name, "module": node.origin.module}
        line = f"{node.origin.file}:{node.origin.line} {found.lines[f'{node.origin.file}:{node.origin.line}']}"
        fits = True
        for word in words.split():
            key, colon, rest = word.partition(":")
            if colon and key == "storage":
                fits &= int(rest) in node.storages
            elif colon:
                fits &= rest in (columns | {"line": line})[key]
            else:
                fits &= any(word in text for text in (*columns.values(), line))
        expected.append(fits)
    rows = section.find_elements(By.CSS_SELECTOR, ".chunk tr")
    assert [row.get_attribute("hidden") is None for row in rows] == expected
    assert section.find_element(By.CSS_SELECTOR, ".count").text == f"{sum(expected)} of {len(rows)}"
    assert 0 < sum(expected) < len(rows) or words == "no such"
    assert page.get_log("browser") == []


def test_a_difference_is_shown_when_it_is_opened(page: Any, found: Explanation) -> None:
    details = page.find_elements(By.CSS_SELECTOR, ".diff")[-1]
    place = int(details.get_attribute("data-step"))
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", details)
    details.find_element(By.TAG_NAME, "summary").click()
    WebDriverWait(page, 20).until(lambda _: details.find_elements(By.CSS_SELECTOR, "pre span"))  # told of by an event
    lines = found.steps[place].diff.splitlines()
    assert [line.text.strip() for line in details.find_elements(By.CSS_SELECTOR, "pre span")] == [
        line.strip() for line in lines
    ]
    added = details.find_elements(By.CSS_SELECTOR, ".added")
    assert len(added) == sum(line.startswith("+") for line in lines)
    wide = page.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "long lines scroll in their own box"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_of_the_page_shows_something(page: Any, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    shot = Image.open(io.BytesIO(page.get_screenshot_as_png())).convert("RGB")
    ground = shot.getpixel((4, shot.height - 4))
    assert isinstance(ground, tuple)
    assert (sum(ground) > 600) == (scheme == "light")
    canvas = page.find_element(By.CSS_SELECTOR, "#map-0 canvas").rect
    box = (canvas["x"], canvas["y"], canvas["x"] + canvas["width"], canvas["y"] + canvas["height"])
    colors = shot.crop(tuple(map(int, box))).getcolors(1 << 24) or []
    colors.sort(reverse=True)
    assert len(colors) > 20
    assert colors[0][0] < 0.9 * sum(count for count, _ in colors), "the map is not one colour"


def test_the_arrow_keys_move_along_the_nodes(page: Any, found: Explanation) -> None:
    canvas = page.find_element(By.CSS_SELECTOR, "#map-0 canvas")
    canvas.send_keys(webdriver.Keys.ARROW_RIGHT)
    readout = page.find_element(By.CSS_SELECTOR, "#map-0 .readout")
    assert readout.text.startswith(f"node {found.step.peak_node} ")
    canvas.send_keys(webdriver.Keys.ARROW_RIGHT)
    assert readout.text.startswith(f"node {found.step.peak_node + 1} ")
