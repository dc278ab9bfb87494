"""The page "Overview": why steps take long, further findings, numbers, the longest ops and kernels, and charts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import schemas
from tracekit.errors import MissingTableError, TracekitError
from tracekit.exporters.html.sections import METADATA
from tracekit.pages.values import NANOSECONDS, PERCENT, build_value
from tracekit.registry.notices import (
    ABOUT_RULES,
    explain_missing_advice,
    explain_missing_gpu_work,
    list_notices,
    select_warnings,
)
from tracekit.text.elements import tag
from tracekit.text.makers import list_makers_of_capture, name_gpu
from tracekit.trace import get_trace_view
from tracekit.view import components, explanations, grid, missing, sources
from tracekit.view.filters import write_equality_filters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.trace import Trace
    from tracekit.view.pages import Context

TOP = 10
MAX_MESSAGES = 50
_ADVISING = "looking for problems", "Problems are being looked for …"
_AT_START = '{"start_ns":{"type":"inRange","filter":START,"filterTo":END}}'
EVIDENCE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "variation": ("iterations", {"iterations.sort": "duration_ns:desc"}),
    "imbalance": ("gpus", {"gpus.sort": "utilization_percent:desc"}),
    "overrunning_kernels": ("tables", {"table": "kernels", "table:kernels.filter": _AT_START}),
}
"""Page with the rows of a finding, and its URL parameters, by rule."""


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Overview"."""
    trace = context.capture.get_aggregated_trace(context.state.at)
    small = [
        context.build_figure("gpu_utilization", f"GPU utilization, {_AGGREGATED}", compact=True),
        context.build_figure("time_breakdown", f"Time, {_AGGREGATED}", compact=True),
        context.build_figure("kernel_time", f"GPU time by kind, {_AGGREGATED}", compact=True),
    ]
    wide = [
        context.build_figure("iterations", f"Iterations, {_WHOLE_CAPTURE}"),
        context.build_figure("utilization_over_time", f"GPU utilization over time, {_WHOLE_CAPTURE}"),
    ]
    tables = []
    if context.capture.has_rows_in_any("nvtx_ranges", "api_calls") or context.capture.trace.count("ops"):
        tables.append(_build_later(context, _TOP_OPS, partial(_build_top_ops_table, context, trace)))
    if context.capture.has_rows_in_any("kernels"):
        tables.append(_build_later(context, _TOP_KERNELS, partial(_build_top_kernels_table, context)))
    parts = [
        explanations.build_panel(context),
        _build_notices(context),
        _build_capture_note(context),
        _build_later(context, _NUMBERS, partial(_build_numbers, context, trace)),
        _build_advice_panel_later(context),
        tag.div(tables, class_="pair") if tables else None,
        tag.div([each for each in small if each is not None], class_="columns"),
        *wide,
        _build_later(context, _MESSAGES, partial(_build_recorded_messages_panel, context)),
        _build_system_panel(trace),
    ]
    return [part for part in parts if part is not None]


def _build_later(context: Context, title: str, compute: Callable[[], Any]) -> Any:
    """Return a panel that is computed after the answer is shown."""
    return context.build_later((title, context.state.at), title, compute, f"computing {title}", "Being computed …")


def _build_numbers(context: Context, trace: Trace) -> Any:
    """Return what delimits the steps, and the most important numbers of the capture."""
    return tag.div(*components.build_step_notes(context), _build_number_cards(context, trace))


def _build_notices(context: Context) -> Any:
    """Return a list of the warnings of the profiler and of what was not recorded, or None if there are none."""
    notices = list_notices(get_trace_view(context.capture.trace))
    return tag.ul([tag.li(notice) for notice in notices], class_="warning notices") if notices else None


def _build_capture_note(context: Context) -> Any:
    """Return a sentence that states which of several captures the following panels show, or None for a single one."""
    if len(context.captures) == 1:
        return None
    return tag.p("The following panels show only ", tag.strong(context.capture.name), ".", class_="dim")


