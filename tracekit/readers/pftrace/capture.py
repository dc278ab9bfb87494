"""Build declared tables from a Perfetto trace, all of whose packets are read when it is opened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import MissingTableError, UnknownFormatError, format_count, warn
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage, check_time_span, convert_damage, warn_about_trailing_bytes
from tracekit.readers.common.frame_capture import FrameCapture
from tracekit.readers.common.json.heads import GZIP
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.pftrace import sniff
from tracekit.readers.pftrace.events import ZSTD, SliceStream, TrackEventDecoder
from tracekit.readers.pftrace.exported import (
    NAME_COLUMNS,
    RestoredEvents,
    find_stream_name,
    find_thread_name,
    get_integer,
)
from tracekit.readers.pftrace.gpu import GpuEvents
from tracekit.readers.pftrace.packets import PacketReader
from tracekit.readers.pftrace.ranges import ForeignEvents
from tracekit.readers.pftrace.tracks import DescribedTracks, match_stream
from tracekit.registry.detection import describe_unrecognized
from tracekit.registry.interface import Undecoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tracekit.registry.source import Source

_COPY_AGAIN = "copy the trace again from its source, or record it again"
_NO_ZSTD = "record the trace without zstd, or decompress it with `traceconv decompress_packets IN OUT` of Perfetto"
PRODUCER = "tracekit"
_EXPORTED_METADATA = ("tool", "tool_version")
_EARLIEST_UTC_NS = 946_684_800_000_000_000
"""Start of the year 2000. Earlier times are not dates."""
_UNMATCHED, _FLOWS = "ends of slices without a beginning", "events with flows"
_ACTIVITIES = ("kernels", "memcpys", "memsets", "graph_launches")
_ON_STREAMS = (*_ACTIVITIES, "syncs", "cuda_events")
_TIMES = ("start_ns", "end_ns", "timestamp_ns")
_DIGITS = re.compile(r"\d{1,19}", re.ASCII)
_METADATA_TABLES = ("processes", "threads", "devices", "contexts", "streams", "capture_info")


def read_trace(source: Source) -> PerfettoCapture:
    """Read a Perfetto trace, and return its tables.

    Raises:
        UnknownFormatError: The file is not a Perfetto trace. The message names the probable type of the file.
        CorruptTraceError: The file is damaged, or is a truncated file of tracekit.
        MissingTableError: The file contains no events.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    path, budget = source.path, Budget(source.size)
    if not sniff(source):
        what, hint = describe_unrecognized(
            source, ("this is not a Perfetto trace", "read a file that ends in .pftrace")
        )
        raise UnknownFormatError(what, path=path, hint=hint)
    with source.open() as file, convert_damage(path, file=file):
        with Stream(file, compressed=source.head.startswith(GZIP)) as stream:
            packets = PacketReader(stream, budget)
            capture = PerfettoCapture(packets, budget)
        file.check_unchanged()
        if stream.damage or packets.is_truncated:
            reason = stream.damage or "its last packet is incomplete"
            if capture.is_exported or not packets.count:
                raise Damage(f"the file is truncated ({reason}) after {packets.count:,} packets")
            read = format_count(packets.count, "complete packet", "were read", "was read")
            warn(f"the file is truncated ({reason}): {read}", path=path)
        warn_about_trailing_bytes(path, stream.trailing_bytes)
    capture.require_events(path)
    capture.warn_about_unreadable_packets(path)
    return capture


