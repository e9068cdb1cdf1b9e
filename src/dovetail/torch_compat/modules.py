"""What modules hold under private names."""

from __future__ import annotations

from typing import Any

from torch.nn.modules import module as _module


def global_hook_tables() -> dict[str, dict[int, Any]]:
    """The tables of hooks that run for every module, by their names: forward, backward, registration."""
    return {
        name.removeprefix("_global_"): table
        for name, table in vars(_module).items()
        if name.startswith("_global_") and isinstance(table, dict)
    }
