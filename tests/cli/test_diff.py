"""``tracekit diff``: tables, other formats, baselines, conditions and errors."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders import training_runs
from tests.conftest import FIXTURES
from tests.sets.test_recipe_diff import folder_of
from tracekit.cli.conditions import CONDITION_HOLDS, CONDITION_IS_UNTESTABLE
from tracekit.core.compare import KINDS
from tracekit.sets import recipe_files

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run, Show

TRAIN, DDP = FIXTURES / "train_amp.sqlite", FIXTURES / "ddp2.sqlite"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Baselines of two runs. In the second one, a kernel takes twice as long."""
    folder = tmp_path_factory.mktemp("runs")
    slow = training_runs.run(2, slow=(("kernel_f<(int)4>", 2.0),))
    return tk.save_baseline(training_runs.run(1), folder / "a.json"), tk.save_baseline(slow, folder / "b.json")


@pytest.mark.slow
def test_tables(run: Run, runs: tuple[Path, Path]) -> None:
    lines = run("diff", *runs, "--by", "kernels,copies,nvtx_gpu,iterations").text.splitlines()
    assert lines[0].startswith("verdict: B is slower than A: the duration of the iterations changed by ")
    assert lines[1:3] == ["A: 40 iterations, 1 × GPU X", "B: 40 iterations, 1 × GPU X"]
    headings = [line for line in lines if line.startswith("# ")]
    assert [h.partition(":")[0] for h in headings] == [
        "# Kernels", "# Memory copies and sets", "# NVTX ranges on the GPU", "# Iterations",
    ]  # fmt: skip
    assert headings[0].endswith("; 12 of 12 rows changed, 1 significant")
    assert headings[2] == "# NVTX ranges on the GPU: 4 of 4 rows changed, 2 significant"
    first = lines[lines.index(headings[0]) + 1 :]
    assert first[0].split()[:4] == ["Name", "Status", "Significant", "Change"]
    assert first[1].split()[:3] == ["kernel_f<(int)*>", "slower", "yes"]


def test_limits_and_equal_rows(run: Run, runs: tuple[Path, Path]) -> None:
    few = run("diff", *runs, "--by", "kernels", "-n", "2").text.splitlines()
    assert few[-1] == "(first 2 of 12 rows; -n 0 prints all)"
    assert len(run("diff", *runs, "--by", "kernels", "-n", "0").text.splitlines()) == 4 + 1 + 2 + 12
    same = run("diff", runs[0], runs[0], "--by", "kernels").text.splitlines()
    assert same[-1].endswith("(+0.00 %); 0 of 12 rows changed, 0 significant")


@pytest.mark.thorough
def test_a_terminal_shows_what_fits(show: Show, runs: tuple[Path, Path]) -> None:
    shown = show("diff", *runs, "--by", "kernels", columns=90)
    rows = [line for line in shown.splitlines() if line.startswith(("Name", "kernel_"))]
    assert len(rows) == 1 + 12
    assert max(map(len, rows)) <= 90
    assert "(omitted columns: " in shown
    assert "p; widen the terminal" in shown


