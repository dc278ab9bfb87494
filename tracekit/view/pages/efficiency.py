"""The page "Efficiency": the utilization of the GPU in steps, and what each op could have done (its roofline)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.core.work.ops import are_shapes_recorded
from tracekit.core.work.pointwise import COLLECTIVE
from tracekit.errors import MissingTableError, TracekitError
from tracekit.pages.values import NANOSECONDS, PERCENT, build_value, format_value
from tracekit.registry.analyses import REPORT, get_analysis
from tracekit.text.elements import tag
from tracekit.trace import call_with_tables
from tracekit.view import components, grid

if TYPE_CHECKING:
    from tracekit.text.elements import Content
    from tracekit.trace import Trace
    from tracekit.view.pages import Context

LIMITS = {
    "compute": "Computation: at least 60 % of the peak rate",
    "memory": "Memory: at least 60 % of the bandwidth",
    "latency": "Latency: the grids do not fill the GPU, or the kernels are short",
    "launch": "Launches: the GPU waits for them",
    None: "Below the roofline for another reason",
    COLLECTIVE: "Collective operations: other ranks and links between GPUs, no roofline",
}
"""What limits ops, by the value of the report ``op_roofline`` or the kind of the ops, in the order of the page."""
_MAX_PROCESSES = 8


def explain_absence(trace: Trace) -> TracekitError | None:
    """Return why the work of no op is known, or None if shapes were recorded."""
    try:
        if call_with_tables(trace, are_shapes_recorded, key=are_shapes_recorded):
            return None
    except TracekitError:
        return None  # the page states the error
    hint = get_analysis("op_roofline", REPORT).recording_hint
    return MissingTableError("this capture has no data for this page: the shapes of ops were not recorded", hint=hint)


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Efficiency"."""
    ops = context.read_report("op_roofline")
    known = ops.filter(pl.col("Op").is_not_null())
    return [
        _build_cards(context, known),
        _build_coverage_note(ops, known),
        context.build_figure("op_roofline", "Roofline of the ops"),
        _build_limits(known),
        context.build_table("op_roofline"),
        context.build_table("step_mfu"),
    ]


def _build_cards(context: Context, known: pl.DataFrame) -> Any:
    """Return cards with the utilization of the steady steps of each process, and with the time that ops could save."""
    try:
        steps = context.read_report("step_mfu")
    except TracekitError:
        steps = None  # the table of steps states the error
    cards = [] if steps is None else _build_utilization_cards(steps.filter(pl.col("Step").is_null()))
    bounded = known.filter(pl.col("Savable (ns)").is_not_null())
    if bounded.height:
        low, most = (int(bounded[c].sum()) for c in ("Savable At 60% (ns)", "Savable (ns)"))
        note: Content = [build_value(low, NANOSECONDS), " at 60 % of the peak rates, whole capture"]
        cards.append(components.build_number_card("Time above the roofline", build_value(most, NANOSECONDS), note))
    return tag.dl(cards, class_="numbers")


def _build_utilization_cards(totals: pl.DataFrame) -> list[Any]:
    """Return a card for each process with the model FLOP utilization (MFU) of its steady steps."""
    cards = []
    for row in totals.head(_MAX_PROCESSES).iter_rows(named=True):
        of = f" of process {row['PID']}" if totals.height > 1 else ""
        shown = "unknown" if row["MFU (%)"] is None else build_value(row["MFU (%)"], PERCENT)
        note = f"model FLOP utilization{of}, steady steps"
        if row["MFU (%)"] is None:
            note += "; the peak rates of the GPU are not known"
        elif row["MFU At Measured Clock (%)"] is not None:
            note += f"; {format_value(row['MFU At Measured Clock (%)'], PERCENT)} at the measured clock"
        cards.append(components.build_number_card("MFU", shown, note))
    return cards


def _build_coverage_note(ops: pl.DataFrame, known: pl.DataFrame) -> Any:
    """Return a sentence that states for which share of the time of kernels the work is known."""
    total, covered = (int(each["GPU Time (ns)"].sum()) for each in (ops, known))
    share = format_value(100.0 * covered / total, PERCENT) if total else "0%"
    rest = " The rest is in kernels of other ops, whose work is unknown, not zero." if covered < total else ""
    return tag.p(f"The work of ops is known for {share} of the time of kernels.{rest}", role="note", class_="steps")


def _build_limits(known: pl.DataFrame) -> Any:
    """Return a table of the time of ops by what limits them."""
    limit = pl.when(pl.col("Kind") == COLLECTIVE).then(pl.lit(COLLECTIVE)).otherwise("Limited By")
    above = pl.col("Savable (ns)")
    above = pl.when(above.is_not_null().any()).then(above.sum())
    rows = known.group_by(limit.alias("limit")).agg(pl.col("GPU Time (ns)").sum(), above, pl.len())
    times = {limit: row for limit, *row in rows.iter_rows()}
    total = int(known["GPU Time (ns)"].sum())
    shown = [
        (text, times[limit][2], times[limit][0], 100.0 * times[limit][0] / total if total else None, times[limit][1])
        for limit, text in LIMITS.items()
        if limit in times
    ]
    titles = {
        "limit": "Limited by",
        "ops": "Ops",
        "gpu_time_ns": "GPU time (ns)",
        "time_percent": "Time (%)",
        "savable_ns": "Above the roofline (ns)",
    }
    types = (pl.String, pl.Int64, pl.Int64, pl.Float64, pl.Int64)
    frame = pl.DataFrame(shown, schema=dict(zip(titles, types, strict=True)), orient="row")
    return components.build_panel("What limits the ops", [grid.build_plain_table(frame, titles, "Ops by their limit")])
