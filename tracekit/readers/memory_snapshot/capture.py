"""Combine the tables of a memory snapshot. All of them are built when it is opened, and the pickle is then released."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError, TracekitError, UnknownFormatError, format_count, warn
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage, warn_about_trailing_bytes
from tracekit.readers.common.pickled_stacks import PickledStacks, build_stacks
from tracekit.readers.common.pickles import (
    DICT,
    FALSE,
    INTEGER,
    LIST,
    MISSING,
    REAL,
    REAL_TEXT,
    TRUE,
    CellArray,
    ListEncoder,
    Values,
    read_pickle,
)
from tracekit.readers.memory_snapshot import sniff
from tracekit.readers.memory_snapshot.events import MAX_US, NS_PER_US, AllocatorEvents
from tracekit.readers.memory_snapshot.ranges import build_ranges, read_annotations
from tracekit.readers.memory_snapshot.segments import MemorySegments
from tracekit.registry.detection import describe_unrecognized
from tracekit.registry.interface import Capture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.registry.source import Source

_RECORD_AGAIN = "copy the file again from its source, or record the snapshot again"
_MEMBERS = ("segments", "device_traces", "external_annotations", "allocator_settings")
_MAX_SETTINGS, _MAX_NAME = 100, 200
_MEMORY_PER_FILE_BYTE = 16
"""Rows are repeated in no real snapshot, so tables take at most a few times as much memory as the file."""
_EMPTY = np.zeros(0, np.uint64)


def read_snapshot(source: Source) -> SnapshotCapture:
    """Read a memory snapshot and return its tables.

    Raises:
        UnknownFormatError: The file is not a memory snapshot. The message names the probable type of the file.
        CorruptTraceError: The file is truncated or damaged, or contains anything but plain values.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    with source.open() as file:
        try:
            budget = Budget(file.size, _MEMORY_PER_FILE_BYTE)
            values = read_pickle(file, budget)
            end = values.end
            contents = _read_contents(values, budget)
            del values  # which take more memory than the tables
            tables = _build_tables(contents)
        except Damage as e:
            file.check_unchanged()
            if not sniff(source):
                unknown = "this is not a memory snapshot of PyTorch", "read a file of torch.cuda.memory._dump_snapshot"
                what, hint = describe_unrecognized(source, unknown)
                raise UnknownFormatError(what, path=source.path, hint=hint) from e
            raise CorruptTraceError(str(e), path=source.path, hint=_RECORD_AGAIN) from e
        except MemoryError as e:
            raise TracekitError(
                f"the snapshot ({source.size:,} bytes) does not fit into memory",
                path=source.path,
                hint="close other programs, or open the file on a machine with more memory",
            ) from e
        warn_about_trailing_bytes(source.path, file.size - end)
    for column, what in (("allocated_bytes", "blocks"), ("reserved_bytes", "segments")):
        if nulls := tables["allocator_events"][column].null_count:
            events, whose = (
                format_count(nulls, "event", "do not match", "does not match"),
                "its" if nulls == 1 else "their",
            )
            warn(f"{events} the {what} of the snapshot: {whose} {column} are unknown", path=source.path)
    return SnapshotCapture(tables, +contents.undecoded)


