"""``tracekit FILE``, options and names that were probably meant, and suffixes of printed rows."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tests.cli.test_absence import made_report
from tests.cli.test_terminal import FIXTURES, TRAIN
from tracekit.cli import summary
from tracekit.cli.summary import MAX_PARTS, Findings, PrintedFinding
from tracekit.registry.absence import format_row_count
from tracekit.registry.notices import explain_missing_advice, list_notices
from tracekit.trace import get_trace_view

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Show

CAPTURES = [
    *(
        FIXTURES / name
        for name in ("train_amp.nsys-rep", "train_amp.sqlite", "train_amp_arrowdir", "graph_node.nsys-rep")
    ),
    FIXTURES / "kineto" / "train.pt.trace.json.gz",
]


class TestFile:
    """A file without a command."""

    @pytest.mark.slow
    @pytest.mark.many(3)
    @pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
    def test_findings(self, run: Run, path: Path) -> None:
        text = run(path).text
        with tk.load(path) as trace:
            notices = "".join(f"  {notice}\n" for notice in list_notices(get_trace_view(trace)))
            answer = trace.why()
            assert text.startswith(f"{path}\n{notices}\n{answer.sentence}\n\n█")
            findings = trace.stats("advise")
            assert f"  rows: {trace.count('kernels'):,} kernels, " in text
        shares = re.findall(r"^.{24} +([\d.]+)% +\S+ \S+  ", text, re.MULTILINE)
        assert len(shares) <= MAX_PARTS + 1
        assert sum(map(float, shares)) == pytest.approx(100, abs=0.5)
        for number, cause in enumerate(answer.causes, start=1):
            place = f" in '{cause.place.range}'" if cause.place.range else ""
            line = f"\n  {number}. {cause.cause.replace('_', ' ')}{place}: "
            assert line in text
            assert f"\n     change: {cause.change}\n" in text.partition(line)[2]
            assert cause.evidence.text not in text
        assert findings.height
        assert f"all {findings.height} findings: tracekit stats {path} -r advise\n" in text
        assert f"evidence, warm-up: tracekit why {path}\n" in text

    @pytest.mark.slow
    def test_a_database_of_dlprof(self, run: Run, tmp_path: Path) -> None:
        with tk.load(TRAIN) as trace:
            path, steps = trace.export(tmp_path / "dlprof.sqlite", format="dlprof-db"), trace.why().step
        with tk.load(path) as trace:
            answer = trace.why()
        assert answer.step == steps
        assert answer.notes == ()
        assert f"\n{answer.sentence}\n" in run(path).text

    def test_the_rules_of_nsight_compute(self, run: Run) -> None:
        text = run(FIXTURES / "ncu" / "ncu_basic.ncu-rep").text
        assert "  1. Small Grid (13 messages of Nsight Compute, estimated speedup up to 99.2 %)\n" in text
        assert "all 47 findings: tracekit rows " in text

    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("tensorflow/network.pb", "captures in the format graphdef contain no kernels or graph_launches."),
            ("ncu/ncu_per_nvtx.csv", "captures in the format ncu-csv contain no kernels or graph_launches."),
            ("cpu_only.nsys-rep", "no kernels, memcpys, memsets or graph_launches were recorded; record them with "),
            ("empty.sqlite", "no kernels, memcpys, memsets or graph_launches were recorded; record them with "),
        ],
    )
    def test_no_gpu_activities(self, run: Run, path: str, reason: str) -> None:
        text = run(FIXTURES / path).text
        assert "No finding" not in text
        assert f"\nNot analyzed by tracekit: {reason}" in text

    @pytest.mark.slow
    def test_ranks_without_findings(self, run: Run, tmp_path: Path) -> None:
        for i in range(2):
            shutil.copy(FIXTURES / "cpu_only.sqlite", tmp_path / f"rank{i}.sqlite")
        assert "\n2 of 2 ranks: Not analyzed by tracekit: no kernels, " in run(tmp_path).text

    @pytest.mark.parametrize(("count", "text"), [(1, "1 finding"), (2, "all 2 findings")])
    def test_number_of_findings(self, run: Run, monkeypatch: pytest.MonkeyPatch, count: int, text: str) -> None:
        findings = Findings([PrintedFinding("problem", "", "")] * count, count, "stats {} -r advise")
        monkeypatch.setattr(summary, "collect_findings", lambda _: findings)
        assert f"\n{text}: tracekit stats " in run(FIXTURES / "ncu" / "ncu_basic.ncu-rep").text

    def test_undecoded_gpu_work(self, run: Run, tmp_path: Path) -> None:
        text = run(made_report(tmp_path / "made.nsys-rep")).text
        assert (
            "\nNot decoded: 2 WDDM events and 1 Vulkan call are recorded, but tracekit does not decode them; " in text
        )

    @pytest.mark.parametrize("command", [(), ("info",)], ids=str)
    def test_warnings_of_the_profiler_come_first(self, run: Run, command: tuple[str, ...]) -> None:
        lines = run(*command, FIXTURES / "train_amp.nsys-rep").text.splitlines()
        assert lines[1:3] == [
            "  Warning recorded by Nsight Systems: Not all NVTX events might have been collected.",
            "  Warning recorded by Nsight Systems: Not all CUDA events might have been collected.",
        ]
        assert lines[3:5] == ["", lines[4]] if not command else lines[3].startswith("  format ")
        assert command or lines[4].startswith("Steady step ")

    @pytest.mark.parametrize("command", [(), ("info",)], ids=str)
    @pytest.mark.parametrize("name", ["cpu_only.nsys-rep", "cpu_only.sqlite", "empty.nsys-rep", "empty.sqlite"])
    def test_missing_gpu_work_is_explained_first(self, run: Run, name: str, command: tuple[str, ...]) -> None:
        notices, _, _ = run(*command, FIXTURES / name).text.partition("  format ")
        *warnings, explanation = notices.splitlines()[1:]
        assert all(line.startswith("  Warning recorded by Nsight Systems: ") for line in warnings)
        assert len(warnings) == (3 if name.startswith("empty") else 0)
        assert explanation.startswith("  This capture contains no GPU work, because no kernels, memcpys, memsets or ")
        assert explanation.endswith("record them with nsys profile --trace=cuda.")
        assert ("the warnings of the profiler about CUDA may state why" in explanation) is name.startswith("empty")

    @pytest.mark.slow
    def test_warnings_of_ranks(self, run: Run, tmp_path: Path) -> None:
        for i, name in enumerate(("train_amp", "graph_node", "cpu_only")):
            shutil.copy(FIXTURES / f"{name}.sqlite", tmp_path / f"rank{i}.sqlite")
        text = run(tmp_path).text
        assert "  2 of 3 ranks: Warning recorded by Nsight Systems: Not all CUDA events might have" in text
        assert "  1 of 3 ranks: This capture contains no GPU work, because" in text

    def test_nothing_wrong(self, run: Run) -> None:
        path = FIXTURES / "why" / "stream_triad.nsys-rep"
        text = run(path).text
        with tk.load(path) as trace:
            assert f"\n{trace.why().sentence}\n" in text
            assert "finding" not in text
            assert trace.stats("advise").is_empty()
            assert explain_missing_advice(get_trace_view(trace)).startswith("No finding of tracekit: ")

    def test_gpu_work_without_events_of_the_cpu(self, run: Run, tmp_path: Path) -> None:
        with tk.load(TRAIN) as trace:
            trace.select(tables=["memsets"]).export(tmp_path / "few", format="parquet")
        text = run(tmp_path / "few").text
        assert "and the capture does not show why it is idle for 100%.\n" in text
        assert "\n1 finding: tracekit stats " in text

    def test_recorded_but_not_decoded(self, run: Run) -> None:
        text = run(FIXTURES / "nvtx_features.sqlite").text
        assert "recorded, but not decoded: " in text

    @pytest.mark.slow
    def test_several_ranks(self, run: Run) -> None:
        text = run(FIXTURES / "ranks").text
        assert "  2 ranks: 0, 1\n" in text
        with tk.load_many(FIXTURES / "ranks") as traces:
            answer = traces.why()
        assert f"\n{answer.sentence}\n" in text
        assert all(f"\nrank {rank.rank}: {rank.sentence}\n" in text for rank in answer.ranks)
        assert f"\n{answer.sentence}\n" in run(*sorted((FIXTURES / "ranks").iterdir())).text

    def test_every_line_fits_a_terminal(self, show: Show) -> None:
        shown = show(TRAIN, "-q", columns=60)
        assert max(map(len, shown.splitlines())) <= 60 + len(str(TRAIN))
        assert "\n  1. " in shown

    @pytest.mark.slow
    def test_options(self, run: Run) -> None:
        assert "nsys-sqlite" in run(TRAIN, "--from", "nsys-sqlite").text
        assert "This is what tracekit does if a file is passed" in run(TRAIN, "--help").text.replace("\n  ", " ")

    @pytest.mark.slow
    def test_a_command_wins_over_a_file(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("formats", "capture"):
            shutil.copy(TRAIN, tmp_path / name)
        monkeypatch.chdir(tmp_path)
        assert run("formats").text.startswith("format ")
        assert "nsys-sqlite" in run("./formats").text
        assert "nsys-sqlite" in run("capture").text

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("missing.nsys-rep", "tracekit: missing.nsys-rep: No such file or directory\n"),
            ("no/such/capture", "tracekit: no/such/capture: No such file or directory\n"),
            ("pyproject.toml", "tracekit: pyproject.toml: no reader recognizes the content\nHint: "),
        ],
    )
    def test_errors(self, run: Run, path: str, message: str) -> None:
        assert run(path, status=1).stderr.startswith(message)


class TestOptions:
    """An unknown option is answered with the one that was probably meant."""

    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [
            (["stats", TRAIN, "--top", "5"], "No such option '--top'. Did you mean '--limit'?"),
            (["stats", TRAIN, "--reprot", "x"], "Did you mean '--report'?"),
            (["stats", TRAIN, "--json"], "Did you mean '--format'?"),
            (["stats", TRAIN, "--rule", "x"], "No such option '--rule'. It is an option of tracekit analyze."),
            (["info", TRAIN, "--fail-if", "x"], "'--fail-if'. It is an option of tracekit check, tracekit diff."),
            (["convert", TRAIN, "x", "--overwrite"], "Did you mean '--force'?"),
            (["info", TRAIN, "--zzzzz"], "No such option '--zzzzz'."),
        ],
        ids=lambda a: a[2] if isinstance(a, list) else "",
    )
    def test_meant(self, run: Run, arguments: list[str], meant: str) -> None:
        assert meant in run(*arguments, status=2).stderr


class TestRecipe:
    """The name of a recipe is an option, or the first argument."""

    def test_both_orders(self, run: Run) -> None:
        ranks = FIXTURES / "ranks"
        expected = run("recipe", "mpi_sum", ranks, "--format", "csv").stdout
        assert expected
        assert run("recipe", ranks, "-r", "mpi_sum", "--format", "csv").stdout == expected
        assert run("recipe", "--recipe", "mpi_sum", ranks, "--format", "csv").stdout == expected
        assert run("recipe", "-r", "mpi_sum", *sorted(ranks.iterdir()), "--format", "csv").stdout == expected

    def test_a_recipe_wins_over_a_file(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copy(FIXTURES / "ranks" / "mpi_rank0.nsys-rep", tmp_path / "mpi_sum")
        monkeypatch.chdir(tmp_path)
        assert "MPI_" in run("recipe", "mpi_sum", tmp_path / "mpi_sum").text

    def test_the_name_is_missing(self, run: Run) -> None:
        said = run("recipe", FIXTURES / "ranks", status=2).stderr
        assert "the name of the recipe is missing: choose one with -r NAME" in said
        assert "Missing argument 'IN...'" in run("recipe", "mpi_sum", status=2).stderr
        assert "Missing argument 'IN...'" in run("recipe", "-r", "mpi_sum", status=2).stderr

    @pytest.mark.parametrize("name", ["out.csv", "out.parquet", "page.html"])
    def test_a_folder_is_not_named_like_a_file(self, run: Run, tmp_path: Path, name: str) -> None:
        said = run("recipe", FIXTURES / "ranks", "-r", "mpi_sum", "-o", tmp_path / name, status=2).stderr
        assert "has the suffix of a file" in said
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["o.csv.gz", "o.html", "o.sqlite", "o.xlsx", "o.pftrace", "o.speedscope.json.gz"])
@pytest.mark.parametrize(
    "command", [["rows", TRAIN, "streams"], ["stats", TRAIN, "-r", "cuda_api_sum"]], ids=lambda c: c[0]
)
def test_rows_are_not_written_as_something_else(run: Run, tmp_path: Path, name: str, command: list[str]) -> None:
    said = run(*command, "-o", tmp_path / name, status=2).stderr
    assert "rows cannot be written as ." in said
    assert list(tmp_path.iterdir()) == []
    run(*command, "-o", tmp_path / name, "--format", "csv")
    assert (tmp_path / name).read_text().count("\n") > 1


def test_a_page_of_differences_needs_no_option(run: Run, tmp_path: Path) -> None:
    run("diff", TRAIN, TRAIN, "--by", "copies", "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!")


def test_one_row_is_in_the_singular_and_the_usage_has_single_blanks(run: Run, tmp_path: Path) -> None:
    base = {"ph": "X", "pid": 1, "tid": 2, "ts": 3, "dur": 4}
    place = {"device": 0, "context": 1, "stream": 7, "correlation": 5}
    listed = [
        {**base, "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "args": {"correlation": 5}},
        {**base, "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "args": {**place, "bytes": 4}},
    ]
    path = tmp_path / "made.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": listed}))
    assert "  rows: 1 memcpy, 1 api_call, " in run(path).text
    usage = run(path, "--bad", status=2).stderr
    assert "Usage: tracekit [OPTIONS] IN...\nTry 'tracekit --help' for help.\n" in usage
    assert format_row_count(1, "graph_launches") == "1 graph_launch"
    assert format_row_count(2, "graph_launches") == "2 graph_launches"
