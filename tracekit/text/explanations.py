"""The answer of ``why`` as texts that the command line and pages show. ``core/diagnosis/texts.py`` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tracekit.text import shorten_middle

STEP_TITLE, KERNELS_TITLE = "Time of a steady step", "Time of the measured kernels"
"""Titles of the ledger of a step, and of that of single kernels."""
REST = "rest"
"""Class of the row of a ledger that sums up all parts that have no row of their own."""


class LedgerRow(NamedTuple):
    """A part of the time of steps.

    Attributes:
        part: What the time was spent on, such as ``matmul`` or ``idle: launch calls``.
        group: Class of the part: ``compute``, ``opaque``, ``communication``, ``copy``, ``idle`` or ``rest``.
        place: Name of the range in which the part takes most time, or "".
        ns: Time of the part in the median step, or in all steps of the warm-up.
        share: Share of the part, from 0 to 1. The shares of all rows add up to 1.
    """

    part: str
    group: str
    place: str
    ns: int
    share: float

    @property
    def label(self) -> str:
        """The part and its place."""
        return f"{self.part} in '{shorten_middle(self.place)}'" if self.place else self.part


@dataclass(frozen=True, slots=True)
class RowsOfCause:
    """Rows of a table that belong to a cause.

    Attributes:
        table: Name of the table.
        count: Number of rows.
        names: Names of the rows, the most frequent first, or nothing if rows of the table have no name.
        name_count: Number of different names.
        start_ns: Start of the first row, or None if it is unknown.
        end_ns: End of the last row, or None if it is unknown.
        ids: Ids of the rows, or nothing if there are too many to list.
    """

    table: str
    count: int
    names: tuple[str, ...]
    name_count: int
    start_ns: int | None
    end_ns: int | None
    ids: tuple[int, ...] = ()


class RankRow(NamedTuple):
    """The steps of one rank.

    Attributes:
        rank: Number of the rank.
        step_ns: Median duration of a steady step, or None if the rank has no GPU work.
        busy: Share of the step in which the GPU computes, from 0 to 1.
        waits_ns: Time for which the rank waits for others in the median step.
        waits: Share of the step in which the rank waits for others.
        is_slowest: Whether the explanation is about the steps of this rank.
    """

    rank: int
    step_ns: int | None
    busy: float
    waits_ns: int
    waits: float
    is_slowest: bool


@dataclass(frozen=True, slots=True)
class CauseText:
    """A cause of slow steps.

    Attributes:
        cause: Name of the cause, such as ``launch_overhead``.
        title: Name and place of the cause.
        saving: Predicted saving of its cure with its interval, and the saving after the causes above it.
        evidence: What was counted.
        functions: Sentence on the functions in which the CPU is, or "".
        change: What to change, or "" for a healthy program.
        check: How to check the change, or "".
        missing: Sentence on what to record to be sure, or "".
        count: Number of occurrences in all steady steps.
        total_ns: Time of all occurrences.
        start_ns: Start of the longest occurrence, or None if it is unknown.
        end_ns: End of the longest occurrence, or None if it is unknown.
        interval: Low, likely and high saving as a share of a step.
        saving_ns: Likely saving per step.
        is_unsure: Whether the capture cannot show that the cure applies.
        event: Table and id of the longest occurrence, such as ``kernels:123``, or None if it has no row.
        rank: Rank on which the cause occurs, or None if there is only one.
        rows: The rows that belong to the cause, by table.
    """

    cause: str
    title: str
    saving: str
    evidence: str
    functions: str
    change: str
    check: str
    missing: str
    count: int
    total_ns: int
    start_ns: int | None
    end_ns: int | None
    interval: tuple[float, float, float]
    saving_ns: int
    is_unsure: bool
    event: str | None
    rank: int | None
    rows: tuple[RowsOfCause, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of ``why`` as texts.

    Attributes:
        is_answered: Whether the capture has steps with GPU work, or kernels that Nsight Compute measured. If not, only
            ``sentence`` has a value.
        sentence: The answer in one or two sentences.
        ledger: The parts of a steady step, the largest first.
        causes: The causes, ordered by saving.
        together: Sentence on what all cures save together, or "" if there are less than two causes.
        cold: Sentence on the time of the warm-up, or "" if there is none.
        cold_ledger: The parts of the time of the warm-up.
        ranks: Sentences on the steps of each rank, or nothing if there is only one.
        notes: Sentences on what limits the answer.
        ledger_title: Title of the ledger.
        status: Whether there is an answer, such as ``answered`` or ``unsure``.
        scope: Which steps are explained, such as ``12 steady steps 'step', without the first 8``, or "".
        step_ns: Duration of the median step, or 0. The times of the ledger add up to it.
        skew: Sentence on how the ranks differ, or "" if there is only one.
        rank_rows: The steps of each rank, or nothing if there is only one.
        cold_ns: Time of the warm-up, or 0.
        cold_span: Start and end of the warm-up, or None if there is none.
    """

    is_answered: bool
    sentence: str
    ledger: tuple[LedgerRow, ...]
    causes: tuple[CauseText, ...]
    together: str
    cold: str
    cold_ledger: tuple[LedgerRow, ...]
    ranks: tuple[str, ...]
    notes: tuple[str, ...]
    ledger_title: str = STEP_TITLE
    status: str = "answered"
    scope: str = ""
    step_ns: int = 0
    skew: str = ""
    rank_rows: tuple[RankRow, ...] = ()
    cold_ns: int = 0
    cold_span: tuple[int, int] | None = None
