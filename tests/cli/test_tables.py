"""All tables on terminals of all widths: reports, rules, recipes, differences and rows."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import tracekit as tk
from rich.cells import cell_len
from tests.builders.reports import RULES
from tests.cli.conftest import ROOT
from tracekit.cli.layout import format_rows_and_list_omitted_titles, format_table, shorten_names
from tracekit.cli.times import Times, format_time_column
from tracekit.registry.analyses import RECIPE, REPORT, list_analyses, list_names
from tracekit.sets import recipe_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cli.conftest import Run, Show

FIXTURES = ROOT / "fixtures"
TRAIN = FIXTURES / "train_amp.sqlite"
WIDTHS = (80, 120, 200)
REPORTS = [name for name in [*list_names(REPORT), *RULES] if name != "graph_summary"]
CAPTURES = (
    "train_amp.sqlite",
    "ranks/mpi_rank0.nsys-rep",
    "um.nsys-rep",
    "omp.sqlite",
    "ncu/ncu_roofline_per_nvtx.csv",
)


@functools.cache
def load(name: str) -> tk.Trace:
    return tk.load(FIXTURES / name)


@functools.cache
def compute_recipes(path: Path, recipe: str) -> dict[str, pl.DataFrame]:
    options: dict[str, Any] = {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"} if "pace" in recipe else {}
    return tk.load_many(path).recipe(recipe, **options)


def printed_titles(frame: pl.DataFrame, titles: Sequence[str], times: Times) -> Iterator[str]:
    """Return the headings of columns, which contain the unit of times."""
    units = times.choose_units(frame)
    for title in titles:
        unit = units.get(title, "ns")
        yield title if unit == "ns" else format_time_column(frame[title], unit)[0]


def check(frame: pl.DataFrame, keys: Sequence[str], times: Times) -> None:
    """Check a table at all widths: no line is too long, key columns are there, and different names look different."""
    for width in WIDTHS:
        lines, omitted = format_rows_and_list_omitted_titles(frame, width, key_columns=keys, times=times)
        printed = list(lines)
        assert all(cell_len(line) <= width for line in printed)
        assert len(printed) == 1 + frame.height
        assert not set(printed_titles(frame, keys, times)) & set(omitted)
        assert all(cell_len(line) <= width for line in format_table(frame, width, times=times))
    for number in frame.select(pl.col(pl.Float64)).iter_columns():
        assert not re.search(r"\.\d{7}|\d{7}", "".join(format_table(number.to_frame(), 80)))
    for column in frame.select(pl.col(pl.String, pl.Categorical)).iter_columns():
        names = column.cast(pl.String).drop_nulls().to_list()
        for width in (24, 36, 60):
            assert len(set(shorten_names(names, width))) == len(set(names))


@pytest.mark.many(15)
@pytest.mark.parametrize("report", REPORTS)
def test_reports(report: str) -> None:
    for capture in CAPTURES:
        table = load(capture).report(report)
        if table.rows:
            frame = table.frame().drop(table.machine_titles)
            check(frame.head(40), table.key_titles, Times())
            assert table.key_titles or report == "summary" or report in RULES or frame.width <= 7


@pytest.mark.many(6)
@pytest.mark.parametrize("recipe", list_names(RECIPE))
def test_recipes(recipe: str) -> None:
    declared = list_analyses(RECIPE)[recipe]
    for path in (FIXTURES / "ddp2.sqlite", FIXTURES / "ranks"):
        tables = compute_recipes(path, recipe)
        for output in declared.results:
            table = tables[output.name]
            rows = recipe_files.convert_to_printable_rows(
                table, recipe_files.choose_index_columns(recipe, output.name, table)
            )
            keys = [c.name for c in output.columns if c.is_key]
            assert set(keys) <= set(rows.columns)
            times = [c.name for c in output.columns if c.unit == "ns"]
            check(rows.head(40), [c for c in (*output.key, *keys) if c in rows.columns], Times(others=times))


@pytest.mark.slow
def test_machines_read_more_columns_and_exact_times(run: Run, show: Show) -> None:
    command = ["stats", TRAIN, "-r", "advise"]
    assert "{" not in show(*command, "-q", columns=100)
    assert "Figures" not in show(*command, "-q", columns=400)
    assert '"likely": ' in run(*command).text
    exact = tk.stats(tk.load(TRAIN), "advise")["Time (ns)"][0]
    assert f"{exact:,}" in run(*command).text
    assert str(exact) in run(*command, "--format", "csv").text


@pytest.mark.slow
def test_the_spread_of_iterations_at_80_columns(show: Show) -> None:
    heading = show("recipe", FIXTURES / "ranks", "-r", "iteration_spread", "-q", columns=80).splitlines()[0]
    assert {"iteration", "spread_ms", "straggler", "lost_ms", "lost_on"} <= set(heading.split())


class TestUnits:
    """Times in human units."""

    @pytest.mark.slow
    def test_on_a_terminal(self, show: Show) -> None:
        shown = show("stats", TRAIN, "-r", "cuda_gpu_mem_time_sum", "-q", columns=200)
        assert shown.splitlines()[0].split("  ")[1].strip() == "Total Time (µs)"
        assert "  264.478  " in shown
        rows = show("rows", TRAIN, "kernels", "--columns", "kernel_id,start_ns", "-n", "1", "-q", columns=80)
        assert rows == "kernel_id    start_us\n        1  40,729.379\n"

    @pytest.mark.parametrize("unit", ["ns", "nsec"])
    def test_exact_on_request(self, show: Show, run: Run, unit: str) -> None:
        command = ["stats", TRAIN, "-r", "cuda_gpu_mem_time_sum", "-q"]
        assert show(*command, "--timeunit", unit, columns=200) == run(*command).text

    @pytest.mark.parametrize(
        ("unit", "text"), [("us", "1,533.628"), ("msec", "1.534"), ("s", "0.002"), ("auto", "1,533.628")]
    )
    def test_of_tables_in_files(self, run: Run, unit: str, text: str) -> None:
        printed = run("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "--timeunit", unit, "-n", "1").text
        assert f"  {text}  " in printed

    @pytest.mark.parametrize(
        "command",
        [
            ["rows", TRAIN, "kernels", "-n", "1"],
            ["stats", TRAIN, "-r", "cuda_api_sum"],
            ["analyze", TRAIN, "-r", "gpu_gaps:gap=40"],
            ["recipe", TRAIN, "-r", "cuda_api_sum"],
            ["diff", TRAIN, TRAIN, "--by", "copies"],
        ],
        ids=lambda command: command[0],
    )
    def test_only_of_tables(self, run: Run, command: list[str]) -> None:
        run(*command, "--timeunit", "ms")
        for style in ("csv", "json", "jsonl"):
            said = run(*command, "--format", style, "--timeunit", "ms", status=2).stderr
            assert f"--timeunit applies only to tables: {style} output always has times in ns" in said

    def test_unknown(self, run: Run) -> None:
        said = run("rows", TRAIN, "kernels", "--timeunit", "hours", status=2).stderr
        assert "'hours' is not a unit of times: choose auto, ns, us, ms, s" in said
