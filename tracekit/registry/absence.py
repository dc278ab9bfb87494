"""Explain why a table, a report or a page has no rows: not recorded, not decoded, nothing found, or not applicable.

All commands, pages and warnings take their sentences from this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tracekit import schemas
from tracekit.errors import convert_to_printable_path
from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any
COMPUTED_TABLES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("ops", "op_instances", "iterations", "group_nodes"), schemas.list_tables("kernel")),
    "nvtx_projections": ("nvtx_ranges", *schemas.list_tables("kernel")),
}
"""The recorded tables from which computed tables result, by name."""
_OVERHEADS = ("overheads", "cuda_overheads")
"""Tables that profilers also record if no option selects them."""
MAX_CLASSES = 10
"""Maximum number of classes of undecoded events that a sentence names."""
MAX_NAME_LENGTH = 80
"""Maximum number of characters of the name of a class, which may come from the file."""
_UNTOLD = {
    "chrome-trace": (
        "Chrome traces do not state which events are kernels, copies or calls of CUDA",
        "record a profile with the PyTorch profiler or with Nsight Systems",
    )
}
"""Why no GPU work can be told from other events in a format, and what to do instead."""
_BETTER_FILES = {
    "rocprof": "record the program with rocprofv3 --sys-trace, whose files tracekit reads with their kernels",
    "rocmProfileData": "read the database (.rpd) from which the trace was written, which contains the kernels",
}
"""What to read instead of the Chrome trace of a tool."""
_PREPOSITION = re.compile(r" (?:without|of|with|between|that) ")
"""A word that follows the noun in the name of a class of events."""
_PLURAL = re.compile(r"ies\Z|(?<=[a-rt-z])s\Z")
"""The end of a noun in the plural."""
_NSYS = re.compile(r"NVIDIA Nsight\b")
"""Regular expression for the start of the tools whose commands the declared tables contain."""
_EXPORT_OF_NSYS = "export the report with nsys export --type sqlite, and load the export"


@dataclass(frozen=True, slots=True)
class Description:
    """The metadata that a console or notebook shows for a trace.

    Attributes:
        format: Name of the format of the trace.
        path: The file or folder of the trace. None if its tables are in memory.
        duration: Duration of the capture in ns, as decimal digits. Empty if unknown.
        devices: Name of each GPU. None for a GPU without a name.
        rows: Number of rows of each table, by table name. Empty if the rows were not counted.
    """

    format: str
    path: Path | None = None
    duration: str = ""
    devices: tuple[str | None, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)

    def to_line(self) -> str:
        """Return the description as one line."""
        return ", ".join(self._format_metadata())

    def to_html(self) -> str:
        """Return the description as HTML, with the number of rows of each table."""
        import html

        lines = "".join(f"<div>{html.escape(text)}</div>" for text in self._format_metadata())
        rows = "".join(f"<tr><td>{name}</td><td>{rows:,}</td></tr>" for name, rows in self.rows.items() if rows)
        head = "<thead><tr><th>table</th><th>rows</th></tr></thead>"
        table = f"<table>{head}<tbody>{rows}</tbody></table>" if rows else ""
        return f"<div><b>tracekit.Trace</b>{lines}{table}</div>"

    def _format_metadata(self) -> Iterator[str]:
        """Yield the metadata as short strings: format and path, duration, GPUs, and number of tables with rows."""
        yield self.format if self.path is None else f"{self.format} {convert_to_printable_path(self.path)}"
        if self.duration.isdecimal():
            yield f"{int(self.duration) / 1e6:,.3f} ms"
        if self.devices:
            names = ", ".join(dict.fromkeys(to_printable(name) for name in self.devices if name))
            yield _pluralize(len(self.devices), "GPU") + (f" ({names})" if names else "")
        if nonempty := sum(1 for rows in self.rows.values() if rows):
            yield f"{_pluralize(nonempty, 'table')} with rows"


def format_row_count(number: int, table_name: str) -> str:
    """Return the number of rows of a table, with the name of the table in the singular for one row: "1 memcpy"."""
    singular = table_name.removesuffix("es" if table_name.endswith("ches") else "s")
    return f"{number:,} {singular if number == 1 else table_name}"


def _pluralize(number: int, noun: str) -> str:
    """Return a number and its noun in the singular or plural, such as "2 GPUs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class State(Enum):
    """The reason why rows are missing."""

    NOT_APPLICABLE = "does not apply"
    NOT_DECODED = "recorded, but not decoded"
    NOT_RECORDED = "not recorded"
    NOT_SELECTED = "not selected"
    NOTHING_FOUND = "nothing found"


class Absence(NamedTuple):
    """Why rows are missing.

    Attributes:
        state: The kind of reason.
        reason: The reason, as a clause that follows "because".
        hint: What the user can do, or None.
    """

    state: State
    reason: str
    hint: str | None = None

    @property
    def sentence(self) -> str:
        """The reason, followed by the hint if there is one."""
        return self.reason if self.hint is None else f"{self.reason}; {self.hint}"


