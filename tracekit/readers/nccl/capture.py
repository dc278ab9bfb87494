"""Build declared tables from a log of collectives. The whole file is read when it is opened."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import CorruptTraceError, UnknownFormatError, format_count, warn
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.common.frame_capture import convert_frame
from tracekit.readers.common.json.document import DocumentFormat
from tracekit.readers.nccl import (
    EVENTS,
    FLIGHT_RECORDER,
    FLIGHT_RECORDER_PICKLE,
    INSPECTOR,
    find_kind,
    flight_recorder,
    lines,
    pickled,
)
from tracekit.readers.nccl.lines import Log
from tracekit.registry.detection import describe_unrecognized
from tracekit.registry.interface import Capture, Undecoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.registry.source import Source
    from tracekit.system.files import InputFile

CALLS = "communication_calls"
_MAX_TEXT = 200
_COPY_AGAIN = "copy the log again, or record it again"
_EARLIEST_UTC_NS = 946_684_800_000_000_000
"""Start of the year 2000. Earlier times are not dates, but the time since boot."""
_IDS = {CALLS: "communication_call_id", "kernels": "kernel_id", "stacks": "stack_id"}
_TIMES = ("created_ns", "start_ns", "end_ns", "start_seen_ns", "end_seen_ns")


def read_log(source: Source) -> CallLogCapture:
    """Read a log of collectives, and return its tables.

    Raises:
        UnknownFormatError: The file is not a log of collectives. The message names the probable type of the file.
        CorruptTraceError: The file is damaged, or contains no calls.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    kind = find_kind(source)
    if kind is None:
        unknown = (
            "this is not a log of collectives",
            "pass a dump of the flight recorder of PyTorch, or a log of NCCL Inspector",
        )
        what, hint = describe_unrecognized(source, unknown)
        raise UnknownFormatError(what, path=source.path, hint=hint)
    with source.open() as file, convert_damage(source.path, file=file):
        log = _READERS[kind](source.path, file, Budget(file.size))
        file.check_unchanged()
    return CallLogCapture(source.path, log)


def _read_lines(
    read: Callable[[Path, InputFile, Budget], tuple[Log, lines.Lines]], path: Path, file: InputFile, budget: Budget
) -> Log:
    log, read_lines = read(path, file, budget)
    _warn_about_skipped_data(path, read_lines)
    if not log.tables[CALLS].height:
        raise CorruptTraceError("the log contains no complete collectives", path=path, hint=_COPY_AGAIN)
    return log


def _warn_about_skipped_data(path: Path, read_lines: lines.Lines) -> None:
    document, damage = read_lines.document, read_lines.damage
    if not read_lines.frame.height and (document.truncated or damage or not document.has_array):
        raise CorruptTraceError("the file contains no complete records", path=path, hint=_COPY_AGAIN)
    if document.truncated or damage:
        reason = damage or "its JSON is incomplete"
        read = format_count(read_lines.frame.height, "complete record", "were read", "was read")
        warn(f"the file is truncated ({reason}): {read}", path=path)
    if document.invalid:
        rest, rest_of_one = "are not valid JSON and were skipped", "is not valid JSON and was skipped"
        warn(format_count(document.invalid, "record", rest, rest_of_one), path=path)


_RECORDER_MEMBERS = {
    "process_group": 1,
    "profiling_name": 2,
    "state": 3,
    "thread_id": 4,
    "input_dtypes": 5,
    "output_dtypes": 6,
    "input_sizes": 7,
    "output_sizes": 8,
    "collective_seq_id": 9,
    "seq_id": 9,
    "p2p_seq_id": 10,
    "time_created_ns": 11,
    "time_discovered_started_ns": 12,
    "time_discovered_completed_ns": 13,
    "timeout_ms": 14,
    "duration_ms": 15,
    "is_p2p": 16,
    "pg_name": 17,
}
"""The slots of the members of entries. ``seq_id`` and ``pg_name`` are names of early versions."""
_RECORDER_METADATA = ("pg_config", "version", "comm_lib_version", "nccl_version")


def _read_flight_recorder(path: Path, file: InputFile, budget: Budget) -> Log:
    layout = DocumentFormat("entries", "entries", _COPY_AGAIN, _RECORDER_METADATA)
    keys = {(0, name): slot for name, slot in _RECORDER_MEMBERS.items()}
    read = lines.read_objects(path, file, keys, layout, budget)
    _warn_about_skipped_data(path, read)
    member = {name: pl.col(str(slot)) for name, slot in _RECORDER_MEMBERS.items()}
    shapes = flight_recorder.Shapes(budget)
    first, second = flight_recorder.parse_first_text, flight_recorder.parse_second_text
    convert = flight_recorder.map_texts_expr
    group, number = str(_RECORDER_MEMBERS["process_group"]), functools.partial(pl.Expr.cast, strict=False)
    entries = read.frame.select(
        group=pl.coalesce(convert(group, first), "17", group),
        description=convert(group, second),
        name=member["profiling_name"],
        state=member["state"],
        thread=member["thread_id"],
        input_type=convert(str(_RECORDER_MEMBERS["input_dtypes"]), first),
        output_type=convert(str(_RECORDER_MEMBERS["output_dtypes"]), first),
        input_shapes=member["input_sizes"],
        output_shapes=member["output_sizes"],
        collective=number(member["collective_seq_id"], pl.Int64),
        message=number(member["p2p_seq_id"], pl.Int64),
        created=number(member["time_created_ns"], pl.Int64),
        started=number(member["time_discovered_started_ns"], pl.Int64),
        completed=number(member["time_discovered_completed_ns"], pl.Int64),
        timeout_ms=number(member["timeout_ms"], pl.Int64),
        duration_ms=number(member["duration_ms"], pl.Float64),
        input_elements=convert(str(_RECORDER_MEMBERS["input_sizes"]), shapes.count_elements, pl.Int64),
        output_elements=convert(str(_RECORDER_MEMBERS["output_sizes"]), shapes.count_elements, pl.Int64),
        is_message=member["is_p2p"] == "true",
    )
    return build_recorder_log(
        path, flight_recorder.convert_to_entries(entries.to_dict()), read.document.metadata, budget
    )


