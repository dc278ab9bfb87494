"""A set of traces has the methods of one trace, with the rows of all ranks."""

from __future__ import annotations

import functools
import pickle
import shutil
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ranks import kernel, write_capture
from tests.builders.torch_ranks import write_ranks
from tests.conftest import FIXTURES, SHARED
from tracekit.errors import CorruptTraceError, SchemaError, TracekitError, TracekitWarning, UnknownFormatError
from tracekit.readers.kineto import capture as kineto
from tracekit.sets import LocalEngine, member_set

RANKS = FIXTURES / "ranks"
FILES = [RANKS / "mpi_rank0.nsys-rep", RANKS / "mpi_rank1.nsys-rep"]
MORE = SHARED / "captures" / "h200_more"


@pytest.fixture(scope="module")
def ranks() -> tk.TraceSet:
    return tk.load_many(RANKS)


def test_members(ranks: tk.TraceSet) -> None:
    assert [(m.path, m.rank, m.source, m.world_size, m.devices) for m in ranks.members] == [
        (FILES[0], 0, "MPI", 2, (0,)),
        (FILES[1], 1, "MPI", 2, (1,)),
    ]
    assert ranks.ranks == [0, 1]
    assert len(ranks) == 2
    assert repr(ranks) == "<tracekit.TraceSet of 2 ranks (0: mpi_rank0.nsys-rep, 1: mpi_rank1.nsys-rep)>"
    assert "kernels" in ranks
    assert ranks.tables == tk.load(FILES[0]).tables


@pytest.mark.parametrize("name", ["kernels", "nvtx_ranges", "processes", "mpi_ranks", "osrt_calls", "capture_info"])
def test_tables_have_the_rows_of_all_ranks(name: str, ranks: tk.TraceSet) -> None:
    parts = []
    for rank, file in enumerate(FILES):
        with tk.load(file) as trace:
            rows = trace.frame(name).collect().rename({"rank": "recorded_rank"}, strict=False)
            parts.append(rows.select(pl.lit(rank, pl.Int64).alias("rank"), pl.all()))
    expected = pl.concat(parts)
    assert ranks.frame(name).collect().equals(expected)
    assert pl.DataFrame(ranks.table(name)).equals(expected)
    assert ranks.frame(name).collect_schema() == expected.schema
    assert ranks.schema(name).names == expected.columns
    assert ranks.count(name) == expected.height
    assert ranks[name].schema.metadata == tk.load(FILES[0])[name].schema.metadata


def test_columns_of_tables(ranks: tk.TraceSet) -> None:
    assert ranks.table("mpi_ranks", ["recorded_rank"]).to_pylist() == [
        {"rank": 0, "recorded_rank": 0},
        {"rank": 1, "recorded_rank": 1},
    ]
    assert ranks.table("kernels", ["rank", "kernel_id"]).column_names == ["rank", "kernel_id"]
    twice = ranks.table("kernels", ["rank", "start_ns", "start_ns"])
    assert twice.column_names == ["rank", "start_ns", "start_ns"]
    assert twice.equals(ranks.table("kernels", ["start_ns"]).select([0, 1, 1]))
    assert ranks.table("kernels", []).to_pylist() == [{"rank": 0}] * 15 + [{"rank": 1}] * 15
    assert ranks.frame("kernels").select("rank").collect()["rank"].sum() == 15
    assert ranks.frame("kernels").select(pl.len()).collect().item() == 30
    with pytest.raises(SchemaError, match="has no column 'nothing'"):
        ranks.table("kernels", ["nothing"])
    with pytest.raises(SchemaError, match="no table is called"):
        ranks.frame("nothing")
    with pytest.raises(SchemaError, match="no table is called"):
        ranks.count("nothing")


