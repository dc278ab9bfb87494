"""Put the result of a check into the envelope, with the runs that it compared and the captures of these runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import polars as pl

from tracekit.answers.build import WHY_TABLES, create_envelope
from tracekit.answers.captures import describe_baseline, describe_captures
from tracekit.answers.envelope import Question, RowIds
from tracekit.answers.evidence import MAX_IDS
from tracekit.answers.tables import build_table
from tracekit.registry.analyses import METHOD, get_analysis
from tracekit.sets.run_sources import RunObserver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from tracekit.answers.captures import CaptureDescription
    from tracekit.answers.envelope import AnswerTable, Envelope
    from tracekit.core.check import Check
    from tracekit.core.compare import Summary
    from tracekit.core.diagnosis.answer import Status
    from tracekit.sets.run_sources import ReadRun
    from tracekit.trace import Trace

_SideName: TypeAlias = Literal["a", "b"]
_HINTS: Mapping[Status, str] = {
    "not_recorded": "check captures with steps, or name the op that delimits them with --key-op or key_op=",
    "unsure": "record more runs of both sides: tracekit check --run --repeat N records them",
}


class RecordedRun(NamedTuple):
    """What an answer states about the captures of one run.

    Attributes:
        captures: The captures. Empty for a baseline and for a summary.
        baseline: Path of the baseline that contains the run, or None.
        summary: The summary of the run.
        steps: The recorded rows of the iterations that were compared, or None if they are not known.
    """

    captures: tuple[CaptureDescription, ...]
    baseline: Path | None
    summary: Summary
    steps: RowIds | None


class RunRecorder(RunObserver):
    """Describes the captures of runs while they are open. It is called with each run.

    Attributes:
        runs: The runs in the order in which they were read.
    """

    def __init__(self) -> None:
        self.runs: list[RecordedRun] = []

    def __call__(self, run: ReadRun) -> None:
        """Describe the captures of a run."""
        from pathlib import Path

        source = run.source
        if source is None or isinstance(source, Path):
            self.runs.append(RecordedRun((), source, run.summary, None))
            return
        steps = None if run.steps is None else _find_steps(run.steps, run.summary.iterations)
        self.runs.append(RecordedRun(tuple(describe_captures(source)), None, run.summary, steps))

    def forget(self, count: int) -> None:
        """Remove the last runs."""
        del self.runs[-count:]


def _find_steps(trace: Trace, count: int) -> RowIds | None:
    """Return the rows of the iterations of a trace that are compared, or None if they are not known.

    Args:
        trace: The trace with its iterations.
        count: Number of iterations that are compared, without those of a warm-up that is left out.
    """
    rows = trace.frame("iterations").filter("is_aggregated").select("iteration", "is_warm_up").collect()
    if len(rows) != count:
        rows = rows.filter(~pl.col("is_warm_up"))
    if not count or len(rows) != count:
        return None
    return RowIds("iterations", "iteration", tuple(rows["iteration"].sort().head(MAX_IDS)), count)


def wrap_check(
    check: Check,
    a: Sequence[RecordedRun],
    b: Sequence[RecordedRun],
    *,
    scope: Mapping[str, Any],
    limit: int | None = None,
    warnings: Sequence[str] = (),
) -> Envelope:
    """Return the envelope of a check.

    The status is ``answered`` or ``nothing_found`` only if everything that decides the outcome was tested.

    Args:
        check: The result of the check.
        a: The runs of A that were read. Empty if they are those of a history.
        b: The runs of B that were read.
        scope: Restrictions of the question, by name of the option.
        limit: Maximum number of rows, or None for all rows.
        warnings: Warnings that were shown while the answer was computed.
    """
    captures: list[CaptureDescription] = []
    positions = {side: _add_captures(captures, runs, side) for side, runs in _name_sides(a, b)}
    recorded = {side: [run.steps for run in runs] for side, runs in _name_sides(a, b)}
    if limit is not None and len(check.rows) > limit:
        warnings = [*warnings, f"only the first {limit:,} of {len(check.rows):,} rows are listed"]
        check = replace(check, rows=check.rows[:limit])
    status, reason = _choose_status(check)
    return create_envelope(
        Question("check", tuple(condition.text for condition in check.conditions), dict(scope)),
        captures,
        len(captures),
        WHY_TABLES,
        [*check.notes, *warnings],
        status=status,
        sentence=check.sentence,
        reason=reason,
        hint=None if reason is None else _HINTS.get(status),
        results=(_build_runs(check, positions, recorded),),
        answer=check,
    )


def _name_sides(
    a: Sequence[RecordedRun], b: Sequence[RecordedRun]
) -> Iterable[tuple[_SideName, Sequence[RecordedRun]]]:
    return (("a", a), ("b", b))


def _add_captures(captures: list[CaptureDescription], runs: Sequence[RecordedRun], side: _SideName) -> list[int | None]:
    """Add the captures and baselines of runs to a list, and return the position of the first one of each run."""
    positions: list[int | None] = []
    baselines: dict[Path, int] = {}
    for run in runs:
        if run.baseline is None:
            positions.append(len(captures) if run.captures else None)
            captures += [replace(each, facts=replace(each.facts, side=side)) for each in run.captures]
            continue
        if run.baseline not in baselines:
            baselines[run.baseline] = len(captures)
            total = sum(other.summary.iterations for other in runs if other.baseline == run.baseline)
            captures.append(describe_baseline(run.summary, run.baseline, side, total))
        positions.append(baselines[run.baseline])
    return positions


def _build_runs(
    check: Check,
    positions: Mapping[_SideName, Sequence[int | None]],
    recorded: Mapping[_SideName, Sequence[RowIds | None]],
) -> AnswerTable:
    """Return the table of the runs. Those of a history were not read, so they have no captures."""
    (declared,) = get_analysis("check", METHOD).results
    rows, evidence = [], []
    for run in check.runs:
        known = run.run <= len(positions[run.side])
        position = positions[run.side][run.run - 1] if known else None
        rows.append((run.side, run.run, run.iterations, run.step_ns, run.copy_of, position))
        evidence.append(recorded[run.side][run.run - 1] if known else None)
    kinds = {"string": pl.String, "int64": pl.Int64, "float64": pl.Float64}
    frame = pl.DataFrame(rows, schema={c.name: kinds[c.type] for c in declared.columns}, orient="row")
    return build_table("runs", f"{METHOD}.check.runs", frame, declared.columns, evidence=evidence)


def _choose_status(check: Check) -> tuple[Status, str | None]:
    """Return the status of an answer, and why it is unsure or missing.

    A check whose outcome is untestable has no answer, although its step may be faster. One whose conditions were all
    tested has an answer, although its step may be untestable.
    """
    if check.outcome != "untestable":
        return ("answered" if check.status in ("unsure", "not_recorded") else check.status), None
    reasons = [f"{each.text} cannot be tested: {each.reason}" for each in check.conditions if each.reason]
    if check.prediction is not None and check.prediction.agreement == "untestable":
        reasons.append(check.prediction.sentence)
    reason = "; ".join(dict.fromkeys(filter(None, [check.reason, *reasons]))) or check.sentence
    return ("not_recorded" if check.status == "not_recorded" else "unsure"), reason
