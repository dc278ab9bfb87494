"""Read a flight recorder of PyTorch that was dumped as a pickle."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.pickled_stacks import build_stacks
from tracekit.readers.common.pickles import DICT, LIST, STRING, TRUE, TUPLE, read_pickle
from tracekit.readers.nccl.flight_recorder import Shapes, convert_to_entries

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.pickles import CellArray, Int64Array, Mask, Values
    from tracekit.system.files import InputFile

METADATA = ("pg_config", "version", "comm_lib_version", "nccl_version")
_INTEGERS = {
    "collective": ("collective_seq_id", "seq_id"),
    "message": ("p2p_seq_id",),
    "created": ("time_created_ns",),
    "started": ("time_discovered_started_ns",),
    "completed": ("time_discovered_completed_ns",),
    "timeout_ms": ("timeout_ms",),
}
_TEXTS = {"name": "profiling_name", "state": "state"}
_LISTS = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "frames")
_OTHERS = ("process_group", "pg_name", "thread_id", "duration_ms", "is_p2p")
_NOUN = "entries of the flight recorder"


class PickledRecorder(NamedTuple):
    """The content of a flight recorder.

    Attributes:
        entries: The entries, with the columns ``flight_recorder.ENTRY``.
        stacks: The rows of ``stacks``.
        metadata: The requested other members of the dump.
    """

    entries: pl.DataFrame
    stacks: pa.Table
    metadata: dict[str, Any]


def read_pickled_recorder(file: InputFile, budget: Budget) -> PickledRecorder:
    """Read a flight recorder. Early versions are a list of entries instead of a dictionary.

    Raises:
        Damage: The pickle is damaged, contains anything but plain values, or is not a flight recorder.
    """
    values = read_pickle(file, budget)
    is_dictionary = values.get_tag(values.root) == DICT
    members = values.get_members(values.root) if is_dictionary else {"entries": values.root}
    listed = values.get_items(members["entries"]) if "entries" in members else np.zeros(0, np.uint64)
    budget.reserve(len(listed), 512, _NOUN)
    integers = [name for keys in _INTEGERS.values() for name in keys]
    cells = values.columns(listed, (*integers, *_TEXTS.values(), *_LISTS, *_OTHERS), _NOUN)
    columns: dict[str, pl.Series] = {}
    for column, keys in _INTEGERS.items():
        columns[column] = _read_integers(values, [cells[key] for key in keys], keys[0])
    for column, key in _TEXTS.items():
        columns[column] = _read_texts(values, cells[key], key)
    columns |= _read_shapes(values, cells, budget)
    columns |= _read_groups(values, cells["process_group"], cells["pg_name"])
    threads = np.where(_get_tags(cells["thread_id"]) == STRING, cells["thread_id"], 0)
    columns["thread"] = _read_texts(values, threads, "thread_id")
    numbers, is_number = values.reals(cells["duration_ms"], "duration_ms")
    columns["duration_ms"] = _convert(numbers, is_number)
    columns["is_message"] = _convert((_get_tags(cells["is_p2p"]) == TRUE).astype(np.int64)) == 1
    (stack_ids,), stacks = build_stacks(values, [cells["frames"]], budget, Counter())
    columns |= {name: pl.Series(ids) for name, ids in stack_ids._asdict().items()}
    metadata = {name: values.build(members[name]) for name in METADATA if name in members}
    return PickledRecorder(convert_to_entries(columns), stacks, metadata)


def _get_tags(cells: CellArray) -> CellArray:
    return cells & np.uint64(31)


def _convert(values: np.ndarray[Any, Any], valid: Mask | None = None) -> pl.Series:
    return pl.Series(build_number_array(values, valid))


def _read_integers(values: Values, alternatives: list[CellArray], name: str) -> pl.Series:
    """Return the integers of the first alternative that has a value in each entry."""
    cells = alternatives[0]
    for other in alternatives[1:]:
        cells = np.where(_get_tags(cells) == 0, other, cells)
    return _convert(*values.integers(cells, name))


def _read_texts(values: Values, cells: CellArray, name: str) -> pl.Series:
    return pl.Series(values.encode(values.find_strings(cells, name)).cast("string"))


def _read_shapes(values: Values, cells: dict[str, CellArray], budget: Budget) -> dict[str, pl.Series]:
    """Return the sizes and data types of the inputs and outputs. Equal lists are read once."""
    shapes = Shapes(budget)
    columns: dict[str, pl.Series] = {}
    for side in ("input", "output"):
        (codes,), distinct = values.encode_lists([cells[f"{side}_sizes"]])
        listed = budget.reserve_each(distinct.tolist(), "sizes of tensors")
        texts = [_format_shapes(values.build(int(cell))) for cell in listed]
        columns[f"{side}_shapes"] = _take(pl.Series(texts, dtype=pl.String), codes)
        counts = pl.Series([shapes.count_elements(text) for text in texts], dtype=pl.Int64)
        columns[f"{side}_elements"] = _take(counts, codes)
        (codes,), distinct = values.encode_lists([cells[f"{side}_dtypes"]])
        lists = [values.build(int(cell)) for cell in budget.reserve_each(distinct.tolist(), "data types")]
        firsts = [each[0] if each and isinstance(each[0], str) else None for each in lists]
        columns[f"{side}_type"] = _take(pl.Series(firsts, dtype=pl.String), codes)
    return columns


def _format_shapes(shapes: object) -> str:
    """Return shapes as the JSON that PyTorch writes, or null as JSON if they are something else."""
    try:
        return json.dumps(shapes, separators=(",", ":"))
    except (TypeError, ValueError):
        return "null"


def _take(distinct: pl.Series, codes: Int64Array) -> pl.Series:
    return distinct.gather(_convert(codes.astype(np.int64)))


def _read_groups(values: Values, groups: CellArray, names: CellArray) -> dict[str, pl.Series]:
    """Return the names and descriptions of process groups, which are pairs, or names in early versions."""
    tags = _get_tags(groups)
    is_pair = (tags == TUPLE) | (tags == LIST)
    offsets, items = values.flatten(np.where(is_pair, groups, 0), "process groups")
    counts = np.diff(offsets)
    parts = []
    for number in range(2):
        part = np.zeros(len(groups), np.uint64)
        has_part = counts > number
        part[has_part] = items[offsets[:-1][has_part] + number]
        parts.append(part)
    name = np.where(is_pair, parts[0], np.where(tags == STRING, groups, names))
    if (~np.isin(_get_tags(name), (0, 1, STRING))).any():
        raise Damage("the name of a process group is not a string")
    return {
        "group": _read_texts(values, name, "process_group"),
        "description": _read_texts(values, parts[1], "process_group"),
    }
