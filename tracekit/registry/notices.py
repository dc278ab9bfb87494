"""State what a reader of a capture has to know first: warnings of the profiler, and why there is no GPU work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry.absence import State
from tracekit.registry.tables import count_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from tracekit.registry.absence import Absence
    from tracekit.registry.interface import View
    from tracekit.text.names import TableName

"""Tables with the work of GPUs."""
_OTHER_GPU_TABLES: tuple[TableName, ...] = (
    *("graphics_calls", "graphics_workloads", "openacc_events", "video_engine_workloads"),
    *("wddm_packets", "wddm_paging_packets", "wddm_queue_events"),
)
"""Tables with data about the work of GPUs in other programming interfaces than CUDA."""
_EXPLAINED: tuple[TableName, ...] = ("allocator_events", "communication_calls", "activity_totals")
"""Tables that ``why`` explains in captures without GPU work."""
MAX_WARNINGS = 10
"""Maximum number of warnings that are listed as sentences."""
MAX_LENGTH = 500
"""Maximum number of characters of a warning in a sentence."""
SEVERITIES = ("Error", "Warning")


@dataclass(frozen=True, slots=True)
class RecordedWarning:
    """A warning or an error that the profiler recorded, and how often it recorded it."""

    severity: str
    tool: str
    message: str
    count: int

    @property
    def sentence(self) -> str:
        """The warning in one line, which names the profiler."""
        is_long = len(self.message) > MAX_LENGTH
        text = " ".join(f"{self.message[:MAX_LENGTH]}{'…' * is_long}".split()) or "a message without text"
        times = "" if self.count == 1 else f" ({self.count:,} times)"
        return f"{self.severity} recorded by {self.tool}: {text}{times}"


def list_recorded_warnings(view: View) -> list[RecordedWarning]:
    """Return the warnings and errors that the profiler recorded. Errors come first."""
    if not count_rows(view.tables, "diagnostics"):
        return []
    rows = select_warnings(view.figure_rows("recorded_messages"))
    return [RecordedWarning(*row) for row in rows.select("kind", "tool", "message", "count").iter_rows()]


def select_warnings(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the figure rows ``recorded_messages`` that are warnings or errors, not findings of rules."""
    import polars as pl

    is_warning = pl.col("kind").is_in(SEVERITIES) & pl.col("rule").is_null()
    return messages.filter(is_warning).with_columns(pl.col("message").fill_null(""))


def explain_missing_gpu_work(view: View) -> Absence | None:
    """Return why a capture contains no GPU activities and no profiled launches.

    Returns:
        The reason, or None if there are any, or if captures in this format contain neither.
    """
    if any(view.tables.count_many([*schemas.list_tables("activity"), "ncu_launches"]).values()):
        return None
    has_other_work = any(view.tables.count_many(_OTHER_GPU_TABLES).values())
    tables = (*schemas.list_tables("activity"), *(() if has_other_work else _OTHER_GPU_TABLES))
    other = view.explain_missing_tables(tables)
    if other.state is State.NOT_DECODED:
        return other
    for tables in (schemas.list_tables("activity"), ("ncu_launches",)):
        absence = view.explain_missing_tables(tables)
        if absence.state is not State.NOT_APPLICABLE:
            return absence
    return None


ABOUT_RULES = "Problems that no cause of why describes. Their times are measured, and are no predicted savings."
"""Sentence above the findings of ``advise`` on pages that list the causes of ``why``, too."""


def explain_missing_advice(view: View) -> str:
    """Return a sentence that states why the report ``advise`` has no rows.

    The rules of tracekit found nothing, or GPU work was recorded but not decoded, or there was nothing to examine. If a
    capture consists of other data that ``why`` explains, the sentence is its answer.
    """
    if any(view.tables.count_many(_EXPLAINED).values()) and not any(
        view.tables.count_many(schemas.list_tables("activity")).values()
    ):
        return view.explanation().sentence
    absence = explain_missing_gpu_work(view) or view.explain_missing_rows("advise")
    if absence.state is State.NOTHING_FOUND:
        return f"No finding of tracekit: {absence.reason}."
    prefix = "Not decoded" if absence.state is State.NOT_DECODED else "Not analyzed by tracekit"
    return f"{prefix}: {absence.sentence}."


def list_notices(view: View) -> list[str]:
    """Return sentences about the warnings and errors of the profiler, and about missing GPU work."""
    return list(format_notices(list_recorded_warnings(view), explain_missing_gpu_work(view)))


def format_notices(warnings: Sequence[RecordedWarning], missing_gpu_work: Absence | None) -> Iterator[str]:
    """Yield sentences about some warnings, at most ``MAX_WARNINGS`` of them in full, and about missing GPU work."""
    yield from (warning.sentence for warning in warnings[:MAX_WARNINGS])
    if len(warnings) > MAX_WARNINGS:
        yield f"{len(warnings) - MAX_WARNINGS:,} more warnings of the profiler are in the table diagnostics."
    if missing_gpu_work is None:
        return
    reason, hint = missing_gpu_work.reason, missing_gpu_work.hint
    if hint and any("CUDA" in warning.message for warning in warnings):
        hint = f"the warnings of the profiler about CUDA may state why; otherwise, {hint}"
    is_undecoded = missing_gpu_work.state is State.NOT_DECODED
    start = "tracekit reads no GPU work from this capture" if is_undecoded else "This capture contains no GPU work"
    yield f"{start}, because {reason}{f'; {hint}' if hint else ''}."
