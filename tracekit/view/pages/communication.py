"""The page "Communication": NCCL kernels, MPI calls, and how the ranks of a job wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.errors import MissingTableError, TracekitError
from tracekit.view import components, missing, ranks
from tracekit.view.query import Query, load_rows

if TYPE_CHECKING:
    from tracekit.view.pages import Context

OWN = ("collectives", "collective_launches", "mpi")
"""Tables about the communication of a single capture."""


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Communication"."""
    names = [name for name in OWN if load_rows(context.captures, Query(name, context.state.at)).frame.height]
    figure, notes = None, []
    try:
        analysis = ranks.analyze_communication(context.captures, context.state.at)
        elsewhere = ranks.OF_ITERATIONS if ranks.get_rank_set(context.captures) else ()
        names = [*(f"ranks_{name}" for name in ranks.list_nonempty_tables(analysis) if name not in elsewhere), *names]
        if any(f"ranks_{name}" in names for name in ranks.OF_ITERATIONS):
            notes = components.build_note_paragraphs(analysis.step_notes)
        figure = context.build_recipe_figure("comm_skew", "arrivals")
    except MissingTableError:
        pass
    except TracekitError as error:
        notes = [components.build_error_message(error)]
    if not names:
        return notes or [missing.build_missing_data_note(context.capture.trace, ("kernels", "mpi_calls"))]
    overlap = [context.build_figure("communication_overlap", "Communication in the steady steps of this capture")]
    if load_rows(context.captures, Query("overlap", context.state.at)).frame.height:
        overlap.append(context.build_table("overlap"))
    return [*notes, *overlap, figure, *(context.build_table(name) for name in names)]
