"""Plans: any order of steps is one plan, columns are read once, and tables are the same however they are read."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import strategies
from tests.conftest import FIXTURES, examples
from tests.helpers import count_undecoded
from tracekit import schemas
from tracekit.core.select import RowCondition
from tracekit.errors import SchemaError, TracekitError, TracekitWarning
from tracekit.plan import (
    Aggregation,
    Correlate,
    InMemory,
    JoinGraph,
    JoinNcu,
    LiveCapture,
    Plan,
    PlanStep,
    RecordedTables,
    RollUp,
    SelectRows,
    SelectTables,
    get_tables,
)
from tracekit.readers.nsys.capture import NsysCapture
from tracekit.registry import tables as registry_tables
from tracekit.registry.interface import Capture
from tracekit.registry.tables import Tables, _convert_to_string_series, count_rows, read_chunks, scan_table
from tracekit.system import memory
from tracekit.trace import get_trace_view

CAPTURE = Path(__file__).parents[2] / "fixtures" / "train_amp.sqlite"


class Counted(Capture):
    """A capture that notes what it is asked for."""

    def __init__(self, rows: int = 3) -> None:
        self.rows = rows
        self.asked: list[tuple[str, list[str]]] = []
        self.closed = False

    def names(self) -> list[str]:
        return ["kernels"]

    def count(self, name: str) -> int:
        return self.rows if name == "kernels" else 0

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        self.asked.append((name, list(columns)))
        texts = {"name": ["a", "b", "a"], "short_name": ["x", None, "y"]}
        made = {c: texts.get(c, list(range(self.rows))) for c in columns}
        return pa.table(made)

    def close(self) -> None:
        self.closed = True


def recorded(capture: Capture | dict[str, pa.Table]) -> RecordedTables:
    """The tables of a capture, or in memory."""
    origin = LiveCapture(capture) if isinstance(capture, Capture) else InMemory(capture)
    return RecordedTables(origin, opened=origin.open(), path=Path("file") if isinstance(capture, Capture) else None)


def tables(of: RecordedTables, *steps: PlanStep) -> Tables:
    """The tables after some steps."""
    return get_tables(Plan(of).add_steps(*steps))


def test_a_column_is_read_once() -> None:
    capture = Counted()
    layer = recorded(capture)
    assert capture.asked == []
    assert read_chunks(layer, "kernels", ["end_ns", "start_ns"]).column_names == ["end_ns", "start_ns"]
    assert read_chunks(layer, "kernels", ["start_ns", "name", "start_ns"]).column_names == [
        "start_ns",
        "name",
        "start_ns",
    ]
    read_chunks(layer, "kernels", ["name", "end_ns"])
    assert capture.asked == [("kernels", ["end_ns", "start_ns"]), ("kernels", ["name"])]
    first, second = (read_chunks(layer, "kernels", ["name"])["name"].chunk(0) for _ in range(2))
    assert first.indices.buffers()[1].address == second.indices.buffers()[1].address


class CountedTogether(Counted):
    """A capture that counts several tables at once."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[list[str]] = []

    def names(self) -> list[str]:
        return ["kernels", "memcpys", "memsets"]

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        self.together.append(list(names))
        return {name: self.count(name) for name in names}


def test_tables_are_counted_together_and_once() -> None:
    capture = CountedTogether()
    trace = tk.Trace(Plan(recorded(capture)))
    assert trace.count("memsets") == 0
    expected = {name: 3 if name == "kernels" else 0 for name in trace.tables}
    assert trace.count_all() == trace.count_all() == expected
    assert capture.together == [["memsets"], ["kernels", "memcpys"]]
    assert trace.select(tables=["memcpys"]).count_all() == dict.fromkeys(trace.tables, 0)
    assert tk.Trace(Plan(recorded(Counted()))).count_all() == expected


class Undecoding(Counted):
    """A capture that holds more than its tables."""

    def count_undecoded(self) -> dict[str, int]:
        return {"CPU sample": 2, "OpenACC": 7, "MPI": 2}


