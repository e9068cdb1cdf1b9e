"""What optimizers hold under private names."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as _optimizer


def step_hook_tables(optimizer: torch.optim.Optimizer) -> tuple[dict[int, Any], dict[int, Any]]:
    """The functions that run before and after each step of an optimizer, by the number of their registration."""
    return optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks


def global_step_hook_tables() -> tuple[dict[int, Any], dict[int, Any]]:
    """The functions that run before and after each step of every optimizer, by the number of their registration."""
    return _optimizer._global_optimizer_pre_hooks, _optimizer._global_optimizer_post_hooks
