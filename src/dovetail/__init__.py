"""dovetail: an ahead-of-time compiler for PyTorch programs that shows what it decides."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dovetail.errors import DovetailError, DovetailWarning
from dovetail.passes.collection import collection_paused

if TYPE_CHECKING:
    from dovetail.frontends.analysis_report import AnalysisReport, analyse
    from dovetail.frontends.aot import AotModule, aot_function, aot_module, aot_module_simplified, make_boxed_compiler
    from dovetail.frontends.backend import dovetail_backend
    from dovetail.frontends.estimate import Estimate, estimate
    from dovetail.frontends.freezing.freeze import freeze
    from dovetail.frontends.freezing.loading import load
    from dovetail.frontends.freezing.module import FrozenModule
    from dovetail.frontends.function import CompiledFunction, compile
    from dovetail.frontends.generation.freeze_generation import freeze_generation
    from dovetail.frontends.generation.generator import FrozenGenerator
    from dovetail.frontends.step.host_calls import host_call
    from dovetail.frontends.step.step import CompiledStep, compile_step
    from dovetail.inspect.explain import explain
    from dovetail.inspect.explanation import Explanation
    from dovetail.pipeline.options import Options

__version__ = "0.1.0"

__all__ = [
    "AnalysisReport",
    "AotModule",
    "CompiledFunction",
    "CompiledStep",
    "DovetailError",
    "DovetailWarning",
    "Estimate",
    "Explanation",
    "FrozenGenerator",
    "FrozenModule",
    "Options",
    "__version__",
    "analyse",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "compile",
    "compile_step",
    "dovetail_backend",
    "estimate",
    "explain",
    "freeze",
    "freeze_generation",
    "host_call",
    "load",
    "make_boxed_compiler",
]

_NAMES_OF = {
    "frontends.analysis_report": ("AnalysisReport", "analyse"),
    "frontends.aot": ("AotModule", "aot_function", "aot_module", "aot_module_simplified", "make_boxed_compiler"),
    "frontends.backend": ("dovetail_backend",),
    "frontends.estimate": ("Estimate", "estimate"),
    "frontends.freezing.freeze": ("freeze",),
    "frontends.freezing.loading": ("load",),
    "frontends.freezing.module": ("FrozenModule",),
    "frontends.function": ("CompiledFunction", "compile"),
    "frontends.generation.freeze_generation": ("freeze_generation",),
    "frontends.generation.generator": ("FrozenGenerator",),
    "frontends.step.host_calls": ("host_call",),
    "frontends.step.step": ("CompiledStep", "compile_step"),
    "inspect.explain": ("explain",),
    "inspect.explanation": ("Explanation",),
    "pipeline.options": ("Options",),
}
_HOME_OF = {name: f"{__name__}.{module}" for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> object:
    """What is asked for the first time is imported then: `load` needs little of what the others need."""
    if name in _HOME_OF:
        with collection_paused():  # a hundred modules are no garbage
            import_module(_HOME_OF[name])
        for known, home in _HOME_OF.items():
            if home in sys.modules and hasattr(sys.modules[home], known):
                globals()[known] = getattr(sys.modules[home], known)
        return globals()[name]
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
