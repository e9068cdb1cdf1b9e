"""The page in a real browser: it loads without errors and without the network, and answers to mouse and keys."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dovetail.inspect.explanation import Explanation
from dovetail.inspect.grouping import group
from dovetail.inspect.holders import peak_moment
from dovetail.inspect.report_rows import MemoryMap, StorageRow
from dovetail.inspect.units import Unit, byte_unit
from tests.inspect import explained

webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not installed")
By = pytest.importorskip("selenium.webdriver.common.by").By
Service = pytest.importorskip("selenium.webdriver.chrome.service").Service
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait

_BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")
_INSIDE = "\u203a"  # between the parts of where one is in the map

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
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
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


@pytest.fixture(scope="module")
def unit(found: Explanation) -> Unit:
    """Of all bytes on the page."""
    assert found.eager is not None
    return byte_unit(max(peak_moment(found).total_bytes, found.eager.total_bytes))


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


def _centred(page: Any, element: Any) -> Any:
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    return element


def _tiles(page: Any) -> dict[str, Any]:
    """The tiles of the tree map by what they say of themselves."""
    return {tile.get_attribute("aria-label"): tile for tile in page.find_elements(By.CSS_SELECTOR, ".tile")}


def _crumbs(page: Any) -> str:
    text: str = page.find_element(By.CSS_SELECTOR, ".crumbs").text
    return text.replace("\n", " ")


def test_nothing_is_fetched_and_no_rule_is_broken(browser: Any, found: Explanation, tmp_path: Path) -> None:
    browser.get("about:blank")
    browser.get_log("performance")
    found.html(tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [(tmp_path / "report.html").as_uri()]
    assert browser.get_log("browser") == []
    blocked = "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    browser.execute_script(blocked)
    assert browser.execute_script("return window.ran") is None
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_the_tree_map_opens_by_mouse(page: Any, found: Explanation, unit: Unit) -> None:
    moment = peak_moment(found)
    assert f"{unit.text(moment.total_bytes)}, {len(moment.holders):,} tensors" in _crumbs(page)
    modules = {b.label: b for b in group(moment.holders, "module").walk() if b.count > 1 and not b.children}
    label, tile = next(pair for pair in _tiles(page).items() if pair[0].partition(":")[0] in modules)
    branch = modules[label.partition(":")[0]]
    assert unit.text(branch.size) in label
    _centred(page, tile).click()
    assert f"{_INSIDE} {branch.label} {unit.text(branch.size)}" in _crumbs(page)
    assert len(_tiles(page)) == len(branch.holders)
    largest = branch.holders[0]
    next(tile for label, tile in _tiles(page).items() if label.startswith(largest.name)).click()
    facts = page.find_element(By.CSS_SELECTOR, ".parts").text
    assert largest.meta in facts
    assert largest.category in facts
    page.find_element(By.CSS_SELECTOR, ".crumbs button").click()
    assert _crumbs(page).startswith("everything")
    assert len(_tiles(page)) > 1
    assert page.get_log("browser") == []


def test_the_tree_map_opens_by_keys(page: Any, found: Explanation) -> None:
    first = page.find_element(By.CSS_SELECTOR, ".tile")
    page.execute_script("arguments[0].focus()", first)
    before = page.switch_to.active_element.get_attribute("aria-label")
    for key in (webdriver.Keys.ARROW_RIGHT, webdriver.Keys.ARROW_DOWN):
        page.switch_to.active_element.send_keys(key)
    after = page.switch_to.active_element.get_attribute("aria-label")
    assert before != after
    assert page.find_element(By.ID, "tip").is_displayed()
    page.switch_to.active_element.send_keys(webdriver.Keys.HOME)
    assert page.switch_to.active_element.get_attribute("aria-label") == before
    page.switch_to.active_element.send_keys(webdriver.Keys.ENTER)
    assert f"{_INSIDE} {before.partition(':')[0]}" in _crumbs(page)
    page.switch_to.active_element.send_keys(webdriver.Keys.ESCAPE)
    assert _INSIDE not in _crumbs(page)
    assert page.switch_to.active_element.get_attribute("class").startswith("tile")


@pytest.mark.parametrize("by", ["module", "layer", "line", "operator"])
def test_every_grouping_fills_the_map(page: Any, found: Explanation, by: Any) -> None:
    page.find_element(By.CSS_SELECTOR, f'[data-by="{by}"]').click()
    tree = group(peak_moment(found).holders, by)
    box = page.find_element(By.CSS_SELECTOR, ".treemap").rect
    areas = [tile.rect["width"] * tile.rect["height"] for tile in _tiles(page).values()]
    assert len(areas) >= min(2, len(tree.children))
    assert sum(areas) == pytest.approx(box["width"] * box["height"], rel=0.02)


@pytest.mark.parametrize("width", [500, 1400])
def test_the_page_fits_its_window(page: Any, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        wide = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        scrolled, shown = page.execute_script(wide)
        assert scrolled <= shown <= width
        for words in page.find_elements(By.CSS_SELECTOR, ".kind h3, .bars span, .part, .group > summary"):
            if words.is_displayed():
                assert words.rect["x"] + words.rect["width"] <= width
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_prints(page: Any) -> None:
    printed = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not page.find_element(By.CSS_SELECTOR, "header nav").is_displayed()
        assert page.find_element(By.CSS_SELECTOR, ".treemap").is_displayed()
        ground = "return getComputedStyle(document.querySelector('.tile .cell')).backgroundColor"
        assert page.execute_script(ground) != "rgba(0, 0, 0, 0)"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_map_names_what_the_mouse_points_at(page: Any, found: Explanation, unit: Unit) -> None:
    memory = found.step
    canvas = _centred(page, page.find_element(By.CSS_SELECTOR, "#map-0 canvas"))
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
            assert f"{row.name}: {unit.text(row.bytes)}" in tip.text
            assert row.operator in tip.text
            assert f":{row.origin.line}" in tip.text
            assert found.lines[f"{row.origin.file}:{row.origin.line}"] in tip.text
            readout = page.find_element(By.CSS_SELECTOR, "#map-0 .readout").text
            assert readout.startswith(f"node {node} ")
            assert f"{unit.text(memory.live_bytes[node])} live" in readout
            seen.add(row.storage)
    assert len(seen) >= 5
    webdriver.ActionChains(page).move_to_element(page.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()
    assert page.get_log("browser") == []


def test_tabs_show_forward_and_backward(page: Any, found: Explanation) -> None:
    _centred(page, page.find_element(By.CSS_SELECTOR, '[data-map="2"]')).click()
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
    section = _centred(page, page.find_element(By.ID, "program-forward"))
    assert not section.find_element(By.TAG_NAME, "input").is_displayed(), "closed at first"
    section.find_element(By.TAG_NAME, "summary").click()
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
    page.find_element(By.CSS_SELECTOR, "#steps summary").click()
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
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", page.find_element(By.ID, "map-0"))
    shot = Image.open(io.BytesIO(page.get_screenshot_as_png())).convert("RGB")
    ground = shot.getpixel((2, shot.height // 2))
    assert isinstance(ground, tuple)
    assert (sum(ground) > 600) == (scheme == "light")
    place = "const b = arguments[0].getBoundingClientRect(); return {x: b.x, y: b.y, width: b.width, height: b.height}"
    canvas = page.execute_script(place, page.find_element(By.CSS_SELECTOR, "#map-0 canvas"))
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
