"""The page "Iterations": a chart of the iterations, and a form to aggregate other iterations or choose a key op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dash_mantine_components as dmc
from dash import html

from tracekit.view import components

if TYPE_CHECKING:
    import polars as pl

    from tracekit.view.pages import Context


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Iterations"."""
    trace = context.capture.get_aggregated_trace(context.state.at)
    iterations = trace.frame("iterations").select("iteration", "name", "is_aggregated", "is_warm_up").collect()
    used = iterations.filter("is_aggregated")
    numbers = html.Dl(
        [
            components.build_number_card("Iterations", f"{iterations.height:,}"),
            components.build_number_card("Aggregated", f"{used.height:,}"),
            components.build_number_card("First", *_describe_iteration(used.head(1))),
            components.build_number_card("Last", *_describe_iteration(used.tail(1))),
        ],
        className="numbers",
    )
    form = _build_iteration_range_form(context, iterations)
    note = html.P(
        "An iteration ends where the key op starts again. Pages show the aggregated iterations or, where they say so, "
        "the whole capture.",
        className="dimmed",
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
                html.Div(id="aggregation-problem", role="alert"),
            ],
        ),
        context.build_figure("iterations", "Duration of each iteration by part"),
        context.build_table("iterations"),
    ]


def _describe_iteration(rows: pl.DataFrame) -> tuple[str, str]:
    """Return the number of the only iteration of ``rows``, or "none" if it has no rows, and the name of the range."""
    if not rows.height:
        return "none", ""
    return str(rows["iteration"][0]), components.shorten(rows["name"][0] or "")


def _build_warm_up_link(context: Context, iterations: pl.DataFrame) -> Any:
    """Return a link that includes or leaves out the warm-up, or an empty paragraph if there is none."""
    at = context.state.at
    if not iterations["is_warm_up"].any() or at.first is not None or at.last is not None:
        return html.P()
    return components.build_warm_up_link(context.state)


def _build_iteration_range_form(context: Context, iterations: pl.DataFrame) -> Any:
    """Return the form that selects which of the iterations are aggregated."""
    at = context.state.at
    used = iterations.filter("is_aggregated")["iteration"]
    first, last = iterations["iteration"].min(), iterations["iteration"].max()
    bounds = {"first": (at.first, used.min()), "last": (at.last, used.max())}
    fields = [
        dmc.NumberInput(
            id=f"{name}-iteration",
            label=f"{name.capitalize()} iteration",
            value=default if chosen is None else chosen,
            min=first,
            max=last,
            allowDecimal=False,
            size="xs",
            w=140,
        )
        for name, (chosen, default) in bounds.items()
    ]
    key = dmc.Select(
        id="key-op",
        label="Key op",
        description=None,
        data=_list_key_op_choices(context),
        value=at.key_op or "",
        searchable=True,
        size="xs",
        w=420,
        comboboxProps={"withinPortal": True},
        **{"aria-label": "Key op"},
    )
    apply = dmc.Button("Aggregate", id="aggregate", size="xs")
    reset = [] if at.is_default else [components.build_link("All iterations", f"/iterations?capture={at.capture}")]
    return dmc.Group([*fields, key, apply, *reset], align="end", gap="sm")


def _list_key_op_choices(context: Context) -> list[dict[str, str]]:
    """Return the choices of key ops: the automatic choice, followed by ops in descending order of calls."""
    ops = (
        context.capture.get_aggregated_trace(context.state.at).frame("ops").select("op_id", "op_name", "instance_count")
    )
    ops = ops.sort("instance_count", descending=True).head(500)
    choices = [{"value": "", "label": "automatic"}]
    for op, name, count in ops.collect().iter_rows():
        choices.append({"value": str(op), "label": f"{name} ({op}, {count:,} calls)"})
    return choices
