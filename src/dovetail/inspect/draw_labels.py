"""What a drawing says beside each row, and the colours of storages."""

from __future__ import annotations

import colorsys
import re

from dovetail.inspect.collapse import Drawn, Part
from dovetail.inspect.lanes import Lanes, Row
from dovetail.inspect.units import Unit, byte_unit
from dovetail.ir.program import Value, values_in
from dovetail.ir.text import Names, plain_call

LONGEST = 90
_RETURNED = 2  # names, where modules are rows
# What XML 1.0 has no way to say.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def labels_of(drawn: Drawn, lanes: Lanes) -> list[tuple[str, str, str]]:
    """For each row names, the call, and what it gives."""
    names, unit = Names(), byte_unit(max(drawn.sizes.values(), default=0))
    return [_label(drawn, row, names, unit) for row in lanes.rows]


def _label(drawn: Drawn, row: Row, names: Names, unit: Unit) -> tuple[str, str, str]:
    if row.input is not None:
        count = drawn.counts.get(row.input.tensor.storage, 1) if row.input.is_tensor else 1
        if count > 1:
            size = drawn.sizes.get(row.input.tensor.storage, 0)
            return f"{row.input.name} and {count - 1} more", "", f"{count} inputs, {unit.text(size)}"
        return row.input.name, "", str(row.input.meta)
    if row.node is None:
        returned = [value.name for value in values_in(drawn.program.outputs)]
        more = f" and {len(returned) - _RETURNED} more" if len(returned) > _RETURNED and drawn.counts else ""
        return "return", ", ".join(returned[:_RETURNED] if more else returned) + more or "nothing", ""
    results = row.node.results()
    target = row.node.target
    if isinstance(target, Part):
        given = sum(drawn.sizes.get(value.tensor.storage, 0) for value in results)
        inside = f", {unit.text(target.inside_bytes)} inside" if target.inside_bytes else ""
        nodes = f"{target.nodes} nodes" if target.nodes > 1 else "1 node"
        return nodes, target.label, f"gives {unit.text(given)}{inside}" if given or inside else ""
    call = plain_call(names, row.node).removeprefix("torch.ops.")
    return ", ".join(value.name for value in results), call, ", ".join(str(value.meta) for value in results)


def described(value: Value) -> str:
    """A value and what it is like."""
    return f"{value.name}: {value.meta}"


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text that is no longer than that."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def shortened_path(text: str, longest: int) -> str:
    """A name whose end says more than its beginning, no longer than that."""
    return text if len(text) <= longest else "..." + text[len(text) - longest + 3 :]


def color(storage: int) -> str:
    """Neighbouring numbers get colours that are far apart."""
    red, green, blue = colorsys.hls_to_rgb(storage * 0.618034 % 1.0, 0.45, 0.6)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
