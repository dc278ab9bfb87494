"""Read the lines of a JSON export into source tables, in batches."""

from __future__ import annotations

import codecs
import io
import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.errors import CorruptTraceError, warn
from tracekit.readers.common.budget import CELL_BYTES, Budget
from tracekit.readers.common.damage import Damage
from tracekit.readers.nsys_jsonlines import events
from tracekit.readers.nsys_jsonlines.tables import LineTables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.nsys_jsonlines.events import ExportedEvents
    from tracekit.registry.source import Source
    from tracekit.system.files import InputFile

EXPORT_AGAIN = "export it again: nsys export --type json REPORT"
_CHUNK_BYTES, _CHUNK_LINES = 4 << 20, 1 << 14
_DATA = re.compile(rb'^\{"data":.*$', re.MULTILINE)
_DATA_START, _STRINGS = b'{"data":', b'{"data":["'
_COUNTED = ("TraceProcessEvent", "CudaEvent")
"""Members whose events are counted by class if they are not read."""
_STRINGS_START = re.compile(rb'\{"data":\[(?:"|\])')
_MEMBER = re.compile(r"[A-Za-z]{1,60}")
_BINARY_PAYLOADS, _OTHER_EVENTS = "binary payloads of NVTX", "events of other types"
_MAX_KINDS = 1000
MARKS, _MARK_OF_TRACING = "start or finish mark", 47


