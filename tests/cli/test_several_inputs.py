"""Commands with several inputs: rows of all ranks with a column for the rank."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ranks import mpi_rank, write_capture
from tests.cli.conftest import ROOT, Run
from tests.conftest import FIXTURES

RANKS = "fixtures/ranks"
FILES = [f"{RANKS}/mpi_rank0.nsys-rep", f"{RANKS}/mpi_rank1.nsys-rep"]


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    "inputs", [[RANKS], FILES, FILES[::-1], [f"{RANKS}/*.nsys-rep", "--rank", "mpi_rank0.nsys-rep=0"]]
)
def test_rows(inputs: list[str], run: Run) -> None:
    rows = read(run("rows", *inputs, "kernels", "--format", "csv", "--columns", "rank,start_ns,duration_ns").text)
    assert [row["rank"] for row in rows] == ["0"] * 15 + ["1"] * 15
    one = run("rows", FILES[1], "kernels", "--format", "csv", "--columns", "start_ns,duration_ns").text
    assert [{"rank": "1", **row} for row in read(one)] == rows[15:]


def test_rows_can_be_filtered_and_sorted_by_rank(run: Run) -> None:
    arguments = ("--where", "rank = 1 and name like 'MPI_Send%'", "--sort", "-start_ns", "--format", "json")
    rows = json.loads(run("rows", RANKS, "mpi_calls", *arguments).text)
    assert {row["rank"] for row in rows} == {1}
    assert [row["start_ns"] for row in rows] == sorted((row["start_ns"] for row in rows), reverse=True)
    assert rows


def test_given_ranks(run: Run, tmp_path: Path) -> None:
    shutil.copy(ROOT / "fixtures" / "cpu_only.nsys-rep", tmp_path / "a.nsys-rep")
    ranks = read(run("rows", tmp_path / "a.nsys-rep", "capture_info", "--rank", "a.nsys-rep=0", "--format", "csv").text)
    assert {row["rank"] for row in ranks} == {"0"}
    swapped = ["--rank", "mpi_rank0.nsys-rep=1", "--rank", "mpi_rank1.nsys-rep=0"]
    rows = read(run("rows", *FILES, "mpi_ranks", *swapped, "--format", "csv").text)
    assert [(row["rank"], row["recorded_rank"]) for row in rows] == [("0", "1"), ("1", "0")]
    for wrong in ("a", "a=", "=1", "a=x", "a=-1", "a=12345678901"):
        assert (
            "does not have the form FILE=N, such as" in run("rows", *FILES, "kernels", "--rank", wrong, status=2).stderr
        )
    assert "which matches no capture" in run("rows", *FILES, "kernels", "--rank", "b=1", status=1).stderr
    both = run("rows", *FILES, "kernels", "--rank", "mpi_rank0.nsys-rep=1", status=1).stderr
    assert "2 captures have rank 1: mpi_rank0.nsys-rep (by given), mpi_rank1.nsys-rep (by MPI)" in both


def test_tables(run: Run) -> None:
    rows = read(run("tables", *FILES, "--format", "csv").text)
    assert [(r["rank"], r["rows"]) for r in rows if r["table"] == "kernels"] == [("0", "15"), ("1", "15")]
    assert len(rows) == 2 * len(read(run("tables", FILES[0], "--format", "csv").text))


@pytest.mark.many(2)
@pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "mpi_event_trace", "nvtx_sum", "advise"])
def test_stats(report: str, run: Run) -> None:
    lines = run("stats", *FILES, "-r", report, "--format", "csv").text.splitlines()
    expected: list[str] = []
    for rank, file in enumerate(FILES):
        header, *rows = run("stats", file, "-r", report, "--format", "csv").text.splitlines() or [""]
        expected += [f"rank,{header}"] * (not expected and bool(header)) + [f"{rank},{row}" for row in rows]
    assert lines == expected


@pytest.mark.many(1)
@pytest.mark.parametrize("report", ["detailed", "op-type"])
def test_reports_of_dlprof(report: str, run: Run) -> None:
    title, header, *rows = run("stats", *FILES, "-r", report, "--format", "csv").text.splitlines()
    one = [run("stats", file, "-r", report, "--format", "csv").text.splitlines() for file in FILES]
    assert title == one[0][0]
    assert header == f"rank,{one[0][1]}"
    assert rows == [f"{rank},{row}" for rank, lines in enumerate(one) for row in lines[2:]]


@pytest.mark.thorough
def test_the_summary_of_dlprof_is_a_table(run: Run) -> None:
    rows = read(run("stats", *FILES, "-r", "summary", "--format", "csv").text)
    assert {row["rank"] for row in rows} == {"0", "1"}


def test_stats_limits_rows_of_each_rank(run: Run) -> None:
    rows = read(run("stats", *FILES, "-r", "mpi_event_sum", "-n", "2", "--format", "csv").text)
    assert [row["rank"] for row in rows] == ["0", "0", "1", "1"]


def test_analyze(run: Run) -> None:
    rows = read(run("analyze", *FILES, "-r", "gpu_gaps:gap=1", "--format", "csv").text)
    expected = [
        {"rank": str(rank), **row}
        for rank, file in enumerate(FILES)
        for row in read(run("analyze", file, "-r", "gpu_gaps:gap=1", "--format", "csv").text)
    ]
    assert rows == expected


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_correlate(suffix: str, run: Run, tmp_path: Path) -> None:
    out = tmp_path / f"kernels.{suffix}"
    message = run("correlate", *FILES, "-o", out).stderr
    assert message == f"wrote {out}: 30 kernels, 30 with an API call, 30 in an NVTX range\n"
    readers = {"csv": pl.read_csv, "parquet": pl.read_parquet, "arrow": pl.read_ipc}
    frame = readers[suffix](out)
    assert frame.columns[0] == "rank"
    with tk.load_many(ROOT / RANKS).correlate() as ranks:
        expected = ranks.frame("kernels").select("rank", "kernel_id", "range_id").collect()
    assert frame.select("rank", "kernel_id", "range_id").equals(expected)


def test_correlate_with_several_inputs_takes_no_other_files(run: Run, tmp_path: Path) -> None:
    wrong = run("correlate", *FILES, "-o", tmp_path / "x.csv", "--ncu", "fixtures/ncu/ncu_basic.ncu-rep", status=2)
    assert (
        "--ncu needs one capture, but IN is a set of ranks: pass one file without --rank, or omit --ncu" in wrong.stderr
    )
    wrong = run("stats", *FILES, "--graph", "fixtures/tensorflow/network.pb", status=2)
    assert (
        "--graph needs one capture, but IN is a set of ranks: pass one file without --rank, or omit --graph"
        in wrong.stderr
    )
    one = run("correlate", *FILES, "-o", tmp_path / "x.json", status=1)
    assert "chrome-trace cannot store a single table, only a whole trace" in one.stderr


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("style", ["csv", "parquet", "arrow"])
def test_convert(style: str, run: Run, tmp_path: Path) -> None:
    run("convert", *FILES, tmp_path / "tables", "--to", style)
    readers = {"csv": pl.read_csv, "parquet": pl.read_parquet, "arrow": pl.read_ipc}
    names = sorted(p.stem for p in (tmp_path / "tables").iterdir())
    with tk.load_many(ROOT / RANKS) as ranks:
        assert names == sorted(name for name, rows in ranks.count_all().items() if rows)
        for name in ("kernels", "mpi_ranks", "processes"):
            frame = readers[style](tmp_path / "tables" / f"{name}.{style}")
            expected = ranks.frame(name).collect()
            assert frame.columns == expected.columns
            assert frame.height == expected.height
            assert frame["rank"].equals(expected["rank"])
            if style == "parquet":
                assert frame.cast(expected.schema).equals(expected)  # type: ignore[arg-type]
    run("convert", *FILES, tmp_path / "tables", "--to", style, "-f", "-q")
    assert "exists" in run("convert", RANKS, "-o", tmp_path / "tables", "--to", style, status=1).stderr


def test_convert_writes_one_table_to_one_file(run: Run, tmp_path: Path) -> None:
    run("convert", RANKS, "-o", tmp_path / "k.csv", "--table", "kernels")
    assert len(read((tmp_path / "k.csv").read_text())) == 30
    one, other = (run("rows", file, "kernels", "--format", "csv").text.splitlines() for file in FILES)
    lines = [f"rank,{one[0]}", *(f"0,{row}" for row in one[1:]), *(f"1,{row}" for row in other[1:])]
    assert (tmp_path / "k.csv").read_text().splitlines() == lines


def test_inputs_are_not_mistaken_for_the_output(run: Run, tmp_path: Path) -> None:
    for n in range(3):
        shutil.copy(ROOT / FILES[0], tmp_path / f"{n}.nsys-rep")
    files = sorted(tmp_path.iterdir())
    wrong = run("convert", *files, "--to", "parquet", "-f", status=2)
    assert "2.nsys-rep exists and may be one of the inputs: name the output with -o OUT" in wrong.stderr
    assert [p.read_bytes() for p in files] == [(ROOT / FILES[0]).read_bytes()] * 3


def test_formats_of_one_trace(run: Run, tmp_path: Path) -> None:
    wrong = run("convert", *FILES, tmp_path / "x.sqlite", "--to", "dlprof-db", status=1).stderr
    assert "dlprof-db cannot hold the profiles of several ranks" in wrong
    assert re.search("Hint: choose a format for several ranks .*html", wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_tables_of_several_processes(run: Run) -> None:
    alone = run("tables", RANKS, "--format", "csv").text
    assert run("tables", RANKS, "--format", "csv", "--jobs", "2").text == alone


def test_info_expands_folders(run: Run) -> None:
    assert run("info", RANKS).text == run("info", *FILES).text


def test_info_shows_the_ranks_that_a_capture_states(run: Run, tmp_path: Path) -> None:
    text = run("info", FILES[1]).text
    assert re.search(r"\n  rank +1 of 2 \(MPI\); 1 \(the variable OMPI_COMM_WORLD_RANK\)\n", text)
    job = write_capture(tmp_path / "job", mpi_ranks=[mpi_rank(rank, process=rank + 1) for rank in range(2)])
    assert json.loads(run("info", job, "--json").text)["ranks"] == [{"source": "MPI", "ranks": [0, 1], "size": None}]
    assert "\n  rank" in run("info", job).text
    assert json.loads(run("info", FIXTURES / "train_amp.nsys-rep", "--json").text)["ranks"] == []


def test_a_folder_of_captures_with_a_format(run: Run) -> None:
    assert run("tables", RANKS, "--from", "nsys-rep").text == run("tables", RANKS).text
    assert (
        "none of 2 files can be read: mpi_rank0.nsys-rep: " in run("tables", RANKS, "--from", "kineto", status=1).stderr
    )


def test_selections_apply_to_every_rank(run: Run) -> None:
    rows = read(run("rows", RANKS, "kernels", "--time", "1.4s:", "--format", "csv").text)
    expected = [
        {"rank": str(rank), **row}
        for rank, file in enumerate(FILES)
        for row in read(run("rows", file, "kernels", "--time", "1.4s:", "--format", "csv").text)
    ]
    assert rows == expected


def test_redact_takes_one_input(run: Run, tmp_path: Path) -> None:
    wrong = run("redact", *FILES, tmp_path / "out.nsys-rep", status=2).stderr
    assert "redact accepts one IN and one OUT, but there are more arguments: run redact once per input" in wrong
    assert "with the same --key-file if equal values must have equal pseudonyms in all outputs" in wrong
    assert "[OUT]\n" in run("redact", "--help").text
