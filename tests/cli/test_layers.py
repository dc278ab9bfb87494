"""The option --layers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from tests.cli.conftest import Run
from tests.conftest import FIXTURES

INSIDE = FIXTURES / "layers" / "layers_inside.nsys-rep"


def test_the_command_line_writes_layers(run: Run, tmp_path: Path) -> None:
    for option in ([], ["--layers", "capture"]):
        run("correlate", INSIDE, "-o", tmp_path / "out.csv", "-q", "-f", *option)
        rows = pl.read_csv(tmp_path / "out.csv").drop_nulls("capture_path")
        assert (
            rows.group_by("capture_path").len().filter(pl.col("capture_path").str.contains("mlp"))["len"].to_list()
            == [40] * 6
        )
        assert set(rows["range_path"]) == {f"step {i}" for i in range(8)}
        assert ("launch_ns" in rows.columns) == bool(option)
    shown = run("rows", INSIDE, "nvtx_ranges", "--layers", "capture", "--format", "csv", "--columns", "name").text
    assert shown.count("layer 3") == 1 + 8
    assert (
        "layer 3"
        in run("stats", INSIDE, "--report", "nvtx_gpu_proj_sum", "--layers", "capture", "--format", "csv").text
    )
    differences = run("diff", INSIDE, INSIDE, "--layers", "capture", "--by", "nvtx", "--format", "csv").text
    assert "step */capture/layer */mlp" in differences
    ranks = run(
        "rows", INSIDE, "nvtx_ranges", "--rank", f"{INSIDE.name}=0", "--layers", "capture", "--format", "csv"
    ).text
    assert ranks.count("layer 3") == 1 + 8


def test_the_name_of_the_second_capture_must_not_be_empty(run: Run) -> None:
    assert "the name is empty: pass capture or FILE" in run("correlate", INSIDE, "--layers", "", status=2).stderr
