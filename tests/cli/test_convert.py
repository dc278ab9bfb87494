"""``tracekit convert``."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk

if TYPE_CHECKING:
    from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
TRAIN = "fixtures/train_amp.sqlite"


def events(data: bytes) -> list[dict[str, object]]:
    made: list[dict[str, object]] = json.loads(data)["traceEvents"]
    return made


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_the_suffix_of_the_output_chooses_the_format(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.json.gz"
    assert run("convert", TRAIN, out).stderr == f"wrote {out}\n"
    assert len(events(gzip.decompress(out.read_bytes()))) > 2000


@pytest.mark.slow
def test_tracks_are_chosen(run: Run, tmp_path: Path) -> None:
    for args in (["--track", "nvtx,osrt"], ["--track", "nvtx", "--track", "osrt"], ["--option", "tracks=osrt,nvtx"]):
        run("convert", TRAIN, tmp_path / "few.json", *args, "-f")
        keys = {key for e in events((tmp_path / "few.json").read_bytes()) if e["ph"] == "X" for key in e["args"]}  # type: ignore[attr-defined]
        assert "range_id" in keys
        assert not {"api_call_id", "kernel_id"} & keys
    result = run("convert", TRAIN, tmp_path / "no.json", "--track", "kernel", status=1)
    assert "'kernel' is not a valid value of the option 'tracks'" in result.stderr
    result = run("convert", TRAIN, tmp_path / "no.collapsed", "--track", "nvtx", status=1)
    assert "tracks" in result.stderr


def test_an_output_left_out_is_named_as_the_input(run: Run, tmp_path: Path) -> None:
    shutil.copy(ROOT / TRAIN, tmp_path / "my.run.sqlite")
    run("convert", tmp_path / "my.run.sqlite", "--to", "chrome-trace")
    assert names(tmp_path) == ["my.run.json", "my.run.sqlite"]


def test_the_current_folder_as_input_has_a_name_too(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    tk.convert(ROOT / TRAIN, folder, to="parquet")
    run("--version")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(monkeypatch, "chdir", lambda _: None)
    run("convert", ".", "--to", "chrome-trace", "-q")
    assert names(tmp_path) == ["run", "run.json"]


def test_a_dash_is_standard_output(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = run("convert", TRAIN, "-", "--to", "chrome-trace")
    run("convert", TRAIN, tmp_path / "same.json")
    assert result.stdout == (tmp_path / "same.json").read_bytes()
    assert result.stderr == ""


def test_one_table_to_standard_output(run: Run) -> None:
    result = run("convert", TRAIN, "-", "--to", "csv", "--table", "kernels")
    assert len(pl.read_csv(result.stdout)) == 334


def test_a_format_with_a_file_a_table_makes_a_folder(run: Run, tmp_path: Path) -> None:
    run("convert", TRAIN, tmp_path / "all", "--to", "parquet", "--table", "kernels", "--table", "memcpys")
    assert names(tmp_path / "all") == ["kernels.parquet", "memcpys.parquet"]
    with tk.load(tmp_path / "all") as trace:
        assert (trace.count("kernels"), trace.count("memcpys")) == (334, 20)


def test_one_table_makes_one_file(run: Run, tmp_path: Path) -> None:
    run("convert", TRAIN, tmp_path / "k.parquet", "--table", "kernels")
    assert pl.read_parquet(tmp_path / "k.parquet").height == 334


def test_selection(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "k.parquet"
    run("convert", TRAIN, out, "--table", "kernels", "--time", "41ms:42ms", "--min-dur", "1.2us", "--device", "0")
    kernels = pl.read_parquet(out)
    assert 0 < kernels.height < 334
    assert kernels["end_ns"].min() > 41_000_000  # type: ignore[operator]
    assert kernels["start_ns"].max() < 42_000_000  # type: ignore[operator]
    assert (kernels["end_ns"] - kernels["start_ns"]).min() >= 1200  # type: ignore[operator]


def test_ranges_outside_of_the_selection_still_name_kernels(run: Run) -> None:
    part = run("convert", TRAIN, "-", "--to", "csv", "--table", "kernels", "--time", "41ms:42ms").stdout
    drawn = events(run("convert", TRAIN, "-", "--to", "chrome-trace", "--time", "41ms:42ms").stdout)
    assert b"Batch 0/Forward pass/layer1" in json.dumps(drawn).encode()
    assert part


def test_what_is_there_is_not_replaced_without_force(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("precious")
    result = run("convert", TRAIN, out, status=1)
    hint = "overwrite it with -f or overwrite=True"
    assert result.stderr == f"tracekit: {out}: the output already exists\nHint: {hint}\n"
    assert out.read_text() == "precious"
    run("convert", TRAIN, out, "-f")
    assert len(events(out.read_bytes())) > 2000


def test_the_input_is_never_written_on(run: Run, tmp_path: Path) -> None:
    shutil.copy(ROOT / TRAIN, tmp_path / "x.json")
    result = run("convert", tmp_path / "x.json", "--to", "chrome-trace", "-f", status=1)
    assert "this file is being read, so it cannot be replaced" in result.stderr
    assert (tmp_path / "x.json").read_bytes() == (ROOT / TRAIN).read_bytes()


def test_a_missing_folder_is_named(run: Run, tmp_path: Path) -> None:
    result = run("convert", TRAIN, tmp_path / "no" / "out.json", status=1)
    assert f"the folder of the output does not exist\nHint: create {tmp_path / 'no'}" in result.stderr


def test_the_format_of_the_input_can_be_named(run: Run, tmp_path: Path) -> None:
    run("convert", TRAIN, tmp_path / "o.json", "--from", "nsys-sqlite", "-q")
    assert "cannot be read" in run("convert", TRAIN, tmp_path / "p.json", "--from", "parquet", status=1).stderr


@pytest.mark.parametrize("name", ["dlprof-reports", "tfevents"])
def test_a_folder_does_not_go_to_standard_output(run: Run, name: str) -> None:
    done = run("convert", TRAIN, "-", "--to", name, status=2)
    assert f"{name} writes a folder, so standard output cannot be used: name a folder" in done.stderr
    assert done.stdout == b""


def test_a_folder_of_the_one_table_with_rows(run: Run, tmp_path: Path) -> None:
    """A second table makes it a folder, but the rows are there."""
    import pyarrow.parquet as pq

    with tk.load("fixtures/train_amp.sqlite") as trace:
        ranges = trace["nvtx_ranges"]
    pq.write_table(ranges, tmp_path / "nvtx_ranges.parquet")
    out = tmp_path / "folder"
    assert run("convert", tmp_path / "nvtx_ranges.parquet", out, "--to", "parquet").stderr == f"wrote {out}\n"
    with tk.load(out) as again:
        assert again["nvtx_ranges"].equals(ranges)
