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
