"""Reports and rules of a trace, a set or a path, options by name, and the type of columns with names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tracekit import schemas

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "fixtures" / "train_amp.sqlite"
RANKS = ROOT / "fixtures" / "ranks"


@pytest.mark.parametrize("path", [TRAIN, str(TRAIN)])
def test_a_path_of_a_capture(path: str | Path) -> None:
    with tk.load(TRAIN) as trace:
        assert tk.stats(path, "cuda_gpu_kern_sum").equals(trace.stats("cuda_gpu_kern_sum"))
        assert tk.analyze(path, "gpu_gaps:gap=40").equals(trace.analyze("gpu_gaps", options={"gap": 40}))
        assert tk.stats(trace, "advise").equals(trace.stats("advise"))
        assert trace.count("kernels") == 334, "a trace stays open"


@pytest.mark.parametrize("path", [RANKS, str(RANKS / "*.nsys-rep")])
def test_a_path_of_several_captures(path: str | Path) -> None:
    traces = tk.load_many(RANKS)
    assert tk.stats(path, "cuda_api_sum").equals(traces.stats("cuda_api_sum"))
    assert tk.analyze(path, "gpu_gaps", options={"gap": 0}).equals(traces.analyze("gpu_gaps:gap=0"))
    assert tk.stats(traces, "cuda_api_sum")["rank"].unique().sort().to_list() == [0, 1]


def test_a_path_without_a_capture(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tk.stats(tmp_path / "missing", "advise")
    (tmp_path / "text").write_text("text")
    with pytest.raises(tk.TracekitError, match="no reader recognizes the content"):
        tk.analyze(tmp_path / "text", "gpu_gaps")


@pytest.mark.parametrize(
    ("report", "options", "name"),
    [
        ("cuda_gpu_kern_sum", {"base": True}, "cuda_gpu_kern_sum:base"),
        ("cuda_gpu_kern_sum", {"base": False}, "cuda_gpu_kern_sum"),
        ("cuda_gpu_kern_sum", {"nvtx-name": True, "base": True}, "cuda_gpu_kern_sum:nvtx-name:base"),
        ("cuda_gpu_kern_sum:nvtx-name", {"mangled": True}, "cuda_gpu_kern_sum:nvtx-name:mangled"),
        ("gpu_gaps", {"gap": 40, "rows": 1}, "gpu_gaps:gap=40:rows=1"),
    ],
)
def test_options(report: Any, options: dict[str, Any], name: Any) -> None:
    with tk.load(TRAIN) as trace:
        assert trace.report(report, options=options).frame().equals(trace.report(name).frame())
    by_rank = tk.load_many(TRAIN)
    assert by_rank.report(report, options=options).frame().equals(by_rank.report(name).frame())


@pytest.mark.parametrize("options", [{"bare": True}, {"rows": "x"}, {"gap": -1}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with tk.load(TRAIN) as trace:
        for report in ("cuda_gpu_kern_sum", "gpu_gaps"):
            with pytest.raises(tk.TracekitError, match="option"):
                trace.report(report, options=options)


@pytest.mark.many(5)
@pytest.mark.parametrize("table", list(schemas.table_names()))
def test_names_as_strings(table: Any) -> None:
    with tk.load(TRAIN) as trace:
        frame, strings = trace.frame(table), trace.frame(table, names="string")
        assert pl.Categorical not in strings.collect_schema().dtypes()
        assert strings.collect().equals(frame.collect().cast({pl.Categorical: pl.String}))


def test_names_of_several_ranks_as_strings() -> None:
    frame = tk.load_many(RANKS).frame("kernels", names="string").select("rank", "short_name").collect()
    assert frame["short_name"].str.len_chars().min() > 0
    with pytest.raises(tk.TracekitError, match="names='text' is unknown\nHint: choose categorical or string"):
        tk.load_many(RANKS).frame("kernels", names="text")  # type: ignore[arg-type]


def test_unknown_attributes() -> None:
    with tk.load(TRAIN) as trace, pytest.raises(AttributeError, match="'Trace' object has no attribute 'fraem'"):
        trace.fraem("kernels")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="module 'tracekit' has no attribute 'laod'"):
        tk.laod("x")  # type: ignore[attr-defined]