def test_what_is_not_decoded_does_not_depend_on_the_selection() -> None:
    trace = tk.Trace(Plan(recorded(Undecoding())))
    for other in (trace, trace.correlate(), trace.select(tables=["memcpys"]), trace.select(min_duration_ns=1)):
        assert list(count_undecoded(other.undecoded).items()) == [("OpenACC", 7), ("CPU sample", 2), ("MPI", 2)]


def test_a_reader_need_not_count_what_is_not_decoded() -> None:
    assert recorded(Counted()).undecoded() == {}
    assert tk.Trace.from_tables({}).undecoded == {}


def test_a_table_that_the_file_lacks_is_empty() -> None:
    layer = recorded(Counted())
    assert read_chunks(layer, "memcpys", ["bytes"]).num_rows == count_rows(layer, "memcpys") == 0
    assert count_rows(layer, "kernels") == 3
    for ask in (lambda name: count_rows(layer, name), lambda name: read_chunks(layer, name, [])):
        with pytest.raises(SchemaError, match="no table is called 'nonesuch'"):
            ask("nonesuch")
    with pytest.raises(SchemaError, match="table 'kernels' has no column 'nonesuch'"):
        read_chunks(layer, "kernels", ["nonesuch"])


def test_a_reader_that_changes_its_mind() -> None:
    capture = Counted()
    layer = recorded(capture)
    read_chunks(layer, "kernels", ["start_ns"])
    capture.rows = 4
    with pytest.raises(SchemaError, match=r"^file: table 'kernels' had 3 rows when .*, but now it has 4$"):
        read_chunks(layer, "kernels", ["end_ns"])


def test_a_reader_that_gives_less_than_asked_for() -> None:
    class Lazy(Counted):
        def read(self, name: str, columns: Sequence[str]) -> pa.Table:
            return super().read(name, columns).drop(["start_ns"])

    capture = Lazy()
    with pytest.raises(SchemaError, match=r"^file: table 'kernels' lacks required columns: start_ns$"):
        read_chunks(recorded(capture), "kernels", ["start_ns"])


def test_closing_reaches_the_file() -> None:
    capture = Counted()
    trace = tk.Trace(Plan(recorded(capture)))
    trace.correlate().select(tables=["kernels"], min_duration_ns=1).close()
    assert capture.closed
    with pytest.raises(TracekitError, match=r"^file: the trace is closed\nHint: load it again$"):
        trace.count("kernels")
    recorded({}).close()


def test_closing_frees_the_columns() -> None:
    """Until then columns are cached; tables that were returned outlive them."""
    trace = tk.load(CAPTURE)
    correlated, rolled = trace.correlate(), trace.rollup()
    columns = correlated.table("kernels", ["name", "range_path"]), rolled.table("ops")
    assert trace._plan.source._columns
    assert correlated._view.tables._columns["kernels"]  # type: ignore[attr-defined]
    trace.close()
    assert not trace._plan.source._columns
    for stage in (correlated._view.tables, rolled._view.tables):
        assert not stage._columns  # type: ignore[attr-defined]
    assert [c.num_rows for c in columns] == [334, 60]
    for ask in (lambda: trace.table("kernels"), lambda: correlated.frame("kernels").collect(), rolled.count_all):
        with pytest.raises(TracekitError, match="the trace is closed"):
            ask()


def test_what_no_trace_uses_is_freed() -> None:
    with tk.load(CAPTURE) as trace:
        correlated = trace.correlate()
        assert correlated.correlate()._view.tables is correlated._view.tables
        assert len(trace._plan.source.stages) == 1
        del correlated
        gc.collect()
        assert len(trace._plan.source.stages) == 0


