from __future__ import annotations

from dovetail.execute.circle.training import run


def compiled(program: object) -> object:
    return run(program)
