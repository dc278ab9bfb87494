"""Restore the tables of traces that tracekit wrote.

The first annotation of an event is the id of its row, such as ``kernel_id``, which determines the table. Other
annotations have the names of columns, and the description of a track contains the columns that its events share.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.columns import build_null_array, build_number_array
from tracekit.readers.common.slices import NONE
from tracekit.readers.pftrace.annotations import BOOL, DOUBLE, SIGNED, TEXT, UNSIGNED
from tracekit.readers.pftrace.events import ANNOTATIONS, COUNTER
from tracekit.readers.pftrace.strings import NO_STRING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracekit.readers.common.protobuf.decoding import Int64Array
    from tracekit.readers.pftrace.annotations import Annotations
    from tracekit.readers.pftrace.events import SliceStream, TrackEventDecoder, TrackEvents
    from tracekit.readers.pftrace.packets import DecodedPackets
    from tracekit.readers.pftrace.strings import TraceStrings
    from tracekit.readers.pftrace.tracks import DescribedTracks, MatchedEnds

PROJECTION = "projection"


class NameColumn(NamedTuple):
    """The column that the names of events contain, and the name of events without one.

    Attributes:
        column: The column, or None if the name of an event follows from other columns.
        default: The name of an event for which the column is null.
    """

    column: str | None = None
    default: str = ""


NAME_COLUMNS = {
    "kernels": NameColumn("short_name", "kernel"),
    "memcpys": NameColumn(),
    "memsets": NameColumn(),
    "graph_launches": NameColumn(),
    "syncs": NameColumn("sync_type", "sync"),
    "cuda_events": NameColumn(),
    "api_calls": NameColumn("name", "API call"),
    "osrt_calls": NameColumn("name", "OS runtime call"),
    "nvtx_ranges": NameColumn("name", "(no text)"),
    "nvtx_marks": NameColumn("name", "(no text)"),
    "gpu_page_faults": NameColumn(),
    "library_calls": NameColumn("name", "library call"),
    "syscalls": NameColumn("name", "system call"),
    "jit_operations": NameColumn("operation_type", "compilation"),
    "overheads": NameColumn("overhead_type", "overhead"),
    "cuda_overheads": NameColumn("overhead_type", "overhead"),
    "memory_pool_events": NameColumn("operation", "memory pool"),
    "diagnostics": NameColumn("text", "diagnostic message"),
}
"""The tables that are restored. The other tables that a trace draws have columns without which a row is not valid."""
_RENAMED = {
    "static_shared_bytes": "static_shared_memory_bytes",
    "dynamic_shared_bytes": "dynamic_shared_memory_bytes",
}
_DERIVED = {"throughput_gb_per_s", "nvtx_path", "depth", "gpu_op_count", "gpu_time_ns"}
_TRIPLES, PAYLOAD, _COLOR, _OPEN, _NEGATIVE = ("grid", "block"), "payload", "color", "open", "negative_duration_ns"
_INT, _REAL, _STRING = "int", "real", "string"
_FLOAT_TYPES = ("double", "float")
_TRIPLE = r"^\[(\d{1,10}),(\d{1,10}),(\d{1,10})\]$"
_RGB = r"^#([0-9A-Fa-f]{6})$"
_OPAQUE = 0xFF000000
_FEW_ROWS = 1 << 10
_NO_STREAM_NAME = re.compile(r" · (?:sync|CUDA events|lane \d+)$")
_LANE = re.compile(r" · lane \d+$")


@functools.cache
def find_key_tables() -> dict[str, str]:
    """Return the table to which each name of a row id belongs."""
    tables = schemas.tables()
    timed = {name: table for name, table in tables.items() if {"start_ns", "timestamp_ns"} & {*table.names}}
    computed = ("nvtx_projections", "op_instances")
    return {table.names[0]: name for name, table in timed.items() if name not in computed}


@functools.cache
def list_values(table: str) -> dict[str, str]:
    """Return the types in which the annotations of the events of a table are stored, by name of the annotation."""
    values: dict[str, str] = {}
    for column in schemas.arrow_schema(schemas.table(table)):
        if column.name.startswith(("payload_", *(f"{name}_" for name in _TRIPLES))) and column.name != "payload_type":
            continue
        is_text = pa.types.is_dictionary(column.type) or pa.types.is_string(column.type)
        values[column.name] = _STRING if is_text else _REAL if pa.types.is_floating(column.type) else _INT
    values |= {new: values[old] for new, old in _RENAMED.items() if old in values}
    values |= dict.fromkeys((_OPEN, _NEGATIVE), _INT)
    if table == "kernels":
        values |= dict.fromkeys(_TRIPLES, _STRING)
    if _COLOR in values:
        values |= {_COLOR: _STRING, **{f"{PAYLOAD} {kind}": kind for kind in (_INT, _REAL, _STRING)}}
    return {name: kind for name, kind in values.items() if name not in ("start_ns", "end_ns", "timestamp_ns")}


class _NamedAnnotations(NamedTuple):
    """Annotations with their distinct names, and the index of the name of each."""

    annotations: Annotations
    names: list[str]
    numbers: Int64Array


class RestoredEvents:
    """Collector of the events of a trace that tracekit wrote."""

    def __init__(self, decoder: TrackEventDecoder, slices: SliceStream) -> None:
        self._decoder = decoder
        self._slices = slices
        self._builders = {table: TableBuilder(_FEW_ROWS) for table in NAME_COLUMNS}
        self._counters = TableBuilder(_FEW_ROWS)
        self._names: dict[int, str] = {}
        """Names of annotations, by the codes of the strings."""

    def add(self, batch: DecodedPackets, events: TrackEvents) -> None:
        """Add the events in a batch of packets.

        Raises:
            Damage: An annotation is invalid.
        """
        positions = self._slices.add(events)
        decoder = self._decoder.create_annotation_decoder(batch)
        annotations = decoder.decode(events.starts, events.stops, events.states, ANNOTATIONS)
        names, numbers = self._number_names(annotations)
        tables = np.full(len(events.types), NONE, np.int64)
        keys = find_key_tables()
        table_names = [*NAME_COLUMNS]
        for number, name in enumerate(names):
            if name in keys:
                owners = annotations.owners[numbers == number]
                table = keys[name]
                tables[owners] = table_names.index(table) if table in NAME_COLUMNS else len(table_names)
                if table not in NAME_COLUMNS:
                    self._decoder.undecoded[f"rows of {table}"] += len(owners)
        for index, table in enumerate(table_names):
            rows = np.flatnonzero(tables == index)
            if len(rows):
                chosen = tables[annotations.owners] == index
                places = np.cumsum(tables == index) - 1
                values = self._scatter(table, _NamedAnnotations(annotations, names, numbers), chosen, places)
                self._builders[table].append(
                    {
                        "track": build_number_array(events.tracks[rows].astype(np.int32)),
                        "time": build_number_array(events.times[rows]),
                        "position": build_number_array(positions[rows]),
                        "event_name": build_number_array(events.names[rows].astype(np.int32)),
                        **values,
                    }
                )
        self._add_counters(events)

    def _number_names(self, annotations: Annotations) -> tuple[list[str], Int64Array]:
        """Return the distinct names of annotations, and the index of the name of each."""
        codes, inverse = np.unique(annotations.names, return_inverse=True)
        unknown = [code for code in codes.tolist() if code not in self._names and code != NO_STRING]
        self._names |= dict(zip(unknown, self._decoder.pool.get_texts(unknown), strict=True))
        return [self._names.get(code, "") for code in codes.tolist()], inverse.astype(np.int64)

    @staticmethod
    def _scatter(table: str, named: _NamedAnnotations, chosen: np.ndarray, places: Int64Array) -> dict[str, pa.Array]:
        """Return the values of the annotations of the events of a table, by name, with one element per event.

        Args:
            table: Name of the table.
            named: The annotations of all events.
            chosen: Mask of the annotations of the events of the table.
            places: Index of each event among the events of the table.
        """
        annotations, names, numbers = named
        rows = int(places[-1]) + 1
        result: dict[str, pa.Array] = {}
        for name, kind in list_values(table).items():
            name_of_annotation = name.partition(" ")[0]
            mask = chosen & (numbers == names.index(name_of_annotation)) if name_of_annotation in names else None
            dtype, kinds = {
                _INT: (np.int64, (SIGNED, UNSIGNED, BOOL)),
                _REAL: (np.float64, (DOUBLE,)),
                _STRING: (np.int32, (TEXT,)),
            }[kind]
            if mask is not None:
                mask &= np.isin(annotations.kinds, kinds)
            if mask is None or not mask.any():
                result[name] = build_null_array(rows, pa.from_numpy_dtype(dtype))
                continue
            values, valid = np.zeros(rows, dtype), np.zeros(rows, np.bool_)
            owners, numbers_of = places[annotations.owners[mask]], annotations.values[mask]
            values[owners] = numbers_of.view(np.float64) if kind == _REAL else numbers_of
            valid[owners] = True
            result[name] = build_number_array(values, None if valid.all() else valid)
        return result

    def _add_counters(self, events: TrackEvents) -> None:
        rows = np.flatnonzero(events.types == COUNTER)
        if not len(rows):
            return
        whole, is_whole, real, is_real = self._decoder.read_counters(events)
        self._counters.append(
            {
                "track": build_number_array(events.tracks[rows].astype(np.int32)),
                "time": build_number_array(events.times[rows]),
                "whole": build_number_array(whole[rows], is_whole[rows]),
                "real": build_number_array(real[rows].view(np.float64), is_real[rows]),
            }
        )

    def build_tables(
        self, tracks: DescribedTracks, ends: MatchedEnds, strings: TraceStrings, shift_ns: int
    ) -> dict[str, pl.DataFrame]:
        """Return the tables of the trace.

        Args:
            tracks: The tracks of the trace.
            ends: The ends of slices.
            strings: The strings of the trace.
            shift_ns: What was added to all times.
        """
        attributes = tracks.read_attributes()
        tables: dict[str, pl.DataFrame] = {}
        for table, builder in self._builders.items():
            columns = builder.finish()
            if columns:
                tables[table] = _TableRestorer(table, attributes, ends, strings, shift_ns).restore(columns)
        columns = self._counters.finish()
        if columns:
            tables |= self._restore_counters(columns, attributes, tracks, strings, shift_ns)
        return tables

    def _restore_counters(
        self,
        columns: Mapping[str, Any],
        attributes: list[dict[str, Any]],
        tracks: DescribedTracks,
        strings: TraceStrings,
        shift_ns: int,
    ) -> dict[str, pl.DataFrame]:
        frame = pl.DataFrame({name: pl.Series(values) for name, values in columns.items()})
        about = pl.DataFrame(
            {
                "track": pl.Series(range(len(attributes)), dtype=pl.Int32),
                "table": pl.Series([str(each.get("table", "")) for each in attributes], dtype=pl.String),
                "label": pl.Series(strings.build(tracks.names).cast(pa.string())),
                **{
                    column: pl.Series([get_integer(each, column) for each in attributes], dtype=pl.Int64)
                    for column in ("process_id", "device_id")
                },
            }
        )
        frame = frame.join(about, on="track", how="left", maintain_order="left")
        frame = frame.with_columns(timestamp_ns=pl.col("time") - shift_ns)
        parts = dict(frame.partition_by("table", as_dict=True, maintain_order=True))
        by_table = {str(key[0]): part for key, part in parts.items()}
        tables: dict[str, pl.DataFrame] = {}
        for table, part in by_table.items():
            if table == "gpu_metrics":
                named = part.select("label").unique(maintain_order=True).with_row_index("metric_id", offset=1)
                metrics = part.join(named, on="label", how="left", maintain_order="left")
                tables[table] = metrics.select(
                    *("timestamp_ns", "device_id"), pl.col("metric_id").cast(pl.Int64), metric="label", value="whole"
                ).drop_nulls(["device_id", "value"])
            elif table == "counters":
                tables[table] = _restore_counter_values(part)
            else:
                self._decoder.undecoded[f"values of {table or 'unknown counters'}"] += part.height
        return tables


def _restore_counter_values(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the table of counters. The label of a track is a name and a field, or both if they are equal."""
    name = pl.col("label").str.extract(r"(?s)^(.*): .*$", 1)
    field = pl.col("label").str.extract(r"(?s)^.*: (.*)$", 1)
    return frame.sort("timestamp_ns", maintain_order=True).select(
        *("timestamp_ns", "process_id"),
        event_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64),
        name=pl.coalesce(name, "label"),
        field=pl.coalesce(field, "label"),
        value_type=pl.when(pl.col("whole").is_not_null()).then(pl.lit("int64")).otherwise(pl.lit("double")),
        value_int="whole",
        value_float="real",
    )


