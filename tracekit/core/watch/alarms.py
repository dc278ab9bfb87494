"""Describe what is wrong in a window as alarms: one object, one line of JSON and one sentence each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tracekit.core.watch.comparison import LATE_RANK, LOST_TIME, SLOW_PHASE
from tracekit.core.watch.summary import GPU
from tracekit.text import format_duration, shorten_middle, to_printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracekit.core.watch.comparison import PhaseLoss, RankFinding
    from tracekit.core.watch.windows import CapturePlace

SCHEMA = "tracekit.watch/1"
"""Name and version of the JSON form of alarms."""
MISSING_RANK, BROKEN_CAPTURE = "missing_rank", "broken_capture"
ALARM_KINDS = (LATE_RANK, SLOW_PHASE, LOST_TIME, MISSING_RANK, BROKEN_CAPTURE)
MAX_MISSING = 16
"""Number of missing ranks of a window up to which each one has an alarm of its own."""
_SHOWN_FILE_CHARS = 200


@dataclass(frozen=True, slots=True)
class AlarmWindow:
    """The window of an alarm.

    Attributes:
        number: Number of the window, from 1.
        first_step: Number that the program gave to the first step, or None.
        last_step: Number of the last step, or None.
        start_utc_ns: Start of the steps in UTC in ns since 1970, or None.
        end_utc_ns: End of the steps, or None.
    """

    number: int
    first_step: int | None = None
    last_step: int | None = None
    start_utc_ns: int | None = None
    end_utc_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AlarmCause:
    """A phase in which the rank of an alarm lost time.

    Attributes:
        phase: Path of the phase in the step. "" is the step as a whole.
        on: ``cpu`` or ``gpu``.
        lost_ns: Time that the rank lost in the phase, in all steps of the window.
        own_ns: Mean time of the rank in the phase of one step.
        others_ns: Median of the mean times of the other ranks.
        steady: Whether the rank is slower in most steps, rather than in a few.
    """

    phase: str
    on: str
    lost_ns: int
    own_ns: int
    others_ns: int
    steady: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that is wrong with a rank, or with the capture of a rank.

    Attributes:
        kind: ``late_rank`` (other ranks wait for this rank), ``slow_phase`` (the rank is slower than the others in most
            steps), ``lost_time`` (in a few steps), ``missing_rank`` (the window has no capture of the rank), or
            ``broken_capture`` (the file cannot be read).
        sentence: The alarm in one sentence.
        rank: The rank, or None if it is unknown or if there are several.
        phase: Path of the phase in which most time was lost. None if it is unknown.
        on: ``cpu`` or ``gpu``: where the time was lost. None if it is unknown.
        window: The window, or None for a file that cannot be read.
        lost_ns: Time that the rank lost or by which it was late, in all steps of the window.
        lost_low_ns: Lower end of the interval of this time, which contains it in 95 % of windows.
        lost_high_ns: Upper end of the interval.
        steps: Number of steps of the rank in the window.
        ranks: Number of ranks that were compared. For missing ranks, the number of ranks that are present.
        count: Number of missing ranks, otherwise 1.
        consecutive: Number of consecutive windows with an alarm of this kind for this rank and phase, with this one.
        communicator: Communicator in which others wait for the rank.
        causes: The phases in which the rank lost time, largest loss first.
        file: The capture of the rank, relative to the folder.
        id: Number of the alarm, from 1. Numbers are unique for a state.
        time_utc: When the alarm was raised, as text such as ``2026-01-31T23:59:59Z``.
        watch: Identifies the state.
    """

    kind: str
    sentence: str
    rank: int | None = None
    phase: str | None = None
    on: str | None = None
    window: AlarmWindow | None = None
    lost_ns: int | None = None
    lost_low_ns: int | None = None
    lost_high_ns: int | None = None
    steps: int | None = None
    ranks: int | None = None
    count: int = 1
    consecutive: int = 1
    communicator: str | None = None
    causes: tuple[AlarmCause, ...] = field(default=())
    file: str | None = None
    id: int = 0
    time_utc: str = ""
    watch: str = ""

    @property
    def key(self) -> tuple[str, int | None, str | None]:
        """What alarms of consecutive windows have in common."""
        return self.kind, self.rank, self.phase

    def to_json(self) -> str:
        """Return the alarm as one line of JSON, in ASCII."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Alarm:
        """Return the alarm in a line of JSON that ``to_json`` returned."""
        values: dict[str, Any] = json.loads(text)
        del values["schema"]
        window = None if values["window"] is None else AlarmWindow(**values["window"])
        causes = tuple(AlarmCause(**cause) for cause in values["causes"])
        return cls(**{**values, "window": window, "causes": causes})


def describe_findings(findings: Iterable[RankFinding], window: AlarmWindow, files: Mapping[int, str]) -> list[Alarm]:
    """Return the alarms for the findings in a window.

    Args:
        findings: The findings.
        window: The window.
        files: The capture of each rank.
    """
    return [_describe_finding(finding, window, files.get(finding.rank)) for finding in findings]


def _describe_finding(finding: RankFinding, window: AlarmWindow, file: str | None) -> Alarm:
    cause = finding.causes[0] if finding.causes else None
    lost = f"{format_duration(finding.lost_ns)} in {finding.steps} steps"
    interval = f"({format_duration(finding.low_ns)} to {format_duration(finding.high_ns)})"
    if finding.kind == LATE_RANK:
        why = "no phase explains it" if cause is None else _describe_cause(cause)
        sentence = f"other ranks wait for rank {finding.rank}, which is late by {lost} {interval}: {why}"
    elif cause is not None:
        how = "is slow" if finding.kind == SLOW_PHASE else "lost time in a few steps"
        sentence = f"rank {finding.rank} {how}, and lost {lost} {interval}: {_describe_cause(cause)}"
    else:
        sentence = f"rank {finding.rank} lost {lost} {interval}"
    return Alarm(
        finding.kind,
        to_printable(sentence),
        rank=finding.rank,
        phase=None if cause is None else cause.phase,
        on=None if cause is None else cause.on,
        window=window,
        lost_ns=finding.lost_ns,
        lost_low_ns=finding.low_ns,
        lost_high_ns=finding.high_ns,
        steps=finding.steps,
        ranks=finding.ranks,
        communicator=finding.communicator,
        causes=tuple(
            AlarmCause(c.phase, c.on, c.lost_ns, c.own_ns, c.others_ns, steady=c.is_steady) for c in finding.causes
        ),
        file=file,
    )


def _describe_cause(cause: PhaseLoss) -> str:
    """Return the phase with its mean time and that of the other ranks."""
    phase = f"'{shorten_middle(cause.phase)}'" if cause.phase else "the step outside of all phases and inside of them"
    where = "on the GPU" if cause.on == GPU else "on the CPU"
    own, others = format_duration(cause.own_ns), format_duration(cause.others_ns)
    return f"{phase} takes {own} {where} per step, {others} on the other ranks"


def describe_missing_ranks(missing: Iterable[int], present: int, window: AlarmWindow) -> list[Alarm]:
    """Return the alarms for the ranks that a window lacks: one per rank, or one for all if there are many."""
    missing = list(missing)
    if len(missing) > MAX_MISSING:
        listed = ", ".join(map(str, missing[:MAX_MISSING]))
        sentence = f"{len(missing)} ranks have no capture of window {window.number}: {listed}, …"
        return [Alarm(MISSING_RANK, sentence, window=window, ranks=present, count=len(missing))]
    return [
        Alarm(
            MISSING_RANK,
            f"rank {rank} has no capture of window {window.number}, unlike {present} other ranks",
            rank=rank,
            window=window,
            ranks=present,
        )
        for rank in missing
    ]


def describe_broken_capture(file: str, reason: str, rank: int | None = None) -> Alarm:
    """Return the alarm for a file that cannot be read."""
    shown = shorten_middle(to_printable(file), _SHOWN_FILE_CHARS)
    return Alarm(BROKEN_CAPTURE, f"{shown} cannot be read: {to_printable(reason)}", rank=rank, file=file)


def create_alarm_window(number: int, place: CapturePlace) -> AlarmWindow:
    """Return the window of alarms, given its number and its place."""
    return AlarmWindow(number, *place)


def identify(alarm: Alarm, *, id: int, time_utc: str, watch: str, consecutive: int) -> Alarm:  # noqa: A002
    """Return an alarm with its number, its time, the identifier of the state, and the number of windows."""
    return replace(alarm, id=id, time_utc=time_utc, watch=watch, consecutive=consecutive)
