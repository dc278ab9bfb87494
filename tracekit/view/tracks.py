"""Read the tracks of a capture for the timeline: its events, counters and steps, and what the diagnosis says of them.

A *part* of the timeline is read when it is first shown, so that kernels are shown before everything else is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import polars as pl

from tracekit.core import categories
from tracekit.core.diagnosis.ledger import IDLE_PARTS
from tracekit.exporters.timeline import batches, kinds
from tracekit.exporters.timeline.exporter import BY_DEFAULT, ON_REQUEST
from tracekit.exporters.timeline.tracks import SYNC_TRACKS, TrackNames
from tracekit.registry.tables import count_rows, prefetch, read_table, scan_table
from tracekit.system.sorting import create_series
from tracekit.trace import get_trace_view
from tracekit.view.windows import Lanes, TimeWindow, arrange_lanes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracekit.core.diagnosis.answer import CauseOfTime
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.tracks import Placement
    from tracekit.registry.tables import Tables
    from tracekit.system.sorting import Array
    from tracekit.trace import Trace

    Stages = tuple[tuple[EventKind, ...], ...]

STEPS, GPU, CPU, RANGES, COUNTERS, OTHER, CAUSES = "steps", "gpu", "cpu", "ranges", "counters", "other", "causes"
_ON_GPU, _PROJECTIONS, _PAGE_FAULTS = "gpu", "projections", "page-faults"
_OVERHEADS = "overheads"
_ON_CPU = tuple(n for n in BY_DEFAULT if n not in (_ON_GPU, _PROJECTIONS, _PAGE_FAULTS, COUNTERS, _OVERHEADS))
STAGES: dict[str, Stages] = {
    GPU: (*(s for s in kinds.group_kinds_by_stage((_ON_GPU,)) if kinds.SYNCS not in s), (kinds.GPU_PAGE_FAULTS,)),
    CPU: (*kinds.group_kinds_by_stage(_ON_CPU), (kinds.CPU_PAGE_FAULTS,)),
    RANGES: ((kinds.SYNCS,), *kinds.group_kinds_by_stage((_PROJECTIONS,))),
    COUNTERS: kinds.group_kinds_by_stage((COUNTERS,)),
    OTHER: kinds.group_kinds_by_stage((_OVERHEADS, *ON_REQUEST)),
}
"""Kinds of the events of each part that shows tables, by stage. Synchronizations and projections of ranges onto the GPU
are not in the part of the GPU, which would look busy while it is idle."""
PARTS = (STEPS, CAUSES, *STAGES)
"""The parts of the timeline from top to bottom."""
MAX_TRACKS = 400
"""Maximum number of tracks of a part. Others are counted."""
_KINDS = tuple(kind for stage in kinds.STAGES for kind in stage)
_CODES = {kind: code for code, kind in enumerate(_KINDS)}
IDLE, COMMUNICATION, STEP, WARM_UP, CAUSE = 200, 250, 251, 252, 253
"""Codes of events that are no kinds of their own: kernels that communicate, and annotations. Each part of the idle time
has its own code from ``IDLE`` on."""
_COLORS = {
    **{_CODES[kind]: kind.table for kind in _KINDS},
    COMMUNICATION: "communication",
    STEP: "step",
    WARM_UP: "warm-up",
    CAUSE: "cause",
    **{IDLE + number: f"idle-{number}" for number in range(len(IDLE_PARTS))},
}
_TABLES = {
    **dict.fromkeys(_COLORS, ""),
    **{_CODES[kind]: kind.table for kind in _KINDS},
    COMMUNICATION: kinds.KERNELS.table,
}
_STRINGS = pl.col(pl.Categorical).cast(pl.String)
_LARGEST_TIME = 1 << 61


class Kind(NamedTuple):
    """What the code of an event stands for.

    Attributes:
        table: Table of the event, or "" for an annotation.
        color: Name of its color.
    """

    table: str
    color: str


@dataclass(frozen=True, slots=True, eq=False)
class EventTrack:
    """A track of a capture.

    Attributes:
        part: The part of the timeline.
        number: Number of the track in its part.
        group: Name of the group of tracks.
        name: Name of the track.
        order: Sort key.
        device: The GPU, or None.
        lanes: The events of the track.
        labels: Labels of annotations by row number, or None for events of tables.
        values: Values of the events of a counter, in the order of ``lanes``, or None.
    """

    part: str
    number: int
    group: str
    name: str
    order: tuple[tuple[int, ...], tuple[int, ...]]
    device: int | None
    lanes: Lanes
    labels: pl.DataFrame | None = None
    values: Array | None = None


class TracksOfPart(NamedTuple):
    """The tracks of a part of a capture.

    Attributes:
        tracks: The first tracks.
        missing: Number of all other tracks.
    """

    tracks: tuple[EventTrack, ...]
    missing: int = 0

    @property
    def byte_count(self) -> int:
        """Size in bytes."""
        return sum(t.lanes.byte_count + (0 if t.values is None else t.values.nbytes) for t in self.tracks)


def get_kind(code: int) -> Kind:
    """Return what the code of an event stands for."""
    table = _TABLES[code]
    return Kind("nvtx_ranges" if table == "nvtx_projections" else table, _COLORS[code])


def list_parts(trace: Trace) -> list[str]:
    """Return the parts for which a capture has rows."""
    counts = trace.count_all()
    recorded = {part: any(counts.get(k.table) for stage in stages for k in stage) for part, stages in STAGES.items()}
    on_gpu = any(counts[kind.table] for kind in (kinds.KERNELS, kinds.MEMCPYS, kinds.MEMSETS, kinds.GRAPH_LAUNCHES))
    has_work = {STEPS: bool(counts["nvtx_ranges"]), CAUSES: on_gpu}
    recorded[RANGES] = recorded[RANGES] or (on_gpu and bool(counts["nvtx_ranges"]))
    return [part for part in PARTS if (recorded | has_work)[part]]


def count_events(trace: Trace, window: TimeWindow) -> int:
    """Return the number of the events that start in a window and that exports draw by default."""
    view = get_trace_view(trace)
    kinds_in_file = dict.fromkeys(kind for kind in iterate_kinds((GPU, CPU)) if count_rows(view.tables, kind.table))
    starts = {kind.table: kind.start for kind in kinds_in_file}
    inside = [
        scan_table(view.tables, table).select(start.is_between(window.start, window.end, closed="left").sum())
        for table, start in starts.items()
    ]
    return sum(frame.item() for frame in pl.collect_all(inside))


def read_steps(trace: Trace) -> TracksOfPart:
    """Return the track of the steps of a rolled-up trace, if it has steps."""
    return TracksOfPart(tuple(_read_steps(trace)))


def read_causes(trace: Trace, causes: Sequence[CauseOfTime]) -> TracksOfPart:
    """Return a track of the occurrences of causes, and tracks of the idle times of GPUs by part of the ledger.

    Args:
        trace: The rolled-up trace, whose aggregated iterations are examined.
        causes: The causes that occur in this trace.
    """
    return TracksOfPart(tuple(_read_annotations(trace, causes)))


def read_tracks(trace: Trace, part: str, span: TimeWindow) -> TracksOfPart:
    """Return the tracks of the events of a part of a capture.

    Args:
        trace: The trace of the capture.
        part: Name of a part that shows tables.
        span: Time of the events of the capture. Events that were never closed end with it.
    """
    tables = _get_tables(trace, part)
    stages = STAGES[part]
    prefetch(tables, _list_columns(tables, stages))
    names = TrackNames.read(tables)
    tracks: list[EventTrack] = []
    missing = 0
    for stage in stages:
        own, more = (_read_counters if part == COUNTERS else _read_stage)(part, tables, names, stage, span)
        tracks += own
        missing += more
    tracks.sort(key=lambda track: track.order)
    return TracksOfPart(tuple(tracks[:MAX_TRACKS]), missing + max(len(tracks) - MAX_TRACKS, 0))


def _get_tables(trace: Trace, part: str) -> Tables:
    """Return the tables of a part. Only two parts need the correlation of the capture, which takes longer."""
    return get_trace_view(trace.correlate() if part in (RANGES, COUNTERS) else trace).tables


def read_names(trace: Trace, track: EventTrack, indices: Array) -> pl.DataFrame:
    """Return the names and ids of events.

    Args:
        trace: The trace.
        track: The track of the events.
        indices: Indices of the events in ``track.lanes``.

    Returns:
        One row per event, in order: ``name`` (String), ``id`` (Int64, null without a row in a table).
    """
    row, code = create_series(track.lanes.rows[indices]), create_series(track.lanes.codes[indices])
    if track.labels is not None:
        return track.labels.select("name", "id").select(pl.all().gather(row))
    tables = _get_tables(trace, track.part)
    code = code.replace(COMMUNICATION, _CODES[kinds.KERNELS])
    rows = pl.DataFrame([row.alias("row"), code.alias("code")]).with_row_index("at")
    frames = [_read_names_of_kind(tables, _KINDS[cast("int", key[0])], own) for key, own in rows.group_by("code")]
    return pl.concat([_NO_NAMES, *frames]).sort("at").select("name", "id")


_NO_NAMES = pl.DataFrame(schema={"at": pl.UInt32, "name": pl.String, "id": pl.Int64})


def _read_names_of_kind(tables: Tables, kind: EventKind, rows: pl.DataFrame) -> pl.DataFrame:
    columns = list(dict.fromkeys([kind.key, *batches.list_column_names(kind.name)]))
    table = read_table(tables, kind.table, columns).take(rows["row"].to_arrow())
    frame = cast("pl.DataFrame", pl.from_arrow(table))
    return frame.select(
        rows["at"], kind.name.cast(pl.String).alias("name"), pl.col(kind.key).cast(pl.Int64).alias("id")
    )


def get_kind_of_table(table: str) -> EventKind | None:
    """Return the first kind of events of a table, or None if no track shows it."""
    return next((kind for kind in _KINDS if kind.table == table), None)


def iterate_kinds(parts: Iterable[str]) -> Iterator[EventKind]:
    """Yield the kinds of the events of parts."""
    return (kind for part in parts for stage in STAGES.get(part, ()) for kind in stage)


def _list_columns(tables: Tables, stages: Stages) -> dict[str, list[str]]:
    """Return the columns that tracks and names of events need, by table name."""
    needed: dict[str, list[str]] = {}
    for kind in (kind for stage in stages for kind in stage):
        available = set(tables.schema(kind.table).names)
        columns = [kind.key, *batches.list_position_columns(kind), *batches.list_column_names(kind.name, kind.where)]
        needed.setdefault(kind.table, []).extend(column for column in columns if column in available)
    return {table: list(dict.fromkeys(columns)) for table, columns in needed.items()}


def _scan_positions(tables: Tables, kind: EventKind, last: int) -> pl.LazyFrame | None:
    """Return the keys of the track, ``start``, ``end``, ``row`` and ``code`` of each event, or None without columns."""
    if not count_rows(tables, kind.table) or not batches.choose_event_columns(kind, tables.schema(kind.table).names):
        return None
    frame = scan_table(tables, kind.table).with_row_index("row")
    end = kind.end.fill_null(pl.max_horizontal(kind.start, last)) if kind.phase == kinds.SLICE else kind.start
    code = pl.lit(_CODES[kind], pl.UInt8)
    if kind is kinds.KERNELS:
        is_communication = categories.category_expr(kind.name.cast(pl.Categorical)) == categories.COMMUNICATION
        code = pl.when(is_communication).then(pl.lit(COMMUNICATION, pl.UInt8)).otherwise(code)
    return (frame if kind.where is None else frame.filter(kind.where)).select(
        *(pl.col(key) for key in kind.placement.keys),
        start=kind.start.clip(-_LARGEST_TIME, _LARGEST_TIME),
        end=end.clip(-_LARGEST_TIME, _LARGEST_TIME),
        row="row",
        code=code,
    )


def _read_stage(
    part: str, tables: Tables, names: TrackNames, stage: Sequence[EventKind], span: TimeWindow
) -> tuple[list[EventTrack], int]:
    """Return the first tracks of kinds of events that share tracks, and the number of other tracks."""
    scans = [scan for kind in stage if (scan := _scan_positions(tables, kind, span.end)) is not None]
    if not scans:
        return [], 0
    placement = stage[0].placement
    rows = pl.concat([scan.with_columns(_STRINGS).collect() for scan in scans], how="vertical_relaxed")
    suffix = " · marks" if stage[0] is kinds.NVTX_MARKS else ""
    tracks = []
    split, missing = _split_rows(rows, placement.keys)
    for number, (keys, own) in enumerate(split):
        track = placement.make_track(names, *keys)
        columns = (own[c].to_numpy() for c in ("start", "end", "row", "code"))
        drawn = EventTrack(
            part,
            number * len(_KINDS) + _CODES[stage[0]],
            track.group.name,
            (track.name or "") + suffix,
            (track.group.order, track.order),
            _get_device(names, placement, keys),
            arrange_lanes(*columns, nests=placement.nests),
        )
        tracks.append(drawn)
    return tracks, missing


def _get_device(names: TrackNames, placement: Placement, keys: Sequence[Any]) -> int | None:
    """Return the GPU of a track, or None if the track belongs to no GPU."""
    values = dict(zip(placement.keys, keys, strict=True))
    if placement is SYNC_TRACKS:  # CUPTI records device 0 even in processes that use another device
        return names.contexts.get((values["process_id"] or 0, values["context_id"])) or values["device_id"]
    return values.get("device_id")


def _split_rows(rows: pl.DataFrame, keys: Sequence[str]) -> tuple[list[tuple[tuple[Any, ...], pl.DataFrame]], int]:
    """Return the keys and the rows of the first tracks in the order of the rows, and the number of other tracks."""
    distinct = rows.select(keys).unique(maintain_order=True)
    if distinct.height > MAX_TRACKS:
        rows = rows.join(distinct.head(MAX_TRACKS), on=keys, how="semi", nulls_equal=True, maintain_order="left")
    split = rows.partition_by(keys, as_dict=True, include_key=False, maintain_order=True)
    return [(key, split[key]) for key in distinct.head(MAX_TRACKS).iter_rows()], max(distinct.height - MAX_TRACKS, 0)


def _read_counters(
    part: str, tables: Tables, names: TrackNames, stage: Sequence[EventKind], _: TimeWindow
) -> tuple[list[EventTrack], int]:
    """Return the tracks of the first counters, and the number of other counters."""
    tracks, missing = [], 0
    for kind in stage:
        columns = tables.schema(kind.table).names
        if not count_rows(tables, kind.table) or not batches.choose_event_columns(kind, columns):
            continue
        value = pl.coalesce(e.cast(pl.Float64, strict=False) for e in batches.value_exprs(batches.get_key_arg(kind)))
        frame = scan_table(tables, kind.table).with_row_index("row")
        samples = (frame if kind.where is None else frame.filter(kind.where)).select(
            *kind.placement.keys, time=kind.start, value=value, row="row", label=kind.name.cast(pl.String)
        )
        rows = samples.with_columns(_STRINGS).filter(pl.col("value").is_finite()).sort("time").collect()
        split, more = _split_rows(rows, [*kind.placement.keys, "label"])
        missing += more
        for number, ((*keys, label), own) in enumerate(split):
            track = kind.placement.make_track(names, *keys)
            times = own["time"].to_numpy()
            codes = np.full(len(times), _CODES[kind], np.uint8)
            drawn = EventTrack(
                part,
                number * len(_KINDS) + _CODES[kind],
                track.group.name,
                str(label),
                (track.group.order, (number,)),
                _get_device(names, kind.placement, keys),
                Lanes(np.array([0, len(times)]), times, times, own["row"].to_numpy(), codes),
                values=own["value"].to_numpy(),
            )
            tracks.append(drawn)
    return tracks, missing


def _read_steps(trace: Trace) -> Iterator[EventTrack]:
    """Yield the track of the windows of the steps, in which the CPU and the GPU work on them."""
    columns = ("iteration", "window_start_ns", "window_end_ns", "name", "is_warm_up")
    steps = trace.frame("iterations").select(columns).collect()
    if not steps.height or (steps.height == 1 and steps["name"][0] is None):
        return
    warm_up = pl.col("is_warm_up").fill_null(value=False)
    name = pl.coalesce(pl.col("name"), pl.format("step {}", "iteration"))
    rows = steps.select(
        start_ns="window_start_ns",
        end_ns="window_end_ns",
        code=pl.when(warm_up).then(pl.lit(WARM_UP, pl.UInt8)).otherwise(pl.lit(STEP, pl.UInt8)),
        name=pl.when(warm_up).then(name + " (warm-up)").otherwise(name),
        id="iteration",
    )
    yield _create_annotation(STEPS, 0, "Steps", rows)


def _create_annotation(part: str, number: int, name: str, rows: pl.DataFrame, device: int | None = None) -> EventTrack:
    """Return a track of annotations.

    Args:
        part: Name of the part.
        number: Number of the track.
        name: Name of the track.
        rows: The annotations: ``start_ns``, ``end_ns``, ``code``, ``name`` and ``id``.
        device: The GPU, or None.
    """
    starts, ends, codes = (rows[c].to_numpy() for c in ("start_ns", "end_ns", "code"))
    lanes = arrange_lanes(starts, ends, np.arange(rows.height, dtype=np.uint32), codes, nests=False)
    return EventTrack(part, number, "", name, ((), (number,)), device, lanes, rows)


def _read_annotations(trace: Trace, causes: Sequence[CauseOfTime]) -> Iterator[EventTrack]:
    view = get_trace_view(trace)
    occurrences = list_occurrences(trace, causes)
    if occurrences.height:
        rows = occurrences.with_columns(code=pl.lit(CAUSE, pl.UInt8))
        count = sum(own.count for cause in causes for own in cause.rows)
        partly = f" (first {occurrences.height:,} of {count:,})" if count > occurrences.height else ""
        yield _create_annotation(CAUSES, 0, f"Causes{partly}", rows)
    codes = {part: IDLE + number for number, part in enumerate(IDLE_PARTS)}
    idle = view.list_idle_times().with_columns(
        code=pl.col("cause").replace_strict(codes, return_dtype=pl.UInt8),
        name=pl.col("cause").str.replace_all("_", " "),
        id=pl.lit(None, pl.Int64),
    )
    split = idle.partition_by("process_id", "device_id", as_dict=True, maintain_order=True)
    for number, ((process, device), own) in enumerate(split.items(), 1):
        place = "GPUs" if device is None else f"GPU {device}"
        place += "" if process is None or idle["process_id"].n_unique() == 1 else f" · pid {process}"
        yield _create_annotation(CAUSES, number, f"Idle times of {place}", own, cast("int | None", device))


def list_occurrences(trace: Trace, causes: Sequence[CauseOfTime]) -> pl.DataFrame:
    """Return the events in which causes occur: ``name`` (the cause), ``table``, ``id``, ``start_ns`` and ``end_ns``.

    They are the rows that the answer of ``why`` lists, which are the first 100 of each table.
    """
    schema = {"name": pl.String, "table": pl.String, "id": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    frames = [pl.DataFrame(schema=schema)]
    for cause in causes:
        for rows in cause.rows:
            kind = get_kind_of_table(rows.table)
            if kind is None:
                continue
            ids = pl.col(kind.key).is_in(list(rows.ids))
            own = get_trace_view(trace).tables
            events = (
                scan_table(own, rows.table)
                .filter(ids)
                .select(
                    pl.lit(cause.cause).alias("name"),
                    pl.lit(rows.table).alias("table"),
                    pl.col(kind.key).cast(pl.Int64).alias("id"),
                    kind.start.alias("start_ns"),
                    pl.max_horizontal(kind.start, kind.end).alias("end_ns"),
                )
            )
            frames.append(events.collect())
    return pl.concat(frames)