@pytest.mark.slow
@pytest.mark.core
def test_times_are_per_iteration_if_the_numbers_of_iterations_differ(
    run: Run, tmp_path: Path, runs: tuple[Path, Path]
) -> None:
    short = tk.save_baseline(training_runs.run(3, iterations=20), tmp_path / "short.json")
    text = run("diff", runs[0], short, "--by", "kernels").text
    assert "note: the numbers of iterations differ: 40 (A), 20 (B)" in text
    assert "Time A per iteration (ns)" in text
    assert "Change per iteration (%)" in text
    heading = next(line for line in text.splitlines() if line.startswith("# "))
    totals = tk.diff(runs[0], short, by=["kernels"]).compute_totals("kernels") or (0, 0)
    assert heading.startswith("# Kernels per iteration: {:,} ns in A, {:,} ns in B (".format(*totals))


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("by", ["kernels,copies", "copies"])
def test_other_formats(run: Run, runs: tuple[Path, Path], tmp_path: Path, by: str) -> None:
    kinds = by.split(",")
    diff = tk.diff(*runs, by=kinds)
    rows = [{"kind": kind} | row for kind in kinds for row in diff.frame(kind).to_dicts()]
    lines = run("diff", *runs, "--by", by, "--format", "jsonl").text.splitlines()
    assert [{k: json.loads(line)[k] for k in row} for line, row in zip(lines, rows, strict=True)] == rows
    as_json = json.loads(run("diff", *runs, "--by", by, "--format", "json").text)
    assert as_json == json.loads(json.dumps(diff.to_dict()))
    as_csv = pl.read_csv(io.BytesIO(run("diff", *runs, "--by", by, "--format", "csv").stdout))
    assert as_csv["change_ns"].to_list() == [row["change_ns"] for row in rows]
    out = tmp_path / "diff.parquet"
    run("diff", *runs, "--by", by, "-o", out)
    assert pl.read_parquet(out)["time_b_ns"].to_list() == [row["time_b_ns"] for row in rows]
    limited = json.loads(run("diff", *runs, "--by", by, "--format", "json", "-n", "1").text)
    assert limited[kinds[0]] == as_json[kinds[0]][:1]


@pytest.mark.slow
def test_notes_are_messages_beside_data(run: Run) -> None:
    done = run("diff", TRAIN, DDP, "--by", "kernels", "--format", "csv")
    assert "note: the key ops, which delimit iterations, differ: " in done.stderr
    assert b"note" not in done.stdout
    assert done.stderr.startswith(
        "verdict: not tested whether B differs from A, because 3 (A) and 2 (B) iterations are"
    )
    assert not run("diff", TRAIN, DDP, "--by", "kernels", "--format", "csv", "-q").stderr


@pytest.mark.slow
def test_conditions(run: Run, runs: tuple[Path, Path]) -> None:
    held = ["--fail-if", "kernels[kernel_f*] > 90%", "--fail-if", "slower > 0", "--fail-if", "api_time > 1000%"]
    done = run("diff", *runs, "--by", "kernels", *held, status=CONDITION_HOLDS)
    assert [line.partition(" (")[0] for line in done.stderr.splitlines()] == [
        "the condition kernels[kernel_f*] > 90% of --fail-if holds",
        "the condition slower > 0 of --fail-if holds",
        "the condition api_time > 1000% of --fail-if does not hold",
    ]
    assert "slower > 0 of --fail-if holds (the value is 1)" in done.stderr
    assert run("diff", *runs, "--by", "kernels", *held, "-q", status=CONDITION_HOLDS).stderr.count("\n") == 2
    done = run("diff", *runs, "--by", "copies", "--fail-if", "kernel_time > 1%", status=CONDITION_HOLDS)
    assert " %)" in done.stderr
    run("diff", *runs, "--by", "copies", "--fail-if", "kernel_time > 1000%")
    assert "is not a condition" in run("diff", *runs, "--fail-if", "kernel_time", status=1).stderr
    unmatched = run(
        "diff", *runs, "--by", "copies", "--fail-if", "kernels[*typo*] > 3%", status=CONDITION_IS_UNTESTABLE
    )
    assert "no name in A or B matches the pattern in 'kernels[*typo*] > 3%'" in unmatched.stderr
    sides = TRAIN, FIXTURES / "cpu_only.sqlite"
    empty = run("diff", *sides, "--by", "copies", "--fail-if", "kernels[*] > 3%", status=CONDITION_IS_UNTESTABLE)
    assert "side B has no data for kernels" in empty.stderr
    missing = run("diff", "missing.sqlite", "missing.sqlite", "--fail-if", "nope > 1", status=1)
    assert missing.stderr.startswith("tracekit: unknown metric 'nope' in 'nope > 1'")