class _TableRestorer:
    """Restores the columns of one table from the collected annotations of its events."""

    def __init__(
        self, table: str, attributes: list[dict[str, Any]], ends: MatchedEnds, strings: TraceStrings, shift_ns: int
    ) -> None:
        self._table = table
        self._attributes = attributes
        self._ends = ends
        self._strings = strings
        self._shift_ns = shift_ns
        self._declared = schemas.arrow_schema(schemas.table(table))

    def restore(self, columns: Mapping[str, Any]) -> pl.DataFrame:
        """Return the rows of the table in the order of their ids."""
        frame = pl.DataFrame({name: pl.Series(values) for name, values in columns.items()})
        if self._table == "nvtx_ranges":
            kinds = pl.Series([str(each.get("kind", "push_pop")) for each in self._attributes], dtype=pl.String)
            frame = frame.with_columns(kind=kinds.gather(frame["track"]).cast(pl.Categorical))
            frame = frame.filter(pl.col("kind").cast(pl.String).ne_missing(PROJECTION))
        values = {}
        for each in (
            *self._track_column_exprs(frame["track"]),
            *self._time_exprs(frame),
            *self._iterate_columns(frame),
        ):
            values[each.name if isinstance(each, pl.Series) else each.meta.output_name()] = each
        rest = [name for name in self._declared.names if name in frame.columns and name not in values]
        frame = frame.select(*rest, **values)
        present = [name for name in self._declared.names if name in frame.columns]
        narrow = [field.name for field in self._declared if field.type == pa.int32() and field.name in present]
        frame = frame.with_columns(pl.col(narrow).cast(pl.Int32, strict=False))
        required = [field.name for field in self._declared if not field.nullable and field.name in present]
        if any(frame[name].null_count() for name in required):
            frame = frame.drop_nulls(required)
        key = self._declared.names[0]
        return frame.select(present) if frame[key].is_sorted() else frame.select(present).sort(key)

    def _track_column_exprs(self, numbers: pl.Series) -> list[pl.Expr]:
        """Return the columns that the descriptions of tracks contain, or else annotations."""
        columns = []
        for name in ("process_id", "thread_id", "device_id", "context_id", "stream_id", "domain_id"):
            if name in self._declared.names:
                values = [get_integer(each, name) for each in self._attributes]
                of_track = pl.Series(values, dtype=pl.Int64).gather(numbers)
                columns.append(pl.coalesce(pl.lit(of_track), pl.col(name)).alias(name))
        return columns

    def _time_exprs(self, frame: pl.DataFrame) -> list[pl.Expr]:
        start = pl.col("time") - self._shift_ns
        if "start_ns" not in self._declared.names:
            return [start.alias("timestamp_ns")]
        positions = frame["position"].to_numpy()
        ends = self._ends.times[np.maximum(positions, 0)] if len(self._ends.times) else np.zeros(len(positions))
        end = pl.Series(build_number_array(ends.astype(np.int64), (positions != NONE) & (ends != NONE)))
        return [
            start.alias("start_ns"),
            pl.when(pl.col(_OPEN).fill_null(0) == 1)
            .then(None)
            .otherwise(pl.coalesce(start + pl.col(_NEGATIVE), pl.lit(end) - self._shift_ns))
            .alias("end_ns"),
        ]

    def _iterate_columns(self, frame: pl.DataFrame) -> Iterator[pl.Series | pl.Expr]:
        """Yield the columns that annotations and names of events contain, unless a track contains them."""
        values, name_column = list_values(self._table), NAME_COLUMNS[self._table]
        for name, kind in values.items():
            column = _RENAMED.get(name, name)
            is_special = name in (*_TRIPLES, _COLOR, "kind") or (name.startswith(PAYLOAD) and name != "payload_type")
            if is_special or column == name_column.column:
                continue
            if kind == _STRING and column in self._declared.names:
                yield self._build_strings(frame[name], column)
            elif name in _RENAMED:
                yield pl.col(name).alias(column)
        if self._table == "kernels":
            yield from self._iterate_sizes(frame)
        if _COLOR in values:
            rgb = pl.col("text").str.extract(_RGB, 1).str.to_integer(base=16, strict=False).cast(pl.Int64)
            yield self._map(frame[_COLOR], rgb + _OPAQUE).alias(_COLOR)
            yield from self._iterate_payload_columns(frame)
        if self._table == "api_calls":
            # The API of a call of CUDA is not written, because it follows from the name.
            of_name = pl.when(pl.col("text").str.contains("^cu[A-Z]")).then(pl.lit("CUDA driver"))
            api = self._map(frame["event_name"], of_name.otherwise(pl.lit("CUDA runtime")).cast(pl.Categorical))
            yield pl.coalesce(pl.lit(self._build_strings(frame["api"], "api")), pl.lit(api)).alias("api")
        if name_column.column is not None:
            yield self._build_strings(frame["event_name"], name_column.column, ignored=name_column.default)

    def _iterate_sizes(self, frame: pl.DataFrame) -> Iterator[pl.Series]:
        """Yield the sizes of grids and blocks."""
        for name in _TRIPLES:
            for nth, axis in enumerate("xyz", 1):
                size = pl.col("text").str.extract(_TRIPLE, nth).cast(pl.Int64, strict=False)
                yield self._map(frame[name], size).alias(f"{name}_{axis}")

    def _iterate_payload_columns(self, frame: pl.DataFrame) -> Iterator[pl.Series]:
        payload = pl.DataFrame(
            {
                "type": self._build_strings(frame["payload_type"], "type").cast(pl.String),
                "whole": frame[f"{PAYLOAD} {_INT}"],
                "real": frame[f"{PAYLOAD} {_REAL}"],
                "text": self._build_strings(frame[f"{PAYLOAD} {_STRING}"], "text").cast(pl.String),
            }
        )
        is_real = pl.col("type").is_in(_FLOAT_TYPES)
        special = pl.when(is_real).then(pl.col("text").cast(pl.Float64, strict=False))
        yield payload.select(payload_int="whole").to_series()
        yield payload.select(payload_float=pl.coalesce("real", special)).to_series()
        yield payload.select(payload_text=pl.when(is_real.fill_null(value=False).not_()).then("text")).to_series()

    def _build_strings(self, codes: pl.Series, name: str, ignored: str | None = None) -> pl.Series:
        """Return the strings with some codes. ``ignored`` is a string that becomes null."""
        built = self._strings.build(codes.fill_null(NO_STRING).to_numpy(), ignored)
        return pl.Series(built).cast(pl.Categorical).alias(name)

    def _map(self, codes: pl.Series, expression: pl.Expr) -> pl.Series:
        """Evaluate an expression for the distinct strings with some codes, which are in the column ``text``."""
        built = self._strings.build(codes.fill_null(NO_STRING).to_numpy())
        values = pl.Series("text", built.dictionary).cast(pl.String).to_frame().select(expression).to_series()
        return values.gather(pl.Series(built.indices))


def get_integer(attributes: Mapping[str, Any], name: str) -> int | None:
    """Return an attribute of a track that is an integer of 64 bits, or None."""
    value = attributes.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -(1 << 63) <= value < 1 << 63 else None


def find_thread_name(label: str, thread: int) -> str | None:
    """Return the name of a thread in the name of a track, such as ``python`` in ``CUDA API · python 1234``."""
    text = _LANE.sub("", label).rpartition(" · ")[2]
    name = text.removesuffix(f" {thread}")
    return None if name in (text, "thread") else name


def find_stream_name(label: str) -> str | None:
    """Return the name of a stream in the name of a track, such as ``copies`` in ``stream 7 · copies``."""
    _, *parts = _NO_STREAM_NAME.sub("", label).split(" · ")
    if parts and re.fullmatch(r"context \d+", parts[0]):
        parts = parts[1:]
    return " · ".join(parts) or None
