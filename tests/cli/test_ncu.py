"""Verbs on results of Nsight Compute."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tests.builders.ncu_rep import block, kernel, made, report
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
DETAILS, RAW = "fixtures/ncu/ncu_details.csv", "fixtures/ncu/ncu_raw.csv"
BY_RANGE, BY_KERNEL = "fixtures/ncu/ncu_roofline_per_nvtx.csv", "fixtures/ncu/ncu_per_kernel.csv"
REPORT = "fixtures/ncu/ncu_basic.ncu-rep"
TRAIN = "fixtures/train_amp.nsys-rep"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_info(run: Run) -> None:
    text = run("info", RAW).text
    assert "written by       NVIDIA Nsight Compute\n" in text
    assert "GPU 0            NVIDIA H200, compute capability 9.0, 132 SMs, 143,155 MiB\n" in text
    assert "ncu_metrics      6,744 rows\n" in text
    assert "events" not in text


def test_info_says_what_was_measured(run: Run) -> None:
    def shown(name: str, what: str = "results") -> str:
        lines = run("info", f"fixtures/ncu/{name}").text.splitlines()
        return next((line.split(maxsplit=1)[1] for line in lines if line.split()[0] == what), "")

    assert shown("ncu_basic.ncu-rep") == "12 kernels, 571 metrics, 12 in NVTX ranges, 0.388 ms"
    assert shown("ncu_graph.ncu-rep") == "2 graphs, 1 kernel, 556 metrics, 2 in NVTX ranges, 1.147 ms"
    assert shown("ncu_per_nvtx.csv") == "12 groups of 12 launches, 4 metrics, 12 in NVTX ranges"
    assert (shown("ncu_session.csv"), shown("ncu_session.csv", "pages")) == ("", "session")
    facts = json.loads(run("info", "--json", RAW).text)
    assert (facts["results"], facts["launches"], facts["pages"]) == ({"kernel": 12}, 12, "raw")
    assert facts["measured_ns"] == 388_320
    assert "results" not in json.loads(run("info", "--json", "fixtures/empty.sqlite").text)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_reports_are_converted(run: Run, tmp_path: Path, format: str) -> None:
    run("convert", REPORT, tmp_path / "tables", "--to", format)
    read = pl.read_csv if format == "csv" else pl.read_parquet
    counts = {"ncu_launches": 12, "ncu_metrics": 6852, "ncu_rules": 48, "ncu_nvtx_ranges": 79, "devices": 1}
    assert {t: read(tmp_path / "tables" / f"{t}.{format}").height for t in counts} == counts
    assert not (tmp_path / "tables" / f"ncu_metric_instances.{format}").exists()
    run("rows", REPORT, "ncu_metric_instances", "-n", "0", "--format", "csv", "-o", tmp_path / "instances.csv")
    assert pl.read_csv(tmp_path / "instances.csv").height == 21_924


def test_metrics_side_by_side(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "wide.csv"
    run("rows", RAW, "ncu_metrics", "--wide", "-n", "0", "--format", "csv", "-o", out)
    wide = pl.read_csv(out)
    assert wide.height == 12
    assert wide["gpu__time_duration.sum"][:3].to_list() == [2368.0, 2304.0, 3424.0]
    assert wide["device__attribute_display_name"].unique().to_list() == ["NVIDIA H200"]
    some = run(
        "rows", RAW, "ncu_metrics", "--wide", "--columns", "launch_id,dram__bytes.sum", "--format", "csv", "-n", "2"
    )
    assert some.text == "launch_id,dram__bytes.sum\n0,5376.0\n1,12032.0\n"
    assert some.stderr == "2 of 12 rows; -n 0 prints all\n"


def test_side_by_side_what_cannot_be(run: Run) -> None:
    assert "--wide works only with the table ncu_metrics" in run("rows", RAW, "ncu_rules", "--wide", status=2).stderr
    failed = run("rows", RAW, "ncu_metrics", "--wide", "--columns", "name,nothing", status=1)
    said = "tracekit: table 'ncu_metrics' has no column 'nothing'\nHint: choose one of these columns: launch_id, "
    assert failed.stderr.startswith(said)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_tables(run: Run, tmp_path: Path, format: str) -> None:
    run("convert", DETAILS, tmp_path / "tables", "--to", format)
    read = pl.read_csv if format == "csv" else pl.read_parquet
    counts = {"ncu_launches": 12, "ncu_metrics": 624, "ncu_rules": 48, "ncu_nvtx_ranges": 79}
    assert {t: read(tmp_path / "tables" / f"{t}.{format}").height for t in counts} == counts
    assert not (tmp_path / "tables" / f"kernels.{format}").exists()


def test_there_is_nothing_to_draw(run: Run, tmp_path: Path) -> None:
    failed = run("convert", DETAILS, tmp_path / "out.json", status=1)
    assert "nothing to draw: Nsight Compute results have durations, but no timestamps\nHint: to export" in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_ranges_of_a_domain(run: Run) -> None:
    printed = run(
        "rows", DETAILS, "ncu_nvtx_ranges", "--domain", "", "--columns", "launch_id", "-n", "0", "--format", "csv"
    )
    assert len(printed.text.splitlines()) == 80
    other = run("rows", DETAILS, "ncu_nvtx_ranges", "--domain", "x", "--format", "jsonl")
    assert other.text == ""
    assert "warning: " in other.stderr
    assert "there is no NVTX domain 'x' in the capture; choose one of these domains: ''" in other.stderr


@pytest.mark.core
def test_what_limits_each_range(run: Run) -> None:
    printed = run("stats", BY_RANGE, "-r", "ncu_limiter:range", "--format", "jsonl")
    found = {row["Name"]: row["Limiter"] for row in map(json.loads, printed.text.splitlines())}
    assert len(found) == 14
    assert found["step 0/half"] == found["step 1"] == "math-limited"
    assert found["step 1/large"] == "memory-limited"
    assert found["step 1/tiny"] == "latency-limited"


@pytest.mark.core
def test_the_roofline_as_csv(run: Run) -> None:
    header, *rows = run("stats", BY_RANGE, "-r", "ncu_roofline:launch", "--format", "csv").text.splitlines()
    assert header.startswith("ID,Launches,Time (ns),FP64 FLOP,FP32 FLOP,FP16 FLOP,Tensor FLOP,DRAM Bytes,FLOP/Byte,")
    assert rows[0].startswith("0,1,2180416,16777216,0,0,137438953472,1469481216,93.540,63041.058,66572.330,673.945,")
    assert len(rows) == 12
    lines = run("stats", BY_RANGE, "-r", "ncu_limiter", "--format", "csv").text.splitlines()
    shares = [float(line.partition(",")[0]) for line in lines[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.3)


@pytest.mark.core
def test_a_roofline_without_its_metrics(run: Run) -> None:
    failed = run("stats", "fixtures/ncu/ncu_stdout.csv", "-r", "ncu_roofline", status=1)
    assert failed.text == ""
    assert "tracekit: 12 launches have none of the metrics that a roofline needs\nHint: " in failed.stderr
    assert "--set roofline" in failed.stderr
    both = run("stats", BY_RANGE, "-r", "ncu_roofline:launch:range", status=1)
    assert "options 'launch' and 'range' are mutually exclusive\nHint: use either launch or range" in both.stderr
    nothing = run("stats", "fixtures/empty.sqlite", "-r", "ncu_roofline")
    assert (nothing.text, nothing.stderr) == (
        "",
        "ncu_roofline: no rows, because captures in the format nsys-sqlite contain no ncu_launches or ncu_metrics\n",
    )


@pytest.mark.slow
def test_metrics_beside_kernels(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "k.parquet"
    done = run("correlate", TRAIN, "--ncu", RAW, "-o", out)
    assert done.stderr == (
        f"wrote {out}: 334 kernels, 334 with an API call, 334 in an NVTX range\n"
        "Nsight Compute: 60 of 334 kernels have metrics (18.0%), 11 by range, 1 by order, 48 by shape; "
        "0 results match no kernel\n"
    )
    assert pl.read_parquet(out).select("ncu_launch_id", "dram__bytes.sum", "sm__cycles_elapsed.max").height == 334
    some = run("correlate", TRAIN, "--ncu", BY_KERNEL, "--metrics", "dram__bytes.sum", "-o", "-", "--to", "csv")
    assert some.text.splitlines()[0].endswith(",ncu_launch_id,ncu_match,dram__bytes.sum")
    assert (
        some.stderr
        == "Nsight Compute: 60 of 334 kernels have metrics (18.0%), 60 by group; 0 results match no kernel\n"
    )


@pytest.mark.slow
def test_of_other_programs_nothing_is_found(run: Run, tmp_path: Path) -> None:
    done = run("correlate", TRAIN, "--ncu", BY_RANGE, "-o", tmp_path / "k.csv", "--metrics", "dram__bytes.sum")
    assert "Nsight Compute: 0 of 334 kernels have metrics (0.0%); 12 results match no kernel\n" in done.stderr
    quiet = run("correlate", TRAIN, "--ncu", BY_RANGE, "-o", tmp_path / "k.csv", "-f", "-q")
    assert quiet.stderr == ""


def test_what_cannot_be_joined(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "k.csv"
    assert (
        "--metrics can only be used together with --ncu FILE"
        in run("correlate", TRAIN, "--metrics", "a", "-o", out, status=2).stderr
    )
    failed = run("correlate", TRAIN, "--ncu", RAW, "--metrics", "nothing", "-o", out, status=1)
    assert failed.stderr.startswith("tracekit: the Nsight Compute results lack these metrics: nothing\nHint: ")
    session = run("correlate", TRAIN, "--ncu", "fixtures/ncu/ncu_session.csv", "-o", out, status=1)
    assert "ncu_session.csv: the trace has no Nsight Compute results to join" in session.stderr
    assert not out.exists()


@pytest.mark.parametrize("style", ["json", "jsonl", "csv", "table"])
def test_printed_bytes_are_hexadecimal(run: Run, tmp_path: Path, style: str) -> None:
    path = tmp_path / "made.ncu-rep"
    path.write_bytes(report(block(("sources", made("SourceData", module=1, cubin=b"\x7fELF\xff"))), block(kernel())))
    text = run("rows", path, "ncu_sources", "--columns", "kind,data", "--format", style).text
    assert "7f454c46ff" in text
    if style == "json":
        assert json.loads(text) == [{"kind": "cubin", "data": "7f454c46ff"}]
