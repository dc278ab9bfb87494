"""``diff`` and ``save_baseline``: sides of every form, and files that are not baselines."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import tracekit as tk
from tests.builders import training_runs
from tests.conftest import FIXTURES
from tracekit.core import compare
from tracekit.errors import CorruptTraceError, ExportError, TracekitError
from tracekit.sets import comparison

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = FIXTURES / "train_amp.sqlite"
RANKS = FIXTURES / "ranks"


def frames(diff: compare.Diff) -> dict[str, Any]:
    return {kind: frame.to_dicts() for kind, frame in diff.frames.items()}


@pytest.mark.thorough
def test_every_form_of_a_side(tmp_path: Path) -> None:
    saved = tk.save_baseline(TRAIN, tmp_path / "train.json")
    with tk.load(TRAIN) as trace:
        summary = comparison.Summarizer(tuple(compare.KINDS)).summarize(trace)
        expected = frames(tk.diff(trace, summary))
        for side in (TRAIN, str(TRAIN), saved, FIXTURES / "train_amp.nsys-rep", comparison.read_baseline(saved)):
            assert frames(tk.diff(summary, side)) == expected
            assert tk.diff(side, trace, by=["copies"]).frame("copies").to_dicts() == expected["copies"]
    assert b"fixtures" not in saved.read_bytes()


PAIRS = [
    (p, p.with_suffix(".sqlite")) for p in sorted(FIXTURES.glob("*.nsys-rep")) if p.with_suffix(".sqlite").exists()
]


@pytest.mark.many(2)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].stem)
def test_a_report_and_its_export_are_equal(pair: tuple[Path, Path]) -> None:
    """The export names the version of the nsys that exported it, and the report the version that recorded it."""
    report, export = pair
    for sides in (pair, (export, report)):
        diff = tk.diff(*sides, by=["kernels", "api"])
        assert [note for note in diff.notes if "too few to test" not in note] == []
        assert diff.verdict.startswith(("A and B are equal", "nothing was compared"))


def test_versions_of_exports_are_compared_with_each_other() -> None:
    facts = [{"tool_version": "1"}, {"tool_version": "2"}, {"export_version": "1"}, {"export_version": "2"}]
    samples = made_samples()
    a, b, c, d = (compare.Summary(samples, (1,) * 20, each) for each in facts)
    assert compare.compare(a, b, ["kernels"]).notes == ("the versions of the tool differ: 1 (A), 2 (B)",)
    assert compare.compare(c, d, ["kernels"]).notes == (
        "the versions of the tool that exported the captures differ: 1 (A), 2 (B)",
    )
    assert compare.compare(a, d, ["kernels"]).notes == ()


def made_samples() -> pl.DataFrame:
    return pl.DataFrame([("kernels", "k", 0, 1, 5, None, 5)], schema=compare.SAMPLES, orient="row")


@pytest.mark.thorough
def test_sets_are_sums_of_their_ranks(tmp_path: Path) -> None:
    whole = tk.load_many(RANKS)
    kinds = ["kernels", "api", "nvtx", "iterations"]
    summarizer = comparison.Summarizer(tuple(kinds))
    summary = summarizer.summarize(whole)
    expected = frames(tk.diff(summary, summary, by=kinds))
    for side in (RANKS, RANKS / "*.nsys-rep", tk.save_baseline(RANKS, tmp_path / "ranks.json")):
        assert frames(tk.diff(side, summary, by=kinds)) == expected
    ranks = [summarizer.summarize(path) for path in sorted(RANKS.glob("*.nsys-rep"))]
    single = [tk.diff(rank, rank, by=kinds) for rank in ranks]
    for kind in kinds:
        for column in ("count_a", "time_a_ns"):
            total = sum(d.frame(kind)[column].sum() for d in single)
            assert sum(row[column] for row in expected[kind]) == total
    assert summary.iterations == single[0].a.iterations
    summarizer = pickle.loads(pickle.dumps(comparison.Summarizer(("kernels",))))
    assert summarizer.summarize(whole).samples.equals(comparison.Summarizer(("kernels",)).summarize(RANKS).samples)


@pytest.mark.thorough
def test_a_baseline_replaces_no_capture(tmp_path: Path) -> None:
    copy = tmp_path / "train.sqlite"
    copy.write_bytes(TRAIN.read_bytes())
    for side in (copy, tk.load(copy)):
        with pytest.raises(ExportError, match="this file is being read, so it cannot be replaced"):
            tk.save_baseline(side, copy, overwrite=True)
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for path in RANKS.glob("*.nsys-rep"):
        (ranks / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ExportError, match="this file is being read, so it cannot be replaced"):
        tk.save_baseline(tk.load_many(ranks), ranks / "mpi_rank0.nsys-rep", overwrite=True)
    target = tk.save_baseline(training_runs.run(1), tmp_path / "a.json")
    with pytest.raises(ExportError, match="the output already exists"):
        tk.save_baseline(training_runs.run(1), target)
    before = target.read_bytes()
    assert tk.save_baseline(training_runs.run(2), target, overwrite=True).read_bytes() != before
    again = tk.save_baseline(comparison.read_baseline(target), tmp_path / "b.json")
    assert again.read_bytes() == target.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format":"tracekit-baseline"', "the baseline is not valid JSON"),
        (b'{"format":"tracekit-baseline","version":1}', '"row" in the baseline|"units" in the baseline'),
        (b'{"format":"tracekit-baseline","x":' + b"[" * 100_000, "the baseline is not valid JSON"),
        (b'{"format":"tracekit-baseline","version":' + b"9" * 5000 + b"}", "the baseline is not valid JSON"),
        (b'{"format":"tracekit-baseline","x":"\xff"}', "the baseline is not valid JSON"),
    ],
)
def test_damaged_baselines(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(CorruptTraceError, match=message) as raised:
        tk.diff(path, path)
    assert raised.value.path == str(path)


def test_large_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tk.save_baseline(training_runs.run(1), tmp_path / "a.json")
    monkeypatch.setattr(comparison, "MAX_BASELINE_BYTES", path.stat().st_size)
    assert comparison.read_baseline(path).iterations == 40
    monkeypatch.setattr(comparison, "MAX_BASELINE_BYTES", path.stat().st_size - 1)
    with pytest.raises(CorruptTraceError, match="the baseline exceeds the limit"):
        comparison.read_baseline(path)


def test_truncated_baselines(tmp_path: Path) -> None:
    content = tk.save_baseline(training_runs.run(1, iterations=2), tmp_path / "a.json").read_bytes()
    path = tmp_path / "b.json"
    for size in range(40, len(content) - 2, 97):
        path.write_bytes(content[:size])
        with pytest.raises(CorruptTraceError, match="the baseline is not valid JSON"):
            tk.diff(path, path)
    path.write_text(json.dumps(json.loads(content) | {"version": 9}))
    with pytest.raises(TracekitError, match="only versions up to 3 are supported\nHint: use a newer version"):
        tk.diff(path, path)


def test_missing_files(tmp_path: Path) -> None:
    for side in (tmp_path / "a.sqlite", tmp_path / "a.json"):
        with pytest.raises(FileNotFoundError):
            tk.diff(side, TRAIN)
    with pytest.raises(TracekitError, match="no file matches this pattern"):
        tk.diff(tmp_path / "*.sqlite", TRAIN)