def _read_pickled_recorder(path: Path, file: InputFile, budget: Budget) -> Log:
    recorder = pickled.read_pickled_recorder(file, budget)
    log = build_recorder_log(path, recorder.entries, recorder.metadata, budget)
    log.tables["stacks"] = pl.DataFrame(recorder.stacks)
    return log


def build_recorder_log(path: Path, entries: pl.DataFrame, metadata: Mapping[str, Any], budget: Budget) -> Log:
    """Return the tables of a flight recorder.

    Args:
        path: Path of the file, whose name states the rank.
        entries: The entries, with the columns ``flight_recorder.ENTRY``.
        metadata: The other members of the dump.
        budget: The memory budget.
    """
    rank = flight_recorder.parse_rank(path.name)
    groups = flight_recorder.parse_groups(metadata.get("pg_config"), rank, budget)
    calls = flight_recorder.build_calls(entries, groups, rank)
    size = max((group.size or 0 for group in groups.values()), default=0)
    versions = {
        "tool": "PyTorch flight recorder",
        "schema_version": _get_text(metadata, "version"),
        "distributed_backend": "nccl",
        "distributed_nccl_version": _get_text(metadata, "comm_lib_version") or _get_text(metadata, "nccl_version"),
        "distributed_rank": None if rank is None else str(rank),
        "distributed_world_size": str(size) if size else None,
    }
    return Log({CALLS: calls}, {}, {name: text for name, text in versions.items() if text is not None})


def _get_text(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(name)
    return flight_recorder.repair_text(value)[:_MAX_TEXT] if isinstance(value, str) else None


_READERS: dict[str, Callable[[Path, InputFile, Budget], Log]] = {
    FLIGHT_RECORDER_PICKLE: _read_pickled_recorder,
    FLIGHT_RECORDER: _read_flight_recorder,
    INSPECTOR: functools.partial(_read_lines, lines.read_inspector_log),
    EVENTS: functools.partial(_read_lines, lines.read_event_log),
}


class CallLogCapture(Capture):
    """The tables of a log of collectives that has been read."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._undecoded = log.undecoded
        tables = {name: rows for name, rows in log.tables.items() if rows.height or name == CALLS}
        timed = [(name, _select_times(rows)) for name, rows in tables.items() if rows.height and _select_times(rows)]
        times = [tables[name].select(pl.min_horizontal(columns).min()).item() for name, columns in timed]
        origin = min((time for time in times if time is not None), default=0)
        self._tables = {name: _finish(name, rows, origin) for name, rows in tables.items()}
        ends = [self._tables[name].select(pl.max_horizontal(columns).max()).item() for name, columns in timed]
        info = {
            **log.versions,
            "origin_utc_ns": str(origin) if origin >= _EARLIEST_UTC_NS else None,
            "duration_ns": str(max((end for end in ends if end is not None), default=0)),
        }
        known = {name: value for name, value in info.items() if value is not None}
        self._tables["capture_info"] = pl.DataFrame({"name": list(known), "value": list(known.values())})
        self._tables |= {name: rows for name, rows in _build_owners(self._tables).items() if rows.height}

    def names(self) -> list[str]:
        """Return the names of the tables that may have rows."""
        return list(self._tables)

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self._tables[name].height

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table."""
        return convert_frame(name, self._tables[name], columns, self._path, _COPY_AGAIN)

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of records that are in no table, by kind."""
        return {
            kind: Undecoded(count, is_auxiliary=kind.startswith(lines.STATE) or kind in lines.AUXILIARY)
            for kind, count in self._undecoded.items()
        }


def _select_times(rows: pl.DataFrame) -> list[str]:
    return [name for name in _TIMES if name in rows.columns]


def _finish(name: str, rows: pl.DataFrame, origin: int) -> pl.DataFrame:
    """Return the rows of a table with ids and with times since the origin."""
    times = [(pl.col(time) - origin).alias(time) for time in _select_times(rows)]
    key = _IDS[name]
    if key not in rows.columns:
        rows = rows.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(key))
    return rows.with_columns(times)


def _build_owners(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables of the processes, threads and devices that calls and kernels refer to."""
    keys = {
        "processes": ["process_id"],
        "threads": ["process_id", "thread_id"],
        "devices": ["device_id"],
    }
    owners = {}
    for table, names in keys.items():
        parts = [rows.select(names) for rows in tables.values() if set(names) <= set(rows.columns)]
        if parts:
            owners[table] = pl.concat(parts).drop_nulls().unique().sort(names)
    return owners
