"""Read a flight recorder of PyTorch that was dumped as a pickle."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.common.columns import build_number_array, compact_dictionary
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.pickled_stacks import build_stacks
from tracekit.readers.common.pickles import DICT, INTEGER, LIST, STRING, TRUE, TUPLE, decode_texts, read_pickle
from tracekit.readers.common.tries import Trie
from tracekit.readers.nccl.flight_recorder import Shapes, convert_to_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    columns: dict[str, pl.Series] = {}

    def read(name: str) -> CellArray:
        return values.columns(listed, (name,), _NOUN)[name]  # one at a time, because each takes memory

    for column, keys in _INTEGERS.items():
        columns[column] = _read_integers(values, [read(key) for key in keys], keys[0])
    for column, key in _TEXTS.items():
        columns[column] = _read_texts(values, read(key), key)
    for side in ("input", "output"):
        columns[f"{side}_shapes"], columns[f"{side}_elements"] = _read_shapes(values, read(f"{side}_sizes"), budget)
        columns[f"{side}_type"] = _read_first_texts(values, read(f"{side}_dtypes"), budget)
    columns |= _read_groups(values, read("process_group"), read("pg_name"))
    threads = read("thread_id")
    columns["thread"] = _read_texts(values, np.where(_get_tags(threads) == STRING, threads, 0), "thread_id")
    columns["duration_ms"] = _convert(*values.reals(read("duration_ms"), "duration_ms"))
    is_message = read("is_p2p")
    columns["is_message"] = _convert((_get_tags(is_message) == TRUE).astype(np.int64)) == 1
    (stack_codes,), distinct = values.encode_lists([read("frames")])
    stacks = build_stacks(values, distinct, budget, Counter())
    columns |= {name: pl.Series(ids) for name, ids in stacks.get_ids(stack_codes)._asdict().items()}
    metadata = {name: values.build(members[name]) for name in METADATA if name in members}
    return PickledRecorder(convert_to_entries(columns), stacks.table, metadata)


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
    return pl.Series(decode_texts(values.encode(values.find_strings(cells, name))))


def _read_shapes(values: Values, cells: CellArray, budget: Budget) -> tuple[pl.Series, pl.Series]:
    """Return the sizes of tensors as JSON, and their numbers of elements. Equal values are read once."""
    shapes = Shapes(budget)
    codes, distinct = _encode_nested_lists(values, cells, budget)
    listed = budget.reserve_each(distinct.tolist(), "sizes of tensors")
    is_valid = _find_shapes(values, distinct)
    texts = [_format_shapes(values.build(int(cell))) if is_valid[n] else "null" for n, cell in enumerate(listed)]
    counts = pl.Series([shapes.count_elements(text) for text in texts], dtype=pl.Int64)
    return _take_texts(texts, codes), counts.gather(_convert(codes.astype(np.int64)))


def _read_first_texts(values: Values, cells: CellArray, budget: Budget) -> pl.Series:
    """Return the first string of each list. Equal lists are read once."""
    (codes,), distinct = values.encode_lists([cells])
    lists = [values.build(int(cell)) for cell in budget.reserve_each(distinct.tolist(), "data types")]
    firsts = [each[0] if each and isinstance(each[0], str) else None for each in lists]
    return _take_texts(firsts, codes)


def _encode_nested_lists(values: Values, lists: CellArray, budget: Budget) -> tuple[Int64Array, CellArray]:
    """Return the code of each list of lists, equal for equal ones, and one of the lists of each code."""
    (outer,), distinct = values.encode_lists([lists])
    offsets, inner = values.flatten(distinct, "sizes of tensors")
    (labels,), _ = values.encode_lists([inner])
    trie = Trie(budget, "sizes of tensors")
    nodes = pa.array(trie.add_sequences(offsets, labels.astype(np.uint32))).dictionary_encode()
    codes = nodes.indices.to_numpy()
    chosen = np.zeros(len(nodes.dictionary), np.uint64)
    chosen[codes[::-1]] = distinct[::-1]
    return codes[outer] if len(codes) else outer, chosen


def _find_shapes(values: Values, lists: CellArray) -> Mask:
    """Return which lists of lists contain only integers. The text of other values could be of any length."""
    offsets, inner = values.flatten(lists, "sizes of tensors")
    edges, items = values.flatten(inner, "sizes of tensors")
    others = np.append(0, np.cumsum(_get_tags(items) != INTEGER))[edges[offsets]]
    is_valid: Mask = np.diff(others) == 0
    return is_valid


def _format_shapes(shapes: object) -> str:
    """Return shapes as the JSON that PyTorch writes, or null as JSON if they are something else."""
    try:
        return json.dumps(shapes, separators=(",", ":"))
    except (TypeError, ValueError):
        return "null"


def _take_texts(distinct: Sequence[str | None], codes: Int64Array) -> pl.Series:
    return pl.Series(decode_texts(compact_dictionary(pa.array(codes), pa.array(distinct, pa.string()))))


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
