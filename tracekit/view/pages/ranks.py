"""The page "Ranks": why steps take long, the GPU time, the iterations and the stragglers of the ranks of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.view import components, explanations, ranks

if TYPE_CHECKING:
    from tracekit.view.pages import Context


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Ranks"."""
    analysis = ranks.analyze_communication(context.captures, context.capture)
    shown = [name for name in ranks.OF_ITERATIONS if name in ranks.list_nonempty_tables(analysis)]
    return [
        explanations.build_panel_of_ranks(context),
        *components.build_note_paragraphs(analysis.step_notes),
        context.build_recipe_figure("gpu_time_sum", "gpu_time"),
        context.build_table("gpu_time"),
        context.build_recipe_figure("iteration_spread", "iterations"),
        context.build_recipe_figure("iteration_spread", "stragglers"),
        *(context.build_table(f"ranks_{name}") for name in shown),
    ]
