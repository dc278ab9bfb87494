"""Columns of so many different texts that their pieces keep dictionaries of their own."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from tests.benchmarks import repeat
from tracekit.readers.common import builders
from tracekit.readers.common.columns import DICTIONARY
from tracekit.readers.nsys_rep import events
from tracekit.registry.tables import read_chunks
from tracekit.trace import prefetch

SMALL = Path(__file__).parents[1] / "fixtures" / "train_amp.nsys-rep"
REPORTS = ("nvtx_kern_sum", "nvtx_gpu_proj_trace", "nvtx_sum", "cuda_gpu_trace")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repeated") / "three_times.nsys-rep"
    repeat.report(SMALL, path, 3)
    return path


@pytest.fixture(scope="module")
def whole(report: Path) -> tk.Trace:
    trace = tk.load(report)
    prefetch(trace, dict.fromkeys(trace.tables))
    return trace


@pytest.fixture
def in_pieces(report: Path, monkeypatch: pytest.MonkeyPatch) -> tk.Trace:
    monkeypatch.setattr(events, "BATCH_BYTES", 1 << 14)
    monkeypatch.setattr(builders, "has_mostly_distinct_strings", lambda *_: True)
    trace = tk.load(report)
    assert read_chunks(trace._view.tables, "nvtx_ranges")["name"].num_chunks > 1
    return trace


def test_tables_have_one_dictionary(in_pieces: tk.Trace, whole: tk.Trace) -> None:
    for name in whole.tables:
        assert in_pieces[name].to_pylist() == whole[name].to_pylist(), name
    (dictionary,) = {tuple(c.dictionary.to_pylist()) for c in in_pieces["nvtx_ranges"]["name"].chunks}
    assert len(set(dictionary)) == len(dictionary)


@pytest.mark.parametrize("name", REPORTS)
def test_reports_are_the_same(in_pieces: tk.Trace, whole: tk.Trace, name: str) -> None:
    def printed(trace: tk.Trace) -> bytes:
        sink = io.BytesIO()
        trace.report(name).csv(sink)
        return sink.getvalue()

    assert printed(in_pieces) == printed(whole) != b""


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_folders_hold_the_same(in_pieces: tk.Trace, whole: tk.Trace, tmp_path: Path, format: str) -> None:
    with tk.load(in_pieces.export(tmp_path / "pieces", format=format)) as again:
        for name in whole.tables:
            assert again[name].to_pylist() == whole[name].to_pylist(), name


@pytest.mark.thorough
def test_texts_hold_the_same(in_pieces: tk.Trace, whole: tk.Trace, tmp_path: Path) -> None:
    made = [t.export(tmp_path / n, format="csv") for n, t in (("pieces", in_pieces), ("whole", whole))]
    first, second = ({f.name: f.read_bytes() for f in folder.iterdir()} for folder in made)
    assert first == second
    drawn = [t.export(tmp_path / f"{n}.json").read_bytes() for n, t in (("pieces", in_pieces), ("whole", whole))]
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_correlated_and_selected(in_pieces: tk.Trace, whole: tk.Trace) -> None:
    for made in (lambda t: t.correlate(), lambda t: t.select(min_duration_ns=5000)):
        for name in ("nvtx_ranges", "kernels", "api_calls"):
            assert made(in_pieces)[name].to_pylist() == made(whole)[name].to_pylist(), name


def test_many_texts_stay_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "MANY_STRINGS", 3)
    texts = builders.create_column_builder(DICTIONARY, 2)
    for part in (["a", "b"], ["c", "b", None]):
        texts.append(pa.array(part, pa.string()).dictionary_encode())
    column = texts.finish()
    assert [c.dictionary.to_pylist() for c in column.chunks] == [["a", "b"], ["c", "b"]]
    assert column.to_pylist() == ["a", "b", "c", "b", None]


def test_few_texts_have_one_piece() -> None:
    texts = builders.create_column_builder(DICTIONARY, 2)
    for part in (["a", "b", "a", None], ["b", "c"], []):
        texts.append(pa.array(part, pa.string()).dictionary_encode())
    column = texts.finish()
    assert column.num_chunks == 1
    assert column.chunk(0).dictionary.to_pylist() == ["a", "b", "c"]
    assert column.to_pylist() == ["a", "b", "a", None, "b", "c"]
