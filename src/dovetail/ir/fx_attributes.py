"""The attributes of a graph module: found by dotted path, and held in common with another one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import fx, nn


def attribute_of(module: nn.Module, path: str) -> Any:
    """What `module` holds at a dotted path. Raises: AttributeError."""
    held: Any = module
    for part in path.split("."):
        held = getattr(held, part)
    return held


def share_tensors(source: fx.GraphModule, made: fx.GraphModule, unwanted: Collection[str] = ()) -> None:
    """Let the new module hold its tensors as the source does: those that no node reads, too.

    unwanted: paths of tensors for which this is not to be done.
    """
    gone = {id(attribute_of(source, path)) for path in unwanted}
    persistent = set(source.state_dict(keep_vars=True))
    read = {str(node.target) for node in made.graph.find_nodes(op="get_attr")} if gone else set()
    for path, tensor in source.named_parameters(remove_duplicate=False):
        if id(tensor) in gone and path not in read:
            continue
        place, name = _place(made, source, path)
        if place is not None and not hasattr(place, name):
            place.register_parameter(name, tensor)
    buffers = dict(source.named_buffers(remove_duplicate=False))
    for path, held in buffers.items():
        if id(held) in gone and path not in read:
            continue
        place, name = _place(made, source, path)
        if place is not None:
            if hasattr(place, name):
                delattr(place, name)
            place.register_buffer(name, held, persistent=path in persistent)
    for path, held in list(made.named_buffers(remove_duplicate=False)):
        place, name = _place(made, source, path)
        if place is not None and path not in buffers and hasattr(source, path.partition(".")[0]):
            delattr(place, name)
            setattr(place, name, held)  # a plain attribute there


def _place(root: nn.Module, source: Any, path: str) -> tuple[nn.Module | None, str]:
    """The module that is to hold a tensor, made if it is missing, and the tensor's name there.

    No module where the source and the new one hold a module in common, or the source's is the body of an operator.
    """
    *parts, name = path.split(".")
    for part in parts:
        source = getattr(source, part, None)
        if isinstance(source, fx.GraphModule) or (source is not None and source is getattr(root, part, None)):
            return None, name
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    return root, name
