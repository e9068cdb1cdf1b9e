"""Take the pictures of the report in docs/instruments.md: a training step of a 12-layer GPT, in a headless Chromium.

python docs/generate_screenshot.py          # write docs/images/report-{1400,500}-{light,dark}.png
"""

from __future__ import annotations

import base64
import io
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from torch import Tensor, nn

import dovetail

IMAGES = Path(__file__).resolve().parent / "images"
_SIZES = ((1400, 1000), (500, 1300))
_WIDTH, _HEADS, _LAYERS = 256, 4, 12


class Block(nn.Module):
    """Attention, then a network four times as wide: f32[batch, time, width] to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)])
        self.project_in = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.project_out = nn.Linear(_WIDTH, _WIDTH)
        self.widen = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.narrow = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Add what attention and the network make of it."""
        batch, time, width = x.shape
        parts = self.project_in(self.norms[0](x)).split(width, dim=2)
        query, key, value = (part.view(batch, time, _HEADS, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.dropout(self.project_out(mixed.transpose(1, 2).reshape(batch, time, width)), 0.1)
        wide = F.gelu(self.widen(self.norms[1](x)), approximate="tanh")
        out: Tensor = x + F.dropout(self.narrow(wide), 0.1)
        return out


class Gpt(nn.Module):
    """Blocks between an embedding and a head; the loss of tokens, i64[batch, time]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, _WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(_LAYERS))
        self.head = nn.Linear(_WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean cross-entropy of guessing each token."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def main() -> int:
    """Write the pictures; the exit status is 1 where there is no browser."""
    browser, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if browser is None or driver is None:
        print("this needs chromium and chromedriver", file=sys.stderr)
        return 1
    compiled = dovetail.compile(Gpt(), partition="min_cut")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        dovetail.explain(compiled, torch.randint(0, 256, (4, 64)), measure_time=True).html(page)
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
            options.add_argument(argument)
        window = webdriver.Chrome(options=options, service=Service(driver))
        try:
            for width, height in _SIZES:
                for scheme in ("light", "dark"):
                    _take(window, page, width, height, scheme)
        finally:
            window.quit()
    return 0


def _take(window: webdriver.Chrome, page: Path, width: int, height: int, scheme: str) -> None:
    """One picture, in as few colours as it takes to stay small."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    window.get(page.as_uri())
    window.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    shot = window.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(IMAGES / f"report-{width}-{scheme}.png", optimize=True)


if __name__ == "__main__":
    sys.exit(main())
