"""Compute reports on profiles that contain totals instead of a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core import totals

if TYPE_CHECKING:
    import polars as pl

    from tracekit.core.reports.report import Request


def activity_total_sum(request: Request) -> pl.DataFrame:
    """Activities and API calls by name, from a profile without a timeline."""
    return totals.summarize_names(request.frames(totals.TABLE).collect())


def call_path_sum(request: Request) -> pl.DataFrame:
    """Call paths with the totals of what they contain, from a profile without a timeline."""
    return totals.summarize_paths(request.frames)
