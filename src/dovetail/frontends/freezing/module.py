"""What `dovetail.freeze` returns: a module whose methods are programs with their weights inside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from dovetail.deferred import deferred
from dovetail.errors import FrozenIsFixed, NoSources, StaleWeights
from dovetail.execute.protocol import ExecutorList
from dovetail.frontends.freezing.method import FrozenMethod
from dovetail.frontends.freezing.originals import Originals
from dovetail.frontends.freezing.pool import Pool, copies_of, size_bytes
from dovetail.frontends.freezing.running import Running
from dovetail.pipeline.compile_trace import CompileTrace
from dovetail.torch_compat.modules import calls_only_forward

if TYPE_CHECKING:
    from dovetail.analysis.paired_ratio import PairedRatio
    from dovetail.frontends.freezing import comparison, exporting, saving, timing, weights
    from dovetail.frontends.freezing.call_form import CallForm
    from dovetail.frontends.freezing.comparison import Comparison
    from dovetail.frontends.freezing.weights import Sources
else:
    comparison = deferred("dovetail.frontends.freezing.comparison")
    exporting = deferred("dovetail.frontends.freezing.exporting")
    saving, timing = deferred("dovetail.frontends.freezing.saving"), deferred("dovetail.frontends.freezing.timing")
    weights = deferred("dovetail.frontends.freezing.weights")


class FreezesTo(torch.nn.Module):
    """A module whose frozen program can do more than a `FrozenModule`."""

    def frozen_as(self, name: str, running: Running, pool: Pool, **settings: Any) -> FrozenModule:
        """What `freeze` returns. name: of the class. settings: see `FrozenModule`."""
        raise NotImplementedError


class FrozenModule(torch.nn.Module):
    """A frozen model: an inference program with its weights inside. Made by `dovetail.freeze` and `dovetail.load`.

    It is called like the model, and keeps the methods that were frozen. Buffers that the program writes are its own.

    Attributes:
        timings: the time of each method divided by eager's, measured by `freeze(..., measure=True)`; else empty.
    """

    timings: Mapping[str, PairedRatio] = MappingProxyType({})

    def __init__(
        self,
        name: str,
        running: Running,
        pool: Pool,
        *,
        sources: Sources | None = None,
        originals: Originals | None = None,
        on_stale: str = "error",
        unfrozen: torch.nn.Module | None = None,
        compile_trace: CompileTrace | None = None,
    ) -> None:
        """running: bound to the pool. sources: weights from before folding. originals: the model, watched.

        unfrozen: what runs with gradients.
        """
        super().__init__()
        super().eval()
        self._name = name
        self._running = running
        self._pool = pool
        self._sources = sources
        self._originals = originals
        self._on_stale = on_stale
        self._unfrozen = (unfrozen,)  # in a tuple, or it would be a child of this module
        self._compile_trace = compile_trace
        self._methods = running.methods
        for key in self._methods:
            if key != "forward":
                self.__dict__[key] = partial(self._call, key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and hooks where there are some."""
        if calls_only_forward(self):
            return self._run("forward", args, kwargs)
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the model's forward, without gradients.

        Raises: FrozenCallMismatch for a call that does not match the program, with the reason; FrozenNeedsNoGrad if
        gradients are enabled and an input requires one; StaleWeights if the model has changed (see `on_stale`).
        """
        return self._run("forward", args, kwargs)

    def _call(self, key: str, *args: Any, **kwargs: Any) -> Any:
        return self._run(key, args, kwargs)

    def _run(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method = self._methods.get(key)
        if method is None:
            raise FrozenIsFixed(what=f"run {key}, which was not frozen (it has {', '.join(self._methods)})")
        quick = method.quick.find(args, kwargs)
        if quick is not None:
            originals = self._originals
            if originals is not None and not (self._on_stale == "ignore" or originals.is_as_before()):
                self._look_at_originals()
            runner, inputs = quick
            if originals is None or not runner.writes:
                return runner.run(inputs)
            if self._on_stale != "ignore" and not originals.may_share(runner.written_inputs(inputs)):
                return runner.run(inputs)
        leaves = method.form.bind(args, kwargs)
        (unfrozen,) = self._unfrozen
        if unfrozen is not None and method.leaf_that_wants_gradient(leaves) is not None:
            return (unfrozen if key == "forward" else getattr(unfrozen, key))(*args, **kwargs)
        self._look_at_originals()
        if self._originals is not None:
            method.refuse_memory(leaves, self._originals)
        return method.run(args, kwargs, leaves)

    def _look_at_originals(self) -> None:
        """See to what has changed in the model. Raises: StaleWeights; BadWeights."""
        if self._originals is None or self._on_stale == "ignore":
            return
        changed = self._originals.changed()
        if changed and self._on_stale == "error":
            raise StaleWeights(changed=_listed(changed))
        if changed:
            self.refresh()

    # --- weights ----------------------------------------------------------------------------------------------------

    def check_stale(self) -> tuple[str, ...]:
        """Dotted names of the model's tensors that have changed since it was frozen; none once it is gone.

        Unnoticed: writes through `.data` of a tensor that the model still holds.
        """
        return () if self._originals is None else tuple(self._originals.changed())

    def refresh(self) -> None:
        """Fold again from the model's current weights. The frozen program's state stays.

        Raises: BadWeights when their shapes, strides or dtypes have changed or one is gone, and nothing is done.
        """
        if self._originals is None:
            raise FrozenIsFixed(what="be refreshed: the model that it was frozen from is not known")
        now = self._originals.now()
        with torch.inference_mode(False), torch.no_grad():
            self._take(
                *weights.refolded(
                    self._frozen_methods(), self._pool, self._sources, now, own=self._on_stale == "ignore"
                )
            )
        self._originals = self._originals.renewed()

    def swap_weights(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Use other weights, by their names in the model, and fold again: as if frozen with them.

        With `keep_sources`, a subset of the weights is enough.
        Raises: BadWeights for names, shapes or dtypes that do not fit; NoSources for a part without kept sources.
        Nothing is done then.
        """
        with torch.inference_mode(False), torch.no_grad():
            self._take(*weights.refolded(self._frozen_methods(), self._pool, self._sources, state_dict, own=True))
        self._originals = None

    def source_state_dict(self) -> dict[str, torch.Tensor]:
        """The weights as they were before folding, by their names in the model: copies. Raises: NoSources."""
        if self._sources is None or not self._sources.is_complete:
            raise NoSources(what="source_state_dict()", hint="")
        tensors = self._sources.copies()
        return {
            dotted: tensors[name] for name, dots in self._pool.origins.items() if name in tensors for dotted in dots
        }

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """The constants and the state as they are stored: folded weights under the names that folding gave them."""
        found = OrderedDict() if destination is None else destination
        for name, tensor in self._pool.stored().items():
            found[prefix + name] = tensor
        return found

    def save(self, path: str | Path) -> None:
        """Write it to a file that `dovetail.load` reads, usually `something.dovetail`. No pickle is used.

        Raises: BadOptionValue for what is no path; NotSerializable for what only code can reconstruct (arguments that
        are objects, subgraphs of control flow, containers of the user's own kind), before anything is written; OSError.
        """
        kept = saving.Contents(self._name, self._running.frozen, self._pool, self._sources, self._generation())
        saving.save(kept, path)

    def compare_with(
        self, reference: Callable[..., Any], calls: Iterable[Any], *, method: str = "forward"
    ) -> Comparison:
        """How far a method's results are from a model's: cosines, errors and equal predictions, over calls you give.

        Args:
            reference: the model that was frozen, or the bound method of it.
            calls: the arguments of each call: a tensor, a tuple, or a mapping of arguments by name. Both compute all of
                them, without gradients.
            method: which of the frozen methods.

        Raises: BadOptionValue if there is no call, or if results differ in structure or shapes; FrozenIsFixed for a
            method that was not frozen, or if calls change state, which the next call would read.
        """
        if method not in self._methods:
            raise FrozenIsFixed(what=f"compare {method}, which was not frozen (it has {', '.join(self._methods)})")
        if self.is_stateful:
            raise FrozenIsFixed(what="be compared call by call: its calls change its state")
        writes = any(program.written for program in self._methods[method].method.programs)
        made: Comparison = comparison.compare(partial(self._call, method), reference, calls, writes=writes)
        return made

    def export(self, method: str = "forward") -> torch.export.ExportedProgram:
        """A method as a torch.export program, for sizes above 1 where they are symbolic.

        Raises: NotExportable when torch cannot express it; FrozenIsFixed for a method that was not frozen.
        """
        if method not in self._methods:
            raise FrozenIsFixed(what=f"export {method}, which was not frozen (it has {', '.join(self._methods)})")
        exported: torch.export.ExportedProgram = exporting.export(self._methods[method], self._pool.state)
        return exported

    def constant_bytes(self) -> int:
        """Bytes of the memory of all constants and state, each storage once, packed weights included."""
        return size_bytes([*self._pool.tensors.values(), *self._running.tensors.values()])

    def program_name(self, *args: Any, method: str = "forward", **kwargs: Any) -> str:
        """The name of the program that a call runs. Raises: FrozenCallMismatch if there is none; FrozenIsFixed."""
        if method not in self._methods:
            raise FrozenIsFixed(what=f"run {method}, which was not frozen (it has {', '.join(self._methods)})")
        return self._methods[method].name_for(args, kwargs)

    @property
    def call_forms(self) -> Mapping[str, CallForm]:
        """How each method is called."""
        return {name: method.form for name, method in self._methods.items()}

    @property
    def is_stateful(self) -> bool:
        """Whether calls change what later calls give: then it is for one thread at a time."""
        return bool(self._pool.state)

    @property
    def specialized(self) -> tuple[str, ...]:
        """Sizes that were fixed although they could have been symbolic, and why."""
        return tuple(note for method in self._methods.values() for note in method.method.notes)

    @property
    def compile_trace(self) -> CompileTrace | None:
        """What every step of freezing made; see `dovetail.explain`."""
        return self._compile_trace

    @property
    def executors(self) -> ExecutorList:
        """Who runs the nodes."""
        return self._running.executors

    def _frozen_methods(self) -> list[FrozenMethod]:
        return list(self._running.frozen.values())

    def _take(self, pool: Pool, sources: Sources | None) -> None:
        self._running.bind(pool)
        self._pool, self._sources = pool, sources

    # --- what a module can do, and a frozen one cannot ---------------------------------------------------------------

    def load_state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises FrozenIsFixed: see `swap_weights`."""
        raise FrozenIsFixed(what="load a state dict with its own names; swap_weights takes a state dict of the model")

    def train(self, mode: bool = True) -> FrozenModule:
        """Raises FrozenIsFixed for True: the mode was fixed when it was frozen."""
        if mode:
            raise FrozenIsFixed(what="be put into training mode")
        return self

    def requires_grad_(self, requires_grad: bool = True) -> FrozenModule:
        """Raises FrozenIsFixed for True: it gives no gradients."""
        if requires_grad:
            raise FrozenIsFixed(what="require gradients")
        return self

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Raises FrozenIsFixed, as every conversion: devices and dtypes are part of the program."""
        raise FrozenIsFixed(what="be moved or converted")

    cuda = cpu = half = float = double = bfloat16 = type = to_empty = to

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise FrozenIsFixed(what="be pickled: frozen.save(path) writes it without pickle")

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenModule:
        """A copy with state of its own; constants are shared."""
        held, state = self._pool.stored(), self._pool.state
        tensors = {**held, **copies_of({name: held[name] for name in held if name in state})}
        pool = Pool(tensors, dict(self._pool.origins), self._pool.state, self._pool.unused)
        running = self._running.again()
        running.bind(pool)
        return self._like(running, pool)

    def _like(self, running: Running, pool: Pool) -> FrozenModule:
        """The same over another pool."""
        return FrozenModule(self._name, running, pool, **self._settings())

    def _generation(self) -> dict[str, Any] | None:
        """What a file says of a model that generates."""
        return None

    def _settings(self) -> dict[str, Any]:
        """What it was made with, beside the program and its tensors."""
        return {
            "sources": self._sources,
            "originals": self._originals,
            "on_stale": self._on_stale,
            "unfrozen": self._unfrozen[0],
            "compile_trace": self._compile_trace,
        }

    def extra_repr(self) -> str:
        """What it was frozen from, and how large it is."""
        lines = [f"{self._name}, {self.constant_bytes():,} bytes of constants, methods: {', '.join(self._methods)}"]
        timings = [f"{name}: {timing.as_text(ratio)}" for name, ratio in self.timings.items()]
        return "\n".join([*lines, *timings, *self.specialized])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
