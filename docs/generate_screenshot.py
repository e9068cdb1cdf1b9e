"""Take the picture of the report in docs/instruments.md: a transformer's training step, in a headless Chromium.

python docs/generate_screenshot.py          # write docs/images/report.png
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail

PICTURE = Path(__file__).resolve().parent / "images" / "report.png"
_SIZE = "1200,1000"
_WIDTH, _HEADS, _LAYERS = 128, 4, 4


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


class Transformer(nn.Module):
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
    """Write the picture; the exit status is 1 where there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("this needs chromium", file=sys.stderr)
        return 1
    tokens = torch.randint(0, 256, (4, 64))
    compiled = dovetail.compile(Transformer(), partition="min_cut")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        dovetail.explain(compiled, tokens).html(page)
        command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={_SIZE}"]
        subprocess.run([*command, f"--screenshot={PICTURE}", page.as_uri()], check=True, capture_output=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