def test_a_condition_that_cannot_be_tested_does_not_pass(run: Run, tmp_path: Path) -> None:
    """Four iterations are too few to test for significance."""
    few = tk.save_baseline(training_runs.run(1, iterations=4), tmp_path / "few.json")
    slower, longer = ("--fail-if", "slower > 0"), ("--fail-if", "kernel_time >= 0%")
    done = run("diff", few, few, "--by", "kernels", *slower, "-q", status=CONDITION_IS_UNTESTABLE)
    assert done.stderr == (
        "the condition slower > 0 of --fail-if cannot be tested: slower counts significant rows, but 4 (A) and 4 (B) "
        "iterations are too few\n"
        "Hint: compare captures with more iterations, or name the op that delimits them with --key-op\n"
    )
    assert run("diff", few, few, "--by", "kernels", *slower, "--allow-untestable").stderr == done.stderr
    for conditions in ((*slower, *longer), (*longer, *slower)):
        done = run("diff", few, few, "--by", "kernels", *conditions, status=CONDITION_HOLDS)
        assert "kernel_time >= 0% of --fail-if holds (the value is +0.00 %)" in done.stderr


def test_conditions_are_not_ignored(run: Run, tmp_path: Path) -> None:
    condition = ("--fail-if", "slower > 0")
    assert "B can be omitted only" in run("diff", TRAIN, "--save", tmp_path / "a", *condition, status=2).stderr
    folder = folder_of(tmp_path / "x")
    for options in (condition, ("--save", tmp_path / "a")):
        done = run("diff", folder, folder, *options, status=2)
        assert f"{options[0]} needs captures, but A and B are folders with the statistics of a recipe" in done.stderr


