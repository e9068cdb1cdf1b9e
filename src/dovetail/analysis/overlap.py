"""The names that capture and execute still import from here; `dovetail.analysis` has the analysis itself."""

from __future__ import annotations

from dovetail.analysis.pairs import may_overlap
from dovetail.analysis.region import address_range

__all__ = ["address_range", "may_overlap"]
