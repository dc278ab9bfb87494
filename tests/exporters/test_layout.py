"""Assignment of events to tracks, against a dictionary."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import small_blocks
from tracekit.exporters.timeline import layout
from tracekit.exporters.timeline.blocks import TableRows, evaluate_expression
from tracekit.exporters.timeline.tracks import LaneRegistry, Placement, Track, TrackGroup, TrackNames

SMALL = st.none() | st.integers(-3, 3)
LARGE = st.none() | st.integers(-(2**63), 2**63 - 1)
MIDDLE = st.none() | st.integers(0, 2**30)
TEXT = st.none() | st.sampled_from(["", "a", "NCCL"])
TYPES = [pl.Int32, pl.Int64, pl.Categorical, pl.Int64, pl.UInt32, pl.Int64]


def events_of(table: pa.Table) -> list[layout.TimedRows]:
    """The events in a table with the columns ``start`` and ``end``, as those of two kinds."""
    names = [name for name in table.column_names if pa.types.is_dictionary(table[name].type)]
    for name in names:
        words = table[name].cast(pa.string()).dictionary_encode()
        table = table.set_column(table.column_names.index(name), name, words)
    half = table.num_rows // 2
    parts = (table[:half], table[half:])
    return [layout.TimedRows(TableRows(part), pl.col("start"), pl.col("end")) for part in parts if part.num_rows]


@given(st.lists(st.tuples(SMALL, LARGE, TEXT, MIDDLE, MIDDLE, MIDDLE), min_size=1, max_size=20), st.integers(1, 9))
def test_events_with_equal_keys_are_on_one_track(rows: list[tuple[int | str | None, ...]], size: int) -> None:
    keys = pl.DataFrame(rows, schema=[(f"key_{n}", t) for n, t in enumerate(TYPES)], orient="row")
    registry = LaneRegistry(TrackNames({}, {}, {}, {}, {}))
    made: list[tuple[object, ...]] = []

    def make_track(_: TrackNames, *key: object) -> Track:
        made.append(key)
        return Track(TrackGroup(len(made), "", ()), "")

    times = np.arange(len(rows))
    table = keys.with_columns(start=pl.Series(times), end=pl.Series(times + 1)).to_arrow()
    with small_blocks(size):
        placement = Placement(tuple(keys.columns), make_track)
        numbers = layout.assign_lane_ids(events_of(table), placement, registry).tolist()
    assert [made[n] for n in numbers] == rows
    assert len(made) == len(set(rows))


@given(
    st.lists(st.tuples(st.integers(0, 9), TEXT, st.none() | st.booleans()), max_size=30),
    st.integers(1, 9),
    st.integers(0, 30),
)
def test_blocks_of_a_table_are_those_of_its_frame(
    rows: list[tuple[int, str | None, bool | None]], size: int, cut: int
) -> None:
    schema = {"n": pl.Int64, "text": pl.Categorical, "chosen": pl.Boolean}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    halves = [frame[:cut].to_arrow(), frame[cut:].to_arrow()]
    table = pa.concat_tables([h.set_column(1, "text", h["text"].cast(pa.string()).dictionary_encode()) for h in halves])
    for where, kept in ((None, frame), (pl.col("chosen"), frame.filter("chosen"))):
        with small_blocks(size):
            part = TableRows(table, where)
            tripled = evaluate_expression(part, pl.col("n") * 3, np.int64)
        assert part.height == kept.height
        strings = kept.with_columns(pl.col("text").cast(pl.String))
        assert part.read_block(slice(0, kept.height), ["text", "n"]).equals(strings.select("text", "n"))
        middle = slice(kept.height // 2, kept.height)
        assert part.read_batch(middle).read_frame(list(schema)).equals(strings[middle])
        backwards = np.arange(kept.height)[::-1]
        assert part.read_batch(backwards).read_frame(list(schema)).equals(strings.reverse())
        assert tripled.tolist() == (kept["n"] * 3).to_list()


def test_chunks_whose_dictionaries_are_slices_of_one_array_keep_their_strings() -> None:
    words = pa.array(["a", "b", "c", "d"])
    codes = pa.array([0, 1], pa.int32())
    chunks = [pa.DictionaryArray.from_arrays(codes, words[start : start + 2]) for start in (0, 2)]
    rows = TableRows(pa.table({"name": pa.chunked_array(chunks)}))
    assert rows.read_block(slice(0, 4), ["name"]).to_series().to_list() == words.to_pylist()


def test_events_whose_keys_have_the_same_track_do_not_overlap_on_a_lane() -> None:
    keys = pl.DataFrame({"domain": pl.Series([None, "", "a", None], dtype=pl.Categorical)})
    starts, registry = np.array([0, 5, 5, 10]), LaneRegistry(TrackNames({}, {}, {}, {}, {}))
    placement = Placement(("domain",), lambda _, domain: Track(TrackGroup(1, "", ()), domain or ""))
    table = keys.with_columns(start=pl.Series(starts), end=pl.Series(starts + 10)).to_arrow()
    numbers = layout.assign_lane_ids(events_of(table), placement, registry).tolist()
    names = {thread.lane_id: thread.name for thread in registry.iterate_threads()}
    assert [names[n] for n in numbers] == ["", " · lane 2", "a", ""]
