"""Mutation patterns, as users write them: what `tests.passes.test_inplace_patterns` and the oracle run over."""

from __future__ import annotations

from tests.passes.patterns import aliases, bodies, caches, custom, operators, optimizers, reports
from tests.passes.patterns.pattern import Pattern

PATTERNS: tuple[Pattern, ...] = (
    *caches.PATTERNS,
    *optimizers.PATTERNS,
    *operators.PATTERNS,
    *aliases.PATTERNS,
    *reports.PATTERNS,
    *custom.PATTERNS,
    *bodies.PATTERNS,
)
