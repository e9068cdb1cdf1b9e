from __future__ import annotations

import dovetail.execute.protocol


def of(*operands: object) -> object:
    return dovetail.execute.protocol, operands
