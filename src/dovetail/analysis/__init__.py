"""Facts about programs and memory: overlap of strided regions, liveness, merged values."""

from __future__ import annotations

from dovetail.analysis.groups import overlap_groups
from dovetail.analysis.pairs import may_overlap, overlap, overlaps_itself
from dovetail.analysis.region import Region
from dovetail.analysis.verdict import Overlap, Reason, Verdict

__all__ = ["Overlap", "Reason", "Region", "Verdict", "may_overlap", "overlap", "overlap_groups", "overlaps_itself"]
