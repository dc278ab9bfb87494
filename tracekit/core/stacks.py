"""Format call stacks as strings: the functions from the outermost one to the innermost one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.core.relations import CALL, THREAD, join_calls
from tracekit.core.trees import sum_over_ancestors
from tracekit.schemas.callstacks import iterate_frame_batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.schemas.callstacks import Int64Array

READ = ("parent_id", "depth", "symbol")
"""Columns of the table ``stacks`` from which paths are computed."""
COLUMN = "stack"
SEPARATOR, UNKNOWN, ELLIPSIS = ";", "[unknown]", "…"
MAX_NAME_CHARS = 1 << 10
MAX_PATH_BYTES, MAX_TOTAL_BYTES = 1 << 14, 1 << 30
"""Maximum size of a path, and of all distinct paths together. The outer functions of larger paths are omitted."""


def build_stack_paths(stacks: pl.DataFrame, ids: pl.Series) -> pl.Series:
    """Return the functions of call stacks, from the outermost one to the innermost one, joined by ";".

    A semicolon in the name of a function is replaced by a colon. If a path is too long, "…" replaces its outer
    functions.

    Args:
        stacks: The columns ``READ`` of the table ``stacks``.
        ids: Ids of stacks, which may be null.

    Returns:
        One path per id, as Categorical. It is null if the id is null or unknown.
    """
    frame = ids.cast(pl.Int64).to_frame("id")
    known = frame.with_columns(pl.when(pl.col("id").is_between(1, stacks.height)).then("id"))
    distinct = known["id"].drop_nulls().unique().sort()
    texts = pl.Series("path", _build_distinct_paths(stacks, distinct.to_numpy()), pl.String).cast(pl.Categorical)
    numbered = pl.DataFrame({"id": distinct}).with_row_index("row")
    rows = known.join(numbered, on="id", how="left", maintain_order="left")["row"]
    return texts.gather(rows).alias(COLUMN)


def read_stack_ids_of_calls(calls: pl.DataFrame, frames: Callable[[str], pl.LazyFrame]) -> pl.Series:
    """Return the id of the call stack of each API call.

    If a call has no call stack of its own, the id of the Python call stack that was recorded with it is returned.

    Args:
        calls: The columns ``process_id`` and ``correlation_id`` of each call.
        frames: Function that returns the table with a given name.

    Returns:
        One id per call. It is null if the call or its stack was not recorded.
    """
    moment = [*THREAD, "timestamp_ns"]
    columns = [*CALL, "thread_id", "stack_id", pl.col("start_ns").alias("timestamp_ns")]
    known = frames("api_calls").select(columns).join(calls.lazy().select(CALL).unique(), on=CALL, how="semi")
    python = frames("python_samples").filter(pl.col("kind").cast(pl.String) == "cuda")
    python = python.select(*moment, python_id="stack_id").unique(moment, keep="first", maintain_order=True)
    joined = known.unique(CALL, keep="first", maintain_order=True).join(python, on=moment, how="left")
    ids = joined.select(*CALL, pl.coalesce("stack_id", "python_id").alias("stack_id")).collect()
    return join_calls(calls, ids, "first", "left")["stack_id"]


def _build_distinct_paths(stacks: pl.DataFrame, ids: Int64Array) -> pa.ChunkedArray:
    """Return the paths of the call stacks with the given ids.

    The stacks are processed in batches with a limited number of frames, to limit memory use.
    """
    names = stacks["symbol"].cast(pl.String).fill_null(UNKNOWN).str.slice(0, MAX_NAME_CHARS)
    encoded = names.str.replace_all(SEPARATOR, ":", literal=True).to_arrow().dictionary_encode()
    texts = pa.concat_arrays([pa.array([UNKNOWN, ELLIPSIS]), encoded.dictionary.cast(pa.string())])
    codes = np.concatenate(([0], encoded.indices.to_numpy().astype(np.int64) + 2))
    parents = _build_parent_ids(stacks)
    sizes = pc.binary_length(texts).to_numpy()[codes] + 1
    limit = _compute_max_path_bytes(parents, sizes, ids)
    depths = np.concatenate(([0], stacks["depth"].to_numpy().astype(np.int64)))
    paths = [pa.array([], pa.string())]
    for _, whole, frames in iterate_frame_batches(parents, np.maximum(depths, 1), ids):
        edges, labels = _shorten_paths(whole, codes[frames], sizes[frames], limit)
        lists = pa.ListArray.from_arrays(pa.array(edges, pa.int32()), texts.take(pa.array(labels)))
        paths.append(pc.binary_join(lists, SEPARATOR))
    return pa.chunked_array(paths)


def _build_parent_ids(stacks: pl.DataFrame) -> Int64Array:
    """Return an array with the id of the parent of each call stack, indexed by stack id. 0 means no parent."""
    parent = stacks["parent_id"].fill_null(0).to_numpy().astype(np.int64)
    return np.concatenate(([0], np.where((parent < 0) | (parent > len(parent)), 0, parent)))


def _compute_max_path_bytes(parents: Int64Array, sizes: Int64Array, ids: Int64Array) -> int:
    """Return a limit for the bytes of each path that keeps the total of all paths within ``MAX_TOTAL_BYTES``."""
    rows = pl.Series(np.where(parents[1:] > 0, parents[1:] - 1, -1))
    up = pl.select(pl.when(rows >= 0).then(rows)).to_series()
    whole = sum_over_ancestors(up, pl.Series(sizes[1:])).fill_null(MAX_PATH_BYTES).to_numpy()[ids - 1]
    limit = MAX_PATH_BYTES
    while np.minimum(whole, limit).sum() > MAX_TOTAL_BYTES:
        limit //= 2
    return limit


def _shorten_paths(
    edges: Int64Array, labels: Int64Array, sizes: Int64Array, limit: int
) -> tuple[Int64Array, Int64Array]:
    """Replace the outer frames of call stacks with an ellipsis if their paths exceed the limit.

    Args:
        edges: Index of the first frame of each stack, followed by the total number of frames.
        labels: Number of the function of each frame, outermost first within a stack.
        sizes: Size of the name of each frame in bytes, including a separator.
        limit: Maximum size of a path in bytes.

    Returns:
        The edges and labels of the shortened stacks.
    """
    total = np.concatenate(([0], np.cumsum(sizes)))
    counts = np.diff(edges)
    inner = np.repeat(total[edges[1:]], counts) - total[:-1]
    keep = inner <= limit
    if keep.all():
        return edges, labels
    keep[edges[1:] - 1] = True
    first = np.flatnonzero(keep[1:] & ~keep[:-1])
    labels = labels.copy()
    labels[first] = 1
    keep[first] = True
    return np.concatenate(([0], np.cumsum(np.add.reduceat(keep, edges[:-1], dtype=np.int64)))), labels[keep]
