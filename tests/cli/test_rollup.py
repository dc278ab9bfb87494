"""Options that say how kernels are rolled up, and what is printed and written of it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import click
import polars as pl
import pytest
from tracekit.cli.options import parse_iterations, parse_name_value
from tracekit.core.ops import DIALECTS

if TYPE_CHECKING:
    from tests.cli.conftest import Run

TRAIN = Path(__file__).parents[2] / "fixtures" / "train_amp.sqlite"


@pytest.mark.parametrize(("text", "span"), [("2:9", (2, 9)), ("2:", (2, None)), (":9", (None, 9)), ("4", (4, 4))])
def test_iterations_are_a_span(text: str, span: tuple[int | None, int | None]) -> None:
    assert parse_iterations(text) == span


@pytest.mark.parametrize("text", ["", ":", "a:b", "-1:2", "1.5", "1:2:3", "9" * 10])
def test_other_texts_are_no_span(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a range of iterations A:B, such as 2:9 or 2:"):
        parse_iterations(text)


def test_options_of_a_format_have_a_name_and_a_value() -> None:
    assert parse_name_value("command=a=b") == ("command", "a=b")
    assert parse_name_value("user=") == ("user", "")
    for text in ("user", "=x"):
        with pytest.raises(click.BadParameter, match="does not have the form NAME=VALUE"):
            parse_name_value(text)


@pytest.mark.slow
def test_rolled_up_tables_are_rows(run: Run) -> None:
    done = run("rows", TRAIN, "iterations", "--columns", "iteration,kernel_count", "--format", "csv")
    assert done.text.splitlines() == ["iteration,kernel_count", "0,104", "1,82", "2,74", "3,74"]
    chosen = run("rows", TRAIN, "group_nodes", "--iterations", "2:3", "--format", "json", "--columns", "instance_count")
    assert json.loads(chosen.text)[0] == {"instance_count": 136}


def test_reports_that_do_not_depend_on_iterations_say_so(run: Run) -> None:
    done = run("stats", TRAIN, "-r", "cuda_gpu_kern_sum:base,summary,gpukernsum", "--iterations", "2:3", "-n", "1")
    assert done.stderr.splitlines()[-1] == (
        "--iterations has no effect on cuda_gpu_kern_sum:base, gpukernsum: these reports count all events, or those "
        "that --time or --nvtx selects"
    )
    both = run("stats", TRAIN, "-r", "nvtx_sum", "--key-op", "x", "--dialect", "emit-nvtx", "--format", "csv").stderr
    assert "--key-op, --dialect have no effect on nvtx_sum" in both
    for silent in (
        ["-r", "nvtx_sum"],
        ["-r", "summary", "--iterations", "2:3"],
        ["-r", "nvtx_sum", "--key-op", "x", "-q"],
    ):
        assert "no effect" not in run("stats", TRAIN, *silent, "-n", "1").stderr


@pytest.mark.slow
def test_tables_that_keep_the_rows_of_other_iterations_say_so(run: Run) -> None:
    def messages(table: str, *options: str) -> str:
        return run("rows", TRAIN, table, "--format", "csv", *options).stderr

    choice = "--iterations", "1:1"
    kept = '--iterations keeps all rows of {}; --where "{}" prints only those of these iterations'
    assert kept.format("kernels", "iteration is not null") in messages("kernels", *choice, "--columns", "kernel_id")
    assert kept.format("op_instances", "iteration is not null") in messages("op_instances", *choice)
    assert kept.format("iterations", "is_aggregated") in messages("iterations", *choice)
    assert "--iterations has no effect on api_calls, whose rows do not depend" in messages("api_calls", *choice)
    both = messages("nvtx_ranges", *choice, "--dialect", "emit-nvtx")
    assert "--iterations, --dialect have no effect on nvtx_ranges" in both
    steps = "4 steps, delimited by the range 'Batch *'; 334 of 334 kernels and 100 % of the GPU time lie in steps"
    assert messages("ops") == messages("group_nodes") == f"{steps}; the first step is warm-up and included.\n"
    assert messages("ops", "--include-warm-up") == messages("ops")
    assert run("convert", TRAIN, "-o", "-", "--to", "csv", "--table", "ops").stderr == messages("ops")
    for shown in (["ops", *choice], ["iterations", *choice, "--where", "is_aggregated"]):
        assert messages(*shown) == f"{steps}; Batch 1 to Batch 1 are aggregated.\n"
    for silent in (
        ["ops", *choice, "-q"],
        ["kernels", "--dialect", "emit-nvtx"],
        ["kernels"],
        ["kernels", *choice, "-q"],
    ):
        assert messages(*silent) == ""
    chosen = run("rows", TRAIN, "kernels", *choice, "--where", "iteration is not null", "--format", "csv")
    assert (chosen.text.count("\n"), chosen.stderr) == (83, "")


def test_kernels_with_their_op(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "k.parquet"
    run("correlate", TRAIN, "-o", out, "--ops", "--iterations", "2:3")
    kernels = pl.read_parquet(out)
    assert kernels.height == 334
    assert kernels["op_id"].null_count() == 0
    assert kernels["range_path"].null_count() == 0
    assert kernels["iteration"].value_counts().sort("iteration").rows() == [(None, 186), (2, 74), (3, 74)]
    printed = run("rows", TRAIN, "kernels", "--iterations", "2:3", "--columns", "op_id", "-n", "1", "--format", "csv")
    assert printed.text.splitlines() == ["op_id", "CONV2D_1"]
    declared = run("schema", "kernels", "--ops", "--format", "csv").text
    assert [line.split(",")[0] for line in declared.splitlines()][-5:] == list(kernels.columns[-5:])


def test_a_report_of_dlprof_is_printed_as_it_wrote_it(run: Run) -> None:
    """The ten gradients before the first step of the optimizer lie outside of the iterations that it begins."""
    done = run("stats", TRAIN, "-r", "op-type", "--format", "csv", "--key-op", "OPTIMIZER_1")
    title, header, *rows = done.text.splitlines()
    assert title == "Op Type Summary Report"
    assert header.startswith("Op Type,# Ops,# Calls,Total CPU Time (ns),Avg. CPU Time (ns),Min")
    assert rows[0].startswith('"AccumulateGrad",1,30,332054,11068.5,6999,22974,')


@pytest.mark.slow
def test_the_plain_dialect_has_more_ops(run: Run) -> None:
    wanted = ("rows", TRAIN, "ops", "-n", "0", "--format", "csv", "--columns", "op_id")
    assert len(run(*wanted, "--dialect", "plain").text.splitlines()) > len(run(*wanted).text.splitlines())


def test_a_dialect_that_is_none(run: Run) -> None:
    done = run("stats", TRAIN, "-r", "detailed", "--dialect", "x", status=1)
    assert done.stderr.splitlines() == [
        "tracekit: unknown dialect 'x'",
        f"Hint: choose one of these dialects: {', '.join(DIALECTS)}",
    ]


def test_a_database_with_options(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "made.sqlite"
    run("convert", TRAIN, path, "--to", "dlprof-db", "--iterations", "1:2", "--option", "profile-name=seven", "-q")
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT profile_name FROM view_system_config").fetchone() == ("seven",)
        assert db.execute("SELECT iter_start, iter_stop FROM view_performance_summary").fetchone() == (1, 2)
    db.close()


def test_an_option_that_a_format_does_not_take(run: Run, tmp_path: Path) -> None:
    done = run("convert", TRAIN, tmp_path / "x.json", "--option", "user=me", status=1)
    assert done.stderr.splitlines() == [
        "tracekit: the format chrome-trace has no option 'user'",
        "Hint: choose one of these options: tracks",
    ]
