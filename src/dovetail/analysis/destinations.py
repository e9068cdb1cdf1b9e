"""Where results should go: inputs that receive new contents, and parts of buffers that a result is copied into.

A *copy back* is `copy_(x, new)` where x is an input or a view of one. Walking back from `new` through views and through
operands that a result can replace gives its *chain*: the storages that may live in the memory of x. Where
the chain does not reach x, its last operator may still write its result there (`out=`). An elementwise operator without
an in-place variant (`maximum`) is followed to those of its operands that come from x.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.ir.program import Node, Program, TensorMeta, Value
from dovetail.ops.facts import ignores_first_contents, is_copy, overwrites
from dovetail.ops.over_operands import is_elementwise
from dovetail.ops.views import viewed_meta
from dovetail.ops.writing_forms import Part, out_form, part_of, writing_form, written_operands


@dataclass(frozen=True, slots=True)
class PartUse:
    """A node that replaces the part `view(base, *args)` of its first operand by its second one. meta: of the part."""

    node: Node
    base: Value
    source: Value
    part: Part
    args: tuple[object, ...]
    meta: TensorMeta


@dataclass(slots=True)
class Destinations:
    """What is found.

    copy_backs: the nodes, in order. copy_backs_of: those of the input with a storage. chain: storage -> storage of the
    input whose memory it may live in. into: storage -> the value whose place it should be written to. covered: storage
    of an input -> the tensors that are copied into. parts: nodes that replace a part. part_of_source: the source of
    such a node, before copies too -> that use. base_of: the result of such a node -> its first operand.
    """

    copy_backs: list[Node] = field(default_factory=list)
    chain: dict[int, int] = field(default_factory=dict)
    into: dict[int, Value] = field(default_factory=dict)
    covered: dict[int, list[TensorMeta]] = field(default_factory=dict)
    copy_backs_of: dict[int, list[Node]] = field(default_factory=dict)
    parts: dict[Node, PartUse] = field(default_factory=dict)
    part_of_source: dict[Value, PartUse] = field(default_factory=dict)
    base_of: dict[Value, Value] = field(default_factory=dict)


def find_destinations(program: Program) -> Destinations:
    """See `Destinations`."""
    found = Destinations()
    outside = program.input_storages()
    producers = program.producers()
    for node in program.nodes:
        if is_copy_back(node, outside):
            found.copy_backs.append(node)
            target = node.args[0]
            assert isinstance(target, Value), "checked"
            found.covered.setdefault(target.tensor.storage, []).append(target.tensor)
            found.copy_backs_of.setdefault(target.tensor.storage, []).append(node)
            continue
        use = _part_use(node)
        if use is not None:
            found.parts[node] = use
            found.base_of.update((result, use.base) for result in node.results())
            source: Value | None = use.source
            while source is not None and source in producers and source not in found.part_of_source:
                found.part_of_source[source] = use
                source = copied_value(producers[source])
    for node in found.copy_backs:
        _follow(node, found, producers)
    return found


def copied_value(node: Node) -> Value | None:
    """The value that a node only copies, unchanged, to where it may be laid out differently."""
    from_second = ignores_first_contents(node.target)
    if (not from_second and not is_copy(node.target)) or len(node.args) <= from_second:
        return None
    source, result = node.args[int(from_second)], node.outputs[0] if len(node.outputs) == 1 else None
    if not isinstance(source, Value) or result is None or not source.is_tensor or not result.is_tensor:
        return None
    a, b = source.tensor, result.tensor
    return source if (a.dtype, a.device) == (b.dtype, b.device) else None


def is_copy_back(node: Node, outside: frozenset[int]) -> bool:
    """Whether a node only copies a tensor into an input, or into a view of one."""
    if not overwrites(node.target) or len(node.args) < 2:
        return False
    target, new = node.args[:2]
    return isinstance(target, Value) and isinstance(new, Value) and target.tensor.storage in outside


def _part_use(node: Node) -> PartUse | None:
    found = part_of(node)
    if found is None:
        return None
    part, args = found
    base, source = node.args[:2]
    if not isinstance(base, Value) or not isinstance(source, Value) or node.kwargs:
        return None
    meta = viewed_meta(part.view, part.index, args, base.tensor, source.tensor)
    return None if meta is None else PartUse(node, base, source, part, args, meta)


def _follow(node: Node, found: Destinations, producers: dict[Value, Node]) -> None:
    """Walk back from new contents to where they come from."""
    target, new = node.args[:2]
    assert isinstance(target, Value) and isinstance(new, Value), "checked"
    home = target.tensor.storage
    seen: set[Value] = set()
    left = [new]
    is_reached = is_over_another = False
    while left:
        value = left.pop()
        if value in seen or found.chain.setdefault(value.tensor.storage, home) != home:
            continue
        seen.add(value)
        is_reached = is_reached or value.tensor.storage == home
        producer = producers.get(value)
        if producer is None or value.tensor.storage == home:
            continue
        places = _places_for(producer, value, found)
        if not places:
            places = [x for x in _operands_under(producer, value) if _comes_from(x, home, found, producers)]
            is_over_another = is_over_another or bool(places)
        left += places
    if not is_reached or is_over_another:
        _send(new, target, found, producers)


def _operands_under(node: Node, result: Value) -> list[Value]:
    """Operands over which a result may be written (`out=`) by an operator that has no in-place variant."""
    if not is_elementwise(node.target, result.tensor.dtype) or out_form(node.target, result.tensor.device.type) is None:
        return []
    return [x for x in node.operands() if x.is_tensor and x.tensor.lies_like(result.tensor)]


def _comes_from(value: Value, home: int, found: Destinations, producers: dict[Value, Node]) -> bool:
    """Whether a value may live in the memory that it is computed from, step by step, and that is an input's."""
    seen: set[Value] = set()
    left = [value]
    while left:
        value = left.pop()
        if value.tensor.storage == home:
            return True
        producer = producers.get(value)
        if producer is not None and value not in seen:
            seen.add(value)
            left += _places_for(producer, value, found)
    return False


