"""Layers: columns are read once, and every layer gives the same tables whichever way they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies
from tracekit import schemas
from tracekit.errors import SchemaError, TracekitWarning
from tracekit.layers import Correlated, File, Layer, Selected, Selection, to_frame

CAPTURE = Path(__file__).parents[1] / "fixtures" / "train_amp.sqlite"


class Counted:
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


def test_a_column_is_read_once() -> None:
    capture = Counted()
    layer = File(capture, Path("file"))
    assert capture.asked == []
    assert layer.read("kernels", ["end_ns", "start_ns"]).column_names == ["end_ns", "start_ns"]
    assert layer.read("kernels", ["start_ns", "name", "start_ns"]).column_names == ["start_ns", "name", "start_ns"]
    layer.read("kernels", ["name", "end_ns"])
    assert capture.asked == [("kernels", ["end_ns", "start_ns"]), ("kernels", ["name"])]
    first, second = (layer.read("kernels", ["name"])["name"].chunk(0) for _ in range(2))
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
    trace = tk.Trace(File(capture, Path("file")))
    assert trace.count("memsets") == 0
    expected = {name: 3 if name == "kernels" else 0 for name in trace.tables}
    assert trace.counts() == trace.counts() == expected
    assert capture.together == [["kernels", "memcpys"]]
    assert trace.select(tables=["memcpys"]).counts() == dict.fromkeys(trace.tables, 0)
    assert tk.Trace(File(Counted(), Path("file"))).counts() == expected


class Undecoding(Counted):
    """A capture that holds more than its tables."""

    undecoded = {"CPU sample": 2, "OpenACC": 7, "MPI": 2}  # noqa: RUF012


def test_every_layer_tells_what_is_not_decoded() -> None:
    file = File(Undecoding(), Path("file"))
    layers = [file, Correlated(file), file.only(["kernels"]), Selected(file, Selection(min_duration_ns=1))]
    assert [layer.undecoded for layer in layers] == [Undecoding.undecoded] * 4
    assert list(tk.Trace(file).correlate().select(tables=["memcpys"]).undecoded.items()) == [
        ("OpenACC", 7), ("CPU sample", 2), ("MPI", 2),
    ]  # fmt: skip


def test_a_reader_need_not_tell_what_is_not_decoded() -> None:
    assert File(Counted(), Path("file")).undecoded == {}
    assert tk.Trace.from_tables({}).undecoded == {}
    assert Layer().undecoded == {}


def test_a_table_that_the_file_lacks_is_empty() -> None:
    layer = File(Counted(), Path("file"))
    assert layer.read("memcpys", ["bytes"]).num_rows == layer.count("memcpys") == 0
    assert layer.count("kernels") == 3
    for ask in (layer.count, lambda name: layer.read(name, [])):
        with pytest.raises(SchemaError, match="no table is called 'nonesuch'"):
            ask("nonesuch")
    with pytest.raises(SchemaError, match="table 'kernels' has no column 'nonesuch'"):
        layer.read("kernels", ["nonesuch"])


def test_a_reader_that_changes_its_mind() -> None:
    capture = Counted()
    layer = File(capture, Path("file"))
    layer.read("kernels", ["start_ns"])
    capture.rows = 4
    with pytest.raises(SchemaError, match=r"^file: kernels had 3 rows and now 4$"):
        layer.read("kernels", ["end_ns"])


def test_a_reader_that_gives_less_than_asked_for() -> None:
    class Lazy(Counted):
        def read(self, name: str, columns: Sequence[str]) -> pa.Table:
            return super().read(name, columns).drop(["start_ns"])

    capture = Lazy()
    with pytest.raises(SchemaError, match=r"^file: 1 missing columns for 'kernels': start_ns$"):
        File(capture, Path("file")).read("kernels", ["start_ns"])


def test_closing_reaches_the_file() -> None:
    capture = Counted()
    layer = Selected(Correlated(File(capture, Path("file"))).only(["kernels"]), Selection(devices=(0,)))
    layer.close()
    assert capture.closed
    File({}, Path("memory")).close()


def test_rows_that_end_before_they_start_are_told_once() -> None:
    table = pa.table({"start_ns": [1, 5, 9], "end_ns": [2, 4, 9], "name": ["a", "b", "c"]})
    layer = File({"kernels": table}, Path("memory"))
    layer.read("kernels", ["end_ns"])
    with pytest.warns(TracekitWarning, match="^memory: 1 rows of kernels end before they start: kept as recorded$"):
        layer.read("kernels", ["start_ns"])
    assert layer.read("kernels", ["start_ns", "end_ns", "name"]).num_rows == 3


@pytest.fixture
def layer() -> Layer:
    """The tables of a real capture."""
    trace = tk.load(CAPTURE)
    return trace._layer


def test_a_frame_reads_what_its_query_uses() -> None:
    capture = Counted()
    frame = to_frame(File(capture, Path("file")), "kernels")
    assert capture.asked == []
    assert frame.filter(pl.col("end_ns") > 0).select("name").collect()["name"].to_list() == ["b", "a"]
    assert [set(c) for _, c in capture.asked] == [{"end_ns", "name"}]
    assert frame.select(pl.len()).collect().item() == 3
    assert frame.with_row_index().select("index").collect()["index"].to_list() == [0, 1, 2]


@pytest.mark.parametrize("correlated", [False, True])
def test_a_frame_is_the_table(layer: Layer, correlated: bool) -> None:
    chosen = layer.correlated() if correlated else layer
    for name in ("kernels", "nvtx_ranges", "memcpys", "devices", "osrt_calls"):
        schema = chosen.schema(name)
        whole = pl.DataFrame(chosen.read(name, schema.names))
        frame = to_frame(chosen, name)
        assert dict(frame.collect_schema()) == schemas.polars_schema(schema)
        assert frame.collect().equals(whole)
        assert frame.slice(3, 5).collect().equals(whole.slice(3, 5))
        assert frame.tail(2).collect().equals(whole.tail(2))
        key = schema.names[0]
        some = pl.col(key) % 3 == 1
        assert frame.filter(some).head(4).collect().equals(whole.filter(some).head(4))
        assert frame.head(9).filter(some).collect().equals(whole.head(9).filter(some))
        assert frame.select(pl.len()).collect().item() == whole.height == chosen.count(name)


def test_correlation_adds_each_column_once(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit.core.correlate import Correlation

    asked: list[list[str]] = []
    real = Correlation.columns

    def spy(self: Correlation, table: str, names: Sequence[str]) -> pl.DataFrame:
        asked.append(list(names))
        return real(self, table, names)

    monkeypatch.setattr(Correlation, "columns", spy)
    linked = layer.correlated()
    assert linked.correlated() is linked
    assert linked.read("kernels", ["start_ns"]).num_rows == 334
    linked.read("kernels", ["range_id", "start_ns", "range_name"])
    made = linked.read("kernels", ["range_name", "range_depth"])
    assert asked == [["range_id", "range_name"], ["range_depth"]]
    held = [v for c in made["range_name"].chunks for v in c.dictionary.to_pylist()]
    assert set(held) == set(made["range_name"].to_pylist()) - {None}


def test_some_tables(layer: Layer) -> None:
    only = layer.only(["kernels", "api_calls"])
    assert only.read("nvtx_ranges", ["name"]).num_rows == only.count("nvtx_ranges") == 0
    assert only.read("kernels", ["name"]).equals(layer.read("kernels", ["name"]))
    assert only.count("kernels") == 334
    assert only.schema("kernels") == layer.schema("kernels")
    assert layer.correlated().only(["kernels"]).read("kernels", ["range_id"])["range_id"].null_count == 334


CRITERIA = st.builds(
    Selection,
    time=st.none() | st.tuples(st.none() | st.integers(-3, 9), st.none() | st.integers(-3, 9)),
    devices=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    domains=st.none() | st.lists(strategies.TEXT | st.just(""), max_size=3).map(tuple),
    min_duration_ns=st.none() | st.integers(-1, 9),
)


@settings(max_examples=60)
@pytest.mark.parametrize("name", ["kernels", "nvtx_ranges", "nvtx_marks", "cuda_events", "devices", "gpu_metrics"])
@given(data=st.data(), wanted=CRITERIA)
def test_a_selection_is_consistent(name: str, data: st.DataObject, wanted: Selection) -> None:
    table = data.draw(strategies.tables(schemas.table(name)))
    layer = Selected(File({name: table}, Path("memory")), wanted)
    names = layer.schema(name).names
    read = layer.read(name, names)
    assert read.schema.equals(table.schema, check_metadata=True)
    assert read.num_rows == layer.count(name)
    assert to_frame(layer, name).collect().to_dicts() == read.to_pylist()
    whole = iter(table.to_pylist())
    assert all(row in whole for row in read.to_pylist())  # the same rows, in their order
    for column in (c for c in read.columns if pa.types.is_dictionary(c.type)):
        held = [v for c in column.chunks for v in c.dictionary.to_pylist()]
        assert sorted(held) == sorted({v for v in column.to_pylist() if v is not None})


def test_a_selection_of_a_selection(layer: Layer) -> None:
    first = Selected(layer, Selection(devices=(0,)))
    second = Selected(first, Selection(min_duration_ns=50_000))
    table = second.read("kernels", ["start_ns", "end_ns", "device_id", "name"])
    long = [r for r in table.to_pylist() if r["end_ns"] - r["start_ns"] >= 50_000 and r["device_id"] == 0]
    assert 0 < len(long) == table.num_rows == second.count("kernels") < 334
    assert second.count("streams") == layer.count("streams")
    linked = second.correlated()
    assert linked.read("kernels", ["range_id"])["range_id"].null_count < table.num_rows
    assert second.only(["syncs"]).count("kernels") == 0


def test_what_is_selected_away_leaves_no_text(layer: Layer) -> None:
    names = Selected(layer, Selection(min_duration_ns=10**12)).read("kernels", ["name"])["name"]
    assert [len(c.dictionary) for c in names.chunks] in ([], [0])
