"""Repair collected events whose times were never set, whose process ids are text, or that have no correlation id."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.readers.common import columns as col
from tracekit.readers.kineto.keys import Slot
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Columns = Mapping[str, pa.Array | pa.ChunkedArray]
    ColumnsByTable = Mapping[str, Columns]

PID_TEXT, RANK = "pid_text", "rank"
"""Names of the collected columns of process ids that are text, and of the numbers of their prefixes (0 for none)."""
ON_CPU = ("api_calls", "nvtx_ranges", "nvtx_marks", "osrt_calls", "overheads")
_RANK_LABEL = r"\[[^\]]{1,100}\]|\([^)]{1,100}\)|[A-Za-z]{1,20}[\s_#=-]{0,2}[0-9]{1,6}"
_PREFIXED_ID = re.compile(rf"\s*({_RANK_LABEL}|[^\s:/]{{1,100}}?)[\s:/_-]+([0-9]{{1,9}})\s*")
_SUFFIXED_ID = re.compile(rf"\s*([0-9]{{1,9}})[\s:/_@-]{{0,9}}(?=[^0-9])({_RANK_LABEL})\s*")
"""A process id that is text: ``[TP00] 4242`` or ``Rank 0: 4242``, and ``4242-r0`` or ``4242 (rank 0)``."""
_DAY_NS = 24 * 3600 * 10**9
_YEAR_NS = 366 * _DAY_NS
_LAUNCH_PATTERN = r"(?i)launch|memcpy|memset"


class _PrefixedId(NamedTuple):
    """A process id that is text, such as ``[TP00] 4242``, and the number of its prefix among all prefixes, from 1."""

    rank: int
    number: int


def parse_prefixed_id(text: str) -> tuple[str, int] | None:
    """Return the label of a rank and the number that a process id consists of, in either order.

    Return None if the process id is a number only, or something else.
    """
    if match := _PREFIXED_ID.fullmatch(text):
        return match[1], int(match[2])
    if match := _SUFFIXED_ID.fullmatch(text):
        return match[2], int(match[1])
    return None


def find_rows_with_times(tables: ColumnsByTable) -> dict[str, np.ndarray]:
    """Return a mask of the events whose times were set, for each table with events whose times were never set.

    The start of such an event is 0, and so is its duration, or the end of such an event is 0. If only the end was set,
    the event seems to last from 0 until after the start of the earliest other event. Time 0 is valid, however, if the
    earliest other event starts within a day after 0, or within the duration of all other events. An event that
    starts more than a year before or after the median start has no valid time either, unless this applies to all events
    of its table.
    """
    times = {name: _compute_starts_and_ends(columns) for name, columns in tables.items()}
    is_near = _find_rows_near_median({name: start for name, (start, _) in times.items()})
    is_set = {name: is_near[name] & (start != 0) & (end != 0) for name, (start, end) in times.items()}
    starts, ends = (
        np.concatenate([np.zeros(0, np.int64), *(t[i][is_set[n]] for n, t in times.items())]) for i in (0, 1)
    )
    masks = is_near
    if len(starts) and starts.min() > max(_DAY_NS, int(ends.max()) - int(starts.min())):
        masks = {
            name: is_set[name] | (is_near[name] & (start == 0) & (end > 0) & (end < starts.min()))
            for name, (start, end) in times.items()
        }
    return {name: mask for name, mask in masks.items() if not mask.all()}


def _find_rows_near_median(starts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a mask of the events that start at most a year from the median start, for each table.

    All events count as near if most events are far from the median.
    """
    together = np.concatenate([np.zeros(0, np.int64), *starts.values()])
    if not len(together):
        return {name: np.ones(0, np.bool_) for name in starts}
    median = int(np.partition(together, len(together) // 2)[len(together) // 2])
    low, high = max(median - _YEAR_NS, -(1 << 63)), min(median + _YEAR_NS, (1 << 63) - 1)
    masks = {name: (low <= start) & (start <= high) for name, start in starts.items()}
    if 2 * sum(int(mask.sum()) for mask in masks.values()) <= len(together):
        return {name: np.ones_like(mask) for name, mask in masks.items()}
    return {name: mask if mask.any() else np.ones_like(mask) for name, mask in masks.items()}


def _compute_starts_and_ends(columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    start = col.concatenate_chunks(columns[Slot.START.name]).to_numpy()
    if Slot.DURATION.name not in columns:
        return start, start
    return start, start + col.concatenate_chunks(columns[Slot.DURATION.name]).to_numpy()


def has_text_ids(tables: Iterable[Columns]) -> bool:
    """Return whether a process id of an event is text."""
    return any(not col.is_all_null(columns[PID_TEXT]) for columns in tables if PID_TEXT in columns)


def number_processes_and_devices(
    tables: ColumnsByTable, track_names: Columns
) -> tuple[dict[str, dict[str, pa.Array]], Columns]:
    """Replace process ids that consist of a prefix and a number with numbers that are unique in the file.

    Programs that merge the traces of several ranks write a prefix for each rank: ``[TP00] 4242`` for a process, and
    ``[TP00] 0`` for a GPU. A process keeps its number unless a process of another rank has the same number. If several
    ranks have a GPU with the same number, the GPUs of all ranks are numbered consecutively.

    Returns:
        The tables with the additional column ``RANK``, and the names of tracks.
    """
    ids = _parse_prefixed_ids(tables)
    processes = _number_processes(tables, ids)
    numbered = {}
    for name, columns in tables.items():
        texts = _list_texts(columns)
        numbers = processes if name in ON_CPU else {text: known.number for text, known in ids.items()}
        ranks = {text: known.rank for text, known in ids.items()}
        pid = pc.coalesce(_map_texts(texts, numbers), col.concatenate_chunks(columns[Slot.PID.name]))
        rank = _map_texts(texts, ranks).fill_null(0)
        numbered[name] = {**columns, Slot.PID.name: pid, RANK: rank}
    if track_names:
        pid = pc.coalesce(_map_texts(_list_texts(track_names), processes), track_names[Slot.PID.name])
        track_names = {**track_names, Slot.PID.name: pid}
    return _number_devices(numbered), track_names


def _list_texts(columns: Columns) -> pa.DictionaryArray:
    return col.concatenate_chunks(columns[PID_TEXT])


def _map_texts(texts: pa.DictionaryArray, numbers: Mapping[str, int]) -> pa.Array:
    """Return the number of each string, or null for a string without a number."""
    if not len(texts.dictionary):
        return pa.nulls(len(texts), pa.int64())
    return pa.array([numbers.get(t) for t in texts.dictionary.to_pylist()], pa.int64()).take(texts.indices)


def _parse_prefixed_ids(tables: ColumnsByTable) -> dict[str, _PrefixedId]:
    """Return the prefix and number of each process id that has both."""
    ids: dict[str, _PrefixedId] = {}
    ranks: dict[str, int] = {}
    for columns in tables.values():
        for text in _list_texts(columns).dictionary.to_pylist():
            if (parsed := parse_prefixed_id(text)) is not None:
                ids[text] = _PrefixedId(ranks.setdefault(parsed[0], len(ranks) + 1), parsed[1])
    return ids


def _number_processes(tables: ColumnsByTable, ids: Mapping[str, _PrefixedId]) -> dict[str, int]:
    """Return a unique process id for each process id that is text."""
    on_cpu = [columns for name, columns in tables.items() if name in ON_CPU]
    texts = dict.fromkeys(text for columns in on_cpu for text in _list_texts(columns).dictionary.to_pylist())
    used = {pid for columns in on_cpu for pid in pc.unique(columns[Slot.PID.name]).to_pylist()}
    processes = {}
    for text in texts:
        if text in ids:
            number = ids[text].number
            processes[text] = number if number not in used else number + (ids[text].rank << 32)
            used.add(processes[text])
    return processes


def _number_devices(tables: Mapping[str, dict[str, pa.Array]]) -> dict[str, dict[str, pa.Array]]:
    """Number the GPUs of all ranks consecutively if several ranks have a GPU with the same number."""
    keys = {
        name: pl.DataFrame(
            {
                RANK: pl.Series(columns[RANK]),
                "device": pl.Series(
                    pc.coalesce(col.concatenate_chunks(columns[Slot.DEVICE.name]), columns[Slot.PID.name])
                ),
            }
        )
        for name, columns in tables.items()
        if name not in ON_CPU
    }
    distinct = pl.concat([pl.DataFrame(schema={RANK: pl.Int64, "device": pl.Int64}), *keys.values()])
    distinct = distinct.drop_nulls().unique().sort(RANK, "device")
    if distinct["device"].n_unique() == distinct.height:
        return dict(tables)
    distinct = distinct.with_row_index("number").cast(pl.Int64)
    devices = {
        name: frame.join(distinct, [RANK, "device"], how="left", maintain_order="left")["number"].to_arrow()
        for name, frame in keys.items()
    }
    return {
        name: {**columns, Slot.DEVICE.name: devices[name]} if name in devices else columns
        for name, columns in tables.items()
    }


def replace_missing_correlation_ids(tables: ColumnsByTable) -> dict[str, dict[str, pa.Array | pa.ChunkedArray]]:
    """Give activities without a correlation id the id of a call in the op that launched them, if the op is known.

    The ``External id`` of an activity is that of the op that launched it and of the calls in this op. In some traces
    of AMD GPUs, neither activities nor calls have a correlation id, and both are given the negative ``External id``.
    """
    repaired = {name: dict(columns) for name, columns in tables.items()}
    if "api_calls" not in repaired:
        return repaired
    calls = repaired["api_calls"]
    activities = [repaired[name] for name in schemas.list_tables("operation") if name in repaired]
    externals = [_find_external_ids(columns) for columns in activities]
    if all(col.is_all_null(external) for external in externals):
        return repaired
    check_polars_can_run()
    is_launch = pc.match_substring_regex(
        col.concatenate_chunks(calls[Slot.NAME.name]).cast(pa.string()), _LAUNCH_PATTERN
    )
    missing = pc.if_else(is_launch, _find_external_ids(calls), pa.scalar(None, pa.int64()))
    calls[Slot.CORRELATION.name] = pc.coalesce(_concatenate_ids(calls), pc.negate(missing))
    launches = _list_launches_by_external_id(calls, is_launch, activities)
    for columns, external in zip(activities, externals, strict=True):
        keys = pl.DataFrame({"external": pl.Series(external)})
        ids = keys.join(launches, "external", how="left", maintain_order="left")["correlation"].to_arrow()
        columns[Slot.CORRELATION.name] = pc.coalesce(_concatenate_ids(columns), ids)
    return repaired


def _list_launches_by_external_id(calls: Columns, is_launch: pa.Array, activities: Iterable[Columns]) -> pl.DataFrame:
    """Return the ``external`` id and the ``correlation`` id of one launch per op.

    Launches that no activity refers to take precedence. An id that calls of several processes have is left out.
    """
    slots = {"external": Slot.EXTERNAL, "correlation": Slot.CORRELATION, "process": Slot.PID}
    columns = {name: pl.Series(col.concatenate_chunks(calls[slot.name])) for name, slot in slots.items()}
    launches = pl.DataFrame(columns).filter(pl.Series(is_launch)).drop_nulls(["external", "correlation"])
    used = [pl.Series(_concatenate_ids(columns)) for columns in activities]
    is_used = pl.col("correlation").is_in(pl.concat(used).drop_nulls().unique().implode())
    launches = launches.filter(pl.col("process").n_unique().over("external") == 1)
    launches = launches.sort(is_used, maintain_order=True).unique("external", keep="first")
    return launches.select("external", "correlation")


def _concatenate_ids(columns: Columns) -> pa.Array:
    return col.concatenate_chunks(columns[Slot.CORRELATION.name])


def _find_external_ids(columns: Columns) -> pa.Array:
    """Return the positive ``External id`` of each event without a correlation id, and null for all other events."""
    external = col.concatenate_chunks(columns[Slot.EXTERNAL.name])
    unknown = pc.and_(pc.is_null(columns[Slot.CORRELATION.name]), pc.greater(external, 0))
    return pc.if_else(col.concatenate_chunks(unknown), external, pa.scalar(None, pa.int64()))
