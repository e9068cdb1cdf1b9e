"""Names of autograd's nodes, and of the operators that they belong to."""

from __future__ import annotations

import re
from typing import Any


def operator_of(node: Any) -> str:
    """`selectbackward0` as `select`: the operator that an autograd node belongs to, as `spelled` gives it."""
    return re.sub(r"backward\d+$", "", node.name().lower())


def spelled(name: str) -> str:
    return name.replace("_", "").lower()