class EventCount(Protocol):
    """The interface of the number of undecoded events of one class."""

    @property
    def count(self) -> int:
        """Number of events."""
        ...


class RecordedCapture(Protocol):
    """The interface of a capture whose missing rows are explained."""

    @property
    def format(self) -> str:
        """Name of the format of the capture."""
        ...

    @property
    def tool(self) -> str:
        """The tool that recorded the capture, or an empty string if it is unknown."""
        ...

    @property
    def activity(self) -> str:
        """Name in ``ProfilerActivity`` of the devices of the capture, or an empty string for CUDA devices."""
        ...

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of recorded rows of each table, by table name, without any selection."""
        ...

    def can_contain(self, name: str) -> bool:
        """Return whether captures in the format of the capture can contain rows of a table."""
        ...

    def list_undecoded(self, name: str) -> Mapping[str, EventCount]:
        """Return the recorded events that are not decoded, but may belong to a table, by class of event."""
        ...


def explain_missing_rows(
    capture: RecordedCapture,
    tables: Iterable[str],
    *,
    required: Iterable[str] = (),
    selected: bool = False,
) -> Absence:
    """Return why a result that is computed from some tables has no rows.

    Args:
        capture: The capture.
        tables: Names of the tables from which the result is computed. Tables with metadata, which no option records,
            are ignored unless all tables are of this kind.
        required: Names of the tables without which the result has no rows.
        selected: Whether the result is restricted to a part of the capture.
    """
    listed = _list_recorded_tables(capture, [*required, *tables])
    if not listed:
        return Absence(State.NOTHING_FOUND, "nothing of this kind was found in the recorded data")
    counts = capture.count_many(listed)
    empty = [table for table in listed if not counts[table]]
    if (not_decoded := _explain_undecoded(capture, empty)) is not None:
        return not_decoded
    impossible = [table for table in empty if not capture.can_contain(table)]
    if not any(map(capture.can_contain, listed)) or not {*impossible}.isdisjoint(required):
        return Absence(State.NOT_APPLICABLE, _describe_format(capture, impossible))
    unrecorded = [table for table in empty if table not in impossible and not _was_recording(capture, table)]
    hint = create_recording_hint(unrecorded, capture.format, capture.tool, capture.activity)
    missing = unrecorded if len(empty) == len(listed) else [table for table in unrecorded if table in set(required)]
    if missing:
        return Absence(State.NOT_RECORDED, f"no {_join(missing)} {_choose_verb(missing)} recorded", hint)
    if selected and len(empty) < len(listed):
        return Absence(State.NOT_SELECTED, "the selected part of the capture contains no such data")
    notes = [f"no {_join(unrecorded)} {_choose_verb(unrecorded)} recorded: {hint}"] if unrecorded and hint else []
    notes += [_describe_format(capture, impossible)] if impossible and not notes else []
    return Absence(State.NOTHING_FOUND, _describe_search(counts), "; ".join(notes) or None)


def _explain_undecoded(capture: RecordedCapture, empty: Sequence[str]) -> Absence | None:
    """Return why empty tables have no rows if events are not decoded, or cannot be told from others."""
    undecoded = {name: size for table in empty for name, size in capture.list_undecoded(table).items()}
    if undecoded:
        hint = _EXPORT_OF_NSYS if capture.format == "nsys-rep" else None
        return Absence(State.NOT_DECODED, describe_undecoded(undecoded), hint)
    if capture.format in _UNTOLD and not {*empty}.isdisjoint(schemas.list_tables("activity")):
        reason, hint = _UNTOLD[capture.format]
        return Absence(State.NOT_DECODED, reason, _BETTER_FILES.get(capture.tool, hint))
    return None


def _describe_format(capture: RecordedCapture, tables: Sequence[str]) -> str:
    return f"captures in the format {capture.format} contain no {_join(tables)}"


def _describe_search(counts: Mapping[str, int]) -> str:
    """Return a clause that states that nothing was found in tables with the given numbers of rows."""
    if not any(counts.values()):
        return f"the profiler was recording, but no {_join(list(counts))} occurred"
    rows = ", ".join(format_row_count(counts[table], table) for table in counts if counts[table])
    return f"nothing of this kind was found in the recorded data ({rows})"


def _list_recorded_tables(capture: RecordedCapture, tables: Iterable[str]) -> list[str]:
    """Return the tables that profilers record, without metadata. Computed tables are replaced by those they need."""
    listed: dict[str, None] = {}
    for table in tables:
        computed = table in COMPUTED_TABLES and not capture.count_many([table])[table]
        listed |= dict.fromkeys(COMPUTED_TABLES[table] if computed else (table,))
    return [table for table in listed if schemas.table(table).recorded_by is not None] or list(listed)


def describe_undecoded(undecoded: Mapping[str, EventCount]) -> str:
    """Return a clause with the number of events of each class that are recorded, but not decoded.

    The classes with the most events come first. The events of all but ``MAX_CLASSES`` classes are summed up.
    """
    counts = dict(sorted(((name, size.count) for name, size in undecoded.items()), key=lambda item: -item[1]))
    listed = [format_class(name, count) for name, count in list(counts.items())[:MAX_CLASSES]]
    if others := list(counts.values())[MAX_CLASSES:]:
        listed.append(f"{sum(others):,} events of {len(others):,} other classes")
    *first, last = listed
    joined = f"{', '.join(first)} and {last}" if first else last
    is_one = [*counts.values()] == [1]
    verb, them = ("is", "it") if is_one else ("are", "them")
    return f"{joined} {verb} recorded, but tracekit does not decode {them}"


def format_class(name: str, count: int) -> str:
    """Return the number of events of a class, which is the name of a table of an export, a category or a phrase.

    A phrase is a noun in the singular or in the plural, and what follows it: ``sample without its time`` or
    ``arguments of API calls``.
    """
    shown = name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
    if shown.isupper() and "_" in shown:
        return f"{count:,} {'row' if count == 1 else 'rows'} of {shown}"
    if shown.startswith("without "):
        return f"{count:,} {'event' if count == 1 else 'events'} {shown}"
    preposition = _PREPOSITION.search(shown)
    noun, rest = (shown[: preposition.start()], shown[preposition.start() :]) if preposition else (shown, "")
    if "_" not in noun and _PLURAL.search(noun):
        return f"{count:,} {_PLURAL.sub(_convert_to_singular, noun) if count == 1 else noun}{rest}"
    if " without " in rest or shown.startswith("generic event"):
        return f"{count:,} {noun}{'' if count == 1 else 's'}{rest}"
    return f"{count:,} {shown}{'' if count == 1 else ' events'}".replace(" event events", " events")


def _convert_to_singular(plural: re.Match[str]) -> str:
    """Return the singular of the end of a noun in the plural, such as ``y`` for ``ies``."""
    return "y" if plural[0] == "ies" else ""


def find_recording_command(table: str, format_name: str, tool: str = "", activity: str = "") -> str | None:
    """Return the command or function that records a table, as the profiler that wrote a capture offers it.

    Args:
        table: Name of the table.
        format_name: Format of the capture.
        tool: The tool that recorded the capture, if it is known. Other tools can write the same format.
        activity: Name in ``ProfilerActivity`` of the devices of the capture, or "" for CUDA devices.
    """
    recorded_by = schemas.table(table).recorded_by
    profiler = _find_profiler(format_name, tool)
    if profiler is None or not (recorded_by or "").startswith("nsys"):
        return recorded_by
    return schemas.get_command_of_profiler(profiler, table, activity)


def _find_profiler(format_name: str, tool: str) -> Mapping[str, Any] | None:
    """Return how the profiler that wrote a capture records data. None for Nsight Systems and unknown profilers."""
    profilers = schemas.load_profilers()
    if profiler := next((p for p in profilers if re.search(p["tool"], tool)), None):
        return profiler
    return None if _NSYS.match(tool) else next((p for p in profilers if format_name in p["formats"]), None)


def has_other_profiler(format_name: str, tool: str) -> bool:
    """Return whether a capture is known to be of another profiler than those of NVIDIA and PyTorch."""
    profiler = _find_profiler(format_name, tool)
    return profiler is not None and "kineto" not in profiler["formats"]


def create_recording_hint(tables: Sequence[str], format_name: str, tool: str = "", activity: str = "") -> str | None:
    """Return a hint with the commands that record some tables. Extended forms of the same command are omitted."""
    all_commands = (find_recording_command(table, format_name, tool, activity) for table in tables)
    commands = list(dict.fromkeys(command for command in all_commands if command is not None))
    shortest = [c for c in commands if not any(c != other and c.startswith(f"{other} ") for other in commands)]
    noun = "it" if len(tables) == 1 and not tables[0].endswith("s") else "them"
    return f"record {noun} with {' or '.join(shortest)}" if shortest else None


def _was_recording(capture: RecordedCapture, table: str) -> bool:
    """Return whether the command that records a table, or a shorter form of it, recorded other tables."""
    command = schemas.table(table).recorded_by
    others = [
        name
        for name, schema in schemas.tables().items()
        if name not in (table, *_OVERHEADS)
        and schema.recorded_by not in (None, "nsys profile")
        and f"{command} ".startswith(f"{schema.recorded_by} ")
    ]
    return command is not None and any(capture.count_many(others).values())


def _choose_verb(tables: Sequence[str]) -> str:
    return "was" if len(tables) == 1 and not tables[0].endswith("s") else "were"


def _join(tables: Sequence[str]) -> str:
    return tables[0] if len(tables) == 1 else f"{', '.join(tables[:-1])} or {tables[-1]}"