@pytest.mark.parametrize("step", ["recorded", "correlated", "rolled up"])
@pytest.mark.parametrize("ask", ["table", "frame"])
def test_threads_read_a_column_once(step: str, ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads that ask for the same columns at once get equal tables of one read."""
    reads: list[str] = []
    real = NsysCapture.read_many

    def read_many(self: NsysCapture, wanted: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        reads.extend(f"{name}.{c}" for name, columns in wanted.items() for c in columns)
        return real(self, wanted)

    monkeypatch.setattr(NsysCapture, "read_many", read_many)
    steps = {"recorded": lambda t: t, "correlated": tk.Trace.correlate, "rolled up": tk.Trace.rollup}
    with tk.load(CAPTURE) as file:
        trace = steps[step](file)
        together = threading.Barrier(4)

        def read(_: int) -> pl.DataFrame:
            together.wait(60)
            return pl.DataFrame(trace.table("kernels")) if ask == "table" else trace.frame("kernels").collect()

        with ThreadPoolExecutor(4) as pool:
            frames = list(pool.map(read, range(4)))
    assert all(frame.equals(frames[0]) for frame in frames)
    assert frames[0].height == 334
    assert sorted(set(reads)) == sorted(reads)
    assert "kernels.name" in reads


def test_rows_that_end_before_they_start_are_told_once() -> None:
    table = pa.table({"start_ns": [1, 5, 9], "end_ns": [2, 4, 9], "name": ["a", "b", "c"]})
    layer = recorded({"kernels": table})
    read_chunks(layer, "kernels", ["end_ns"])
    with pytest.warns(TracekitWarning, match="^memory: 1 row of the table kernels ends before it starts; it is kept"):
        read_chunks(layer, "kernels", ["start_ns"])
    assert read_chunks(layer, "kernels", ["start_ns", "end_ns", "name"]).num_rows == 3


@pytest.fixture
def layer() -> Iterator[RecordedTables]:
    """The tables of a real capture."""
    with tk.load(CAPTURE) as trace:
        yield trace._plan.source


def test_a_frame_reads_what_its_query_uses() -> None:
    capture = Counted()
    frame = scan_table(recorded(capture), "kernels")
    assert capture.asked == []
    assert frame.filter(pl.col("end_ns") > 0).select("name").collect()["name"].to_list() == ["b", "a"]
    assert [set(c) for _, c in capture.asked] == [{"end_ns", "name"}]
    assert frame.select(pl.len()).collect().item() == 3
    assert frame.with_row_index().select("index").collect()["index"].to_list() == [0, 1, 2]


@pytest.mark.parametrize("many_strings", [1, registry_tables._MANY_STRINGS])
@pytest.mark.parametrize("correlated", [False, True])
def test_a_frame_is_the_table(
    layer: RecordedTables, correlated: bool, many_strings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_tables, "_MANY_STRINGS", many_strings)
    chosen = tables(layer, Correlate()) if correlated else layer
    for name in ("kernels", "nvtx_ranges", "memcpys", "devices", "osrt_calls"):
        schema = chosen.schema(name)
        whole = pl.DataFrame(read_chunks(chosen, name, schema.names))
        frame = scan_table(chosen, name)
        assert dict(frame.collect_schema()) == schemas.polars_schema(schema)
        assert frame.collect().equals(whole)
        assert frame.slice(3, 5).collect().equals(whole.slice(3, 5))
        assert frame.tail(2).collect().equals(whole.tail(2))
        key = schema.names[0]
        some = pl.col(key) % 3 == 1
        assert frame.filter(some).head(4).collect().equals(whole.filter(some).head(4))
        assert frame.head(9).filter(some).collect().equals(whole.head(9).filter(some))
        assert frame.select(pl.len()).collect().item() == whole.height == count_rows(chosen, name)


def test_many_names_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_tables, "_MANY_STRINGS", 3)
    names = pa.array(["b", None, "a", "c"]).dictionary_encode()
    ids, kinds = pa.array(range(4)), pa.array(["push_pop"] * 4)
    source = recorded({"nvtx_ranges": pa.table({"range_id": ids, "start_ns": ids, "kind": kinds, "name": names})})
    frame = scan_table(source, "nvtx_ranges").select("start_ns", "name", "kind")
    first = frame.collect()
    assert list(source.categories) == [("nvtx_ranges", "name")]
    assert frame.collect().equals(first)
    assert frame.select("name").collect().equals(first.select("name"))
    source.release()
    assert not source.categories
    assert frame.collect().equals(first)


def test_string_columns_of_a_frame(layer: RecordedTables) -> None:
    schema, strings = layer.schema("nvtx_ranges"), ("name", "domain")
    whole = pl.DataFrame(read_chunks(layer, "nvtx_ranges", schema.names)).with_columns(pl.col(strings).cast(pl.String))
    frame = scan_table(layer, "nvtx_ranges", strings)
    assert dict(frame.collect_schema()) == dict(whole.schema)
    assert frame.collect().equals(whole)
    assert frame.slice(3, 5).collect().equals(whole.slice(3, 5))
    for columns in (["name"], ["name", "domain"], ["domain", "kind", "name"], ["kind"]):
        assert frame.select(columns).collect().equals(whole.select(columns))
    some = pl.col("name").str.starts_with("a")
    assert 0 < whole.filter(some).height < whole.height
    assert frame.filter(some).select("range_id").collect().equals(whole.filter(some).select("range_id"))
    with memory.limit_memory(0):
        assert scan_table(layer, "nvtx_ranges", strings).collect().equals(whole)


@given(st.lists(st.lists(st.sampled_from(["", "a", "ä", "a string that is longer than twelve bytes", None]))))
@settings(max_examples=examples(50), deadline=None)
def test_strings_of_chunks_with_their_own_dictionaries(chunks: list[list[str | None]]) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    column = pa.chunked_array([pa.array(chunk, pa.string()).dictionary_encode() for chunk in chunks], kind)
    strings = pl.Series("name", list(itertools.chain.from_iterable(chunks)), pl.String)
    assert _convert_to_string_series("name", column).equals(strings, check_dtypes=True)


def test_correlation_adds_each_column_once(layer: RecordedTables, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit.core.correlate import Correlation

    asked: list[list[str]] = []
    real = Correlation.compute_columns

    def spy(self: Correlation, table: str, names: Sequence[str]) -> pl.DataFrame:
        columns = real(self, table, names)
        if columns.height > 1:  # not the run on tables of one row
            asked.append(list(names))
        return columns

    monkeypatch.setattr(Correlation, "compute_columns", spy)
    linked = tables(layer, Correlate())
    assert tables(layer, Correlate()) is linked
    assert read_chunks(linked, "kernels", ["start_ns"]).num_rows == 334
    read_chunks(linked, "kernels", ["range_id", "start_ns", "range_name"])
    made = read_chunks(linked, "kernels", ["range_name", "range_depth"])
    assert asked == [["range_id", "range_name"], ["range_depth"]]
    held = [v for c in made["range_name"].chunks for v in c.dictionary.to_pylist()]
    assert set(held) == set(made["range_name"].to_pylist()) - {None}


@pytest.mark.slow
def test_some_tables(layer: RecordedTables) -> None:
    names = SelectTables(frozenset({"kernels", "api_calls"}))
    only = tables(layer, names)
    assert read_chunks(only, "nvtx_ranges", ["name"]).num_rows == count_rows(only, "nvtx_ranges") == 0
    assert read_chunks(only, "kernels", ["name"]).equals(read_chunks(layer, "kernels", ["name"]))
    assert only.count_many(["kernels", "nvtx_ranges"]) == {"kernels": 334, "nvtx_ranges": 0}
    assert only.schema("kernels") == layer.schema("kernels")
    for steps in ((names, Correlate()), (Correlate(), names)):
        assert read_chunks(tables(layer, *steps), "kernels", ["range_id"])["range_id"].null_count == 334
    projections = SelectTables(frozenset({"kernels", "nvtx_projections"}))
    both = tables(layer, Correlate(), projections)
    assert read_chunks(both, "kernels", ["range_id"])["range_id"].null_count < 334
    assert count_rows(both, "nvtx_projections") > count_rows(both, "nvtx_ranges") == 0


RESULTS, GRAPH = (Plan(RecordedTables(InMemory({}))) for _ in range(2))
STEPS: st.SearchStrategy[PlanStep] = st.one_of(
    st.builds(SelectTables, st.frozensets(st.sampled_from(["kernels", "ops", "nvtx_ranges", "ncu_launches"]))),
    st.builds(
        SelectRows,
        st.frozensets(st.sampled_from([RowCondition("time", (5, None)), RowCondition("min_duration_ns", 3)])),
    ),
    st.just(Correlate()),
    st.just(JoinNcu(RESULTS)),
    st.just(RollUp(Aggregation(iterations=(1, 2)))),
    st.just(JoinGraph(GRAPH)),
)


@settings(max_examples=examples(400))
@given(data=st.data(), steps=st.lists(STEPS, max_size=6))
def test_any_order_of_steps_is_one_plan(data: st.DataObject, steps: list[PlanStep]) -> None:
    source = RecordedTables(InMemory({}))
    plan = Plan(source).add_steps(*steps)
    other = Plan(source).add_steps(*data.draw(st.permutations(steps)))
    if RollUp not in map(type, steps) or JoinGraph not in map(type, steps):
        assert plan == other
    assert plan.add_steps(*(s for s in steps if not isinstance(s, RollUp))) == plan
    assert get_tables(plan) is get_tables(dataclasses.replace(plan))


def test_a_roll_up_comes_before_the_graph_that_is_joined_with_it() -> None:
    """Joining a graph rolls up with the parameters there are; later ones replace them."""
    roll_up, graph = RollUp(Aggregation(iterations=(1, 2))), JoinGraph(GRAPH)
    source = RecordedTables(InMemory({}))
    assert Plan(source).add_steps(roll_up, graph) == Plan(source).add_steps(graph, roll_up)
    assert Plan(source).add_steps(graph).rollup == Aggregation()
    assert Plan(source).add_steps(roll_up, RollUp()).rollup == Aggregation()


WINDOW = {"time": (100_000_000, 300_000_000)}
ORDERS = {
    "select, roll up": (
        lambda t: t.select(**WINDOW).rollup(),
        lambda t: t.rollup().select(**WINDOW),
    ),
    "select, correlate": (
        lambda t: t.select(**WINDOW).correlate(),
        lambda t: t.correlate().select(**WINDOW),
    ),
    "select tables, roll up": (
        lambda t: t.select(tables=["kernels", "ops"]).rollup(),
        lambda t: t.rollup().select(tables=["kernels", "ops"]),
    ),
    "select twice": (
        lambda t: t.select(**WINDOW).select(min_duration_ns=9000).rollup().correlate(),
        lambda t: t.rollup().select(min_duration_ns=9000).correlate().select(**WINDOW),
    ),
}


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_calls_does_not_matter(order: str) -> None:
    with tk.load(CAPTURE) as one, tk.load(CAPTURE) as other:
        first, second = ORDERS[order][0](one), ORDERS[order][1](other)
        assert first.count_all() == second.count_all()
        for name in ("kernels", "ops", "op_instances", "iterations", "nvtx_ranges"):
            assert first.table(name).equals(second.table(name)), name
        if "roll up" in order:
            assert first.count("ops") > 0


@pytest.mark.slow
def test_ops_of_a_selection_are_those_of_its_rows() -> None:
    with tk.load(CAPTURE) as trace:
        whole, some = trace.rollup(), trace.rollup().select(**WINDOW)
        assert whole.count("ops") > some.count("ops") > 0
        kernels = some.frame("kernels").select("op_id", "start_ns").collect()
        assert kernels.height == trace.select(**WINDOW).count("kernels")
        assert set(kernels["op_id"].drop_nulls()) <= set(some.frame("ops").select("op_id").collect()["op_id"])


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "time": st.tuples(st.none() | st.integers(-3, 9), st.none() | st.integers(-3, 9)),
    "devices": st.lists(st.integers(0, 9), max_size=3).map(tuple),
    "domains": st.lists(strategies.TEXT | st.just(""), max_size=3).map(tuple),
    "min_duration_ns": st.integers(-1, 9),
}
CONDITIONS = st.frozensets(st.one_of(st.builds(RowCondition, st.just(name), value) for name, value in VALUES.items()))


@pytest.mark.many(1)
@settings(max_examples=examples(240))
@pytest.mark.parametrize("name", ["kernels", "nvtx_ranges", "nvtx_marks", "cuda_events", "devices", "gpu_metrics"])
@given(data=st.data(), wanted=CONDITIONS)
def test_a_selection_is_consistent(name: str, data: st.DataObject, wanted: frozenset[RowCondition]) -> None:
    table = data.draw(strategies.tables(schemas.table(name)))
    layer = tables(recorded({name: table}), SelectRows(wanted))
    names = layer.schema(name).names
    read = read_chunks(layer, name, names)
    assert read.schema.equals(table.schema, check_metadata=True)
    assert read.num_rows == count_rows(layer, name)
    assert scan_table(layer, name).collect().to_dicts() == read.to_pylist()
    whole = iter(table.to_pylist())
    assert all(row in whole for row in read.to_pylist())  # the same rows, in their order
    for column in (c for c in read.columns if pa.types.is_dictionary(c.type)):
        held = [v for c in column.chunks for v in c.dictionary.to_pylist()]
        assert sorted(held) == sorted({v for v in column.to_pylist() if v is not None})


LONG = RowCondition("min_duration_ns", 50_000)


def test_a_selection_of_a_selection(layer: RecordedTables) -> None:
    steps = SelectRows(frozenset({RowCondition("devices", (0,))})), SelectRows(frozenset({LONG}))
    second = tables(layer, *steps)
    table = read_chunks(second, "kernels", ["start_ns", "end_ns", "device_id", "name"])
    long = [r for r in table.to_pylist() if r["end_ns"] - r["start_ns"] >= 50_000 and r["device_id"] == 0]
    assert 0 < len(long) == table.num_rows == count_rows(second, "kernels") < 334
    assert count_rows(second, "streams") == count_rows(layer, "streams")
    linked = tables(layer, *steps, Correlate())
    assert read_chunks(linked, "kernels", ["range_id"])["range_id"].null_count < table.num_rows
    assert count_rows(tables(layer, *steps, SelectTables(frozenset({"syncs"}))), "kernels") == 0


def test_what_is_selected_away_leaves_no_text(layer: RecordedTables) -> None:
    selected = tables(layer, SelectRows(frozenset({RowCondition("min_duration_ns", 10**12)})))
    names = read_chunks(selected, "kernels", ["name"])["name"]
    assert [len(c.dictionary) for c in names.chunks] in ([], [0])


@pytest.mark.slow
def test_a_table_that_is_written_alone_keeps_its_added_columns(tmp_path: Path) -> None:
    """They are computed from tables that are not written."""
    with tk.load(FIXTURES / "train_amp.sqlite") as raw:
        trace = raw.rollup().correlate()
        path = trace.export(tmp_path / "kernels.parquet", tables=["kernels"])
        written = pl.read_parquet(path)
        assert written.equals(pl.DataFrame(trace["kernels"]))
        assert written["range_name"].null_count() == 0
        assert written["op_id"].null_count() < written.height


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.int8(), pa.float64(), pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.bool_()]
)
@pytest.mark.parametrize("rows", [0, 1, 1_000_000])
def test_columns_of_nulls_are_equal_and_need_no_memory(kind: pa.DataType, rows: int) -> None:
    column = pa.chunked_array([pa.nulls(rows, kind)], kind)
    before = pa.total_allocated_bytes()
    smaller = memory.compact_if_all_null(column)
    assert pa.total_allocated_bytes() - before < 1000
    smaller.validate(full=True)
    assert smaller.equals(column)
    assert pl.Series(smaller).null_count() == rows
    assert (smaller is column) == (rows == 0 or kind in (pa.string(), pa.bool_()))
    some = pa.chunked_array([pa.nulls(1, kind), pa.array([None, 1], pa.int64()).cast(pa.string()).cast(kind)])
    assert memory.compact_if_all_null(some) is some


def test_working_data_is_freed_and_columns_are_kept() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        correlated = trace.correlate()
        paths = correlated.table("kernels", ["range_path"])
        (stage,) = trace._plan.source.stages.values()
        assert "_correlation" in vars(stage)
        get_trace_view(correlated).free_working_data()
        assert "_correlation" not in vars(stage)
        assert correlated.table("kernels", ["range_path"]) == paths
        assert "_correlation" not in vars(stage)
        assert correlated.table("kernels", ["range_depth"])["range_depth"].null_count == 0