class PerfettoCapture(FrameCapture):
    """The tables of a Perfetto trace.

    Attributes:
        is_exported: Whether tracekit wrote the trace.
    """

    def __init__(self, packets: PacketReader, budget: Budget) -> None:
        """Read all packets, and build all tables.

        Raises:
            Damage: A packet is invalid, or the packets exceed the memory budget.
        """
        super().__init__()
        decoder, slices = TrackEventDecoder(budget), SliceStream()
        gpu = GpuEvents(decoder, budget)
        collector: RestoredEvents | ForeignEvents | None = None
        for batch in packets.iterate_batches():
            events = decoder.decode(batch)
            if collector is None:
                is_exported = decoder.descriptors.metadata.get("producer") == PRODUCER
                collector = RestoredEvents(decoder, slices) if is_exported else ForeignEvents(decoder, slices, budget)
            decoder.count_extras(events)
            collector.add(batch, events)
            gpu.add(batch)
        self.is_exported = isinstance(collector, RestoredEvents)
        self._metadata = decoder.descriptors.metadata
        strings = decoder.pool.get_columns()
        tracks, unmatched = DescribedTracks(decoder.descriptors, decoder.tracks.keys, strings), 0
        shift_ns = _parse_integer(self._metadata.get("shift_ns")) or 0 if self.is_exported else 0
        if isinstance(collector, RestoredEvents):
            ends = match_stream(slices, tracks.same)
            self._tables, unmatched = collector.build_tables(tracks, ends, strings, shift_ns), ends.unmatched
        elif collector is not None:
            self._tables, unmatched = collector.build_tables(tracks, strings)
        self._undecoded = decoder.undecoded
        self._undecoded[_UNMATCHED] += unmatched
        self._flows = decoder.flows
        if not self.is_exported:
            for name, frame in gpu.build_tables(strings).items():
                frames = [self._tables[name], frame] if name in self._tables else [frame]
                self._tables[name] = pl.concat(frames, how="diagonal_relaxed")
        elif not any(name in self._tables for name in _ACTIVITIES):  # the same activities may be drawn twice
            self._tables |= gpu.build_exported_tables(strings, shift_ns)
        utc_offset = packets.clocks.find_utc_offset()
        origin = 0 if self.is_exported else self._subtract_origin()
        self._add_metadata_tables(tracks, decoder)
        self._add_capture_info(utc_offset, origin, shift_ns)

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of events that are in no table, by class."""
        counts = {name: Undecoded(count) for name, count in self._undecoded.items() if count}
        return counts | ({_FLOWS: Undecoded(self._flows, is_auxiliary=True)} if self._flows else {})

    def can_contain(self, name: str) -> bool:
        """Return whether a Perfetto trace can contain rows of a table."""
        return name in (*NAME_COLUMNS, "counters", "gpu_metrics", *_METADATA_TABLES)

    def require_events(self, path: Path) -> None:
        """Raise an error if the file contains no events that belong to a table."""
        if self.is_exported or any(self._tables[n].height for n in self._tables if n not in _METADATA_TABLES):
            return
        undecoded = sum(self._undecoded.values())
        if self._undecoded[ZSTD]:
            raise MissingTableError(f"the trace contains only {ZSTD}", path=path, hint=_NO_ZSTD)
        raise MissingTableError(
            f"the trace contains no slices, instants, counters or events of GPUs, but {undecoded:,} other events",
            path=path,
            hint="record track events or GPU render stages, or open the trace at https://ui.perfetto.dev",
        )

    def warn_about_unreadable_packets(self, path: Path) -> None:
        """Warn if packets are compressed in a way that tracekit does not read."""
        if count := self._undecoded[ZSTD]:
            warn(f"{count:,} {ZSTD} were skipped, so that events are missing: {_NO_ZSTD}", path=path)

    def _subtract_origin(self) -> int:
        """Make times relative to the earliest event, and return its time.

        Raises:
            Damage: The events extend over more than 2^63 ns.
        """
        first = min(self._iterate_bounds(pl.Expr.min), default=0)
        check_time_span(first, max(self._iterate_bounds(pl.Expr.max), default=0))
        for name, frame in self._tables.items():
            self._tables[name] = frame.with_columns(pl.col(c) - first for c in _TIMES if c in frame.columns)
        return first

    def _iterate_bounds(self, function: Callable[[pl.Expr], pl.Expr]) -> Iterator[int]:
        """Yield the earliest or the latest time in each column of times."""
        for frame in self._tables.values():
            for column in _TIMES:
                bound = frame.select(function(pl.col(column))).item() if column in frame.columns else None
                if bound is not None:
                    yield bound

    def _add_metadata_tables(self, tracks: DescribedTracks, decoder: TrackEventDecoder) -> None:
        keys = ["process_id", "thread_id"]
        empty = pl.DataFrame(schema=dict.fromkeys(keys, pl.Int64))
        used = [
            frame.select(*(k if k in frame.columns else pl.lit(None, pl.Int64).alias(k) for k in keys))
            for frame in self._tables.values()
            if "process_id" in frame.columns
        ]
        ids = pl.concat([empty, *used]).unique(maintain_order=True)
        names = tracks.list_names(decoder.descriptors)
        processes = names.filter(pl.col("tid").is_null()).drop_nulls("name")
        named = {pid: _strip_folder(name) for pid, name in processes.select("pid", "name").iter_rows()}
        if self.is_exported:
            named = {pid: name.removesuffix(f" · pid {pid}") for pid, name in named.items()}
            threads = self._list_exported_threads(tracks)
            self._add_gpu_tables(tracks, names)
        else:
            rows = names.drop_nulls(["tid", "name"]).unique(["pid", "tid"], keep="last", maintain_order=True)
            threads = rows.select(process_id="pid", thread_id="tid", name="name")
        process_ids = sorted({*ids["process_id"].drop_nulls().to_list(), *([] if self.is_exported else named)})
        self._tables["processes"] = pl.DataFrame(
            {"process_id": process_ids, "name": [named.get(pid) for pid in process_ids]},
            {"process_id": pl.Int64, "name": pl.String},
        )
        self._tables["threads"] = threads

    def _list_exported_threads(self, tracks: DescribedTracks) -> pl.DataFrame:
        rows: dict[tuple[int, int], str] = {}
        for about, label in zip(tracks.read_attributes(), tracks.read_texts("thread_text"), strict=True):
            process, thread = get_integer(about, "process_id"), get_integer(about, "thread_id")
            if process is not None and thread is not None and label is not None:
                name = find_thread_name(label, thread)
                if name is not None:
                    rows.setdefault((process, thread), name)
        schema = {"process_id": pl.Int64, "thread_id": pl.Int64, "name": pl.String}
        return pl.DataFrame([(*ids, name) for ids, name in rows.items()], schema, orient="row")

    def _add_gpu_tables(self, tracks: DescribedTracks, names: pl.DataFrame) -> None:
        """Add the devices, contexts and streams with activities."""
        keys = {"process_id": pl.Int64, "device_id": pl.Int64, "context_id": pl.Int64, "stream_id": pl.Int64}
        frames = [
            frame.select(pl.col(key).cast(pl.Int64) for key in keys).with_columns(
                is_activity=pl.lit(name in _ACTIVITIES)
            )
            for name, frame in self._tables.items()
            if name in _ON_STREAMS
        ]
        on_streams = pl.concat([pl.DataFrame(schema=keys | {"is_activity": pl.Boolean}), *frames]).unique()
        used = on_streams.filter("is_activity")
        has_context = pl.col("context_id") != 0
        of_streams = on_streams.drop_nulls(["process_id", "context_id"]).filter(has_context)
        of_streams = of_streams.sort(pl.col("is_activity").not_(), *keys)
        contexts = of_streams.filter("is_activity").sort(list(keys))
        contexts = contexts.unique(["process_id", "context_id"], keep="first", maintain_order=True)
        self._tables["contexts"] = contexts.select("process_id", "context_id", "device_id")
        labels = {
            tuple(get_integer(about, name) for name in ("process_id", "context_id", "stream_id")): find_stream_name(
                label
            )
            for about, label in zip(tracks.read_attributes(), tracks.read_texts("thread_text"), strict=True)
            if label is not None and "stream_id" in about and "kind" not in about
        }
        streams = (
            of_streams.drop_nulls("stream_id")
            .select("process_id", "context_id", "stream_id")
            .unique(maintain_order=True)
        )
        self._tables["streams"] = streams.with_columns(
            name=pl.Series([labels.get(key) for key in streams.iter_rows()], dtype=pl.String)
        )
        device_names: dict[int, str] = {}
        for label in names.filter(pl.col("tid").is_null())["name"].drop_nulls():
            kind, _, rest = label.partition(" ")
            number, _, name = rest.partition(" · ")[0].partition(" ")
            if kind == "GPU" and _DIGITS.fullmatch(number) and name:
                device_names.setdefault(int(number), name)
        metrics = self._tables.get("gpu_metrics", pl.DataFrame(schema={"device_id": pl.Int64}))
        ids = sorted({*used["device_id"].drop_nulls().to_list(), *metrics["device_id"].unique().to_list()})
        self._tables["devices"] = pl.DataFrame(
            {"device_id": ids, "cuda_device_id": ids, "name": [device_names.get(each) for each in ids]},
            {"device_id": pl.Int64, "cuda_device_id": pl.Int64, "name": pl.String},
        )

    def _add_capture_info(self, utc_offset: int | None, origin: int, shift_ns: int) -> None:
        end = max(self._iterate_bounds(pl.Expr.max), default=0)
        if self.is_exported:
            utc = _parse_integer(self._metadata.get("origin_utc_ns"))
            info = {name: self._metadata.get(name) for name in _EXPORTED_METADATA}
            info["origin_utc_ns"] = None if utc is None else str(utc + shift_ns)
        else:
            utc = None if utc_offset is None else utc_offset + origin
            info = {
                "tool": "Perfetto",
                "origin_utc_ns": str(utc) if utc is not None and utc >= _EARLIEST_UTC_NS else None,
            }
        info["duration_ns"] = str(end)
        rows = {name: value for name, value in info.items() if value is not None}
        self._tables["capture_info"] = pl.DataFrame({"name": list(rows), "value": list(rows.values())})


def _parse_integer(text: str | None) -> int | None:
    return int(text) if text is not None and _DIGITS.fullmatch(text) else None


def _strip_folder(name: str) -> str:
    """Return the name of a process without folders and arguments, because these may identify a user."""
    return name.replace("\\", "/").rpartition("/")[2] if name.startswith(("/", ".", "~")) or "\\" in name else name
