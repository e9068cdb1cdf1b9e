from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.execute.circle import values

if TYPE_CHECKING:
    from dovetail.execute.circle.graph import compiled


def run(program: object) -> object:
    return values.of(compiled, program)
