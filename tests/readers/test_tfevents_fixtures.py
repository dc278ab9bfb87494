"""Event files that others wrote: points as tbparse and TensorBoard read them, and what must hold of every capture."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from click.testing import CliRunner
from tests.builders.tfevents import CORPUS, FIXTURES
from tests.helpers import count_undecoded
from tracekit import cli, schemas
from tracekit.registry import detection
from tracekit.registry.source import Source

RUNS, PYTORCH = FIXTURES / "runs", FIXTURES / "pytorch"
FOLDERS = [RUNS, PYTORCH]
TABLES = ("scalars", "texts", "step_stats", "graph_nodes", "graph_edges", "capture_info")
EVENT_FILES = sorted(p for top in (FIXTURES, CORPUS) for p in top.rglob("*tfevents*") if p.is_file())


def rows(path: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    with tk.load(path) as trace:
        return trace.frame(table).select(columns).collect().rows()


def test_what_the_fixtures_hold() -> None:
    with tk.load(RUNS) as trace:
        counts = {name: trace.count(name) for name in TABLES}
        assert counts == {
            "scalars": 172,
            "texts": 14,
            "step_stats": 8,
            "graph_nodes": 4,
            "graph_edges": 3,
            "capture_info": 5,
        }
        assert count_undecoded(trace.undecoded) == {"histogram": 11, "hparams": 1, "session log": 1}
        found = trace.frame("scalars").group_by("run", "tag", "kind").len().sort("run", "tag").collect().rows()
    assert found == [
        (".", "accuracy", "simple_value", 10),
        (".", "loss/train", "simple_value", 100),
        ("traced/gpu", "loss_1", "simple_value", 2),
        ("train", "epoch_loss", "tensor", 30),
        ("train", "epoch_lr", "tensor", 30),
    ]


def test_step_stats_of_the_fixtures() -> None:
    columns = ("tag", "device", "node_name", "start_ns", "op_start_ns", "op_end_ns", "end_ns", "scheduled_ns")
    found = rows(RUNS, "step_stats", *columns)
    cpu, gpu = (f"/job:localhost/replica:0/task:0/device:{d}:0" for d in ("CPU", "GPU"))
    assert found[:3] == [
        ("step 1", cpu, "input", 10_000_000, 10_002_000, 10_080_000, 10_090_000, 9_995_000),
        ("step 1", gpu, "conv", 10_000_000, 10_002_000, 10_080_000, 10_090_000, 9_995_000),
        ("step 1", gpu, "relu", 10_100_000, 10_102_000, 10_181_000, 10_191_000, 10_095_000),
    ]
    assert found[4] == ("step 2", cpu, "input", 20_000_123, 20_002_124, 20_080_125, 20_090_126, 19_995_007)
    assert rows(RUNS, "step_stats", "requested_bytes", "output_bytes", "temp_bytes", "output_count")[2] == (
        1 << 20,
        8192,
        256,
        1,
    )


def test_texts_of_the_fixtures() -> None:
    found = rows(RUNS, "texts", "run", "tag", "step", "element", "text")
    assert found[0] == (".", "notes/text_summary", 0, 0, "step **0** of part 0: naïve, 日本語")
    assert found[-4:] == [("train", "table", 1, nth, text) for nth, text in enumerate("abcd")]


@pytest.mark.corpus
@pytest.mark.skipif(importlib.util.find_spec("tbparse") is None, reason="tbparse is not installed")
@pytest.mark.parametrize("path", EVENT_FILES, ids=lambda p: f"{p.parent.name}/{p.name[-12:]}")
def test_points_are_those_of_tbparse(path: Path, tmp_path: Path) -> None:
    """Step, value and wall time of every point, tag by tag; tbparse is asked to keep those that were overtaken."""
    if path.name.endswith(".profile-empty"):
        pytest.skip("holds nothing")
    expected = peer(shutil.copyfile(path, tmp_path / path.name))
    made = rows(path, "scalars", "tag", "step", "wall_time_ns", "value")
    own = sorted((tag, step, wall, value) for tag, step, wall, value in made)
    assert [(t, s, v) for t, s, _, v in own] == [(t, s, v) for t, s, _, v in expected]
    for mine, other in zip(own, expected, strict=True):
        assert abs(mine[2] - Fraction(other[2]) * 1_000_000_000) <= Fraction(500_001, 1_000_000)


def peer(path: Path) -> list[tuple[str, int, float, float]]:
    """Points as TensorBoard's accumulator, which tbparse asks, hands them over: plain ones, tensors of one number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tbparse import SummaryReader
        from tensorboard.backend.event_processing import event_accumulator
        from tensorboard.util import tensor_util

        size = dict.fromkeys(("scalars", "tensors"), 0)
        events = event_accumulator.EventAccumulator(str(path), size, purge_orphaned_data=False).Reload()
        found = [(t, e.step, e.wall_time, e.value) for t in events.Tags()["scalars"] for e in events.Scalars(t)]
        for tag in events.Tags()["tensors"]:
            metadata = events.SummaryMetadata(tag)
            if metadata.plugin_data.plugin_name in ("scalars", "") or metadata.data_class == 1:
                made = [(e, tensor_util.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
                found += [(tag, e.step, e.wall_time, float(a.item())) for e, a in made if a.size == 1]
        frame = SummaryReader(str(path), event_types={"scalars"}, extra_columns={"wall_time"}).scalars
    all_of_them = {(t, s, w, v) for t, s, w, v in found}
    for row in frame.itertuples() if len(frame) else ():
        assert (row.tag, row.step, row.wall_time, row.value) in all_of_them
    return sorted(found)


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.many(1)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_exported_and_read_again_it_is_equal(folder: Path, tmp_path: Path, format: str) -> None:
    before = digest(folder)
    with tk.load(folder) as trace:
        for name in ("one", "two"):
            trace.export(tmp_path / name, format=format)
        with tk.load(tmp_path / "one") as again:
            assert again.format == format
            for name in trace.tables:
                assert trace[name].schema.equals(schemas.arrow_schema(schemas.table(name)), check_metadata=True)
                assert again[name].equals(trace[name]), name
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    assert digest(folder) == before


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_csv_holds_every_value(folder: Path, tmp_path: Path) -> None:
    with tk.load(folder) as trace:
        trace.export(tmp_path / "tables", format="csv")
        for name in TABLES:
            text = dict.fromkeys(trace.schema(name).names, pl.String)
            read = pl.read_csv(tmp_path / "tables" / f"{name}.csv", schema_overrides=text)
            floats = [c.name for c in trace.schema(name).columns if c.type == "float64"]
            expected = trace.frame(name).with_columns(pl.all().cast(pl.String)).collect()
            assert read.drop(floats).equals(expected.drop(floats)), name
        numbers = pl.read_csv(tmp_path / "tables" / "scalars.csv")["value"]
        assert numbers.equals(trace.frame("scalars").collect()["value"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_same_under_an_unknown_name(folder: Path, tmp_path: Path) -> None:
    for nth, file in enumerate(p for p in sorted(folder.rglob("*")) if p.is_file()):
        unknown = shutil.copyfile(file, tmp_path / f"unknown{nth}")
        with tk.load(file) as trace, tk.load(unknown) as other:
            assert detection.detect_reader(Source(unknown)).format == trace.format == "tfevents"
            for name in TABLES:
                assert other[name].equals(trace[name])


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(cli.cli, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_verbs(tmp_path: Path) -> None:
    facts = json.loads(run("info", RUNS, "--json"))
    assert facts["format"] == "tfevents"
    assert facts["rows"]["scalars"] == 172
    assert facts["runs"] == "3"
    assert {n: u["count"] for n, u in facts["undecoded"].items()} == {"histogram": 11, "hparams": 1, "session log": 1}
    printed = [line.split() for line in run("info", RUNS).splitlines()]
    assert ["runs", "3"] in printed
    assert ["histogram", "11"] in printed
    assert "scalars" in run("tables", RUNS)
    lines = run("rows", RUNS, "scalars", "-n", "0", "--format", "jsonl").splitlines()
    assert len(lines) == 172
    assert json.loads(lines[0])["tag"] == "loss/train"
    for to, read in (("parquet", pl.read_parquet), ("csv", pl.read_csv)):
        out = tmp_path / f"out.{to}"
        run("convert", RUNS, out, "--to", to, "--table", "scalars")
        assert read(out).height == 172
