"""``tracekit recipe``: what it prints and writes, its options and its errors."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.nsys_rep import SHARED
from tests.builders.torch_ranks import write_ranks
from tests.conftest import FIXTURES
from tracekit.cli.recipe import recipe_command
from tracekit.errors import MissingTableError
from tracekit.registry.analyses import RECIPE, list_analyses, list_names

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run, Show

RANKS = FIXTURES / "ranks"
STRAGGLER = [SHARED / "captures" / "h200_more" / f"straggler_rank{n}.nsys-rep" for n in (0, 1)]


def test_every_recipe_is_listed(run: Run) -> None:
    listed = [line.split()[0] for line in run("recipe", "--list").text.splitlines()[1:]]
    assert listed == list_names(RECIPE)


def test_every_option_of_a_recipe_is_an_option_of_the_command() -> None:
    declared = {option.name for recipe in list_analyses(RECIPE).values() for option in recipe.options}
    assert declared <= {p.name for p in recipe_command.params}


@pytest.mark.slow
def test_the_main_table_is_printed(run: Run) -> None:
    table = tk.load_many(RANKS).recipe("mpi_sum")["all_stats"]
    as_json = json.loads(run("recipe", "mpi_sum", RANKS, "--format", "json").text)
    assert as_json == table.select("Text", pl.exclude("Text")).to_dicts()
    text = run("recipe", "mpi_sum", RANKS).text
    assert text.splitlines()[0].split() == ["Text", *table.columns[:-1]]
    assert len(text.splitlines()) == table.height + 1
    first = run("recipe", "mpi_sum", RANKS, "-n", "1", "--format", "csv").text.splitlines()
    assert first[1].startswith("MPI_Allgather,10,5250.2,")
    assert len(first) == 2


@pytest.mark.thorough
def test_several_processes_print_the_same(run: Run) -> None:
    printed = run("recipe", "mpi_sum", RANKS, "--jobs", "2").text
    assert printed == run("recipe", "mpi_sum", RANKS).text
    assert run("recipe", "mpi_sum", RANKS, "--jobs", "0", status=2).stderr.count("--jobs")


def test_another_table_is_printed(run: Run) -> None:
    files = [RANKS / f"mpi_rank{n}.nsys-rep" for n in (0, 1)]
    options = (
        "--table",
        "files",
        "--format",
        "csv",
        "--rank",
        "mpi_rank0.nsys-rep=1",
        "--rank",
        "mpi_rank1.nsys-rep=0",
    )
    assert run("recipe", "nvtx_sum", *files, *options).text == "File\nmpi_rank1\nmpi_rank0\n"


@pytest.mark.slow
def test_options_of_recipes(run: Run) -> None:
    lines = run("recipe", "mpi_gpu_time_util_map", RANKS, "--bins", "2", "--no-align", "--format", "csv").text
    table = tk.load_many(RANKS).recipe("mpi_gpu_time_util_map", bins=2, align="no")["analysis"]
    assert lines == table.drop("__index_level_0__").write_csv()
    selected = run("recipe", "nvtx_sum", RANKS, "--min-dur", "1ms", "--format", "csv").text.splitlines()
    assert len(selected) < len(run("recipe", "nvtx_sum", RANKS, "--format", "csv").text.splitlines())


def test_a_terminal_shows_the_first_rows(show: Show) -> None:
    shown = show("recipe", "mpi_gpu_time_util_map", RANKS, "-q", columns=100).splitlines()
    assert len(shown) == 33
    assert shown[-1] == "(first 30 of 60 rows; -n 0 prints all)"
    narrow = show("recipe", "mpi_sum", RANKS, columns=40)
    assert "(omitted columns: " in narrow


def test_all_tables_are_written(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("recipe", "mpi_sum", RANKS, "-o", out)
    assert done.text == done.stderr == ""
    tables = tk.load_many(RANKS).recipe("mpi_sum")
    assert {p.name for p in out.iterdir()} == {f"{name}.parquet" for name in tables}
    assert pl.read_parquet(out / "all_stats.parquet").equals(tables["all_stats"])
    assert "exists" in run("recipe", "mpi_sum", RANKS, "-o", out, status=1).stderr
    run("recipe", "mpi_sum", RANKS, "-o", out, "-f", "--format", "csv")
    assert (out / "files.csv").read_text() == "File\nmpi_rank0\nmpi_rank1\n"


def test_a_name_that_is_not_utf8(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9.nsys-rep"
    path.write_bytes((FIXTURES / "train_amp.nsys-rep").read_bytes())
    files = run("recipe", "cuda_gpu_kern_sum", path, "--table", "files", "--format", "csv").text
    assert files == "File\ncaf\ufffd\n"
    out = tmp_path / "out"
    run("recipe", "cuda_gpu_kern_sum", path, "-o", out, "-q")
    assert pl.read_parquet(out / "files.parquet")["File"].to_list() == ["caf\ufffd"]


def test_the_inputs_are_not_replaced(run: Run, tmp_path: Path) -> None:
    for file in RANKS.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    done = run("recipe", "mpi_sum", tmp_path, "-o", tmp_path, "-f", status=1)
    assert "this folder contains the input, so it cannot be replaced" in done.stderr
    assert len(list(tmp_path.iterdir())) == 2


def test_recipes_without_data_say_so(run: Run) -> None:
    done = run("recipe", "ucx_gpu_time_util_map", FIXTURES / "cpu_only.nsys-rep")
    assert done.stderr == (
        "ucx_gpu_time_util_map: no rows, because no kernels or ucx_calls were recorded; "
        "record them with nsys profile --trace=cuda or nsys profile --trace=ucx\n"
    )


def test_errors_are_reported_before_files_are_opened(run: Run) -> None:
    wrong = {
        ("mpi_summ", "x"): (1, "tracekit: unknown recipe 'mpi_summ'\nHint: did you mean 'mpi_sum'? "),
        ("mpi_sum", "x", "--bins", "3"): (1, "tracekit: recipe 'mpi_sum' has no option 'bins'\n"),
        ("nvtx_pace", "x"): (1, "tracekit: recipe 'nvtx_pace' requires the option 'name'\n"),
        ("mpi_sum", "x", "--format", "parquet"): (2, "parquet cannot be printed: name an output folder"),
        ("mpi_sum", "x", "-o", "y", "--format", "json"): (2, "tables cannot be written to a folder as json"),
        ("mpi_sum", "x", "--table", "stats"): (2, "the recipe has no table 'stats'; did you mean"),
        ("mpi_sum", "x", "--rank", "3"): (2, "'3' does not have the form FILE=N, such as worker.nsys-rep=3"),
        ("mpi_sum", "x", "--rank", "a=b"): (2, "'a=b' does not have the form FILE=N"),
    }
    for arguments, (status, message) in wrong.items():
        assert message in run("recipe", *arguments, status=status).stderr


def test_options_of_the_breakdown(run: Run, tmp_path: Path) -> None:
    folder = write_ranks(tmp_path, 2)
    text = run("recipe", "gpu_time_breakdown", folder, "--steps", "complete", "--format", "csv").text
    assert text.splitlines()[1].split(",")[:3] == ["0", "0", "1711000"]
    idle = run("recipe", "gpu_time_breakdown", folder, "--delay", "0", "--table", "idle", "--format", "csv").text
    assert "host_wait" in idle
    assert "kernel_wait" not in idle


@pytest.mark.slow
def test_recipes_of_steps_say_which_they_compare(run: Run, tmp_path: Path) -> None:
    """Other recipes, and all outputs that reproduce nsys, say nothing about steps."""
    ranks = FIXTURES / "ranks"
    (note,) = tk.load_many(ranks).communication().step_notes
    assert note.startswith("Warning: all 2 ranks: 5 steps each, delimited by the range 'step *'; 30 of 30 kernels and ")
    options = "recipe", "iteration_spread", ranks, "--format"
    assert note in run(*options, "csv").stderr.splitlines()
    assert note not in run(*options, "csv", "-q").stderr
    run(*options, "html", "-o", tmp_path / "page")
    assert note in html.unescape((tmp_path / "page" / "iteration_spread.html").read_text("utf-8"))
    rows = json.loads(run(*options, "json", "--table", "steps").text)
    assert [(row["rank"], row["key_op"], row["steps"]) for row in rows] == [(0, "step *", 5), (1, "step *", 5)]
    assert "steps" not in run("recipe", "cuda_gpu_kern_sum", ranks, "--format", "csv").stderr


@pytest.mark.slow
def test_the_warm_up_of_ranks_is_left_out_unless_it_is_included(run: Run) -> None:
    ranks = FIXTURES / "ranks"
    recipe = "recipe", "iteration_spread", ranks, "--table", "stragglers", "--format", "json"
    left_out, included = run(*recipe), run(*recipe, "--include-warm-up")
    assert (json.loads(left_out.text), len(json.loads(included.text))) == ([], 1)
    assert "the first step is warm-up and left out" in left_out.stderr
    assert "the first step is warm-up and included" in included.stderr
    assert "delimited by the range 'compute'" in run(*recipe, "--key-op", "compute").stderr
    error = run("recipe", "gpu_time_sum", ranks, "--include-warm-up", status=1).stderr
    assert "no option 'include_warm_up'" in error
    with tk.load_many(ranks) as traces:
        assert traces.recipe("iteration_spread", include_warm_up=False)["stragglers"].is_empty()
        assert traces.communication(include_warm_up=True).stragglers.height == 1
        with pytest.raises(MissingTableError, match="no stragglers"):
            traces.plot.stragglers()
        assert len(traces.plot.stragglers(include_warm_up=True).data) == 1


@pytest.mark.slow
@pytest.mark.skipif(not all(path.exists() for path in STRAGGLER), reason="no captures beside the checkout")
def test_a_rank_that_slept_in_every_fifth_iteration_is_named(run: Run) -> None:
    """The program slept for 8 ms in the range ``load`` of rank 1, in iterations 4, 9, 14 and so on."""
    iterations = tk.load_many(STRAGGLER).recipe("iteration_spread")["iterations"]
    loading = iterations.filter(phase="load")
    assert loading["iteration"].to_list() == list(range(4, 40, 5))
    assert set(loading.select("straggler", "lost_on").rows()) == {(1, "CPU")}
    assert loading["lost_ns"].is_between(7_500_000, 8_500_000).all()

    printed = json.loads(run("recipe", "iteration_spread", *STRAGGLER, "--format", "json").text)
    assert printed == iterations.to_dicts()
    table = run("recipe", "iteration_spread", *STRAGGLER, "--table", "stragglers", "--format", "json").text
    first, *others = json.loads(table)
    assert (first["straggler"], first["phase"], first["iterations"]) == (1, "load", "4, 9, 14, 19, 24, 29, 34, 39")
    assert first["lost_ns"] == loading["lost_ns"].sum()
    assert "load" not in {row["phase"] for row in others}