def test_counts(ranks: tk.TraceSet) -> None:
    counts = ranks.count_all()
    assert counts["mpi_calls"] == 144
    assert counts["osrt_calls"] == 0
    assert sorted(counts) == ranks.tables


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that a set opens and closes, in order."""
    names: list[str] = []

    class Recording(tk.Trace):
        def close(self) -> None:
            names.append("closed")
            super().close()

    def load(path: Path, *arguments: object, **options: object) -> tk.Trace:
        names.append(Path(path).name)
        trace = tk.load(path, *arguments, **options)  # type: ignore[arg-type]
        trace.__class__ = Recording
        return trace

    monkeypatch.setattr(member_set, "load", load)
    return names


def test_one_report_is_open_at_a_time(ranks: tk.TraceSet, opened: list[str]) -> None:
    both = ["mpi_rank0.nsys-rep", "closed", "mpi_rank1.nsys-rep", "closed"]
    for compute in (
        lambda: ranks.frame("kernels").collect(),
        lambda: ranks.table("kernels"),
        lambda: ranks.count("kernels"),
        lambda: ranks.stats("cuda_gpu_kern_sum"),
        lambda: ranks.map(tk.Trace.span),
    ):
        compute()
        assert opened == both
        opened.clear()


def test_ranks_that_a_filter_excludes_are_not_opened(ranks: tk.TraceSet, opened: list[str]) -> None:
    kernels = ranks.frame("kernels")
    assert kernels.filter(pl.col("rank") == 1).collect().height == 15
    assert opened == ["mpi_rank1.nsys-rep", "closed"]
    opened.clear()
    assert kernels.head(15).collect().height == 15
    assert opened == ["mpi_rank0.nsys-rep", "closed"]
    opened.clear()
    long = kernels.filter((pl.col("rank") == 1) & (pl.col("kernel_id") > 0)).select("rank", "kernel_id").collect()
    assert long["rank"].unique().to_list() == [1]


def test_operations_apply_to_every_rank(ranks: tk.TraceSet) -> None:
    linked = ranks.correlate().select(devices=[0, 1], min_duration_ns=2000)
    expected = []
    for file in FILES:
        with tk.load(file) as trace:
            rows = trace.correlate().select(min_duration_ns=2000).frame("kernels").select("kernel_id", "api_call_id")
            expected += rows.collect().rows()
    assert linked.frame("kernels").select("kernel_id", "api_call_id").collect().rows() == expected
    assert "api_call_id" in linked.schema("kernels").names
    assert ranks.rollup().frame("ops").collect_schema().names()[0] == "rank"
    assert ranks.select(ranks=[1]).ranks == [1]
    assert ranks.select(ranks=[1]).devices["rank"].unique().to_list() == [1]
    with pytest.raises(TracekitError, match="there is no rank 2\nHint: choose one of the ranks 0, 1"):
        ranks.select(ranks=[2])


def test_open(ranks: tk.TraceSet, opened: list[str]) -> None:
    with ranks.correlate().open(1) as trace:
        assert trace.count("kernels") == 15
        assert "range_id" in trace.schema("kernels").names
    with pytest.raises(TracekitError, match="there is no rank 7"):
        ranks.open(7)
    opened.clear()
    with pytest.raises(SchemaError):
        ranks.select(tables=["nothing"]).open(0)
    assert opened == ["mpi_rank0.nsys-rep", "closed"]


def test_reports_have_the_rows_of_all_ranks(ranks: tk.TraceSet) -> None:
    sums = ranks.stats("mpi_event_sum")
    for rank, file in enumerate(FILES):
        with tk.load(file) as trace:
            assert sums.filter(pl.col("rank") == rank).drop("rank").equals(trace.stats("mpi_event_sum"))
    assert sums.columns[0] == "rank"
    assert ranks.analyze("gpu_gaps").columns[:2] == ["rank", "Row#"]
    with pytest.raises(UnknownFormatError):
        ranks.stats("nothing")


def count_table(name: str, trace: tk.Trace) -> int:
    if trace.count("kernels") == 1:
        raise TracekitError("too few")
    return trace.count(name)


def test_sets_can_be_pickled(ranks: tk.TraceSet) -> None:
    with pickle.loads(pickle.dumps(ranks.correlate().select(ranks=[1]))) as copy:
        assert copy.map(functools.partial(count_table, "mpi_calls")) == [72]
        assert "range_id" in copy.frame("kernels").collect_schema()
    assert pickle.loads(pickle.dumps(ranks.members)) == ranks.members


def test_errors_of_members_are_results(tmp_path: Path) -> None:
    write_capture(tmp_path / "rank0", kernels=[kernel(0, 5)])
    write_capture(tmp_path / "rank1", kernels=[kernel(0, 5), kernel(7, 9)])
    both = tk.load_many([tmp_path / "rank1", tmp_path / "rank0"])
    results = [(m.rank, r) for m, r in both.outcomes(functools.partial(count_table, "kernels"))]
    assert results[1] == (1, 2)
    assert str(results[0][1]) == "too few"
    with pytest.raises(TracekitError, match="too few"):
        both.map(functools.partial(count_table, "kernels"))
    shutil.rmtree(tmp_path / "rank1")
    assert isinstance(list(both.outcomes(functools.partial(count_table, "kernels")))[1][1], FileNotFoundError)


def test_an_engine_computes_the_results(ranks: tk.TraceSet) -> None:
    class Reversed(LocalEngine):
        def map(self, function, members):  # type: ignore[no-untyped-def]
            return reversed(list(super().map(function, members)))

    members = tk.TraceSet(ranks.members, engine=Reversed())
    assert [m.rank for m, _ in members.outcomes(functools.partial(count_table, "kernels"))] == [1, 0]


@pytest.mark.slow
def test_paths(tmp_path: Path, ranks: tk.TraceSet) -> None:
    for form in (
        RANKS,
        str(RANKS),
        RANKS / "*.nsys-rep",
        f"{RANKS}/mpi_rank[01].nsys-rep",
        FILES,
        [FILES[1], FILES[0]],
    ):
        assert [m.path for m in tk.load_many(form).members] == FILES
    with pytest.raises(TracekitError, match="no file matches this pattern"):
        tk.load_many(tmp_path / "*.nsys-rep")
    with pytest.raises(FileNotFoundError):
        tk.load_many(tmp_path / "missing.nsys-rep")
    with pytest.raises(TracekitError, match="no captures were passed"):
        tk.load_many([])
    with pytest.raises(TracekitError, match="listed twice"):
        tk.load_many([FILES[0], RANKS])
    with pytest.raises(UnknownFormatError, match="a folder whose content no reader recognizes"):
        tk.load_many(tmp_path)


def test_exports_beside_their_reports_are_skipped(tmp_path: Path) -> None:
    for name in ("mpi_rank0.nsys-rep", "mpi_rank0.sqlite"):
        shutil.copy(FIXTURES / name, tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a capture")
    shutil.copy(FILES[1], tmp_path)
    with pytest.warns(TracekitWarning) as caught:
        assert [m.name for m in tk.load_many(tmp_path).members] == ["mpi_rank0.nsys-rep", "mpi_rank1.nsys-rep"]
    instead = "mpi_rank0.nsys-rep is read instead of mpi_rank0.sqlite"
    assert [str(w.message) for w in caught] == [
        f"{tmp_path}: 1 capture was skipped, because another file contains the same run: {instead}",
        "1 other file or folder was skipped, because no reader recognizes the content: notes.txt",
    ]


def test_names_are_sorted_by_their_numbers(tmp_path: Path) -> None:
    for n in (10, 9):
        shutil.copy(FIXTURES / "empty.nsys-rep", tmp_path / f"night{n}.nsys-rep")
    with pytest.warns(TracekitWarning, match="9 of 11 ranks are missing"):
        assert [m.name for m in tk.load_many(tmp_path).members] == ["night9.nsys-rep", "night10.nsys-rep"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0.nsys-rep").write_bytes(b"nothing")
    with pytest.raises(UnknownFormatError, match=r"rank0\.nsys-rep"):
        tk.load_many([tmp_path / "rank0.nsys-rep", FILES[1]], strict=True)
    with pytest.warns(TracekitWarning) as caught:
        assert tk.load_many([tmp_path / "rank0.nsys-rep", FILES[1]]).ranks == [1]
    assert str(tmp_path / "rank0.nsys-rep") in {str(w.message).partition(": ")[0] for w in caught}


@pytest.mark.skipif(not MORE.is_dir(), reason="no captures beside the checkout")
def test_ranks_of_nccl() -> None:
    both = tk.load_many(MORE / "straggler_rank*.nsys-rep")
    assert [(m.rank, m.source, m.world_size, m.devices) for m in both.members] == [
        (0, "NCCL", 2, (0,)),
        (1, "NCCL", 2, (1,)),
    ]
    assert both.frame("kernels").group_by("rank").len().sort("rank").collect().rows() == [(0, 7990), (1, 7990)]


def test_files_whose_ranks_are_given_are_opened_when_they_are_used(
    ranks: tk.TraceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    load = member_set.load
    monkeypatch.setattr(member_set, "load", lambda path, *a, **k: (opened.append(path), load(path, *a, **k))[1])
    given = tk.load_many(FILES, ranks={"mpi_rank0": 1, "mpi_rank1.nsys-rep": 0})
    assert (given.ranks, len(given), opened) == ([0, 1], 2, [])
    assert given.frame("kernels").select("rank").collect().height == 30
    assert len(opened) == 2
    facts = {m.path: (m.devices, m.world_size, m.origin_utc_ns, m.duration_ns, m.format) for m in ranks.members}
    assert {m.path: (m.devices, m.world_size, m.origin_utc_ns, m.duration_ns, m.format) for m in given.members} == facts
    assert {m.source for m in given.members} == {"given"}
    assert len(opened) == 4
    assert given.members is given.members


class Skipping(LocalEngine):
    """An engine that skips captures that cannot be read."""

    skips_errors = True


@pytest.fixture
def torch_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the traces of the PyTorch profiler whose events are read, in order."""
    names: list[str] = []
    read = kineto.read_capture
    monkeypatch.setattr(kineto, "read_capture", lambda source: (names.append(source.path.name), read(source))[1])
    return names


