"""What optimizers hold under private names."""

from __future__ import annotations

from typing import Any

import torch


def step_hook_tables(optimizer: torch.optim.Optimizer) -> tuple[dict[int, Any], dict[int, Any]]:
    """The functions that run before and after each step of an optimizer, by the number of their registration."""
    return optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
