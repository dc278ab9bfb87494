"""Read the call stacks of the events, thread and time window that URL parameters select."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.schemas.callstacks import iterate_frame_batches
from tracekit.trace import get_trace_view
from tracekit.view.captures import ShownRows
from tracekit.view.windows import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.text.names import TableName
    from tracekit.trace import Trace

WEIGHTS = {"samples": "Number", "time": "Time"}
PARAMETERS = ("events", "weight", "thread", "start", "end")
"""URL parameters of the page, which are also the arguments of its tables."""
_PYTHON_KINDS = {"python_samples": "periodic", "python_calls": "cuda"}
_THREAD = schemas.get_key("thread")


@dataclass(frozen=True, slots=True)
class EventsWithStacks:
    """A selection of events with call stacks.

    Attributes:
        trace: The capture, limited to the selected time.
        events: Kind of the events, a key of ``EVENTS``.
        weight: Weight of the events, a key of ``WEIGHTS``.
        process: Id of the selected process, or None for all processes.
        thread: Id of the selected thread, or None for all threads.
    """

    trace: Trace
    events: str
    weight: str
    process: int | None
    thread: int | None

    def create_plot_options(self) -> dict[str, Any]:
        """Return the keyword arguments for ``trace.plot.stacks`` and ``trace.plot.functions``."""
        return {"events": self.events, "weight": self.weight, "process": self.process, "thread": self.thread}

    def read_events(self) -> pl.LazyFrame:
        """Return the events of the selected kind that have a call stack, in all processes and threads."""
        name = self.events
        frame = self.trace.frame(cast("TableName", "python_samples" if name in _PYTHON_KINDS else name))
        if name in _PYTHON_KINDS:
            frame = frame.filter(pl.col("kind").cast(pl.String) == _PYTHON_KINDS[name])
        return frame.filter(pl.col("stack_id").is_not_null())

    def count_events_by_thread(self) -> pl.DataFrame:
        """Return the threads whose events have call stacks, those with the most events first.

        Returns:
            One row per thread: ``process_id``, ``thread_id``, ``thread_name`` (null if unknown) and ``count``.
        """
        counts = self.read_events().group_by(_THREAD).agg(count=pl.len().cast(pl.Int64))
        named = counts.join(_read_thread_names(self.trace), on=_THREAD, how="left", nulls_equal=True)
        return named.drop_nulls(_THREAD).sort("count", *_THREAD, descending=[True, False, False]).collect()


def parse_selection(trace: Trace, arguments: Mapping[str, str]) -> EventsWithStacks:
    """Parse URL parameters into a selection of events with call stacks.

    Unknown kinds of events and unknown weights are replaced with the default.

    Raises:
        TracekitError: The trace has no call stacks, the thread or the time is invalid, or the time contains no events.
    """
    known = trace.plot.stack_events()
    if not known:
        absence = get_trace_view(trace).explain_missing_tables(("stacks",))
        raise TracekitError(f"this capture has no call stacks: {absence.reason}", hint=absence.hint)
    window = [parse_time(text) if text else None for text in (arguments.get("start", ""), arguments.get("end", ""))]
    if window != [None, None]:
        trace = trace.select(time=(window[0], window[1]))
    events, weight = arguments.get("events", ""), arguments.get("weight", "")
    process, _, thread = arguments.get("thread", "").partition(":")
    if arguments.get("thread") and not all(_is_id(each) for each in (process, thread)):
        raise TracekitError(
            f"the URL parameter 'thread' is {arguments['thread'][:100]!r}, but it must consist of two ids, "
            "PROCESS:THREAD"
        )
    return EventsWithStacks(
        trace,
        events if events in known else known[0],
        weight if weight in WEIGHTS else "samples",
        int(process) if process else None,
        int(thread) if thread else None,
    )


def _is_id(text: str) -> bool:
    """Return whether a string is an integer that fits into 64 bits."""
    return text.isascii() and text.isdigit() and len(text) < len(str(2**63))


def compute_function_statistics(selection: EventsWithStacks) -> ShownRows:
    """Return one row per function in the selected call stacks, with the number or total time of its events.

    The columns ``self_*`` cover only events in which the function is the innermost one. The columns ``in_stack_*``
    cover all events whose call stack contains the function.
    """
    frame = selection.trace.plot.functions(**selection.create_plot_options())
    unit = "_time_ns" if selection.weight == "time" else "_count"
    whole = int(frame["self"].sum()) or 1
    shares = [(pl.col(c) * 100.0 / whole).alias(f"{c}_percent") for c in ("self", "total")]
    frame = frame.with_columns(shares).rename({"self": f"self{unit}", "total": f"in_stack{unit}"})
    frame = frame.select(
        *("name", "module", f"self{unit}", "self_percent", f"in_stack{unit}"), in_stack_percent="total_percent"
    )
    what = "Time" if selection.weight == "time" else "Events"
    titles = {
        "name": "Function",
        "module": "Module",
        f"self{unit}": f"{what} (self)",
        "self_percent": "Share (self)",
        f"in_stack{unit}": f"{what} (total)",
        "in_stack_percent": "Share (total)",
    }
    docs = {
        f"self{unit}": "Events in which the function was the innermost one.",
        f"in_stack{unit}": "Events whose call stack contains the function. Each event counts once, even if the "
        "function calls itself.",
    }
    docs |= {"name": "Name of the function.", "module": _DOCS["module"]}
    docs["self_percent"] = docs["in_stack_percent"] = "Share of all selected events."
    return ShownRows(frame, titles, docs)


def read_events_with_stacks(selection: EventsWithStacks) -> ShownRows:
    """Return the selected events, each with its thread and its innermost function."""
    frame = selection.read_events()
    if selection.thread is not None:
        frame = frame.filter(pl.col("process_id") == selection.process, pl.col("thread_id") == selection.thread)
    columns = frame.collect_schema().names()
    stacks = selection.trace.frame("stacks").select("stack_id", function="symbol", module="module")
    named = frame.join(
        _read_thread_names(selection.trace), on=_THREAD, how="left", nulls_equal=True, maintain_order="left"
    )
    rows = named.join(stacks, on="stack_id", how="left", maintain_order="left")
    if "end_ns" in columns:
        rows = rows.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    present = set(rows.collect_schema().names())
    shown = rows.select([c for c in _SHOWN if c in present]).collect()
    order = "timestamp_ns" if "timestamp_ns" in shown.columns else "start_ns"
    shown = shown.sort(order, maintain_order=True).with_row_index("event").cast({"event": pl.Int64})
    titles = {c: _TITLES.get(c) or c.replace("_", " ").capitalize() for c in shown.columns}
    return ShownRows(shown, titles, {c: _DOCS.get(c, "") for c in titles})


_SHOWN = (
    *("timestamp_ns", "start_ns", "duration_ns", "end_ns", "name", "function", "module", "process_id", "thread_id"),
    *("thread_name", "cpu", "thread_state", "cpu_cycles", "correlation_id", "stack_id"),
)
"""Columns of events that are shown, if the events have them."""
_TITLES = {
    "timestamp_ns": "Time",
    "start_ns": "Start",
    "end_ns": "End",
    "duration_ns": "Duration",
    "process_id": "Process ID",
    "thread_id": "Thread ID",
    "thread_name": "Thread",
    "cpu": "CPU",
    "thread_state": "State",
    "cpu_cycles": "CPU cycles",
    "correlation_id": "Correlation ID",
    "stack_id": "Stack ID",
}


_DOCS = {
    "event": "Number of the event, by time.",
    "timestamp_ns": "Time, since the trace origin.",
    "start_ns": "Start, since the trace origin.",
    "end_ns": "End (exclusive), since the trace origin.",
    "duration_ns": "End minus start.",
    "name": "Name of the called function.",
    "function": "Innermost function of the call stack.",
    "module": "Library or file that contains the function.",
    "line": "Line in the file.",
    "depth": "Number of frames from the outermost one to this one.",
    "process_id": "Process of the thread.",
    "thread_id": "Thread that was sampled or made the call.",
    "thread_name": "Last recorded name of the thread.",
    "cpu": "CPU on which the thread ran.",
    "thread_state": "State of the thread.",
    "cpu_cycles": "CPU cycles since the previous sample.",
    "correlation_id": "Id that links the call to GPU activities.",
    "stack_id": "Id of the call stack.",
}


def read_call_stack_frames(trace: Trace, stack_id: int) -> ShownRows:
    """Return the frames of a call stack, the innermost one first."""
    tree = trace.frame("stacks").select(pl.col("parent_id").fill_null(0), pl.col("depth").cast(pl.Int64)).collect()
    parents, depths = (np.concatenate(([0], tree[c].to_numpy())) for c in tree.columns)
    ids = np.array([stack_id], np.int64)
    chain = (
        [frames for _, _, frames in iterate_frame_batches(parents, depths, ids)] if 0 < stack_id < len(parents) else []
    )
    order = pl.DataFrame({"stack_id": chain[0][::-1] if chain else []}, schema={"stack_id": pl.Int64})
    stacks = trace.frame("stacks").select("stack_id", "depth", function="symbol", module="module", line="line")
    frame = order.lazy().join(stacks, on="stack_id", how="left", maintain_order="left").drop("stack_id").collect()
    titles = {"depth": "Depth", "function": "Function", "module": "Module", "line": "Line"}
    return ShownRows(frame, titles, {c: _DOCS[c] for c in titles})


def _read_thread_names(trace: Trace) -> pl.LazyFrame:
    """Return the process id, thread id and last recorded name of each thread."""
    names = trace.frame("threads").select(*_THREAD, pl.col("name").cast(pl.String).alias("thread_name"))
    return names.unique(_THREAD, keep="last", maintain_order=True)