def test_traces_of_the_pytorch_profiler_are_read_once(tmp_path: Path, torch_reads: list[str]) -> None:
    files = sorted(path.name for path in write_ranks(tmp_path).iterdir())
    traces = tk.load_many(tmp_path)
    assert torch_reads == []
    assert [(m.rank, m.source, m.world_size, m.format) for m in traces.captures] == [
        (rank, "the profiler", 8, "kineto") for rank in range(8)
    ]
    traces.recipe("gpu_time_breakdown")
    assert torch_reads == files
    torch_reads.clear()
    given = tk.load_many(tmp_path, "kineto", ranks={name: rank for rank, name in enumerate(files)})
    assert [m.devices for m in traces.members] == [(0,)] * 8
    assert [(m.devices, m.duration_ns) for m in given.members] == [(m.devices, m.duration_ns) for m in traces.members]
    assert torch_reads == 2 * files


def test_a_damaged_trace_of_the_pytorch_profiler_is_an_error_when_it_is_used(tmp_path: Path) -> None:
    _, second = sorted(write_ranks(tmp_path, 2).iterdir())
    text = second.read_text()
    second.write_text(text.partition('"ph"')[0])
    traces = tk.load_many(tmp_path)
    assert traces.ranks == [0, 1]
    with pytest.raises(TracekitError, match=second.name):
        traces.count("kernels")
    skipping = tk.load_many(tmp_path, engine=Skipping())
    assert [(m.is_read, m.devices) for m in skipping.members] == [(True, (0,)), (False, ())]
    with pytest.warns(TracekitWarning, match="was skipped"):
        tables = skipping.recipe("cuda_gpu_time_util_map", align="no")
    assert len(skipping.errors) == 1
    alone = traces.select(ranks=[0]).recipe("cuda_gpu_time_util_map", align="no")
    assert tables["analysis"].equals(alone["analysis"])
    second.write_text(text.partition('"traceEvents"')[0])
    with pytest.raises(CorruptTraceError, match=second.name):
        tk.load_many(tmp_path, strict=True)
    with pytest.warns(TracekitWarning) as caught:
        assert tk.load_many(tmp_path).ranks == [0]
    assert any(str(w.message).startswith(f"{second}: the capture was skipped") for w in caught)
