"""``tracekit correlate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk

if TYPE_CHECKING:
    from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
TRAIN = "fixtures/train_amp.sqlite"
CONTRACT = {
    *("kernel_id", "start_ns", "end_ns", "process_id", "device_id", "stream_id", "name", "correlation_id"),
    *("api_start_ns", "thread_id", "range_id", "range_name", "range_path", "range_depth"),
}


def test_one_row_a_kernel_in_the_order_of_the_file(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "k.parquet"
    result = run("correlate", TRAIN, "-o", out)
    kernels = pl.read_parquet(out)
    assert result.stderr == f"wrote {out}: 334 kernels, 334 with an API call, 334 in an NVTX range\n"
    assert kernels["kernel_id"].to_list() == list(range(1, 335))
    assert set(kernels.columns) >= CONTRACT
    assert kernels["range_path"].cast(pl.String).str.starts_with("Batch ").sum() > 0


@pytest.mark.many(1)
@pytest.mark.parametrize("name", ["k.parquet", "k.arrow", "k.csv"])
def test_every_table_format_holds_the_same(run: Run, tmp_path: Path, name: str) -> None:
    run("correlate", TRAIN, "-o", tmp_path / name, "-q")
    read = {".parquet": pl.read_parquet, ".arrow": pl.read_ipc, ".csv": pl.read_csv}[(tmp_path / name).suffix]
    expected = tk.load(ROOT / TRAIN).correlate().frame("kernels").collect()
    columns = sorted(CONTRACT)
    text = dict.fromkeys(("name", "range_name", "range_path"), pl.String)
    assert read(tmp_path / name).select(columns).cast(text).rows() == expected.select(columns).cast(text).rows()


def test_every_capture_can_be_correlated(run: Run, tmp_path: Path, capture: Path) -> None:
    out = tmp_path / "k.parquet"
    run("correlate", capture, "-o", out)
    assert pl.read_parquet(out).height == tk.load(capture).count("kernels")


def test_standard_output(run: Run, tmp_path: Path) -> None:
    printed = run("correlate", TRAIN, "-o", "-", "--to", "csv")
    run("correlate", TRAIN, "-o", tmp_path / "k.csv")
    assert printed.stdout == (tmp_path / "k.csv").read_bytes()
    assert printed.stderr == ""


def test_selected_kernels_keep_the_ranges_around_them(run: Run, tmp_path: Path) -> None:
    run("correlate", TRAIN, "-o", tmp_path / "all.parquet", "-q")
    result = run("correlate", TRAIN, "-o", tmp_path / "some.parquet", "--time", "41ms:42ms", "--domain", "none")
    some, whole = (pl.read_parquet(tmp_path / f"{n}.parquet") for n in ("some", "all"))
    assert 0 < some.height < whole.height
    assert f"{some.height} kernels, " in result.stderr
    assert whole.join(some, on="kernel_id", how="semi", maintain_order="left").equals(some)


def test_force(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "k.parquet"
    out.write_text("precious")
    assert "the output already exists" in run("correlate", TRAIN, "-o", out, status=1).stderr
    assert out.read_text() == "precious"
    run("correlate", TRAIN, "-o", out, "-f")
    assert pl.read_parquet(out).height == 334


def test_formats_of_whole_traces_are_refused(run: Run, tmp_path: Path) -> None:
    hint = "Hint: choose a format for single tables: csv, parquet, arrow"
    result = run("correlate", TRAIN, "-o", tmp_path / "k.json", status=1)
    assert f"chrome-trace cannot store a single table, only a whole trace\n{hint}\n" in result.stderr
    unknown = run("correlate", TRAIN, "-o", tmp_path / "k.txt", status=1)
    assert f"no exporter writes files with this suffix\n{hint}\n" in unknown.stderr


def test_the_format_is_checked_before_the_capture_is_read(run: Run, tmp_path: Path) -> None:
    result = run("correlate", tmp_path / "missing.nsys-rep", "-o", "-", "--to", "html", status=1)
    assert "the format html cannot store a single table" in result.stderr
