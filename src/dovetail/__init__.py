"""dovetail: an ahead-of-time compiler for PyTorch programs that shows what it decides."""

from __future__ import annotations

from dovetail.errors import DovetailError, DovetailWarning
from dovetail.frontends.analysis_report import AnalysisReport, analyse
from dovetail.frontends.backend import dovetail_backend
from dovetail.frontends.function import CompiledFunction, compile
from dovetail.pipeline.options import Options

__version__ = "0.1.0"

__all__ = [
    "AnalysisReport",
    "CompiledFunction",
    "DovetailError",
    "DovetailWarning",
    "Options",
    "__version__",
    "analyse",
    "compile",
    "dovetail_backend",
]
