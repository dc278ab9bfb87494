"""The command line as a person at a terminal uses it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tracekit.cli import reports
from tracekit.cli.layout import shorten_to_width
from tracekit.registry import analyses

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Show

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
TRAIN = FIXTURES / "train_amp.sqlite"
KERNELS = 334


class TestLimits:
    """A default limit is for terminals alone."""

    @pytest.mark.parametrize("style", ["csv", "json", "jsonl", "table"])
    @pytest.mark.parametrize("quiet", [[], ["-q"]])
    def test_files_and_pipes_get_every_row(self, run: Run, tmp_path: Path, style: str, quiet: list[str]) -> None:
        columns = ["--columns", "kernel_id", "--format", style, *quiet]
        piped = run("rows", TRAIN, "kernels", *columns)
        run("rows", TRAIN, "kernels", *columns, "-o", tmp_path / "o")
        assert (tmp_path / "o").read_bytes() == piped.stdout
        assert piped.stderr == ""
        rows = len(json.loads(piped.text)) if style == "json" else piped.text.count("\n") - (style in ("csv", "table"))
        assert rows == KERNELS

    def test_a_limit_that_is_asked_for_counts_everywhere(self, run: Run) -> None:
        result = run("rows", TRAIN, "kernels", "--format", "jsonl", "-n", "5")
        assert result.text.count("\n") == 5
        assert result.stderr == f"5 of {KERNELS} rows; -n 0 prints all\n"
        assert run("rows", TRAIN, "kernels", "--format", "jsonl", "-n", "5", "-q").stderr == ""

    def test_a_terminal_gets_some_and_a_remark(self, show: Show) -> None:
        lines = show("rows", TRAIN, "kernels", "--columns", "kernel_id,short_name", columns=100).splitlines()
        assert len(lines) == 1 + 20 + 1
        assert lines[-1] == f"20 of {KERNELS} rows; -n 0 prints all"

    def test_data_on_a_terminal_is_whole(self, show: Show) -> None:
        lines = show("rows", TRAIN, "kernels", "--columns", "kernel_id", "--format", "csv", columns=100).splitlines()
        assert len(lines) == 1 + KERNELS

    @pytest.mark.slow
    def test_all_rows_go_through_a_pager(self, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PAGER", "wc -l")
        shown = show("rows", TRAIN, "kernels", "--columns", "kernel_id", "-n", "0", columns=100)
        assert shown.strip() == str(1 + KERNELS)
        short = show(
            "rows", TRAIN, "streams", "--columns", "stream_id", "-n", "0", "--where", "stream_id < 3", columns=100
        )
        assert short.startswith("stream_id\n")


class TestStats:
    """One line per row on a terminal, everything in files and pipes."""

    @pytest.mark.slow
    @pytest.mark.many(4)
    @pytest.mark.parametrize("columns", [60, 80, 100, 120, 200])
    @pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "nvtx_sum", "cuda_gpu_trace", "cuda_kern_exec_trace"])
    def test_one_line_per_row(self, show: Show, report: str, columns: int) -> None:
        lines = show("stats", TRAIN, "-r", report, "-q", columns=columns).splitlines()
        table = [line for line in lines[1:] if line and not line.startswith("(")]
        assert len(table) == min(reports.ROWS_OF_ONE, tk.load(TRAIN).report(report).rows)
        assert all(len(line) <= columns for line in lines if not line.startswith("("))

    def test_a_name_of_5000_characters(self, show: Show, tmp_path: Path) -> None:
        trace = tk.load(TRAIN)
        name = (
            "void "
            + "very::long::" * 40
            + "kernel<"
            + ", ".join(f"Policy<{i}, Tile<{i}>>" for i in range(200))
            + ">(int)"
        )
        kernels = trace["kernels"]
        names = (
            pl.Series([name] * kernels.num_rows).cast(pl.Categorical).to_arrow().cast(kernels.schema.field("name").type)
        )
        at = kernels.column_names.index("name")
        tables = {t: trace[t] for t in trace.tables if trace.count(t)}
        tables["kernels"] = kernels.set_column(at, kernels.schema.field("name"), names)
        tk.Trace.from_tables(tables).export(tmp_path / "long", format="parquet")
        lines = show("stats", tmp_path / "long", "-r", "cuda_gpu_kern_sum", "-q", columns=100).splitlines()
        assert len(lines) <= 3
        assert all(len(line) <= 100 for line in lines if not line.startswith("("))

    @pytest.mark.slow
    def test_what_is_left_out_is_named(self, show: Show) -> None:
        shown = show("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "-q", columns=80)
        titles = shown.splitlines()[0].split("  ")
        left_out = re.search(r"\(omitted columns: (.*); widen the terminal or use --format csv\)", shown)
        assert left_out is not None
        every = [title.replace("(ns)", "(µs)") for title in tk.stats(tk.load(TRAIN), "cuda_gpu_kern_sum").columns]
        assert sorted([*(t.strip() for t in titles if t), *left_out[1].split(", ")]) == sorted(every)
        assert titles[0].strip() == "Time (%)"
        assert titles[-1].strip() == "Name"

    @pytest.mark.slow
    def test_a_remark_says_how_to_see_all_rows(self, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PAGER", "cat")
        shown = show("stats", TRAIN, "-r", "nvtx_sum", "-q", columns=100)
        assert "(first 30 rows of each report; nvtx_sum has 1,513; -n 0 prints all)" in shown
        every = show("stats", TRAIN, "-r", "nvtx_sum", "-q", "-n", "0", columns=100)
        assert len(every.splitlines()) > 1513
        assert "rows of each report" not in every
        some = show("stats", TRAIN, "-r", "nvtx_sum", "-q", "-n", "7", columns=100)
        assert "(first 7 rows of each report; nvtx_sum has 1,513; -n 0 prints all)" in some
        assert some.count("PushPop") == 7

    @pytest.mark.thorough
    def test_prose_is_wrapped_and_never_cut(self, show: Show) -> None:
        shown = show("stats", TRAIN, "-r", "advise", "-q", columns=60)
        assert all(len(line) <= 60 for line in shown.splitlines())
        letters = re.sub(r"\s+", "", re.sub(r"(?m)^(Rule|Problem|Evidence|Advice) +", "", shown))
        for finding in tk.stats(tk.load(TRAIN), "advise").iter_rows(named=True):
            for column in ("Problem", "Evidence", "Advice"):
                assert re.sub(r"\s+", "", finding[column]) in letters

    def test_files_and_pipes_are_whole(self, run: Run) -> None:
        frame = tk.stats(tk.load(TRAIN), "nvtx_sum")
        text = run("stats", TRAIN, "-r", "nvtx_sum").text
        assert text.count("\n") == 1 + frame.height
        assert all(name in text for name in frame["Range"])

    def test_a_number_of_rows_in_every_format(self, run: Run) -> None:
        report = ["stats", TRAIN, "-r", "nvtx_sum", "-n", "3"]
        csv = run("stats", TRAIN, "-r", "nvtx_sum", "--format", "csv").text.splitlines()
        assert run(*report, "--format", "csv").text.splitlines() == csv[:4]
        assert len(json.loads(run(*report, "--format", "json").text)) == 3
        assert run(*report, "--format", "jsonl").text.count("\n") == 3
        assert run(*report).text.count("\n") == 4

    def test_every_report_is_listed(self, run: Run) -> None:
        listed = {line.split()[0]: line for line in run("stats", "--list").text.splitlines()[1:]}
        assert set(listed) == set(analyses.list_names(analyses.REPORT))
        assert all(len(line.split()) > 3 for line in listed.values())


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("kernel<float>", 13, "kernel<float>"),
        ("kernel<float>", 12, "kernel<…>"),
        ("a<b<c, d>, e<f>>(int)", 20, "a<b<…>, e<…>>(int)"),
        ("a<b<c, d>, e<f>>(int)", 16, "a<…>(int)"),
        ("a<b<c, d>, e<f>>(int, float)", 12, "a<…>(…)"),
        ("operator->(x<y>)", 14, "operator->(…)"),
        ("abcdefghijklmnopqrstuvwxyzabcdefghijklmnop", 30, "abcdefghijklmnopqrst…hijklmnop"),
        ("a < b", 4, "a <…"),
    ],
)
def test_arguments_of_templates_go_first(name: str, width: int, shown: str) -> None:
    assert shorten_to_width(name, width) == shown


class TestSuffixes:
    """The suffix of the output decides."""

    @pytest.mark.many(8)
    @pytest.mark.parametrize(
        ("suffix", "read"),
        [
            (".csv", pl.read_csv),
            (".json", pl.read_json),
            (".jsonl", pl.read_ndjson),
            (".ndjson", pl.read_ndjson),
            (".parquet", pl.read_parquet),
            (".arrow", pl.read_ipc),
            (".PARQUET", pl.read_parquet),
        ],
    )
    @pytest.mark.parametrize(
        "verb",
        [["rows", TRAIN, "kernels"], ["stats", TRAIN, "-r", "cuda_gpu_kern_sum"], ["tables", TRAIN]],
        ids=lambda v: v[0],
    )
    def test_of_what_is_printed(self, run: Run, tmp_path: Path, verb: list[str], suffix: str, read) -> None:  # type: ignore[no-untyped-def]
        run(*verb, "-o", tmp_path / f"o{suffix}")
        expected = json.loads(run(*verb, "--format", "json").text)
        assert read(tmp_path / f"o{suffix}").height == len(expected)

    def test_a_format_that_is_named_wins(self, run: Run, tmp_path: Path) -> None:
        run("rows", TRAIN, "kernels", "-o", tmp_path / "o.csv", "--format", "json")
        assert len(json.loads((tmp_path / "o.csv").read_text())) == KERNELS

    def test_another_suffix_is_a_table(self, run: Run, tmp_path: Path) -> None:
        run("rows", TRAIN, "kernels", "-o", tmp_path / "o.txt")
        assert (tmp_path / "o.txt").read_text().startswith("kernel_id  ")

    def test_several_reports_are_not_one_parquet_file(self, run: Run, tmp_path: Path) -> None:
        said = run("stats", TRAIN, "-o", tmp_path / "o.parquet", status=2).stderr
        assert "parquet output can contain only one report, but 6 are selected: choose one with -r" in said
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
    def test_a_folder_is_not_named_as_a_file(self, run: Run, tmp_path: Path, suffix: str) -> None:
        target = tmp_path / f"kernels{suffix}"
        said = run("convert", TRAIN, target, status=1).stderr
        assert said == (
            f"tracekit: {target}: the format {suffix[1:]} writes several tables to a folder, "
            "but this name has the suffix of a file\n"
            "Hint: select a single table, or use a folder name without this suffix\n"
        )
        assert said == run("convert", TRAIN, target, "--to", suffix[1:], status=1).stderr
        with pytest.raises(tk.errors.ExportError, match="writes several tables to a folder"):
            tk.convert(TRAIN, target)
        run("convert", TRAIN, target, "--table", "kernels")
        assert target.is_file()

    def test_a_folder_beside_the_input(self, run: Run, tmp_path: Path) -> None:
        shutil.copy(TRAIN, tmp_path / "run.sqlite")
        run("convert", tmp_path / "run.sqlite", "--to", "csv")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["run.sqlite", "run_csv"]
        run("convert", tmp_path / "run.sqlite", "--to", "csv", "--table", "kernels")
        assert (tmp_path / "run.csv").is_file()

    @pytest.mark.slow
    @pytest.mark.parametrize("format", ["csv", "parquet", "arrow"])
    def test_empty_tables_are_left_out(self, run: Run, tmp_path: Path, format: str) -> None:
        run("convert", TRAIN, tmp_path / "d", "--to", format)
        trace = tk.load(TRAIN)
        full = {name for name, rows in trace.count_all().items() if rows}
        assert {p.stem for p in (tmp_path / "d").iterdir()} == full
        run(
            "convert",
            TRAIN,
            tmp_path / "e",
            "--to",
            format,
            "--table",
            "kernels",
            "--table",
            "memsets",
            "--table",
            "scalars",
        )
        assert {p.stem for p in (tmp_path / "e").iterdir()} == {"kernels", "memsets", "scalars"}

    def test_a_trace_without_rows_is_a_folder_nevertheless(self, run: Run, tmp_path: Path) -> None:
        tk.Trace.from_tables({}).export(tmp_path / "all", format="parquet")
        assert len(list((tmp_path / "all").iterdir())) > 20
        run("convert", tmp_path / "all", tmp_path / "d", "--to", "parquet")
        assert sorted(p.stem for p in (tmp_path / "d").iterdir()) == ["capture_info", "devices"]
        assert sum(tk.load(tmp_path / "d").count_all().values()) == 0


class TestMeant:
    """An unknown name is answered with the one that was probably meant."""

    @pytest.mark.parametrize(
        ("arguments", "meant", "status"),
        [
            (
                ["conver", TRAIN],
                "unknown command 'conver'; did you mean 'convert'? choose one of these commands: analyze, cache, ",
                2,
            ),
            (
                ["rows", TRAIN, "kernel"],
                "no table is called 'kernel'\nHint: did you mean 'kernels'? choose one of these tables: ",
                1,
            ),
            (
                ["rows", TRAIN, "kernels", "--columns", "short"],
                "Hint: did you mean 'short_name'? choose one of these columns: ",
                1,
            ),
            (
                ["rows", TRAIN, "kernels", "--columns", "shortname"],
                "Hint: did you mean 'short_name'? choose one of these columns: ",
                1,
            ),
            (
                ["rows", TRAIN, "kernels", "--sort", "-strt_ns"],
                "Hint: did you mean 'start_ns'? choose one of these columns: ",
                1,
            ),
            (
                ["rows", TRAIN, "kernels", "--where", "gird_x > 1"],
                "Hint: did you mean 'grid_x'? choose one of these columns: ",
                1,
            ),
            (
                ["stats", TRAIN, "-r", "cuda_kern_sum"],
                "Hint: did you mean 'cuda_gpu_kern_sum'? choose one of these reports: ",
                1,
            ),
            (
                ["stats", TRAIN, "-r", "expert-system"],
                "Hint: did you mean 'expert-systems'? choose one of these reports: ",
                1,
            ),
            (
                ["convert", TRAIN, "x", "--to", "chrome"],
                "Hint: did you mean 'chrome-trace'? choose one of these exporters: ",
                1,
            ),
            (["info", TRAIN, "--from", "sqlite"], "Hint: did you mean 'nsys-sqlite'? choose one of these readers: ", 1),
            (
                ["rows", TRAIN, "ops", "--dialect", "pyproof"],
                "Hint: did you mean 'pyprof'? choose one of these dialects: ",
                1,
            ),
            (["rows", TRAIN, "kernels", "--colums", "x"], "No such option '--colums'. Did you mean '--columns'?", 2),
            (["convert", TRAIN, "x.csv", "--table", "kernels", "--option", "spredsheet=yes"], "mean 'spreadsheet'?", 1),
        ],
        ids=lambda a: " ".join(map(str, a[-2:])) if isinstance(a, list) else "",
    )
    def test_meant(self, run: Run, arguments: list[str], meant: str, status: int) -> None:
        said = run(*arguments, status=status).stderr
        assert meant in said


_EVEN = pl.col("kernel_id") % 2 == 0


class TestRows:
    """Rows are filtered and sorted, by columns of the table alone."""

    def test_a_condition(self, run: Run) -> None:
        wanted = "duration_ns > 10000 and short_name like '%gemm%'"
        rows = json.loads(run("rows", TRAIN, "kernels", "--where", wanted, "--format", "json").text)
        frame = tk.load(TRAIN).frame("kernels").collect()
        long = frame.filter(pl.col("end_ns") - pl.col("start_ns") > 10000)
        expected = long.filter(pl.col("short_name").cast(pl.String).str.contains("gemm"))
        assert [r["kernel_id"] for r in rows] == expected["kernel_id"].to_list() != []
        assert list(rows[0]) == frame.columns

    @pytest.mark.parametrize(
        ("condition", "expression"),
        [
            ("grid_x in (1, 2) or kernel_id = 5", pl.col("grid_x").is_in([1, 2]) | (pl.col("kernel_id") == 5)),
            ("mangled_name is null", pl.col("mangled_name").is_null()),
            ("not (grid_x between 1 and 100)", ~pl.col("grid_x").is_between(1, 100)),
            ("1 = 1", pl.lit(value=True)),
            (
                "short_name like '%gemm%' or short_name like '%softmax%'",
                pl.col("short_name").cast(pl.String).str.contains("gemm|softmax"),
            ),
            (
                "kernel_id % 2 = 0 and (grid_x + grid_y) * 2 > 100",
                _EVEN & (pl.sum_horizontal("grid_x", "grid_y") * 2 > 100),
            ),
        ],
    )
    def test_conditions(self, run: Run, condition: str, expression: pl.Expr) -> None:
        ids = run("rows", TRAIN, "kernels", "--where", condition, "--columns", "kernel_id", "--format", "csv").text
        expected = tk.load(TRAIN).frame("kernels").filter(expression).collect()["kernel_id"]
        assert list(map(int, ids.split()[1:])) == expected.to_list()

    def test_order(self, run: Run) -> None:
        columns = ["--columns", "short_name,duration_ns,kernel_id", "--sort", "short_name,-duration_ns"]
        rows = json.loads(run("rows", TRAIN, "kernels", *columns, "--format", "json").text)
        keys = [(r["short_name"], -r["duration_ns"], r["kernel_id"]) for r in rows]
        assert keys == sorted(keys)
        assert len(rows) == KERNELS

    def test_nulls_come_last(self, run: Run) -> None:
        for order in ("graph_node_id", "-graph_node_id"):
            text = run(
                "rows",
                FIXTURES / "graph_node.sqlite",
                "kernels",
                "--columns",
                "graph_node_id",
                "--sort",
                order,
                "--format",
                "csv",
            ).text
            values = [v.strip('"') for v in text.splitlines()[1:]]
            numbers = [int(v) for v in values if v]
            assert values[len(numbers) :] == [""] * (len(values) - len(numbers))
            assert numbers == sorted(numbers, reverse=order.startswith("-")) != []

    def test_with_everything_else(self, run: Run) -> None:
        rows = json.loads(
            run(
                *("rows", TRAIN, "kernels", "--correlated", "--time", "40ms:300ms", "--where", "range_depth > 2"),
                *("--sort", "-duration_ns", "--columns", "range_depth,duration_ns", "-n", "3", "--format", "json"),
            ).text
        )
        assert len(rows) == 3
        assert min(r["range_depth"] for r in rows) > 2

    def test_metrics_side_by_side(self, run: Run) -> None:
        ncu = FIXTURES / "ncu" / "ncu_raw.csv"
        wide = ["rows", ncu, "ncu_metrics", "--wide", "--columns", "launch_id,duration_ns", "--format", "csv"]
        text = run(*wide, "--where", "duration_ns > 2000", "--sort", "-duration_ns").text
        durations = [float(line.split(",")[1]) for line in text.splitlines()[1:]]
        assert durations == sorted(durations, reverse=True) != []

    @pytest.mark.parametrize(
        "condition",
        [
            "kernel_id",
            "",
            "1 = 1; drop table kernels",
            "1 = 1 union select * from x",
            "(select 1) = 1",
            "kernel_id in (select 1)",
            "read_csv('/etc/passwd') is not null",
            "kernel_id > ",
            "short_name > 1",
            "nosuch(kernel_id) = 1",
            "* = 1",
            "name = 'caf\udce9'",
            "cast(name as int) > 1",
            "DATE(name) > 5",
        ],
    )
    def test_what_is_no_condition_is_said(self, run: Run, condition: str) -> None:
        result = run("rows", TRAIN, "kernels", "--where", condition, status=2)
        assert "Error: Invalid value for --where: " in result.stderr
        assert result.text == ""

    @pytest.mark.parametrize(
        ("arguments", "column"),
        [
            ([TRAIN, "kernels", "--columns", "start_ns,kernel_id,start_ns"], "start_ns"),
            ([FIXTURES / "ranks", "kernels", "--columns", "rank,rank"], "rank"),
            ([FIXTURES / "ncu" / "ncu_raw.csv", "ncu_metrics", "--wide", "--columns", "name,name"], "name"),
        ],
    )
    def test_columns_are_listed_once(self, run: Run, arguments: list[str | Path], column: str) -> None:
        result = run("rows", *arguments, status=2)
        assert f"Error: Invalid value for --columns: column '{column}' is listed twice" in result.stderr

    def test_there_is_no_duration_without_times(self, run: Run) -> None:
        said = run("rows", TRAIN, "streams", "--columns", "duration_ns", status=1).stderr
        assert "table 'streams' has no column 'duration_ns'" in said


class TestSelections:
    """A selection that can select nothing says what there is."""

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--device", "7"], "there is no GPU 7 in the capture\nHint: choose one of these GPUs: 0, 1\n"),
            (["--device", "0", "--device", "-1"], "there is no GPU -1 in the capture\n"),
            (
                ["--time", "100s:"],
                "on\nHint: the capture has events from 19.378 ms to 249.226 ",
            ),
            (["--time", "100s:101s"], "the capture has no events from 100,000.000 ms to 101,000.000 ms\n"),
        ],
    )
    def test_refused(self, run: Run, options: list[str], said: str) -> None:
        for verb in (["stats", "-r", "cuda_gpu_kern_sum"], ["rows"], ["convert"], ["correlate"]):
            out = {"rows": ["kernels"], "convert": ["x.json"], "correlate": ["-o", "x.csv"]}.get(verb[0], [])
            path = FIXTURES / "nvtx_features.nsys-rep"
            assert said in run(verb[0], path, *verb[1:], *out, *options, status=1).stderr

    @pytest.mark.parametrize(
        "options",
        [["--device", "1"], ["--domain", ""], ["--domain", "my.library"], ["--time", "0:1ns"], ["--time", "249ms:"]],
    )
    def test_accepted(self, run: Run, options: list[str]) -> None:
        run("stats", FIXTURES / "nvtx_features.nsys-rep", "-r", "nvtx_sum", *options)

    def test_an_empty_selection_is_not_taken_for_an_empty_capture(self, run: Run) -> None:
        said = run("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "--time", "0:1ns").stderr
        assert said == "cuda_gpu_kern_sum: no rows, because the selected part of the capture contains no such data\n"
        said = run("stats", FIXTURES / "cpu_only.sqlite", "-r", "cuda_gpu_kern_sum").stderr
        assert said == (
            "cuda_gpu_kern_sum: no rows, because no kernels were recorded; record them with nsys profile --trace=cuda\n"
        )

    def test_in_python(self) -> None:
        trace = tk.load(TRAIN)
        for wrong in ({"devices": [7]}, {"time": (10**12, None)}):
            with pytest.raises(tk.TracekitError, match="Hint: "):
                trace.select(**wrong)
        with pytest.warns(
            tk.TracekitWarning, match="no NVTX domain 'foo' in the capture; choose one of these domains: ''"
        ):
            trace.select(domains=["foo"])

    def test_a_domain_that_is_not_there(self, run: Run) -> None:
        said = run("stats", FIXTURES / "nvtx_features.nsys-rep", "-r", "nvtx_sum", "--domain", "dataloder").stderr
        assert "warning: " in said
        assert (
            "no NVTX domain 'dataloder' in the capture; did you mean 'dataloader'? choose one of these domains" in said
        )


class TestSeveralInputs:
    @pytest.mark.slow
    def test_info_goes_on(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "bad.sqlite").write_bytes(b"\0" * 100)
        result = run("info", TRAIN, tmp_path / "missing", tmp_path / "bad.sqlite", FIXTURES / "empty.sqlite", status=1)
        assert [line for line in result.text.splitlines() if not line.startswith(" ")] == [
            str(TRAIN),
            str(FIXTURES / "empty.sqlite"),
        ]
        assert f"tracekit: {tmp_path / 'missing'}: No such file or directory\n" in result.stderr
        assert f"tracekit: {tmp_path / 'bad.sqlite'}: the file begins with zeros only" in result.stderr
        lines = run(
            "info", TRAIN, tmp_path / "missing", FIXTURES / "empty.sqlite", "--json", status=1
        ).text.splitlines()
        assert [Path(json.loads(line)["path"]).name for line in lines] == ["train_amp.sqlite", "empty.sqlite"]


class TestTraces:
    """A trace says what it is."""

    def test_as_a_collection(self) -> None:
        trace = tk.load(TRAIN)
        assert "kernels" in trace
        assert "kernel" not in trace
        assert 7 not in trace
        assert list(trace) == trace.tables
        assert len(trace) == len(trace.tables) > 33
        assert trace._ipython_key_completions_() == trace.tables

    def test_in_a_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(ROOT)
        trace = tk.load("fixtures/train_amp.nsys-rep")
        expected = "nsys-rep fixtures/train_amp.nsys-rep, 502.054 ms, 2 GPUs (NVIDIA H200)"
        assert repr(trace) == f"<tracekit.Trace {expected}, 15 tables with rows>"
        assert repr(trace.correlate().rollup()) == f"<tracekit.Trace {expected}>"
        assert repr(tk.Trace.from_tables({})) == "<tracekit.Trace memory>"

    def test_html_is_text(self, tmp_path: Path) -> None:
        path = tmp_path / "<script>alert(1)<&.sqlite"
        shutil.copy(TRAIN, path)
        page = tk.load(path)._repr_html_()
        assert "<script>" not in page
        assert "&lt;script&gt;alert(1)&lt;&amp;.sqlite" in page
        assert "<tr><td>kernels</td><td>334</td></tr>" in page
        assert "scalars" not in page

    def test_large_files_are_not_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tracekit.trace.QUICK_BYTES", 10)
        assert "tables with rows" not in repr(tk.load(TRAIN))
        assert "<table>" not in tk.load(TRAIN)._repr_html_()

    def test_what_cannot_be_read_is_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "t.sqlite"
        shutil.copy(TRAIN, path)
        trace = tk.load(path)
        path.unlink()
        assert repr(trace) == f"<tracekit.Trace nsys-sqlite {path}>"