def read_tables(source: Source) -> LineTables:
    """Read a JSON export.

    Raises:
        CorruptTraceError: A line is not valid JSON, or a value does not have the expected type.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    with source.open() as file:
        builder = _TablesBuilder(Budget(file.size))
        number = 1
        for chunk in _read_chunks(file):
            try:
                builder.append(chunk)
            except (pl.exceptions.PolarsError, Damage) as e:
                file.check_unchanged()
                what = f"in the lines from {number:,} on: {str(e).partition(chr(10))[0][:200]}"
                raise CorruptTraceError(what, path=source.path, hint=EXPORT_AGAIN) from e
            number += chunk.count(b"\n")
        if not builder.ends_with_threads:
            warn("the file does not end with the names of threads, so it may be truncated", path=source.path)
        return LineTables(source.path, EXPORT_AGAIN, builder.finish(), builder.undecoded)


def _read_chunks(file: InputFile) -> Iterator[bytes]:
    """Yield the lines of a file in chunks of a limited number of whole lines."""
    start, rest = 0, b""
    while start < file.size:
        part = file.read(start, min(max(_CHUNK_BYTES, len(rest)), file.size - start))
        start += len(part)
        rest += part.removeprefix(codecs.BOM_UTF8) if start == len(part) else part
        whole = len(rest) if start == file.size else rest.rfind(b"\n") + 1
        ends = np.flatnonzero(np.frombuffer(rest, np.uint8, whole) == ord("\n"))[_CHUNK_LINES - 1 :: _CHUNK_LINES] + 1
        bounds = [0, *ends.tolist(), whole]
        yield from (rest[low:high] for low, high in itertools.pairwise(bounds) if high > low)
        rest = rest[whole:]


class _TablesBuilder:
    """A builder of the source tables.

    Attributes:
        undecoded: Number of events that are in no source table, by kind.
        ends_with_threads: Whether the last line contains names of threads, and no events or strings follow it.
    """

    def __init__(self, budget: Budget) -> None:
        self.ends_with_threads = False
        self._has_strings = False
        self.undecoded: Counter[str] = Counter()
        self._budget = budget
        self._batches: dict[str, list[pa.Table]] = {}

    def append(self, chunk: bytes) -> None:
        """Add the events of some lines.

        Raises:
            PolarsError: The lines are not valid.
            Damage: The rows exceed the budget.
        """
        lines, is_first = chunk, not (self._has_strings or self._batches or self.undecoded)
        if chunk.strip():
            last = chunk.rstrip().rpartition(b"\n")[2]
            self.ends_with_threads = last.startswith(_DATA_START) and not (is_first and last == chunk.strip())
        if _DATA_START in chunk:
            self._append_data(_DATA.findall(chunk))
            lines = _DATA.sub(b"", chunk)
        if not lines.strip():
            return
        present = [kind for kind in events.KINDS if f'"{kind.detail or kind.member}":'.encode() in lines]
        members = {"Type", *(kind.member for kind in present), *_COUNTED}
        schema = pl.Schema({name: kind for name, kind in events.SCHEMA.items() if name in members})
        frame = pl.read_ndjson(io.BytesIO(lines), schema=schema).lazy()
        known = pl.any_horizontal(pl.lit(value=False), *map(_matches_expr, present)).fill_null(value=False)
        rows = [_convert_rows(kind, frame.filter(_matches_expr(kind))) for kind in present]
        *converted, unknown = pl.collect_all([*rows, frame.filter(~known).select("Type", *_COUNTED)])
        for kind, batch in zip(present, converted, strict=True):
            self._append_rows(kind.table, batch)
        self._count_unknown(unknown)
        if b'"BinaryData":' in lines:
            payloads = pl.col("NvtxEvent").struct.field("Payload").struct.field("BinaryData")
            self.undecoded[_BINARY_PAYLOADS] += int(frame.select(payloads.is_not_null().sum()).collect().item())

    def finish(self) -> dict[str, pa.Table]:
        """Return the source tables by name."""
        tables = {name: pa.concat_tables(batches) for name, batches in self._batches.items()}
        if (processes := tables.get("PROCESSES")) is not None:
            frame = pl.DataFrame(processes).unique("globalPid", keep="last", maintain_order=True)
            tables["PROCESSES"] = frame.to_arrow().cast(processes.schema)
        tables.setdefault("StringIds", pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.string())}))
        return tables

    def _append_rows(self, name: str, frame: pl.DataFrame) -> None:
        self._budget.reserve(frame.height, CELL_BYTES * frame.width, f"rows of {name}")
        schema = pa.schema(
            [
                (c, pa.string() if t == pl.String else pa.from_numpy_dtype("f8" if t == pl.Float64 else "i8"))
                for c, t in frame.schema.items()
            ]
        )
        self._batches.setdefault(name, []).append(frame.to_arrow().cast(schema))

    def _append_data(self, lines: list[bytes]) -> None:
        """Add the strings of the first line and the names of threads of the last line."""
        strings = [line for line in lines if _STRINGS_START.match(line)]
        if self._has_strings + sum(line.startswith(_STRINGS) for line in strings) > 1:
            raise Damage("a second line contains strings, so the file consists of several exports: split it")
        self._has_strings |= any(line.startswith(_STRINGS) for line in strings)
        if strings:
            values = _parse_data(strings, events.STRINGS)
            before = sum(batch.num_rows for batch in self._batches.get("StringIds", []))
            ids = pl.int_range(before, before + len(values), eager=True, dtype=pl.Int64)
            self._append_rows("StringIds", pl.DataFrame({"id": ids, "value": values}))
        if len(strings) < len(lines):
            names = _parse_data([line for line in lines if not _STRINGS_START.match(line)], events.THREADS)
            fields = {"nameId": "nameIdx", "priority": "priority", "globalTid": "globalTid"}
            columns = {c: pl.col("data").struct.field(field).cast(pl.Int64) for c, field in fields.items()}
            self._append_rows("ThreadNames", pl.DataFrame({"data": names}).select(**columns))

    def _count_unknown(self, frame: pl.DataFrame) -> None:
        """Count events that are not read, by their member or their event class."""
        unknown = frame
        is_mark = pl.col("TraceProcessEvent").is_not_null() & (pl.col("Type") == _MARK_OF_TRACING)
        self.undecoded[MARKS] += unknown.select(is_mark.sum()).item()
        unknown = unknown.filter(~is_mark.fill_null(value=False))
        calls = unknown.filter(pl.col("TraceProcessEvent").is_not_null())
        classes = calls.select(pl.col("TraceProcessEvent").struct.field("eventClass").fill_null("null")).to_series()
        for event_class, count in classes.value_counts().iter_rows():
            self._count(f"calls of class {event_class[:9]}", count)
        activities = unknown.select(pl.col("CudaEvent").is_not_null().sum()).item()
        self.undecoded["other GPU activities"] += activities
        others = unknown.filter(pl.col("TraceProcessEvent").is_null() & pl.col("CudaEvent").is_null())
        for event_type, count in others["Type"].value_counts().iter_rows():
            self._count("events without a type" if event_type is None else f"events of type {event_type}", count)

    def _count(self, kind: str, count: int) -> None:
        """Count events that are not read. If there are very many kinds, further ones are counted together."""
        is_listed = kind in self.undecoded or len(self.undecoded) < _MAX_KINDS
        self.undecoded[kind if is_listed else _OTHER_EVENTS] += count


def _parse_data(lines: list[bytes], schema: pl.Schema) -> pl.Series:
    """Return the elements of the arrays ``data`` of some lines."""
    return pl.read_ndjson(io.BytesIO(b"\n".join(lines)), schema=schema)["data"].explode(empty_as_null=False)


def _matches_expr(kind: ExportedEvents) -> pl.Expr:
    """Return an expression that is true for the lines with events of a kind."""
    event = pl.col(kind.member)
    if kind.detail is not None:
        return event.struct.field(kind.detail).is_not_null()
    if kind.classes is not None:
        classes = [str(number) for number in kind.classes]
        return event.is_not_null() & event.struct.field("eventClass").is_in(classes)
    return event.is_not_null()


def _convert_rows(kind: ExportedEvents, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the source columns of events."""
    columns = []
    for column, path in kind.columns.items():
        value = pl.col(kind.member)
        for name in path.split("."):
            value = value.struct.field(name)
        columns.append(_convert_expr(kind, column, value).alias(column))
    return rows.select(columns)


def _convert_expr(kind: ExportedEvents, column: str, value: pl.Expr) -> pl.Expr:
    """Return an expression for the values of a source column, given an expression for their strings."""
    if kind.table == "PROCESSES" and column == "name":
        command = pl.col(kind.member).struct.field("Command").str.replace(r"(?s)^.*[/\\]", "")
        return pl.coalesce(value, command)
    if column in kind.texts:
        return value
    if column in ("doubleValue", "floatValue"):
        return value.cast(pl.Float64)
    if column in kind.labels:
        numbers = value.replace_strict(kind.labels[column], default=None, return_dtype=pl.Int64)
        return pl.coalesce(numbers, value.cast(pl.Int64, strict=False))
    is_negative = value.str.starts_with("-")
    unsigned = pl.when(~is_negative).then(value).cast(pl.UInt64).reinterpret(signed=True)
    return pl.coalesce(pl.when(is_negative).then(value).cast(pl.Int64), unsigned)
