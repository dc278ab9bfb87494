"""The communication of a set: the analysis of all ranks, and warnings for ranks whose clocks are not aligned."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ranks import kernel, mpi_rank, write_capture
from tracekit.sets.communication import warn_about_unaligned_clocks
from tracekit.sets.recipe_files import is_recipe_file, write_recipe_folder

FIXTURES = Path(__file__).parents[2] / "fixtures"
LAUNCH = {"api_call_id": 1, "start_ns": 0, "end_ns": 1, "process_id": 1, "thread_id": 1, "correlation_id": 1}


def origin(value: str) -> list[dict[str, Any]]:
    return [{"name": "origin_utc_ns", "value": value}]


def ranks(folder: Path, *origins: str | None) -> tk.TraceSet:
    folder.mkdir(exist_ok=True)
    paths = [
        write_capture(
            folder / f"rank{n}",
            kernels=[kernel(0, 5)],
            api_calls=[LAUNCH],
            mpi_ranks=[mpi_rank(n)],
            capture_info=origin(utc) if utc else [],
        )
        for n, utc in enumerate(origins)
    ]
    return tk.load_many(paths)


def test_the_analysis_of_two_reports() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tk.load_many(FIXTURES / "ranks") as traces:
            found = traces.correlate().communication()
            clocks = traces.clocks()
    assert found.clocks.equals(clocks)
    calls = found.calls
    assert set(calls["status"]) == {"matched", "unmatched"}
    assert set(calls.filter(status="unmatched")["kind"]) == {"send", "recv", "send_recv"}
    assert found.arrivals.filter(kind="barrier").select("rank", "count", "last_count").rows() == [(0, 5, 0), (1, 5, 5)]


def test_a_set_without_communication() -> None:
    with tk.load_many(FIXTURES / "cpu_only.nsys-rep") as traces:
        found = traces.communication()
    tables: list[pl.DataFrame] = [found.calls, found.summary, found.arrivals, found.operations, found.stragglers]
    assert [t.height for t in tables] == [0] * 5
    assert found.clocks.height == 1


def test_an_empty_set(tmp_path: Path) -> None:
    found = ranks(tmp_path, "5").select(ranks=[]).communication()
    assert (found.clocks.height, found.calls.height, found.iterations.height) == (0, 0, 0)


@pytest.mark.slow
def test_ranks_that_are_not_aligned_are_named(tmp_path: Path) -> None:
    with pytest.warns(tk.TracekitWarning, match="^rank 1: .* only by the UTC time of the trace origin"):
        assert ranks(tmp_path / "a", "5", "25").communication().clocks["offset_ns"].to_list() == [0, 20]
    with pytest.warns(tk.TracekitWarning, match="^rank 1, 2: .* cannot be aligned .* the times are null$"):
        ranks(tmp_path / "b", "5", None, None).communication()


def test_only_the_first_ranks_are_listed() -> None:
    clocks = pl.DataFrame({"rank": range(12), "method": ["reference", *["none"] * 11]})
    with pytest.warns(tk.TracekitWarning, match="^rank 1, 2, 3, 4, 5, 6, 7, 8, …: "):
        warn_about_unaligned_clocks(clocks)


@pytest.mark.slow
def test_recipes_are_the_tables_of_the_analysis(tmp_path: Path) -> None:
    with tk.load_many(FIXTURES / "ddp2.nsys-rep") as traces:
        found = traces.communication()
        for recipe, names in {
            "comm_sum": ("summary", "operations", "clocks"),
            "comm_skew": ("arrivals", "operations", "clocks"),
            "comm_trace": ("calls", "clocks"),
            "iteration_spread": ("iterations", "stragglers", "clocks", "steps"),
        }.items():
            tables = traces.recipe(recipe)
            assert list(tables) == [*names, "files"]
            for name in names:
                expected = getattr(found, name)
                floats = [c for c, t in expected.schema.items() if t.is_float()]
                assert tables[name].drop(floats).equals(expected.drop(floats))
            write_recipe_folder(tables, recipe, tmp_path / recipe, "csv")
            assert all(is_recipe_file(path) for path in (tmp_path / recipe).iterdir())
        assert traces.recipe("comm_sum")["summary"]["bus_gb_per_s"].to_list() == [215.723, 219.003]


def test_recipes_name_ranks_that_are_not_aligned(tmp_path: Path) -> None:
    traces = ranks(tmp_path, "5", "25")
    with pytest.warns(tk.TracekitWarning, match="^rank 1: .* only by the UTC time"):
        assert traces.recipe("comm_sum")["clocks"]["method"].to_list() == ["reference", "UTC"]