@pytest.mark.thorough
def test_baselines(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    done = run("diff", TRAIN, "--save", path)
    assert (done.stdout, done.stderr) == (b"", f"wrote {path}\n")
    done = run("diff", path, TRAIN, "--fail-if", "gpu_time > 0%", "--fail-if", "gpu_time < 0%")
    assert sum(line.endswith(" rows changed, 0 significant") for line in done.text.splitlines()) == len(KINDS)
    assert "the output already exists" in run("diff", TRAIN, "--save", path, status=1).stderr
    both = run("diff", TRAIN, DDP, "--by", "kernels", "--save", path, "-f", "-q")
    assert both.stderr == ""
    assert both.text == run("diff", path, DDP, "--by", "kernels").text


@pytest.mark.slow
def test_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert "the argument B is missing: B can be omitted only with --save" in run("diff", TRAIN, status=2).stderr
    assert "'kernel' cannot be compared" in run("diff", "missing", "missing", "--by", "kernel", status=1).stderr
    for option, value in (("--alpha", "0"), ("--alpha", "1"), ("--min-change", "-1"), ("--iterations", "x")):
        run("diff", TRAIN, DDP, option, value, status=2)
    copy = tmp_path / "train.sqlite"
    copy.write_bytes(TRAIN.read_bytes())
    for arguments in (
        ("diff", copy, TRAIN, "--format", "csv", "-o", copy),
        ("diff", copy, "--save", copy),
        ("diff", TRAIN, copy, "--by", "copies", "--save", copy),
    ):
        assert "this file is being read, so it cannot be replaced" in run(*arguments, "-f", status=1).stderr
    assert copy.read_bytes() == TRAIN.read_bytes()
    same = run("diff", TRAIN, TRAIN, "--save", tmp_path / "x", "-o", tmp_path / "." / "x", status=2)
    assert "--save and -o name the same file" in same.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_options(run: Run, runs: tuple[Path, Path]) -> None:
    def significant(*options: str) -> int:
        rows = json.loads(run("diff", *runs, "--by", "kernels", "--format", "json", *options).text)["kernels"]
        return sum(row["is_significant"] for row in rows)

    assert significant() == significant("--alpha", "0.001") == 1
    assert significant("--min-change", "150") == 0
    exact = run("diff", TRAIN, TRAIN, "--by", "kernels", "--exact-names", "--format", "json").text
    assert any("<(int)4" in row["name"] for row in json.loads(exact)["kernels"])
    part = json.loads(run("diff", TRAIN, TRAIN, "--by", "iterations", "--iterations", "1:2", "--format", "json").text)
    assert part["a"]["iterations"] == 2
    chosen = run("diff", TRAIN, TRAIN, "--by", "iterations", "--key-op", "nope", status=1)
    assert "the capture has no op 'nope'" in chosen.stderr


@pytest.mark.slow
def test_folders_of_statistics(run: Run, tmp_path: Path) -> None:
    a, out = folder_of(tmp_path / "a"), tmp_path / "out"
    run("diff", a, FIXTURES / "recipes" / "cuda_api_sum", "--format", "csv", status=1)  # nsys calls columns "(approx)"
    printed = run("diff", a, a, "--format", "csv").text
    expected = recipe_files.diff_statistics(a, a)["all_stats"]
    assert printed == expected.write_csv()
    run("diff", a, a, "-o", out)
    assert sorted(file.name for file in out.iterdir()) == ["all_stats.parquet", "files.parquet", "rank_stats.parquet"]
    assert pl.read_parquet(out / "all_stats.parquet").equals(expected)
    run("diff", a, a, "-o", out, "--format", "csv", "-f")
    assert sorted(file.name for file in out.iterdir()) == ["all_stats.csv", "files.csv", "rank_stats.csv"]
    run("diff", a, a, "-o", out, "-f")
    assert "this folder contains the input" in run("diff", a, a, "-o", a, "-f", status=1).stderr
    assert "the output already exists" in run("diff", a, a, "-o", out, status=1).stderr


def test_a_page(run: Run, runs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "diff.html"
    done = run("diff", *runs, "--by", "kernels", "--to", "html", "-o", out, "--fail-if", "slower > 0", status=3)
    assert done.stdout == b""
    page = out.read_text("utf-8")
    assert "kernel_f&lt;(int)*&gt;" in page
    assert "<title>a.json and b.json</title>" in page
    assert "an HTML page can only be written to a file" in run("diff", *runs, "--to", "html", status=2).stderr


@pytest.mark.slow
def test_kinds_without_rows_state_why(run: Run, tmp_path: Path) -> None:
    empty, baseline = FIXTURES / "empty.sqlite", tmp_path / "empty.json"
    said = run("diff", empty, FIXTURES / "cpu_only.sqlite", "--save", baseline, "--by", "kernels,copies,nvtx").text
    hint = "were recorded; record them with nsys profile --trace=cuda"
    assert f"# Kernels: no rows in A and B, because no kernels {hint}\n" in said
    assert f"# Memory copies and sets: no rows in A and B, because no memcpys or memsets {hint}\n" in said
    assert " rows changed" in said.partition("# NVTX ranges: ")[2]
    assert f"# Kernels: no rows in A and B, because no kernels {hint}\n" in run("diff", baseline, empty).text
    page = tmp_path / "page.html"
    run("diff", empty, empty, "--by", "kernels", "-o", page)
    assert f"No rows in A and B, because no kernels {hint}." in page.read_text()
    facts = json.loads(run("diff", empty, empty, "--by", "kernels", "--format", "json").text)
    assert facts["a"]["missing_kernels"] == f"no kernels {hint}"


def test_each_side_states_its_own_reason(run: Run) -> None:
    ncu = FIXTURES / "ncu/ncu_basic.ncu-rep"
    said = run("diff", ncu, FIXTURES / "empty.sqlite", "--by", "kernels,api").text
    a, b = (
        "captures in the format ncu-rep contain no kernels",
        "no kernels were recorded; record them with nsys profile",
    )
    assert f"# Kernels: no rows in A, because {a}; no rows in B, because {b} --trace=cuda\n" in said


@pytest.mark.slow
def test_the_warm_up_is_left_out_and_the_output_says_so(run: Run) -> None:
    steps = "4 steps, delimited by the range 'Batch *'; 334 of 334 kernels and 100 % of the GPU time lie in steps"
    for options, selection, iterations in (((), "left out", 3), (("--include-warm-up",), "included", 4)):
        printed = run("diff", TRAIN, TRAIN, "--by", "kernels", *options).text.splitlines()
        assert f"steps of A and B: {steps}; the first step is warm-up and {selection}." in printed
        assert printed[1].startswith(f"A: {iterations} iterations, ")
    beside = run("diff", TRAIN, TRAIN, "--by", "kernels", "--format", "csv").stderr
    assert f"{steps}; the first step is warm-up and left out." in beside
