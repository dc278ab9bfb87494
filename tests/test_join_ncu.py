"""``Trace.join_ncu``: kernels of one capture with the metrics of another, as a layer like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ncu_csv import FOLDER
from tracekit.errors import MissingTableError, SchemaError
from tracekit.trace import prefetch

FIXTURES = FOLDER.parent
BYTES, TIME = "dram__bytes.sum", "gpu__time_duration.sum"


@pytest.fixture
def ncu() -> Iterator[tk.Trace]:
    """Twelve launches of the first step."""
    with tk.load(FOLDER / "ncu_basic.ncu-rep") as trace:
        yield trace


@pytest.fixture(params=["train_amp.nsys-rep", "train_amp.sqlite"])
def nsys(request: pytest.FixtureRequest) -> Iterator[tk.Trace]:
    """Four steps, in both forms."""
    with tk.load(FIXTURES / request.param) as trace:
        yield trace


@pytest.mark.slow
def test_kernels_carry_what_was_measured(nsys: tk.Trace, ncu: tk.Trace) -> None:
    joined = nsys.join_ncu(ncu)
    kernels, wide = joined.frame("kernels").collect(), ncu.wide()
    assert kernels.select(nsys.schema("kernels").names).equals(nsys.frame("kernels").collect())
    assert kernels["range_path"].equals(nsys.correlate().frame("kernels").collect()["range_path"])
    own = [c for c in wide.columns if "__" in c]
    assert len(own) > 500
    found = kernels.filter(pl.col("ncu_launch_id").is_not_null())
    expected = wide[found["ncu_launch_id"].to_list()].select(own)
    assert found.height == 60
    assert found.select(own).equals(expected)
    assert kernels.filter(pl.col("ncu_launch_id").is_null()).select(pl.col(own).is_not_null().any()).row(0) == (
        (False,) * len(own)
    )
    ratio = found.filter(pl.col("ncu_match") == "range").select(
        (pl.col("end_ns") - pl.col("start_ns")).sum() / pl.col(TIME).sum()
    )
    assert 0.5 < ratio.item() < 2  # two runs on the same GPU


@pytest.mark.slow
@pytest.mark.many(1)
def test_the_tables_of_both_are_there(nsys: tk.Trace, ncu: tk.Trace) -> None:
    joined = nsys.join_ncu(ncu)
    for name in joined.tables:
        source = ncu if name.startswith("ncu_") else nsys.correlate()
        assert joined.count(name) == source.count(name), name
        if name != "kernels":
            assert joined[name].equals(source[name]), name
    assert joined.wide().equals(ncu.wide())
    assert joined.correlate().schema("kernels") == joined.schema("kernels")


def test_columns_have_units_and_are_as_declared(nsys: tk.Trace, ncu: tk.Trace) -> None:
    joined = nsys.join_ncu(ncu, metrics=[BYTES, TIME])
    schema = joined.schema("kernels")
    assert [(c.name, c.unit) for c in schema.columns[-4:]] == [
        ("ncu_launch_id", None),
        ("ncu_match", None),
        (BYTES, "byte"),
        (TIME, "ns"),
    ]
    table = joined.table("kernels", [TIME, "kernel_id", "ncu_match"])
    assert table.column_names == [TIME, "kernel_id", "ncu_match"]
    assert table.schema.field(TIME).metadata[b"unit"] == b"ns"
    joined.table("kernels").validate(full=True)


def test_what_was_found_is_data(nsys: tk.Trace, ncu: tk.Trace) -> None:
    assert nsys.ncu_matches().rows() == []
    found = nsys.join_ncu(ncu).ncu_matches()
    assert found.select("match", "kernels", "launches").rows() == [
        ("range", 11, 11),
        ("order", 1, 1),
        ("shape", 48, 12),
        (None, 274, 0),
    ]
    assert found["share"].sum() == pytest.approx(1)


@pytest.mark.slow
def test_a_selection_before_and_after_gives_the_same(nsys: tk.Trace, ncu: tk.Trace) -> None:
    time = (41_000_000, 60_000_000)
    after = nsys.join_ncu(ncu, metrics=[BYTES]).select(time=time)
    before = nsys.select(time=time).join_ncu(ncu, metrics=[BYTES])
    assert 0 < before.count("kernels") < 334
    assert before["kernels"].equals(after["kernels"])


@pytest.mark.slow
@pytest.mark.many(1)
def test_exports_hold_the_metrics(nsys: tk.Trace, ncu: tk.Trace, tmp_path: Path) -> None:
    joined = nsys.join_ncu(ncu, metrics=[BYTES])
    joined.export(tmp_path / "k.parquet", tables=["kernels"])
    read = pl.read_parquet(tmp_path / "k.parquet")
    assert read[BYTES].equals(joined.frame("kernels").collect()[BYTES])
    joined.export(tmp_path / "all", format="arrow")
    assert pl.read_ipc(tmp_path / "all" / "kernels.arrow")[BYTES].drop_nulls().len() == 60
    joined.export(tmp_path / "some", format="csv", tables=["kernels", "ncu_rules"])
    assert pl.read_csv(tmp_path / "some" / "kernels.csv")[BYTES].drop_nulls().len() == 60
    joined.export(tmp_path / "trace.json")


def test_columns_that_are_asked_for_are_read_together(nsys: tk.Trace, ncu: tk.Trace) -> None:
    joined = nsys.join_ncu(ncu)
    prefetch(joined, {"kernels": ["start_ns", BYTES], "ncu_launches": ["name"], "api_calls": None})
    assert joined.table("kernels", [BYTES])[BYTES].null_count == 274
    only = joined.select(tables=["kernels"])
    assert only.count("ncu_metrics") == only["ncu_metrics"].num_rows == 0
    assert only.table("kernels", [BYTES])[BYTES].null_count == 274


def test_a_second_join_takes_the_place_of_the_first(nsys: tk.Trace, ncu: tk.Trace) -> None:
    with tk.load(FOLDER / "ncu_per_kernel.csv") as summary:
        twice = nsys.join_ncu(ncu).join_ncu(summary)
        assert twice.ncu_matches()["match"].to_list() == ["group", None]
        assert twice.count("ncu_launches") == 11


def test_what_cannot_be_joined(nsys: tk.Trace, ncu: tk.Trace) -> None:
    with pytest.raises(
        MissingTableError, match=r"the trace has no kernels to join\nHint: record them with nsys profile"
    ):
        ncu.join_ncu(ncu)
    with pytest.raises(
        MissingTableError,
        match=r"the trace has no .* results to join\nHint: record them with ncu ",
    ):
        nsys.join_ncu(nsys)
    with pytest.raises(SchemaError, match=r"lack these metrics: nothing\nHint: list the metrics"):
        nsys.join_ncu(ncu, metrics=[BYTES, "nothing"]).table("kernels", ["kernel_id"])


@pytest.mark.core
def test_what_belongs_to_results_is_selected_as_they_are() -> None:
    with tk.load(FOLDER / "ncu_basic.ncu-rep") as trace:
        lengths = dict(trace.frame("ncu_launches").select("launch_id", "duration_ns").collect().iter_rows())
        long = {i for i, ns in lengths.items() if ns >= 10_000}
        some, none = trace.select(min_duration_ns=10_000), trace.select(devices=[])
        assert 0 < len(long) < 12
        for name in ("ncu_launches", "ncu_metrics", "ncu_nvtx_ranges", "ncu_rules"):
            assert set(some[name]["launch_id"].to_pylist()) == long
            assert none.count(name) == none[name].num_rows == 0
            assert trace.select(devices=[0])[name].equals(trace[name])
        assert some.wide()["launch_id"].to_list() == sorted(long)
        with pytest.warns(tk.TracekitWarning, match="there is no NVTX domain 'x' in the capture"):
            assert some.select(domains=["x"]).count("ncu_nvtx_ranges") == 0
        with pytest.raises(
            tk.TracekitError, match="there is no GPU 3 in the capture\nHint: choose one of these GPUs: 0"
        ):
            trace.select(devices=[3])
        assert none.count("devices") == 1
        with pytest.warns(tk.TracekitWarning, match="the time selection does not apply to Nsight Compute results"):
            assert trace.select(time=(0, 5)).count("ncu_launches") == 12