def _send(new: Value, target: Value, found: Destinations, producers: dict[Value, Node]) -> None:
    """Let new contents be made in the place of `target`, or of a view of that, where copies and views stand between."""
    home = target.tensor.storage
    source: object = new
    while isinstance(source, Value):
        if source.tensor.lies_like(target.tensor):
            found.into.setdefault(source.tensor.storage, target)
        producer = producers.get(source)
        if producer is None:
            return
        first, copied = producer.args[0] if producer.args else None, copied_value(producer)
        if copied is None:
            is_view = isinstance(first, Value) and first.is_tensor and first.tensor.storage == source.tensor.storage
            source = first if is_view else None
            continue
        if isinstance(first, Value) and first.tensor.storage == home and first.tensor.lies_like(copied.tensor):
            found.into.setdefault(copied.tensor.storage, first)
        source = copied


def _places_for(node: Node, result: Value, found: Destinations) -> list[Value]:
    """Operands whose place the result may take over, that it is a view of, or that are put into it."""
    use = found.parts.get(node)
    if use is not None:
        return [use.base, use.source]
    copied = copied_value(node)
    if copied is not None:
        return [copied]
    before = _operand_in_place_of(node, result)
    return [] if before is None else [before]


def _operand_in_place_of(node: Node, result: Value) -> Value | None:
    """The operand whose memory the result may take over, or that it is a view of."""
    first = node.args[0] if node.args else None
    if isinstance(first, Value) and first.is_tensor and first.tensor.storage == result.tensor.storage:
        return first
    form = writing_form(node.target, result.tensor.dtype)
    operands = written_operands(form, node) if form is not None else None
    if form is None or operands is None:
        return None
    place = node.outputs.index(result) - form.fresh
    return operands[place] if place >= 0 and operands[place].tensor.lies_like(result.tensor) else None
