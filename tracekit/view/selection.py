"""Describe the selected event of the timeline, find the events that belong to it, and search events by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.exporters.timeline import batches, kinds
from tracekit.pages.columns import describe_columns
from tracekit.pages.values import NANOSECONDS, POINT, build_value
from tracekit.registry.tables import scan_table
from tracekit.system.sorting import create_series
from tracekit.text import shorten_end
from tracekit.text.elements import tag
from tracekit.trace import get_trace_view
from tracekit.view import timeline, windows
from tracekit.view import tracks as events
from tracekit.view.filters import write_equality_filters
from tracekit.view.state import CaptureAggregation, make_url
from tracekit.view.windows import TimeWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.text.elements import Content, Element
    from tracekit.trace import Trace
    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.state import PageState
    from tracekit.view.timeline import ShownCapture

MAX_RELATED = 2_000
"""Maximum number of events of one role that are highlighted."""
MAX_LISTED = 5
"""Maximum number of events of one role to which the details link."""
MAX_RANGES = 64
"""Maximum number of nested ranges around an event that are listed."""
MAX_ROWS = 200
"""Maximum number of events in the table of the events in a window."""
MAX_SHOWN_NAME = 60
"""Maximum number of characters of the name of an event that belongs to the selected one."""
MAX_DIGITS = 19
"""Maximum number of digits of an id."""
MAX_SEARCH = 1_000
"""Maximum number of characters of a searched text."""
LAUNCHED = (kinds.KERNELS, kinds.MEMCPYS, kinds.MEMSETS, kinds.GRAPH_LAUNCHES)
RANGES = next(kind for kind in events.iterate_kinds((events.CPU,)) if kind.table == "nvtx_ranges")
CALL, RANGE, WORK = "API call", "Ranges", "Work on the GPU"


class EventKey(NamedTuple):
    """What identifies an event in a URL, such as ``kernels:12`` or, in the capture with index 1, ``kernels:12@1``.

    Attributes:
        kind: First kind of the events in the table.
        id: Id of the row.
        capture: Index of the capture.
        layers: Its layers, as in ``CaptureAggregation``, of which another part of the URL tells.
    """

    kind: EventKind
    id: int
    capture: int
    layers: str = ""

    @property
    def text(self) -> str:
        """The key as in an answer of the timeline."""
        return f"{self.kind.table}:{self.id}@{self.capture}"


class RelatedEvent(NamedTuple):
    """An event that belongs to the selected one.

    Attributes:
        role: What it is for the selected event, such as ``API call``.
        key: What identifies it.
        name: Its name.
        start: Its start in ns.
        end: Its end in ns.
    """

    role: str
    key: EventKey
    name: str
    start: int
    end: int


class Relation(NamedTuple):
    """A group of events that belong to the selected one: their role, their kind, and the condition for their rows."""

    role: str
    kind: EventKind
    condition: pl.Expr


class Selection(NamedTuple):
    """The selected event.

    Attributes:
        key: What identifies it.
        name: Its name.
        start: Its start in ns.
        end: Its end in ns.
        row: Its row in the table.
        related: The events that belong to it. There may be more.
        counts: Number of the events that belong to it by role.
    """

    key: EventKey
    name: str
    start: int
    end: int
    row: dict[str, Any]
    related: list[RelatedEvent]
    counts: dict[str, int]


def parse_event(text: str, state: PageState, captures: ViewedCaptures) -> EventKey:
    """Parse the URL parameter ``event``.

    Raises:
        TracekitError: It does not name an event of the timeline.
    """
    table, _, rest = text.replace("nvtx_projections:", "nvtx_ranges:").partition(":")
    number, _, index = rest.partition("@")
    kind = events.get_kind_of_table(table)
    capture = index or str(state.at.capture)
    numbers = [number.removeprefix("-"), capture]
    if (
        kind is None
        or kind.phase == kinds.COUNTER
        or not all(n.isascii() and n.isdigit() and len(n) <= MAX_DIGITS for n in numbers)
    ):
        raise TracekitError(
            f"the URL selects the event {text[:100]!r}, which is not a table of events and an id",
            hint="the parameter has the form event=kernels:12",
        )
    if int(capture) >= len(captures):
        raise TracekitError(f"the URL selects an event of capture {capture}, but there are {len(captures)} captures")
    return EventKey(kind, min(int(number), 2**63 - 1), int(capture), state.at.layers)


def find_event(captures: ViewedCaptures, key: EventKey) -> Selection:
    """Return an event with the events that belong to it.

    Raises:
        TracekitError: The capture does not have the event.
    """
    trace = captures.get_capture(key.capture, key.layers).trace
    frame = trace.frame(key.kind.table, names="string")  # type: ignore[arg-type]
    rows = frame.filter(pl.col(key.kind.key) == key.id).head(1).collect()
    if not rows.height:
        raise TracekitError(
            f"the URL selects the event {key.kind.table}:{key.id}, which the capture does not have",
            hint="remove event= from the URL",
        )
    name, start, end = rows.select(_position_exprs(key.kind)).row(0)
    row = rows.row(0, named=True)
    related: list[RelatedEvent] = []
    counts: dict[str, int] = {}
    for role, kind, condition in _list_relations(trace, key.kind, row):
        own, count = _read_related(trace, role, kind, condition, key.capture)
        related += own
        counts[role] = counts.get(role, 0) + count
    return Selection(key, name, start, start if end is None else max(start, end), row, related, counts)


def _position_exprs(kind: EventKind) -> list[pl.Expr]:
    end = kind.end if kind.phase == kinds.SLICE else kind.start
    return [kind.name.cast(pl.String).alias("_name"), kind.start.alias("_start"), end.alias("_end")]


def _list_relations(trace: Trace, kind: EventKind, row: dict[str, Any]) -> list[Relation]:
    """Return the groups of events that belong to an event.

    Only the rows of these events are read, because the correlation of the whole capture takes longer.
    """
    relations = []
    on_cpu: dict[str, Any] | None = row
    if kind is not kinds.API_CALLS and row.get("correlation_id") is not None:
        condition = _equal_expr("process_id", row["process_id"]) & _equal_expr("correlation_id", row["correlation_id"])
        calls = trace.frame("api_calls").filter(condition).head(1).collect()
        on_cpu = calls.row(0, named=True) if calls.height else None
        if on_cpu:
            relations.append(Relation(CALL, kinds.API_CALLS, pl.col("api_call_id") == on_cpu["api_call_id"]))
    if on_cpu and on_cpu.get("thread_id") is not None and on_cpu.get("start_ns") is not None:
        is_other = pl.col("range_id") != row["range_id"] if kind.table == RANGES.table else pl.lit(value=True)
        relations.append(Relation(RANGE, RANGES, _is_open_expr(on_cpu) & is_other))
    if kind is kinds.API_CALLS:
        correlation_ids = pl.Series([row["correlation_id"]], dtype=pl.Int64)
    elif kind.table == RANGES.table:
        correlation_ids = _read_correlation_ids(trace, row)
    else:
        return relations
    launched = pl.col("correlation_id").cast(pl.Int64).is_in(correlation_ids.implode())
    return [*relations, *(Relation(WORK, k, launched & _equal_expr("process_id", row["process_id"])) for k in LAUNCHED)]


def _is_open_expr(on_cpu: dict[str, Any]) -> pl.Expr:
    """Return an expression that is true for the push/pop ranges of a thread that are open at the start of an event."""
    start = on_cpu["start_ns"]
    is_open = (pl.col("start_ns") <= start) & (pl.col("end_ns").is_null() | (pl.col("end_ns") > start))
    thread = [_equal_expr(column, on_cpu[column]) for column in ("process_id", "thread_id")]
    return pl.all_horizontal(is_open, *thread, pl.col("kind") == "push_pop")


def _read_correlation_ids(trace: Trace, row: dict[str, Any]) -> pl.Series:
    """Return the correlation ids of the API calls in a range: those of its thread, or of its process."""
    inside = (pl.col("start_ns") >= row["start_ns"]) & _equal_expr("process_id", row["process_id"])
    if row["end_ns"] is not None:
        inside &= pl.col("start_ns") < row["end_ns"]
    if row["kind"] == "push_pop":
        inside &= _equal_expr("thread_id", row["thread_id"])
    calls = trace.frame("api_calls").filter(inside & pl.col("correlation_id").is_not_null())
    return calls.select(pl.col("correlation_id").cast(pl.Int64).unique()).collect().to_series()


def _equal_expr(column: str, value: int | None) -> pl.Expr:
    return pl.col(column).is_null() if value is None else pl.col(column) == value


def _read_related(
    trace: Trace, role: str, kind: EventKind, condition: pl.Expr, capture: int
) -> tuple[list[RelatedEvent], int]:
    """Return the first events that meet a condition, and the number of all of them."""
    needed = {*batches.list_column_names(condition), *batches.list_column_names(kind.name)}
    if not needed <= set(trace.schema(kind.table).names):  # type: ignore[arg-type]
        return [], 0
    matching = trace.frame(kind.table).filter(condition)  # type: ignore[arg-type]
    rows = matching.select(pl.col(kind.key).alias("_id"), *_position_exprs(kind)).sort("_start", "_id").collect()
    first = rows.head(MAX_RANGES if role == RANGE else MAX_RELATED)
    return [
        RelatedEvent(role, EventKey(kind, id_, capture), name, start, start if end is None else max(start, end))
        for id_, name, start, end in first.iter_rows()
    ], rows.height


def build_details(state: PageState, selection: Selection, member: ShownCapture) -> Element:
    """Return what is known about the selected event: its time, its relations, and all fields of its row."""
    start, end = member.place(selection.start, selection.end)
    times = [
        ("Start", build_value(start, POINT)),
        ("Duration", build_value(selection.end - selection.start, NANOSECONDS)),
    ]
    if member.clock is not None:
        times.append((f"Start on the clock of rank {member.rank}", build_value(selection.start, POINT)))
    place = "" if member.rank is None else f" · rank {member.rank}"
    title = schemas.table(selection.key.kind.table).name.replace("_", " ")
    return tag.div(
        tag.h2(selection.name or "(no name)"),
        tag.p(f"{title} {selection.key.id}{place}", class_="dim"),
        tag.dl(*(tag.div(tag.dt(label), tag.dd(value)) for label, value in times)),
        tag.p(tag.a("Row in the table", href=_make_row_url(state, selection.key))),
        _build_op_later(state, selection.key),
        *_list_related(state, selection),
        _build_fields(selection),
        class_="event-details",
        data_event=selection.key.text,
        data_start=str(start),
        data_end=str(end),
        data_related=json.dumps(
            {role: [r.key.text for r in selection.related if r.role == role] for role in selection.counts}
        ),
    )


def _list_related(state: PageState, selection: Selection) -> list[Content]:
    """Return a list of links for each role of events that belong to the selected event."""
    lists: list[Content] = []
    for role, count in selection.counts.items():
        if not count:
            continue
        own = [related for related in selection.related if related.role == role]
        listed = own if role == RANGE else own[:MAX_LISTED]
        items = [
            tag.li(
                tag.a(
                    shorten_end(related.name, MAX_SHOWN_NAME) or "(no name)",
                    href=make_event_url(state, related.key),
                    title=related.name if len(related.name) > MAX_SHOWN_NAME else None,
                    data_show_event=related.key.text,
                ),
                " ",
                build_value(related.end - related.start, NANOSECONDS),
            )
            for related in listed
        ]
        if count > len(listed):
            items.append(tag.li(f"and {count - len(listed):,} more", class_="dim"))
        lists.append(tag.div(tag.h3(role), tag.ul(*items)))
    return lists


def _build_fields(selection: Selection) -> Element:
    """Return a table with all fields of the row that are not null."""
    present = {name: value for name, value in selection.row.items() if value is not None}
    columns = describe_columns(present, schemas.table(selection.key.kind.table).columns)
    rows = [
        tag.tr(
            tag.th(column.title, scope="row", title=column.doc or None),
            tag.td(_build_field(present[column.name], column.unit)),
        )
        for column in columns
    ]
    table = tag.table(tag.caption("All fields"), tag.tbody(*rows))
    return tag.div(table, class_="scroll", tabindex="0", role="region", aria_label="All fields")


def _build_field(value: Any, unit: str) -> Content:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return build_value(value, unit) if is_number else str(value)


def make_event_url(state: PageState, key: EventKey) -> str:
    """Return the URL of the timeline with a selected event."""
    suffix = "" if key.capture == state.at.capture else f"@{key.capture}"
    parameters = {"cause": state.get("cause")} if state.get("cause") else {}
    return make_url("timeline", state.at, {"event": f"{key.kind.table}:{key.id}{suffix}", **parameters})


def _make_row_url(state: PageState, key: EventKey) -> str:
    at = state.at if key.capture == state.at.capture else CaptureAggregation(key.capture, layers=state.at.layers)
    condition = write_equality_filters({key.kind.key: key.id})
    return make_url("tables", at, {"table": key.kind.table, f"table:{key.kind.table}.filter": condition})


def _build_op_later(state: PageState, key: EventKey) -> Element | None:
    """Return an element that is replaced with ``build_op``, which needs the ops of the capture, or None."""
    if key.kind not in LAUNCHED:
        return None
    parameters = {"page": "timeline", "event": key.text}
    url = make_url("timeline/op", state.at, parameters)
    return tag.p("Looking for the op and the step …", class_="dim pending", data_fragment=url)


def build_op(captures: ViewedCaptures, state: PageState, key: EventKey) -> Element:
    """Return the op and the step of an event on the GPU, with links to them."""
    capture = captures.get_capture(key.capture, key.layers)
    at = timeline.get_aggregation(state, capture)
    frame = capture.get_aggregated_trace(at).frame(key.kind.table, names="string")  # type: ignore[arg-type]
    columns = [column for column in ("op_id", "op_name", "iteration") if column in frame.collect_schema().names()]
    rows = frame.filter(pl.col(key.kind.key) == key.id).select(columns).head(1).collect()
    row = rows.row(0, named=True) if rows.height else {}
    parts: list[Content] = []
    if row.get("op_id") is not None:
        name = shorten_end(row.get("op_name") or row["op_id"], timeline.MAX_NAME)
        parts += ["Op ", tag.a(name, href=make_url("ops", at, {"ops.select": str(row["op_id"])}))]
    if row.get("iteration") is not None:
        number = row["iteration"]
        url = make_url("timeline", replace(at, first=number, last=number))
        parts += [" · " if parts else "", tag.a(f"Step {number}", href=url)]
    return tag.p(parts or "This event belongs to no op and no step.")


def search_event(captures: ViewedCaptures, state: PageState) -> dict[str, Any]:
    """Return the next event whose name contains a text, as JSON, or an empty object if there is none.

    The parameters of the URL are ``q`` (the text, without regard to case), ``after`` (the time in ns on the axis after
    which the event starts) and ``parts``. After the last event, the search continues with the first one.

    Raises:
        TracekitError: A parameter has an invalid value.
    """
    text = state.get("q").strip().lower()
    if not text or len(text) > MAX_SEARCH:
        raise TracekitError(f"the searched text must have between 1 and {MAX_SEARCH:,} characters")
    timelines = timeline.get_timelines(captures)
    members = timelines.list_members(state)
    after = windows.parse_time(state.get("after")) if state.get("after") else -(1 << 62)
    parts = timeline.parse_parts(state.get("parts"))
    best: list[tuple[bool, int, str]] = []
    for member in members:
        own = member.from_axis(TimeWindow(after, after + 1)).start
        tables = get_trace_view(member.capture.trace).tables
        for kind in events.iterate_kinds(parts):
            if kind.phase == kinds.COUNTER or kind.table == "nvtx_projections":
                continue
            for id_, own_start in _search_table(tables, kind, text, own, state):
                start = member.place(own_start, own_start).start
                best.append((start <= after, start, f"{kind.table}:{id_}@{member.capture.index}"))
    if not best:
        return {}
    _, start, key = min(best)
    return {"event": key, "start": str(start)}


def _search_table(tables: Any, kind: EventKind, text: str, after: int, state: PageState) -> list[tuple[int, int]]:
    """Return the ids and starts of the first event with a name after a time, and of the first one at all."""
    names = set(tables.schema(kind.table).names)
    if not set(batches.list_column_names(kind.name, kind.start, kind.where)) <= names:
        return []
    frame = scan_table(tables, kind.table)
    frame = frame if kind.where is None else frame.filter(kind.where)
    if state.at.devices and "device_id" in names:
        frame = frame.filter(pl.col("device_id").is_in(state.at.devices))
    columns = frame.select(name=kind.name.cast(pl.String), id=pl.col(kind.key), start=kind.start)
    matching = columns.filter(pl.col("name").str.to_lowercase().str.contains(text, literal=True)).collect()
    candidates = [matching.filter(pl.col("start") > after), matching]
    return [rows.sort("start", "id").select("id", "start").row(0) for rows in candidates if rows.height]


class ListedEvent(NamedTuple):
    """An event in the table of the events in a window: its key, track and name, and its time in ns on the axis."""

    key: str
    track: str
    name: str
    start: int
    duration: int


def list_events(
    captures: ViewedCaptures, state: PageState, window: TimeWindow, parts: Sequence[str]
) -> list[ListedEvent]:
    """Return the first events in a window, in order of start. At most ``MAX_ROWS`` are returned."""
    timelines = timeline.get_timelines(captures)
    listed: list[ListedEvent] = []
    for part in parts:
        for member in timelines.list_members(state):
            for track in timelines.get_tracks(member, state, part).tracks:
                if track.values is None and (not state.at.devices or track.device in (None, *state.at.devices)):
                    listed += _list_first_events(member, track, window)
        listed = sorted(listed, key=lambda event: (event.start, event.key))[:MAX_ROWS]
    return listed


def _list_first_events(member: ShownCapture, track: events.EventTrack, window: TimeWindow) -> list[ListedEvent]:
    lanes = track.lanes
    chosen = [
        np.arange(i.start, min(i.stop, i.start + MAX_ROWS))
        for i in windows.iterate_lanes_in_window(lanes, member.from_axis(window))
    ]
    indices = np.concatenate(chosen)
    indices = indices[np.argsort(lanes.starts[indices], kind="stable")[:MAX_ROWS]]
    if not len(indices):
        return []
    names = events.read_names(member.capture.trace, track, indices)
    names = names.with_columns(
        start=create_series(member.to_axis(lanes.starts[indices])),
        duration=create_series(lanes.ends[indices] - lanes.starts[indices]),
        code=create_series(lanes.codes[indices]),
    )
    label = timeline.format_track_label(member, track)
    return [
        ListedEvent(f"{events.get_kind(code).table}:{id_}@{member.capture.index}", label, name or "", start, duration)
        for name, id_, start, duration, code in names.select("name", "id", "start", "duration", "code").iter_rows()
    ]
