"""Where a running program reads the numbers from that stand for size symbols: off inputs and results."""

from __future__ import annotations

from dovetail.ir.program import Program, ScalarMeta, Value
from dovetail.ir.sizes import SizeExpr


def symbol_source(program: Program, expr: SizeExpr) -> str | None:
    """Python that reads a size symbol off the program's inputs (by their names), or None."""
    for value in program.inputs:
        if isinstance(value.meta, ScalarMeta) and value.meta.expr == expr:
            return value.name
    return next((source for value in program.inputs if (source := size_source(value, expr))), None)


def size_source(value: Value, expr: SizeExpr) -> str | None:
    """Python that reads a size symbol off a tensor (by its name), or None."""
    if not value.is_tensor:
        return None
    for dim, size in enumerate(value.tensor.shape):
        if size == expr:
            return f"{value.name}.size({dim})"
    for dim, stride in enumerate(value.tensor.stride):
        if stride == expr:
            return f"{value.name}.stride({dim})"
    return f"{value.name}.storage_offset()" if value.tensor.offset == expr else None
