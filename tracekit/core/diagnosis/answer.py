"""The answer of ``why``: the ledger of a step, the causes, and what each cure would save.

All durations are in ns. Shares and savings are fractions of the time of the steady steps, from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from tracekit.errors import SchemaError
from tracekit.schemas.objects import build_object, fields_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

AnswerScope = Literal["steps", "kernels"]
Status = Literal["answered", "nothing_found", "not_recorded", "not_applicable", "unsure"]
SCHEMA = 1
MIN_SAVING = 0.02
"""Smallest predicted saving of a cause that is reported."""

MAX_CAUSES = 5


class Tool(TypedDict):
    """What computed an answer."""

    name: str
    version: str


class AnswerObject(TypedDict):
    """The object that ``why --format json`` prints. ``schemas/why.json`` describes it and its data."""

    schema: int
    tool: Tool
    input: list[str]
    status: Status
    warnings: list[str]
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an answer, which can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dictionary for JSON."""
        return fields_to_json(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the figures whose dictionary is given.

        Raises:
            SchemaError: The dictionary is not that of such figures.
        """
        return build_object(cls, values)


@dataclass(frozen=True, slots=True)
class StepFigures(Figures):
    """What is known about the steps.

    Attributes:
        name: Name of the range that delimits steps, or None if the whole capture is one step.
        count: Number of steady steps.
        cold: Number of steps of the warm-up.
        median_ns: Median duration of the steady steps.
        mean_ns: Mean duration of the steady steps.
        total_ns: Total duration of the steady steps.
        covered: Share of the GPU time of the capture that steps launched, or None if there is no GPU time.
    """

    name: str | None
    count: int
    cold: int
    median_ns: int
    mean_ns: int
    total_ns: int
    covered: float | None


@dataclass(frozen=True, slots=True)
class LedgerPart(Figures):
    """A part of the time of steps.

    Attributes:
        part: Name of the part, such as ``matmul`` or ``launch_calls``.
        group: Class of the part: ``compute``, ``opaque``, ``communication``, ``copy`` or ``idle``.
        ns: Share of the part, as a time of the median step. The times of all parts add up to the median step.
        share: Share of the part in the time of all steps.
        total_ns: Time of the part in all steps. The times of all parts add up to the time of all steps.
        places: The ranges in which the part takes most time, with its time in all steps.
    """

    part: str
    group: str
    ns: int
    share: float
    total_ns: int
    places: tuple[tuple[str, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the part as a dictionary for JSON."""
        places = [{"range": name or None, "total_ns": ns} for name, ns in self.places]
        values = {"class" if key == "group" else key: value for key, value in Figures.to_dict(self).items()}
        return values | {"places": places}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the part whose dictionary is given.

        Raises:
            SchemaError: The dictionary is not that of a part.
        """
        try:
            places = tuple((place["range"] or "", place["total_ns"]) for place in values["places"])
        except (KeyError, TypeError) as error:
            raise SchemaError("a part of a ledger has no places") from error
        renamed = {"group" if key == "class" else key: value for key, value in values.items() if key != "places"}
        return build_object(cls, renamed, places=places)


@dataclass(frozen=True, slots=True)
class Saving(Figures):
    """A predicted saving as a share of the time of the steady steps: an interval, and the likely value.

    Attributes:
        low: Lower end of the interval.
        likely: Likely saving.
        high: Upper end of the interval.
    """

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class Place(Figures):
    """Where a cause occurs.

    Attributes:
        range: Innermost range of the program, or None.
        thread_id: Thread that runs the steps, or None if it is unknown.
        process_id: Process, or None if it is unknown.
        rank: Rank, or None if there is only one.
        functions: Functions in which the CPU is, by samples or recorded functions, the most frequent first.
    """

    range: str | None
    thread_id: int | None
    process_id: int | None
    rank: int | None = None
    functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence(Figures):
    """What was counted.

    Attributes:
        text: Evidence as a sentence.
        count: Number of occurrences in all steady steps.
        total_ns: Time of all occurrences.
        table: Table of the longest occurrence, or None.
        row_id: Id of the row in this table, or None.
        start_ns: Start of the longest occurrence.
        end_ns: End of the longest occurrence.
        brief: Evidence in a few words, or "".
    """

    text: str
    count: int
    total_ns: int
    table: str | None
    row_id: int | None
    start_ns: int | None
    end_ns: int | None
    brief: str = ""


@dataclass(frozen=True, slots=True)
class Rows(Figures):
    """Ids of rows that belong to a cause.

    Attributes:
        table: Table of the rows.
        ids: Ids of the first rows.
        count: Number of all rows.
        names: Names of the rows, the most frequent first.
        name_count: Number of different names.
        start_ns: Start of the first row, or None if it is unknown.
        end_ns: End of the last row, or None if it is unknown.
    """

    table: str
    ids: tuple[int, ...]
    count: int
    names: tuple[str, ...] = ()
    name_count: int = 0
    start_ns: int | None = None
    end_ns: int | None = None


@dataclass(frozen=True, slots=True)
class CauseOfTime(Figures):
    """A cause of a slow step, with its evidence, what to change, and the predicted saving.

    Attributes:
        cause: Name of the cause.
        place: Where it occurs.
        evidence: What was counted.
        rows: The rows that belong to it, by table.
        change: What to change.
        check: How to check the change.
        saving: Predicted saving of this cure alone.
        after: What this cure saves in addition to those above it.
        status: ``answered``, or ``unsure`` if the capture cannot show that the cure applies.
        missing: What to record to be sure.
    """

    cause: str
    place: Place
    evidence: Evidence
    rows: tuple[Rows, ...]
    change: str
    check: str
    saving: Saving
    after: float
    status: Status
    missing: str = ""


@dataclass(frozen=True, slots=True)
class FirstCall(Figures):
    """An operation whose first call takes longer than later calls of the same shape.

    Attributes:
        name: Name of the operation.
        shapes: Number of different shapes with a slow first call.
        excess_ns: Time by which the first calls exceed later ones.
        share: Share of this time in the time of the capture.
        longest_ns: Duration of the longest first call.
        start_ns: Start of the longest first call.
    """

    name: str
    shapes: int
    excess_ns: int
    share: float
    longest_ns: int
    start_ns: int


@dataclass(frozen=True, slots=True)
class ColdSteps(Figures):
    """The steps of the warm-up.

    Attributes:
        count: Number of steps.
        total_ns: Time of these steps.
        excess_ns: Time by which they exceed as many median steps.
        ledger: The parts of their time.
        start_ns: Start of the first of these steps.
        end_ns: End of the last of these steps.
        first_calls: Operations with slow first calls in these steps, the most expensive first.
    """

    count: int
    total_ns: int
    excess_ns: int
    ledger: tuple[LedgerPart, ...]
    start_ns: int
    end_ns: int
    first_calls: tuple[FirstCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer(Figures):
    """An answer about the steps of one process, or of several ranks or processes.

    Attributes:
        sentence: The answer in one or two sentences.
        status: Whether there is an answer, and otherwise why not.
    """

    sentence: str
    status: Status

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as a dictionary for JSON: the ``data`` of the envelope."""
        values = Figures.to_dict(self)
        return {name: v for name, v in values.items() if (name, v) not in (("rank", None), ("ranks", []))}

    def to_envelope(self, inputs: Sequence[str], warnings: Sequence[str] = ()) -> AnswerObject:
        """Return the answer in the envelope that all answers have, as a dictionary for JSON.

        Args:
            inputs: Paths of the captures.
            warnings: Warnings about the captures.
        """
        return {
            "schema": SCHEMA,
            "tool": {"name": "tracekit", "version": version("tracekit")},
            "input": list(inputs),
            "status": self.status,
            "warnings": list(warnings),
            "data": self.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Why(Answer):
    """Why steps take as long as they do.

    Attributes:
        sentence: The answer in one or two sentences.
        status: ``answered``; ``nothing_found`` if no cure saves 2 %; ``not_recorded`` or ``not_applicable`` if the
            capture has no GPU work to explain; ``unsure`` if the answer cannot be trusted.
        step: What is known about the steps, or None.
        ledger: The parts of the time of the steady steps, the largest first.
        causes: At most five causes, ordered by saving.
        together: What all cures save together.
        replay_error: Largest difference between the replayed and the recorded duration of a step, as a share.
        cold: The steps of the warm-up, or None.
        first_calls: Operations with slow first calls, the most expensive first.
        notes: What limits the answer.
        device: Name of the GPU, or None if it is unknown.
        framework: Framework of the program.
        roofline: What limits kernels that already run well, or "".
        roofline_share: Share of the time of the steady steps in which kernels run at 60 % of a peak rate of the GPU or
            more, or None if no work is known.
        roofline_known: Share of the time of kernels whose work is known from recorded shapes.
        ranks: The answers of all ranks or processes, if there are several. Only separate programs have causes of their
            own; the causes of a job are in its answer.
        rank: Rank or number of the process, or None if there is only one. For a job, it is the slowest rank.
        scope: ``steps``, or ``kernels`` if Nsight Compute measured single kernels. Their total time then counts as that
            of a single step, and shares and savings are fractions of it.
    """

    step: StepFigures | None = None
    ledger: tuple[LedgerPart, ...] = ()
    causes: tuple[CauseOfTime, ...] = ()
    together: float = 0.0
    replay_error: float | None = None
    cold: ColdSteps | None = None
    first_calls: tuple[FirstCall, ...] = ()
    notes: tuple[str, ...] = ()
    device: str | None = None
    framework: str | None = None
    roofline: str = ""
    roofline_share: float | None = None
    roofline_known: float = 0.0
    ranks: tuple[Why, ...] = ()
    rank: int | None = None
    scope: AnswerScope = "steps"