class SnapshotCapture(Capture):
    """The tables of a memory snapshot that has been read."""

    def __init__(self, tables: dict[str, pa.Table], undecoded: Mapping[str, int]) -> None:
        self._tables = tables
        self._undecoded = undecoded

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        return [*self._tables]

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return int(self._tables[name].num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table."""
        return self._tables[name].select([column for column in columns if column in self._tables[name].column_names])

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of members and annotations that are in no table, by kind."""
        return self._undecoded


class _Contents(NamedTuple):
    """What a snapshot contains, without the values of its pickle."""

    segments: MemorySegments
    events: AllocatorEvents
    stacks: PickledStacks
    annotations: pl.DataFrame
    settings: dict[str, str]
    undecoded: Counter[str]


def _read_contents(values: Values, budget: Budget) -> _Contents:
    """Read all values of a snapshot.

    Raises:
        Damage: The pickle is not a snapshot, or a value is invalid.
    """
    undecoded: Counter[str] = Counter()
    members = _get_members(values, undecoded)
    unknown: Counter[str] = Counter()
    encoder = ListEncoder(values)
    segments = MemorySegments(values, _get_list(values, members["segments"]), budget, encoder, unknown)
    events = AllocatorEvents(values, _get_list(values, members["device_traces"]), budget, encoder, unknown)
    recorded = read_annotations(values, _get_list(values, members["external_annotations"]), budget, unknown)
    stacks = build_stacks(values, encoder.distinct, budget, unknown)
    settings = _read_settings(values, members["allocator_settings"])
    undecoded.update({f"values {name}": count for name, count in unknown.items()})
    return _Contents(segments, events, stacks, recorded, settings, undecoded)


def _build_tables(contents: _Contents) -> dict[str, pa.Table]:
    """Return the tables.

    Raises:
        Damage: A time is invalid.
    """
    segments, events, recorded = contents.segments, contents.events, contents.annotations
    times = [*_find_bounds(events.times_us), *_find_bounds(recorded["time_us"].drop_nulls().to_numpy())]
    if times and not 0 <= min(times) <= max(times) <= MAX_US:
        raise Damage("a time of the snapshot is not between 1970 and 2262")
    origin_us, end_us = (min(times), max(times)) if times else (0, 0)
    info = {"tool": "PyTorch memory history"}
    if times:
        info |= {"origin_utc_ns": str(origin_us * NS_PER_US), "duration_ns": str((end_us - origin_us) * NS_PER_US)}
    info |= contents.settings
    devices = sorted({*segments.devices.tolist(), *events.devices.tolist()})
    tables = {
        "allocator_events": events.build_table(origin_us, segments.sum_by_device(), contents.stacks),
        **segments.build_tables(contents.stacks),
        "stacks": contents.stacks.table,
        "nvtx_ranges": _build_ranges(build_ranges(recorded, contents.undecoded), origin_us),
        "devices": pa.table({"device_id": pa.array(devices, pa.int32())}),
        "capture_info": pa.table({"name": list(info), "value": list(info.values())}),
    }
    return {name: _conform(name, table) for name, table in tables.items()}


def _get_members(values: Values, undecoded: Counter[str]) -> dict[str, int]:
    """Return the cells of the members of the snapshot. Those that are missing are ``MISSING``."""
    tag = values.get_tag(values.root)
    members = {"segments": values.root} if tag == LIST else values.get_members(values.root) if tag == DICT else {}
    if not members.keys() & {"segments", "device_traces"}:
        raise Damage("the pickle contains no segments and no events of an allocator")
    others = [name[:_MAX_NAME] for name in members if name not in _MEMBERS]
    undecoded.update(f"member {name} of the snapshot" for name in others[:_MAX_SETTINGS])
    undecoded["other members of the snapshot"] += len(others[_MAX_SETTINGS:])
    return {name: members.get(name, MISSING) for name in _MEMBERS}


def _get_list(values: Values, cell: int) -> CellArray:
    return _EMPTY if cell == MISSING else values.get_items(cell)


def _find_bounds(times: np.ndarray) -> list[int]:
    return [int(times.min()), int(times.max())] if len(times) else []


def _build_ranges(ranges: pl.DataFrame, origin_us: int) -> pa.Table:
    start, end = ((pl.col(c) - origin_us) * NS_PER_US for c in ("start_us", "end_us"))
    return ranges.select(
        range_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64),
        start_ns=start,
        end_ns=end,
        kind=pl.lit("start_end"),
        domain_id=pl.lit(0, pl.Int64),
        name=pl.col("name"),
    ).to_arrow()


def _read_settings(values: Values, cell: int) -> dict[str, str]:
    """Return the settings of the allocator by name. Texts, which come from an environment variable, are left out."""
    if values.get_tag(cell) != DICT:
        return {}
    settings = {}
    for name, value in list(values.get_members(cell).items())[:_MAX_SETTINGS]:
        text = _format_setting(values, value)
        if text is not None and name.isidentifier():
            settings[f"allocator_{name}"] = text
    return settings


def _format_setting(values: Values, cell: int) -> str | None:
    tag = values.get_tag(cell)
    if tag in (TRUE, FALSE):
        return "true" if tag == TRUE else "false"
    if tag in (INTEGER, REAL, REAL_TEXT):
        return str(values.build(cell)) if tag == INTEGER else f"{values.build(cell):g}"
    if tag == DICT:
        members = [
            f"{k}:{values.build(v)}" for k, v in values.get_members(cell).items() if values.get_tag(v) == INTEGER
        ]
        changed = [text for text in members[:_MAX_SETTINGS] if not text.endswith(":0")]
        return ", ".join(changed) if changed else "0"
    return None


def _conform(name: str, table: pa.Table) -> pa.Table:
    """Cast columns to their declared types."""
    return table.cast(schemas.arrow_schema(schemas.table(name), table.column_names))
