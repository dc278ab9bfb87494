"""Collect the warnings, errors and findings that profilers recorded, with the rows that each of them is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

SEVERITIES = ("Error", "Warning")
RULE_KINDS = {"ERR": "Error", "WRN": "Warning", "OPT": "Optimization"}
COLUMNS = {
    "tool": pl.String,
    "kind": pl.String,
    "rule": pl.String,
    "message": pl.String,
    "recommendation": pl.String,
    "count": pl.Int64,
    "speedup_percent": pl.Float64,
    "table": pl.String,
    "column": pl.String,
    "value": pl.String,
}
_ROWS_OF_DETECTORS = {
    "amp_detector": ("ops", "tensor_core_support", "eligible"),
    "bad_iteration_range_detector": ("iterations", None, None),
    "batch_size_detector": ("devices", None, None),
    "cudnn_benchmark_detector": ("ops", "op_type", "conv2d"),
    "dataloader_detector": ("ops", "op_type", "dataloader"),
    "imbalanced_gpu_detector": ("devices", None, None),
    "no_iterations_detector": ("iterations", None, None),
    "underutilized_gpu_detector": ("devices", None, None),
}
"""Table, column and value of the rows that the findings of each detector of DLProf are about."""


def collect_recorded_messages(frames: Frames) -> pl.DataFrame:
    """Return the warnings and errors of the profiler, and the findings that it recorded.

    Args:
        frames: Function that returns the declared table with a given name.

    Returns:
        One row per message of Nsight Systems, finding of DLProf, or rule of Nsight Compute: the tool, the kind of
        message (``Error``, ``Warning``, ``Finding`` or ``Optimization``), the rule, the message with the largest
        estimated speedup, the recommendation, the number of messages, and the estimated speedup. The rows that the
        finding is about are those of ``table`` whose ``column`` has the ``value``, or all rows if the column is null.
    """
    parts = [_collect_diagnostics(frames), _collect_findings(frames), _collect_rules(frames)]
    return pl.concat(part.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items()) for part in parts)


def _collect_diagnostics(frames: Frames) -> pl.DataFrame:
    texts = frames("diagnostics").select(pl.col("severity", "text").cast(pl.String))
    counts = texts.filter(pl.col("severity").is_in(SEVERITIES)).group_by("severity", "text", maintain_order=True)
    order = pl.col("severity").replace_strict({name: i for i, name in enumerate(SEVERITIES)}, default=0)
    return (
        counts.agg(count=pl.len())
        .sort(order, maintain_order=True)
        .select(
            tool=pl.lit("Nsight Systems"),
            kind="severity",
            rule=pl.lit(None),
            message="text",
            recommendation=pl.lit(None),
            count="count",
            speedup_percent=pl.lit(None),
            table=pl.lit("diagnostics"),
            column=pl.lit("text"),
            value="text",
        )
        .collect()
    )


def _collect_findings(frames: Frames) -> pl.DataFrame:
    counts = frames("findings").group_by("rule", "problem", "recommendation", maintain_order=True).agg(count=pl.len())
    rows = {
        name: pl.col("rule").replace_strict(
            {rule: row[nth] for rule, row in _ROWS_OF_DETECTORS.items()}, default=None, return_dtype=pl.String
        )
        for nth, name in enumerate(("table", "column", "value"))
    }
    return counts.select(
        pl.lit("DLProf").alias("tool"),
        pl.lit("Finding").alias("kind"),
        "rule",
        pl.col("problem").alias("message"),
        "recommendation",
        "count",
        pl.lit(None).alias("speedup_percent"),
        **rows,
    ).collect()


def _collect_rules(frames: Frames) -> pl.DataFrame:
    rules = frames("ncu_rules").select(
        pl.col("rule_id", "type", "message").cast(pl.String), pl.col("speedup_percent").fill_nan(None)
    )
    best = pl.col("message").sort_by("speedup_percent", descending=True, nulls_last=True).first()
    grouped = rules.filter(pl.col("type").is_in(list(RULE_KINDS))).group_by("rule_id", "type", maintain_order=True)
    counts = grouped.agg(best, count=pl.len(), speedup_percent=pl.col("speedup_percent").max())
    return (
        counts.sort("speedup_percent", "count", descending=True, nulls_last=True, maintain_order=True)
        .select(
            pl.lit("Nsight Compute").alias("tool"),
            pl.col("type").replace_strict(RULE_KINDS).alias("kind"),
            pl.col("rule_id").alias("rule"),
            "message",
            pl.lit(None).alias("recommendation"),
            "count",
            "speedup_percent",
            pl.lit("ncu_rules").alias("table"),
            pl.lit("rule_id").alias("column"),
            pl.col("rule_id").alias("value"),
        )
        .collect()
    )