def _build_number_cards(context: Context, trace: Trace) -> Any:
    """Return a component with the most important numbers of the capture, such as its GPU utilization."""
    cards = []
    span = trace.span()
    if span:
        duration = build_value(span[1] - span[0], NANOSECONDS)
        cards.append(components.build_number_card("Time span", duration, _WHOLE_CAPTURE))
    if context.capture.has_rows_in_any(*schemas.list_tables("kernel")):
        busy = trace.plot.utilization().filter(pl.col("busy_ns") > 0)["percent"]
        note = f"mean of {busy.len()} used GPUs, {_AGGREGATED}" if busy.len() > 1 else _AGGREGATED
        cards.append(
            components.build_number_card("GPU utilization", build_value(sum(busy) / max(busy.len(), 1), PERCENT), note)
        )
    if context.capture.has_rows_in_any("kernels"):
        cards += _build_kernel_cards(trace)
    if context.capture.has_rows_in_any(*schemas.list_tables("kernel"), "ops"):
        iterations = trace.frame("iterations").collect()
        used = iterations.filter("is_aggregated")
        average = (used["window_end_ns"] - used["window_start_ns"]).mean() if used.height else None
        cards.append(
            components.build_number_card("Iterations", f"{iterations.height:,}", f"{used.height:,} aggregated")
        )
        if isinstance(average, int | float):
            shown = build_value(round(average), NANOSECONDS)
            cards.append(components.build_number_card("Average iteration", shown, _AGGREGATED))
    if context.capture.has_rows_in_any("ncu_launches"):
        cards.append(
            components.build_number_card("Measured launches", f"{trace.count('ncu_launches'):,}", _WHOLE_CAPTURE)
        )
    return tag.dl(cards, class_="numbers") if cards else missing.build_missing_data_note(trace)


def _build_kernel_cards(trace: Trace) -> list[Any]:
    """Return cards with the number and the time of the kernels, in the whole capture and by where they were launched.

    Kernels that neither an aggregated iteration nor another iteration launched are outside of iterations. The numbers
    of the three cards add up to the number of all kernels. Databases of DLProf do not contain where a kernel was
    launched.
    """
    kernels = trace.frame("kernels").with_columns(duration=pl.col("end_ns") - pl.col("start_ns"))
    if "iteration" not in trace.schema("kernels").names:
        kernels = kernels.with_columns(iteration=pl.lit(None, pl.Int64))
    used = trace.frame("iterations").filter("is_aggregated").select("iteration").collect()["iteration"]
    outside = pl.col("iteration").is_null()
    place = pl.when(outside).then(2).when(pl.col("iteration").is_in(used.implode())).then(0).otherwise(1)
    rows = kernels.group_by(place.alias("place")).agg(pl.len(), pl.col("duration").sum()).sort("place").collect()
    total = build_value(int(rows["duration"].sum()), NANOSECONDS)
    cards = [
        components.build_number_card("Kernel time", total, f"sum of all kernels, {_WHOLE_CAPTURE}"),
        components.build_number_card("Kernels", f"{rows['len'].sum():,}", _WHOLE_CAPTURE),
    ]
    for number, count, duration in rows.iter_rows() if rows.height > 1 else ():
        note = (build_value(duration, NANOSECONDS), f", {_PLACES[number]}")
        cards.append(components.build_number_card("Of these kernels", f"{count:,}", note))
    return cards


_WHOLE_CAPTURE, _AGGREGATED = "whole capture", "aggregated iterations"
_ADVICE = f"Further findings, {_AGGREGATED}"
_TOP_OPS, _TOP_KERNELS = f"Top ops, {_AGGREGATED}", f"Top kernels, {_WHOLE_CAPTURE}"
_NUMBERS, _MESSAGES = "Numbers", "Recorded by the profiler"
_PLACES = (_AGGREGATED, "other iterations", "outside of iterations")


def _build_top_ops_table(context: Context, trace: Trace) -> Any:
    """Return a table of the ops with the longest GPU time, each with a link to its kernels."""
    columns = [
        "op_id",
        "op_name",
        "direction",
        "op_type",
        "instance_count",
        "tensor_core_support",
        "uses_tensor_cores",
        "gpu_time_ns",
    ]
    ops = trace.frame("ops").select(columns).sort("gpu_time_ns", "op_id", descending=[True, False]).head(TOP).collect()
    if ops.is_empty():
        return components.build_panel(_TOP_OPS, [missing.build_missing_data_note(trace, ["ops"])])
    titles = {
        "gpu_time_ns": "GPU time (ns)",
        "op_name": "Op",
        "direction": "Direction",
        "op_type": "Type",
        "instance_count": "Calls",
        "tensor_core_support": "TC support",
        "uses_tensor_cores": "Using TC",
    }
    links = [
        components.build_link("Open", context.state.make_url("ops", **{"ops.select": op, "ops.search": op}))
        for op in ops["op_id"]
    ]
    return components.build_panel(
        _TOP_OPS, [grid.build_plain_table(ops, titles, "Ops with the longest GPU time", links)]
    )


def _build_top_kernels_table(context: Context) -> Any:
    """Return a table of the kernels with the longest total time, each with a link to its launches."""
    kernels = context.read_report("cuda_gpu_kern_sum")
    rows = sources.convert_report_rows(kernels, "cuda_gpu_kern_sum").frame.head(TOP)
    titles = {"total_time_ns": "Total time (ns)", "time_percent": "Time (%)", "instances": "Launches", "name": "Kernel"}
    equal = [write_equality_filters({"name": name}) for name in rows["name"]]
    links = [
        components.build_link("Open", context.state.make_url("kernels", **{"kernels.filter": each})) for each in equal
    ]
    return components.build_panel(
        _TOP_KERNELS,
        [grid.build_plain_table(rows, titles, "Kernels with the longest total time", links)],
    )


