"""The page "Ranks": why steps take long, the GPU time, the iterations and the stragglers of the ranks of a job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tracekit.core.figures.steps import reduce_step_parts
from tracekit.plots.steps import draw_step_parts
from tracekit.view import components, explanations, ranks

if TYPE_CHECKING:
    from tracekit.core.communication import Communication
    from tracekit.view.pages import Context

_STEPS = "Time of the steady steps of each rank by part"
_MEASURING = "measuring the steps", "The steps of all ranks are being measured …"
_BARS = 400


def _build_warm_up_link(context: Context, analysis: Communication) -> list[Any]:
    """Return a link that includes or leaves out the warm-up of the ranks, or nothing if there is none."""
    if not analysis.iterations["is_warm_up"].any():
        return []
    return [components.build_warm_up_link(context.state)]


def _build_steps(context: Context) -> Any:
    """Return the parts of the steady steps of each rank as a chart and a table, or None if no rank has GPU work."""
    steps = reduce_step_parts(ranks.compute_report(context.captures, context.state.at, "step_parts"), _BARS)
    if steps.is_empty():
        return None
    drawn = components.build_figure_panel(draw_step_parts(steps, place="Rank"), _STEPS)
    return [drawn, context.build_table("ranks_step_parts")]


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Ranks"."""
    at = context.state.at
    analysis = ranks.analyze_communication(context.captures, at)
    options = {"include_warm_up": "yes" if at.include_warm_up else "no"}
    shown = [name for name in ranks.OF_ITERATIONS if name in ranks.list_nonempty_tables(analysis)]
    return [
        explanations.build_panel_of_ranks(context),
        context.build_recipe_figure("gpu_time_sum", "gpu_time"),
        context.build_table("gpu_time"),
        *components.build_note_paragraphs(analysis.step_notes),
        *_build_warm_up_link(context, analysis),
        context.build_later(
            ("steps of ranks", at, *sorted(context.state.parameters.items())),
            _STEPS,
            partial(_build_steps, context),
            *_MEASURING,
        ),
        context.build_recipe_figure("iteration_spread", "iterations", options),
        context.build_recipe_figure("iteration_spread", "stragglers", options),
        *(context.build_table(f"ranks_{name}") for name in shown),
    ]
