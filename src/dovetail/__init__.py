"""dovetail: an ahead-of-time compiler for PyTorch programs that shows what it decides."""

from __future__ import annotations

from dovetail.errors import DovetailError, DovetailWarning
from dovetail.frontends.analysis_report import AnalysisReport, analyse
from dovetail.frontends.aot import AotModule, aot_function, aot_module, aot_module_simplified, make_boxed_compiler
from dovetail.frontends.backend import dovetail_backend
from dovetail.frontends.estimate import Estimate, estimate
from dovetail.frontends.freezing.freeze import freeze
from dovetail.frontends.freezing.loading import load
from dovetail.frontends.freezing.module import FrozenModule
from dovetail.frontends.function import CompiledFunction, compile
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
    "host_call",
    "load",
    "make_boxed_compiler",
]
