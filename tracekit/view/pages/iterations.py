"""The page "Iterations": a chart of the iterations, and a form to aggregate other iterations or choose a key op."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.text.elements import tag
from tracekit.view import components
from tracekit.view.state import make_url

if TYPE_CHECKING:
    import polars as pl

    from tracekit.view.pages import Context


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Iterations"."""
    trace = context.capture.get_aggregated_trace(context.state.at)
    iterations = trace.frame("iterations").select("iteration", "name", "is_aggregated", "is_warm_up").collect()
    used = iterations.filter("is_aggregated")
    numbers = tag.dl(
        [
            components.build_number_card("Iterations", f"{iterations.height:,}"),
            components.build_number_card("Aggregated", f"{used.height:,}"),
            components.build_number_card("First", *_describe_iteration(used.head(1))),
            components.build_number_card("Last", *_describe_iteration(used.tail(1))),
        ],
        class_="numbers",
    )
    form = _build_iteration_range_form(context, iterations)
    note = tag.p(
        "An iteration ends where the key op starts again. Pages show the aggregated iterations or, where they say so, "
        "the whole capture.",
        class_="dim",
    )
    return [
        numbers,
        components.build_panel(
            "Aggregation",
            [
                *components.build_step_notes(context),
                note,
                form,
                _build_warm_up_link(context, iterations),
            ],
        ),
        *_build_parts(context),
        context.build_figure("iterations", "Duration of each iteration by kind of activity"),
        context.build_table("iterations"),
    ]


def _build_parts(context: Context) -> list[Any]:
    """Return the parts of the steady steps as a chart and a table, if GPU work was recorded."""
    if not context.capture.has_rows_in_any(*schemas.list_tables("activity")):
        return []
    return [context.build_figure("step_parts", "Time of the steady steps by part"), context.build_table("step_parts")]


def _describe_iteration(rows: pl.DataFrame) -> tuple[str, str]:
    """Return the number of the only iteration of ``rows``, or "none" if it has no rows, and the name of the range."""
    if not rows.height:
        return "none", ""
    return str(rows["iteration"][0]), components.shorten(rows["name"][0] or "")


def _build_warm_up_link(context: Context, iterations: pl.DataFrame) -> Any:
    """Return a link that includes or leaves out the warm-up, or an empty paragraph if there is none."""
    at = context.state.at
    if not iterations["is_warm_up"].any() or at.first is not None or at.last is not None:
        return tag.p()
    return components.build_warm_up_link(context.state)


def _build_iteration_range_form(context: Context, iterations: pl.DataFrame) -> Any:
    """Return the form that selects which of the iterations are aggregated."""
    at = context.state.at
    used = iterations.filter("is_aggregated")["iteration"]
    limits = {"type": "number", "min": iterations["iteration"].min(), "max": iterations["iteration"].max()}
    fields = [
        components.build_input(
            f"{label} iteration", f"{label.lower()}_iteration", chosen, placeholder=default, **limits
        )
        for label, chosen, default in (("First", at.first, used.min()), ("Last", at.last, used.max()))
    ]
    key = components.build_select("Key op", "key_op", _list_key_op_choices(context), at.key_op or "")
    steps = {"first": None, "last": None, "key_op": None, "include_warm_up": False}
    unchanged = replace(at, **steps)  # type: ignore[arg-type]
    form = components.build_form("/iterations", unchanged.to_url_parameters(), [*fields, key], "Aggregate")
    reset = None if at.is_default else components.build_link("All iterations", make_url("iterations", unchanged))
    return tag.div(form, reset, class_="controls")


def _list_key_op_choices(context: Context) -> list[tuple[str, str]]:
    """Return the choices of key ops: the automatic choice, followed by ops in descending order of calls."""
    ops = (
        context.capture.get_aggregated_trace(context.state.at).frame("ops").select("op_id", "op_name", "instance_count")
    )
    ops = ops.sort("instance_count", descending=True).head(500)
    choices = [("automatic", "")]
    for op, name, count in ops.collect().iter_rows():
        choices.append((f"{name} ({op}, {count:,} calls)", str(op)))
    return choices
