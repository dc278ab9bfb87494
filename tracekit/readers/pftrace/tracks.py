"""Find the process, the thread and the name of each track, and match the slices on tracks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.common.slices import NONE, match_slices
from tracekit.readers.pftrace.strings import NO_STRING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask
    from tracekit.readers.pftrace.events import SliceStream
    from tracekit.readers.pftrace.interning import Descriptors
    from tracekit.readers.pftrace.strings import TraceStrings

_MAX_DEPTH = 64
_EVENTS_AT_ONCE = 1 << 19
_MAX_ATTRIBUTES_LENGTH = 10_000
THREAD_KEY = 2
"""Length of the key of a track that a process id and a thread id identify."""
_COLUMNS = (
    *("parent", "name", "about", "process_pid", "process_text", "thread_pid", "thread_tid", "thread_text"),
    *("is_counter", "multiplier", "is_incremental"),
)


class DescribedTracks:
    """The tracks of a trace that events use.

    Attributes:
        process_ids: Process of each track.
        has_process: For each track, whether its process is known.
        thread_ids: Thread of each track.
        is_thread: For each track, whether it is a thread.
        names: Index of the name of each track in the strings of the trace, or ``NO_STRING``.
        multipliers: Factor of the values of each counter.
        is_incremental: For each track, whether its values are differences from the previous value.
        same: Number of the first track with the same events as each track. Tracks of asynchronous events whose ids
            belong to a process are the same for all threads of the process.
        frame: The descriptors of all tracks.
    """

    def __init__(self, descriptors: Descriptors, keys: Sequence[int | tuple[int, ...]], strings: TraceStrings) -> None:
        self.frame = _merge(descriptors)
        self._strings = strings
        self._rows = dict(zip(self.frame["uuid"].to_list(), range(self.frame.height), strict=True))
        rows = np.array([self._rows.get(key, NONE) if isinstance(key, int) else NONE for key in keys], np.int64)
        self._descriptor_rows = rows
        pid, has_pid = self._find_processes()
        threads = self.frame["thread_tid"].fill_null(0).to_numpy(), self.frame["thread_tid"].is_not_null().to_numpy()
        self.process_ids, self.has_process = _pick(pid, rows), _pick(has_pid, rows).astype(np.bool_)
        self.thread_ids = _pick(threads[0], rows)
        self.is_thread = _pick(threads[1], rows).astype(np.bool_)
        for number, key in enumerate(keys):
            if isinstance(key, tuple) and len(key) == THREAD_KEY:
                self.process_ids[number], self.thread_ids[number] = key
                self.has_process[number] = self.is_thread[number] = True
        self.same = self._find_same_tracks(keys)
        self.names = np.where(rows != NONE, _pick(self.frame["name"].fill_null(NO_STRING).to_numpy(), rows), NO_STRING)
        self.multipliers = np.where(rows != NONE, _pick(self.frame["multiplier"].fill_null(1).to_numpy(), rows), 1)
        self.is_incremental = _pick(self.frame["is_incremental"].fill_null(0).to_numpy(), rows).astype(np.bool_)

    def _find_same_tracks(self, keys: Sequence[int | tuple[int, ...]]) -> Int64Array:
        """Return the first track with the events of each track, and set the processes of tracks of processes."""
        firsts: dict[tuple[tuple[int, ...], int, bool], int] = {}
        same = np.arange(len(keys), dtype=np.int64)
        for number, key in enumerate(keys):
            if isinstance(key, tuple) and len(key) > THREAD_KEY and (base := key[-1]) != NONE:
                pid, has_process = int(self.process_ids[base]), bool(self.has_process[base])
                self.process_ids[number], self.has_process[number] = pid, has_process
                owner = key[:-1], pid if has_process else base, has_process
                same[number] = firsts.setdefault(owner, number)
        return same

    def read_attributes(self) -> list[dict[str, Any]]:
        """Return what the description of each track states, if it is a JSON object as tracekit writes it."""
        about = self.frame["about"].fill_null(NO_STRING).to_numpy()
        texts = self._strings.build(about).to_pylist()
        return [_parse(texts[row]) if row != NONE else {} for row in self._descriptor_rows.tolist()]

    def read_texts(self, column: str) -> list[str | None]:
        """Return the strings of a column of the descriptor of each track."""
        texts = self._strings.build(self.frame[column].fill_null(NO_STRING).to_numpy()).to_pylist()
        return [texts[row] if row != NONE else None for row in self._descriptor_rows.tolist()]

    def list_names(self, descriptors: Descriptors) -> pl.DataFrame:
        """Return the names of processes and threads, with the columns ``pid``, ``tid`` (null or an id) and ``name``."""
        frames = [_to_frame(descriptors.names.finish(), ("pid", "tid", "text"))]
        frames.append(
            self.frame.select(pid="process_pid", tid=pl.lit(None, pl.Int64), text="process_text").drop_nulls("pid")
        )
        frames.append(self.frame.select(pid="thread_pid", tid="thread_tid", text="thread_text").drop_nulls("pid"))
        names = pl.concat(frames).with_columns(pl.col("tid").replace(-1, None), pl.col("text").fill_null(NO_STRING))
        texts = self._strings.build(names["text"].to_numpy())
        return names.select("pid", "tid", name=pl.Series(texts.cast(pa.string())))

    def _find_processes(self) -> tuple[Int64Array, Mask]:
        """Return the process of each descriptor, which may be that of a parent, and a mask of those that have one."""
        frame = self.frame.with_columns(pid=pl.coalesce("thread_pid", "process_pid"))
        own = frame["pid"].is_not_null().to_numpy()
        pids = frame["pid"].fill_null(0).to_numpy()
        parents = np.array([self._rows.get(uuid, NONE) for uuid in frame["parent"].to_list()], np.int64)
        current = np.arange(len(pids))
        for _ in range(_MAX_DEPTH):
            is_open = ~own[current] & (parents[current] != NONE)
            if not is_open.any():
                break
            current = np.where(is_open, parents[current], current)
        return pids[current], own[current]


class MatchedEnds(NamedTuple):
    """The ends of slices.

    Attributes:
        times: Time of the end of the slice that begins at each position in the stream, or ``NONE``.
        positions: Position of the end in the stream, or ``NONE``.
        unmatched: Number of ends without a beginning.
    """

    times: Int64Array
    positions: Int64Array
    unmatched: int


def match_stream(stream: SliceStream, same: Int64Array, *labels: Int64Array) -> MatchedEnds:
    """Match the ends of the slices of all tracks with their beginnings.

    Args:
        stream: The beginnings and ends of slices.
        same: Number of the first track with the same events as each track.
        labels: Codes of the name and the category of each event of the stream, or nothing if no end has any.
    """
    tracks, times, is_end = stream.finish()
    tracks = same[tracks]
    order = np.lexsort((times, tracks))
    sorted_tracks = tracks[order]
    end_times, positions = np.full(len(order), NONE, np.int64), np.full(len(order), NONE, np.int64)
    edges = [0, *(np.flatnonzero(sorted_tracks[1:] != sorted_tracks[:-1]) + 1).tolist(), len(order)]
    unmatched = first = 0
    for following in edges:
        if following - first < _EVENTS_AT_ONCE and following < len(order):
            continue
        rows = order[first:following]
        matched = match_slices(sorted_tracks[first:following], is_end[rows] != 0, *(codes[rows] for codes in labels))
        begins = np.flatnonzero(matched.ends != NONE)
        ends = rows[matched.ends[begins]]
        end_times[rows[begins]], positions[rows[begins]] = times[ends], ends
        unmatched += int(matched.is_unmatched.sum())
        first = following
    return MatchedEnds(end_times, positions, unmatched)


def _merge(descriptors: Descriptors) -> pl.DataFrame:
    """Return the descriptors of all tracks, one row per uuid. Later descriptors take precedence."""
    frame = _to_frame(descriptors.tracks.finish(), ("uuid", *_COLUMNS))
    codes = ("name", "about", "process_text", "thread_text")
    frame = frame.with_columns(pl.col(codes).replace(NO_STRING, None))
    last = [pl.col(column).drop_nulls().last() for column in _COLUMNS]
    return frame.group_by("uuid", maintain_order=True).agg(last)


def _to_frame(columns: dict[str, pa.Array | pa.ChunkedArray], names: Sequence[str]) -> pl.DataFrame:
    if not columns:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    return pl.DataFrame({name: pl.Series(columns[name]) for name in names})


def _pick(values: np.ndarray, rows: Int64Array) -> np.ndarray:
    """Return the values in some rows, and 0 for the row ``NONE``."""
    if not len(values):
        return np.zeros(len(rows), values.dtype)
    return np.where(rows != NONE, values[np.maximum(rows, 0)], np.zeros(1, values.dtype))


def _parse(text: str | None) -> dict[str, Any]:
    if text is None or not text.startswith("{") or len(text) > _MAX_ATTRIBUTES_LENGTH:
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