def _build_advice_panel_later(context: Context) -> Any:
    """Return the panel with advice, or None if the answer already says that no GPU work was recorded."""
    if explain_missing_gpu_work(get_trace_view(context.capture.trace)) is not None:
        return None
    return context.build_later(("advice", context.state.at), _ADVICE, lambda: _build_advice_panel(context), *_ADVISING)


def _build_advice_panel(context: Context) -> Any:
    """Return a panel with the findings of the report ``advise``, each with its evidence and links.

    The causes that the first panel of the page lists are not repeated. If there are no others, the result is None.
    """
    try:
        listed = explanations.list_causes(context)
    except TracekitError:
        return None  # the first panel of the page states the error
    try:
        findings = context.read_report("advise")
    except MissingTableError:
        return None
    except TracekitError as error:
        return components.build_panel(_ADVICE, [components.build_error_message(error)])
    findings = findings.filter(~pl.col("Rule").is_in(listed))
    if listed and findings.is_empty():
        return None
    if not findings.height:
        view = get_trace_view(context.capture.trace)
        text = explain_missing_advice(view)
        is_in_answer = text == view.explanation().sentence  # of the first panel of the page
        return None if is_in_answer else components.build_panel(_ADVICE, [tag.p(text)])
    items = []
    for row in findings.iter_rows(named=True):
        parts = [
            tag.strong(row["Problem"]),
            _build_cost(row),
            tag.p(row["Evidence"]),
            tag.p(row["Advice"], class_="dim"),
        ]
        links = []
        if row["Rule"] in EVIDENCE:
            page, parameters = EVIDENCE[row["Rule"]]
            start, end = str(row["Start (ns)"]), str(row["End (ns)"])
            values = {name: text.replace("START", start).replace("END", end) for name, text in parameters.items()}
            links.append(components.build_link("Evidence", context.state.make_url(page, **values)))
        if row["Start (ns)"] is not None:
            times = {"start": str(row["Start (ns)"]), "end": str(row["End (ns)"] or row["Start (ns)"])}
            links.append(components.build_link("Show in timeline", context.state.make_url("timeline", **times)))
        items.append(tag.li([*parts, tag.p([x for each in links for x in (each, " ")])]))
    return components.build_panel(_ADVICE, [tag.p(ABOUT_RULES), tag.ol(items, class_="advice")])


def _build_cost(row: Mapping[str, Any]) -> Any:
    """Return the time of a finding and its share, as far as they are known."""
    if row["Time (ns)"] is None:
        return None
    share = "" if row["Time (%)"] is None else f" ({row['Time (%)']:.1f}%)"
    return tag.span(": ", build_value(row["Time (ns)"], NANOSECONDS), share)


def _build_recorded_messages_panel(context: Context) -> Any:
    """Return a panel with what the profiler recorded besides the warnings above, or None if there is nothing."""
    messages = get_trace_view(context.capture.trace).figure_rows("recorded_messages")
    numbered = messages.with_row_index("finding")
    rows = numbered.join(select_warnings(messages), on=messages.columns, how="anti", nulls_equal=True).head(
        MAX_MESSAGES
    )
    if rows.is_empty():
        return None
    titles = {
        "kind": "Kind",
        "message": "Message",
        "recommendation": "Recommendation",
        "rule": "Rule",
        "count": "Count",
        "speedup_percent": "Estimated speedup (%)",
    }
    used = {name: title for name, title in titles.items() if rows[name].null_count() < rows.height}
    tools = ", ".join(dict.fromkeys(rows["tool"]))
    urls = [context.state.make_url("findings", **{"findings.select": str(number)}) for number in rows["finding"]]
    links = [components.build_link("Show rows", url) for url in urls]
    shown = grid.build_plain_table(rows, used, f"Messages and findings of {tools}", links)
    return components.build_panel(_MESSAGES, [shown])


def _build_system_panel(trace: Trace) -> Any:
    """Return a panel with metadata of the machine, without host and user names."""
    info = trace.info
    rows = [(title, str(info[name])) for name, title in METADATA.items() if info.get(name)]
    makers = list_makers_of_capture(info, trace.devices.select("name", "chip").to_dicts())
    rows += [
        (f"GPU {device}", name_gpu(name, chip, makers))
        for device, name, chip in trace.devices.sort("device_id").select("device_id", "name", "chip").iter_rows()
    ]
    if not rows:
        return None
    body = [tag.tr([tag.th(title, scope="row"), tag.td(value)]) for title, value in rows]
    return components.build_panel("System", [tag.table(tag.tbody(body), class_="plain")])
