"""Check that an in-place program is equivalent to the functional program it was made from.

Both programs run on value numbers (`analysis.symbolic_run`): the functional one first, which defines what each
application means, then the other one, where each application must have been made by the functional one, of the same
operands.

    functional                  in place                      read by add
      b = mul(a, 2)               b = mul_(a, 2)                a: mul's value numbers, not those of the input
      c = add(a, b)               c = add(a, b)                 -> InplaceMismatch at c

The check does not depend on how the program was made. It shares no analysis with the pass that made it: storages,
overlap, and where an operator rounds or draws differently in place are derived here a second time. Both rely on
operators' schemas, and on the tables of `ops` of what schemas do not say: hidden writes, and views that take places.
Cost: linear in the nodes; where parts of values are read or written, in their elements as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from dovetail.analysis.data_movement import NumberedTensor
from dovetail.analysis.environment import Misfit
from dovetail.analysis.inplace_run import FunctionalRun, InPlaceRun, mismatch
from dovetail.analysis.symbolic_run import InputMemory, label_of
from dovetail.analysis.value_numbers import ValueNumbers, constant
from dovetail.errors import InplaceMismatch
from dovetail.ir.program import Node, Program, Value, meta_symbols, symbols_in, values_in
from dovetail.ir.sizes import Number, Scalar, SizeExpr, evaluate

_SMALL_SIZES = (3, 5, 7, 4, 6, 9, 8, 11, 10, 13)


def verify_inplace(
    functional: Program,
    inplace: Program,
    *,
    donated: Collection[int] = (),
    commit: bool = False,
    hints: Mapping[str, Number] | None = None,
) -> None:
    """Raise InplaceMismatch unless `inplace` gives what `functional` gives, on memory that it may write.

    Outputs are the same, share the same bytes with each other and with inputs, and inputs are left with the same
    contents. Each operator reads what it read before; draws and effects keep their order; no operator writes what
    another of its operands reads, unless element by element. Descriptions of values are true.

    Args: donated: positions of inputs whose memory nobody looks at afterwards. commit: no node that can fail comes
    after the first write to an input. hints: a number for each size symbol; small numbers where there is none.
    *Not* checked: what sizes other than the hints would change; whether the functional program is right.
    """
    meant, memory = _meaning(functional, inplace, hints or {})
    does = InPlaceRun(inplace, meant, commit)
    _follow(does, memory)
    try:
        _Comparison(meant, does, frozenset(donated)).check()
    except InplaceMismatch as error:
        raise does.suspect or error from None


def _meaning(functional: Program, inplace: Program, hints: Mapping[str, Number]) -> tuple[FunctionalRun, InputMemory]:
    """The functional program after it ran, with numbers for sizes that fit each other."""
    refusals: list[InplaceMismatch] = []
    agreeing: list[tuple[FunctionalRun, InputMemory]] = []
    sized = {v.name for v in functional.values() if any(name not in hints for name in meta_symbols(v.meta))}
    for same in (None, *dict.fromkeys(number for number in hints.values() if type(number) is int), 3, 2, 1):
        numbers = _numbers(functional, inplace, hints, same)
        run = FunctionalRun(functional, ValueNumbers(), numbers)
        memory = InputMemory(extents=_extents(functional, inplace, numbers))
        try:
            _follow(run, memory)
            agreeing.append((run, memory))
            if run.crooked.isdisjoint(sized):  # views are as large as they are described
                return run, memory
        except InplaceMismatch as error:
            refusals.append(error)
        if len(numbers) == len(hints):
            break
    if not agreeing:
        raise refusals[0]
    return agreeing[0]


def _follow(run: FunctionalRun | InPlaceRun, memory: InputMemory) -> None:
    program = run.program
    last = {value: node for node in program.nodes for value in (*node.operands(), *node.results())}
    kept = {*program.inputs, *values_in(program.outputs)}
    dying: dict[Node, list[Value]] = {}
    for value, node in last.items():
        if value not in kept:
            dying.setdefault(node, []).append(value)
    try:
        run.start(memory)
    except (Misfit, RuntimeError) as error:
        raise mismatch(program, "the inputs are not as described", _first_line(error)) from error
    for node in program.nodes:
        try:
            run.step(node)
        except Misfit as error:
            raise mismatch(program, f"{label_of(node)} does something that is not allowed", str(error), node) from error
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise mismatch(program, f"{label_of(node)} cannot be followed", _first_line(error), node) from error
        for value in dying.get(node, ()):
            run.env.pop(value, None)
    try:
        run.finish()
    except Misfit as error:
        raise mismatch(program, "an output is not computed", str(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


# --- what is known before ---------------------------------------------------------------------------------------------


def _numbers(functional: Program, inplace: Program, hints: Mapping[str, Number], same: int | None) -> dict[str, Number]:
    """A number for each size symbol, equal where a node of the functional program asks for it.

    same: the number of all that have no hint; different ones if None.
    """
    found = dict(hints)
    for program in (functional, inplace):
        values = list(program.values())
        names = [name for value in values for name in meta_symbols(value.meta)]
        names += [name for node in program.nodes for name in node.symbols()]
        for name in (*names, *symbols_in(program.outputs)):
            if name not in found:
                found[name] = _SMALL_SIZES[len(found) % len(_SMALL_SIZES)] if same is None else same
    for name, other in _equalities(functional):
        if name not in hints:
            old, new = found[name], evaluate(other, found)
            found.update({key: new for key, number in found.items() if key not in hints and number == old})
    return found


def _equalities(program: Program) -> Iterator[tuple[str, Scalar]]:
    """Symbols that are made sure to equal other sizes."""
    for node in program.nodes:
        fact = node.args[0] if node.args else None
        if isinstance(fact, SizeExpr) and fact.op == "eq":
            sizes = [part for part in fact.args if not isinstance(part, str)]
            for name, other in (sizes, sizes[::-1]):
                if isinstance(name, SizeExpr) and name.op == "symbol":
                    yield str(name), other


def _extents(functional: Program, inplace: Program, numbers: Mapping[str, Number]) -> list[int]:
    """Bytes of the storage of each input, as far as a value of either program reaches, in whole blocks of 16."""
    if len(functional.inputs) != len(inplace.inputs):
        detail = f"it has {len(inplace.inputs)} inputs, and had {len(functional.inputs)}"
        raise mismatch(inplace, detail, "both take the same inputs")
    reaches = []
    for program in (functional, inplace):
        inputs = program.input_storages()
        reach = dict.fromkeys(inputs, 0)
        for value in program.values():
            if value.is_tensor and value.tensor.storage in inputs:
                reach[value.tensor.storage] = max(reach[value.tensor.storage], _end_bytes(value, numbers))
        reaches.append([reach[v.tensor.storage] if v.is_tensor else 0 for v in program.inputs])
    for position, (a, b) in enumerate(zip(functional.inputs, inplace.inputs, strict=True)):
        if a.is_tensor != b.is_tensor or (a.is_tensor and _lie(a) != _lie(b)):
            raise mismatch(inplace, f"input {position} is {b.meta}, and was {a.meta}", "both take the same inputs")
    homes = [[v.tensor.storage for v in program.inputs if v.is_tensor] for program in (functional, inplace)]
    if [homes[0].index(number) for number in homes[0]] != [homes[1].index(number) for number in homes[1]]:
        raise mismatch(inplace, "its inputs share memory differently than before", "both take the same inputs")
    return [-(-max(a, b) // 16) * 16 for a, b in zip(*reaches, strict=True)]


def _lie(value: Value) -> tuple[object, ...]:
    return (*value.tensor.layout(), value.tensor.offset)


def _end_bytes(value: Value, numbers: Mapping[str, Number]) -> int:
    meta = value.tensor
    shape = [int(evaluate(size, numbers)) for size in meta.shape]
    if 0 in shape:
        return 0
    last = sum((n - 1) * int(evaluate(step, numbers)) for n, step in zip(shape, meta.stride, strict=True))
    return (int(evaluate(meta.offset, numbers)) + last + 1) * meta.dtype.itemsize


# --- what is left -----------------------------------------------------------------------------------------------------


class _Comparison:
    """What the two programs leave behind."""

    def __init__(self, meant: FunctionalRun, does: InPlaceRun, donated: frozenset[int]) -> None:
        self.meant = meant
        self.does = does
        self.donated = donated

    def check(self) -> None:
        """Compare everything that can be seen from outside."""
        for what, here, there in (
            ("draws", self.does.draws, self.meant.draws),
            ("effects", self.does.effects, self.meant.effects),
        ):
            if here != there:
                raise self._differs(f"it has {here} {what}, and had {there}", "none may come or go")
        self._check_outputs()
        self._check_inputs()
        self._check_sharing()

    def _check_outputs(self) -> None:
        here, there = self.does.program.outputs, self.meant.program.outputs
        if len(here) != len(there):
            raise self._differs(f"it has {len(here)} outputs, and had {len(there)}", "outputs are the same")
        pairs = zip(here, there, self.does.outputs, self.meant.outputs, strict=True)
        for position, (operand, was, bound, meant) in enumerate(pairs):
            if not isinstance(bound, NumberedTensor) or not isinstance(meant, NumberedTensor):
                plain = [
                    constant(o, run.hints) if b is None else ("bound", b)
                    for o, b, run in ((operand, bound, self.does), (was, meant, self.meant))
                ]
                if plain[0] != plain[1]:
                    raise self._differs(f"output {position} is {operand}, and was {was}", "outputs are the same")
                continue
            if (bound.layout, bound.bits) != (meant.layout, meant.bits):
                detail = f"output {position} ({operand}) has layout {bound.layout}, and had {meant.layout}"
                raise self._differs(detail, "outputs look the same")
            if self.does.moves.read(bound).ident != self.meant.moves.read(meant).ident:
                reason = f"its memory was last written by {bound.storage.last_writer or 'nobody'}"
                raise self._differs(f"output {position} ({operand}) does not hold what it held before", reason)

    def _check_inputs(self) -> None:
        given = {id(b.storage) for i, b in self._inputs(self.does) if i in self.donated}
        seen: set[int] = set()
        for (position, bound), (_, meant) in zip(self._inputs(self.does), self._inputs(self.meant), strict=True):
            if position in self.donated or id(bound.storage) in seen:
                continue
            if id(bound.storage) in given:  # of memory that is given away in part, what this input shows
                same = self.does.moves.read(bound).ident == self.meant.moves.read(meant).ident
            else:
                same = bound.storage.everything().ident == meant.storage.everything().ident
                seen.add(id(bound.storage))
            if not same:
                writers = [run.storage.last_writer or "nobody" for run in (bound, meant)]
                reason = f"its memory was last written by {writers[0]}, and by {writers[1]} before"
                raise self._differs(f"input {position} is left with other contents", reason)
        self._check_beside_donated()

    def _check_beside_donated(self) -> None:
        """Memory that a donated input does not show, in its storage, is not given away."""
        pairs = zip(self._inputs(self.does), self._inputs(self.meant), strict=True)
        given = [(i, bound, meant) for (i, bound), (_, meant) in pairs if i in self.donated]
        for _, bound, meant in given:
            self.does.moves.write(bound, self.meant.moves.read(meant))
        for position, bound, meant in given:
            if bound.storage.everything().ident != meant.storage.everything().ident:
                reason = f"it was last written by {bound.storage.last_writer or 'nobody'}"
                raise self._differs(f"memory beside the donated input {position} is left with other contents", reason)

    def _check_sharing(self) -> None:
        here, there = (self._shared(run) for run in (self.does, self.meant))
        for pair in sorted({*here, *there}):
            if here.get(pair) == there.get(pair) or (pair[1] < 0 and ~pair[1] in self.donated):
                continue
            names = [f"output {index}" if index >= 0 else f"input {~index}" for index in pair]
            verb = "do not share" if pair not in here else "share" if pair not in there else "share other"
            detail = f"{names[0]} and {names[1]} {verb} bytes"
            raise self._differs(detail, "outputs share memory with each other and with inputs as they did before")

    def _shared(self, run: FunctionalRun) -> dict[tuple[int, int], int]:
        """Pairs of outputs, and of an output and an input (as ~position), that share bytes; how far apart they are."""
        found: dict[tuple[int, int], int] = {}
        residents: dict[int, list[tuple[int, NumberedTensor]]] = {}
        for position, bound in self._inputs(run):
            residents.setdefault(id(bound.storage), []).append((~position, bound))
        for position, output in enumerate(run.outputs):
            if isinstance(output, NumberedTensor):
                neighbours = residents.setdefault(id(output.storage), [])
                for other, place in neighbours:
                    if output.overlaps(place):
                        found[position, other] = output.region.first - place.region.first
                neighbours.append((position, output))
        return found

    def _inputs(self, run: FunctionalRun) -> list[tuple[int, NumberedTensor]]:
        return [(i, bound) for i, bound in enumerate(run.inputs) if isinstance(bound, NumberedTensor)]

    def _differs(self, detail: str, reason: str) -> InplaceMismatch:
        return mismatch(self.does.program, detail, reason)
