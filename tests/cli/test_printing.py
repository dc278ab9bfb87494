"""Verbs that print: ``info``, ``tables``, ``rows``, ``stats``, ``formats``, ``schema``."""

from __future__ import annotations

import functools
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tests.builders.nsys_rep import message, take_apart
from tests.conftest import ALL
from tracekit import schemas
from tracekit.cli.info import collect_metadata, format_metadata
from tracekit.readers.nsys_rep.container import UI_DATA
from tracekit.registry.analyses import KINDS, list_names

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Spawn

ROOT = Path(__file__).parents[2]
TRAIN = "fixtures/train_amp.sqlite"
PRINTED = sorted((ROOT / "fixtures" / "stats").glob("*.csv"))
NOT_RECORDED = "This capture contains no GPU work, because no kernels, memcpys, memsets or graph_launches were recorded"
CAPTURES = sorted((ROOT / "fixtures").glob("*.sqlite"))


class TestInfo:
    def test_shows_what_a_capture_holds(self, run: Run) -> None:
        text = run("info", TRAIN).text
        assert text.startswith("fixtures/train_amp.sqlite\n  Warning recorded by Nsight Systems: Not all NVTX events ")
        for line in (
            "  format        nsys-sqlite",
            "  written by    NVIDIA Nsight Systems 2025.3.2.0",
            "  schema        3.20.3",
            "  origin        2026-11-21 02:18:42.658142212 UTC",
            "  events        478.315 ms, from 19.012 ms to 497.328 ms after the origin",
            "  GPU 1         NVIDIA H200, compute capability 9.0, 132 SMs, 143,155 MiB",
            "  kernels       334 rows",
        ):
            assert f"{line}\n" in text
        assert "osrt_calls" not in text

    def test_json_is_an_object_an_input(self, run: Run) -> None:
        facts = [json.loads(line) for line in run("info", TRAIN, "fixtures/empty.sqlite", "--json").text.splitlines()]
        assert facts[0]["rows"]["kernels"] == 334
        assert facts[0]["span_ns"] == [19012356, 497327788] or facts[0]["span_ns"][0] < facts[0]["span_ns"][1]
        assert [d["device_id"] for d in facts[0]["devices"]] == [0, 1]
        assert facts[1]["span_ns"] is None
        message = "Not all CUDA events might have been collected."
        expected = {"severity": "Warning", "tool": "Nsight Systems", "message": message, "count": 1}
        assert facts[0]["recorded_warnings"][1] == expected
        assert facts[0]["missing_gpu_work"] is None
        assert facts[1]["missing_gpu_work"] == {
            "state": "not recorded",
            "reason": "no kernels, memcpys, memsets or graph_launches were recorded",
            "hint": "record them with nsys profile --trace=cuda",
        }

    def test_every_capture(self, run: Run, capture: Path) -> None:
        assert "nsys-sqlite" in run("info", capture).text

    def test_counts_what_is_not_decoded(self, run: Run) -> None:
        text = run("info", "fixtures/graph_node.nsys-rep").text
        assert text.endswith("  recorded, but not decoded:\n    start or finish mark  2  52 bytes\n")
        export = run("info", "fixtures/graph_node.sqlite").text.partition("  recorded, but not decoded:\n")[2]
        assert "META_DATA_CAPTURE" in export

    def test_json_counts_what_is_not_decoded(self, run: Run) -> None:
        printed = run("info", "fixtures/graph_node.nsys-rep", TRAIN, "--json").text.splitlines()
        counts = [json.loads(line)["undecoded"] for line in printed]
        assert counts[0] == {"start or finish mark": {"count": 2, "bytes": 52}}
        rows = {table: size["count"] for table, size in counts[1].items()}
        assert rows["META_DATA_CAPTURE"] > rows["TARGET_INFO_CUDA_DEVICE"] > 0
        assert list(rows.values()) == sorted(rows.values(), reverse=True)

    @pytest.mark.parametrize("verb", [("info",), ("tables",), ("rows", "nvtx_ranges")])
    def test_a_newer_build_is_warned_of_and_read(self, run: Run, tmp_path: Path, verb: tuple[str, ...]) -> None:
        parts = take_apart(ROOT / "fixtures" / "cpu_only.nsys-rep")
        path = tmp_path / "newer.nsys-rep"
        path.write_bytes(replace(parts, sections={UI_DATA: message((6, "2031.1.2.3-9"))}).pack())
        result = run(verb[0], path, *verb[1:])
        assert "written by nsys 2031.1.2.3, but tracekit supports 2019.5 to 2026.2: unknown parts" in result.stderr
        assert "nvtx_ranges" in result.text or "only cpu" in result.text

    def test_little_is_known_of_tables_in_memory(self) -> None:
        assert list(format_metadata(collect_metadata(tk.Trace.from_tables({})))) == [
            "None",
            f"  {NOT_RECORDED}; record them with nsys profile --trace=cuda.",
            "  format  memory",
        ]

    def test_ranges_that_never_end_and_devices_without_facts(self) -> None:
        ranges = pa.Table.from_pylist(
            [{"range_id": 1, "start_ns": -1_500_000, "kind": "push_pop", "domain_id": 0}],
            schemas.arrow_schema(schemas.table("nvtx_ranges")),
        )
        devices = pa.Table.from_pylist([{"device_id": 3}], schemas.arrow_schema(schemas.table("devices")))
        shown = list(
            format_metadata(collect_metadata(tk.Trace.from_tables({"nvtx_ranges": ranges, "devices": devices})))
        )
        assert "  events       0.000 ms, from -1.500 ms to -1.500 ms after the origin" in shown
        assert "  GPU 3        unnamed" in shown

    def test_names_that_are_not_utf8(self, spawn: Spawn, tmp_path: Path) -> None:
        path = tmp_path / "caf\udce9.sqlite"
        path.write_bytes((ROOT / "fixtures" / "empty.sqlite").read_bytes())
        result = spawn("info", path)
        assert result.status == 0
        assert result.stdout.startswith(bytes(tmp_path) + b"/caf\xe9.sqlite\n")


class TestTables:
    def test_lists_every_declared_table(self, run: Run) -> None:
        frame = pl.read_csv(run("tables", TRAIN, "--format", "csv").stdout)
        assert frame["table"].to_list() == list(schemas.tables())
        assert dict(zip(frame["table"], frame["rows"], strict=True))["kernels"] == 334

    def test_is_printed_as_a_table(self, run: Run) -> None:
        first, second = run("tables", TRAIN).text.splitlines()[:2]
        assert first.split() == ["table", "rows", "columns", "doc"]
        assert second.startswith("activity_totals ")


class TestRows:
    def test_prints_the_first_rows(self, run: Run) -> None:
        result = run("rows", TRAIN, "kernels", "--columns", "kernel_id, start_ns", "-n", "2")
        assert result.text == "kernel_id    start_ns\n        1  40,729,379\n        2  41,031,490\n"
        assert result.stderr == "2 of 334 rows; -n 0 prints all\n"
        assert run("rows", TRAIN, "kernels", "-q").stderr == ""

    @pytest.mark.parametrize("style", ["csv", "json", "jsonl"])
    def test_all_rows_in_every_style(self, run: Run, style: str) -> None:
        result = run("rows", TRAIN, "kernels", "-n", "0", "--format", style)
        read = {"csv": pl.read_csv, "json": pl.read_json, "jsonl": pl.read_ndjson}[style]
        frame = read(io.BytesIO(result.stdout), infer_schema_length=None)  # type: ignore[operator]
        expected = tk.load(ROOT / TRAIN).frame("kernels").collect()
        # polars does not keep the order of many members of JSON objects
        rows = {"csv": [frame.columns], "json": [result.stdout], "jsonl": result.stdout.splitlines()}[style]
        first = rows[0] if style == "csv" else json.loads(rows[0])
        assert list(first[0] if style == "json" else first) == expected.columns
        assert frame.select("kernel_id", "start_ns", "end_ns").equals(
            expected.select("kernel_id", "start_ns", "end_ns")
        )
        assert result.stderr == ""

    def test_correlated_columns(self, run: Run) -> None:
        text = run("rows", TRAIN, "kernels", "--correlated", "--columns", "range_path", "-n", "1").text
        assert text.splitlines()[1].startswith("Batch 0/Forward pass/layer1/aten::conv2d")

    def test_a_file_appears_whole_or_not_at_all(self, run: Run, tmp_path: Path) -> None:
        out = tmp_path / "rows.csv"
        run("rows", TRAIN, "kernels", "--format", "csv", "-n", "0", "-o", out)
        assert len(pl.read_csv(out)) == 334
        assert "the output already exists" in run("rows", TRAIN, "kernels", "-o", out, status=1).stderr
        run("rows", TRAIN, "memcpys", "--format", "csv", "-o", out, "-f", "-q")
        assert len(pl.read_csv(out)) == 20
        assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]

    def test_the_input_is_never_written_on(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "x.sqlite"
        path.write_bytes((ROOT / TRAIN).read_bytes())
        assert (
            "this file is being read"
            in run("rows", path, "kernels", "--format", "csv", "-f", "-o", path, status=1).stderr
        )

    def test_a_dash_is_standard_output(self, run: Run) -> None:
        assert run("rows", TRAIN, "contexts", "-o", "-").text == run("rows", TRAIN, "contexts").text

    @pytest.mark.slow
    @pytest.mark.many(6)
    @pytest.mark.parametrize("table", schemas.tables())
    def test_rows_keep_the_json_schema(self, run: Run, table: str) -> None:
        schema = json.loads(run("schema", table, "--format", "json").text)
        for path in (_filled()[table] or CAPTURES)[: None if ALL else 3]:
            lines = run("rows", path, table, "--format", "jsonl", "-n", "50", "-q").text.splitlines()
            assert lines or path not in _filled()[table]
            for line in lines:
                _check(json.loads(line), schema)


@functools.cache
def _filled() -> dict[str, list[Path]]:
    """Map each table to the captures in which it has rows."""
    counts = {}
    for path in CAPTURES:
        with tk.load(path) as trace:
            counts[path] = trace.count_all()
    return {table: [path for path in CAPTURES if counts[path].get(table)] for table in schemas.tables()}


def _check(row: dict[str, object], schema: dict[str, dict[str, dict[str, object]]]) -> None:
    """Hold a row against the part of JSON Schema that ours uses."""
    kinds = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "null": type(None)}
    assert set(row) >= set(schema["required"])
    for name, value in row.items():
        declared = schema["properties"][name]
        names = declared["type"] if isinstance(declared["type"], list) else [declared["type"]]
        assert any(isinstance(value, kinds[str(n)]) for n in names), (name, value)
        if "enum" in declared:
            assert value in declared["enum"]  # type: ignore[operator]


class TestStats:
    @pytest.mark.many(4)
    @pytest.mark.parametrize("path", PRINTED, ids=lambda p: p.stem)
    def test_csv_is_what_nsys_prints(self, run: Run, path: Path) -> None:
        capture = next(c for c in CAPTURES if path.stem.startswith(f"{c.stem}_"))
        report = path.stem.removeprefix(f"{capture.stem}_")
        assert run("stats", capture, "--report", report, "--format", "csv").stdout == path.read_bytes()

    @pytest.mark.thorough
    def test_csv_is_what_nsys_prints_in_a_process_of_its_own(self, spawn: Spawn) -> None:
        result = spawn("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "--format", "csv")
        assert result.stdout == (ROOT / "fixtures/stats/train_amp_cuda_gpu_kern_sum.csv").read_bytes()

    def test_several_reports_follow_one_another(self, run: Run) -> None:
        both = run("stats", TRAIN, "-r", "osrt_sum,nvtx_sum,cuda_api_sum", "--format", "csv")
        parts = [(ROOT / f"fixtures/stats/train_amp_{n}.csv").read_bytes() for n in ("nvtx_sum", "cuda_api_sum")]
        assert both.stdout == b"\n".join(parts)
        assert both.stderr == (
            "osrt_sum: no rows, because no osrt_calls were recorded; record them with nsys profile --trace=osrt\n"
        )

    @pytest.mark.slow
    def test_tables_are_titled(self, run: Run) -> None:
        text = run("stats", TRAIN, "-q").text
        assert [line[2:] for line in text.splitlines() if line.startswith("# ")] == [
            "nvtx_sum",
            "cuda_api_sum",
            "cuda_gpu_kern_sum",
            "cuda_gpu_mem_time_sum",
            "cuda_gpu_mem_size_sum",
        ]
        assert run("stats", TRAIN, "-r", "nvtx_sum").text.startswith("Time (%)")

    def test_json(self, run: Run) -> None:
        one = json.loads(run("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "--format", "json").text)
        two = json.loads(run("stats", TRAIN, "-r", "cuda_gpu_kern_sum,osrt_sum", "--format", "json", "-q").text)
        assert one[0]["Total Time (ns)"] == 1_533_628
        assert two == {"cuda_gpu_kern_sum": one, "osrt_sum": []}

    def test_json_lines(self, run: Run) -> None:
        one = run("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "--format", "jsonl").text.splitlines()
        two = run("stats", TRAIN, "-r", "cuda_gpu_kern_sum,nvtx_sum", "--format", "jsonl").text.splitlines()
        assert json.loads(two[0]) == {"report": "cuda_gpu_kern_sum"} | json.loads(one[0])
        assert {json.loads(line)["report"] for line in two} == {"cuda_gpu_kern_sum", "nvtx_sum"}

    def test_old_names_and_options(self, run: Run) -> None:
        assert run("stats", TRAIN, "-r", "gpukernsum").stdout == run("stats", TRAIN, "-r", "cuda_gpu_kern_sum").stdout
        assert "softmax_warp_forward\n" in run("stats", TRAIN, "-r", "cuda_gpu_kern_sum:base").text

    def test_selection(self, run: Run) -> None:
        assert run("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "--device", "1").stdout == b""

    def test_a_file(self, run: Run, tmp_path: Path) -> None:
        run("stats", TRAIN, "-r", "nvtx_sum", "--format", "csv", "-o", tmp_path / "a.csv")
        assert (tmp_path / "a.csv").read_bytes() == (ROOT / "fixtures/stats/train_amp_nvtx_sum.csv").read_bytes()


class TestFormats:
    def test_lists_readers_and_exporters(self, run: Run) -> None:
        rows = {r["format"]: r for r in json.loads(run("formats", "--format", "json").text)}
        assert (rows["nsys-sqlite"]["read"], rows["nsys-sqlite"]["write"]) == ("yes", "")
        assert (rows["chrome-trace"]["read"], rows["chrome-trace"]["write"]) == ("yes", "yes")
        assert (rows["html"]["read"], rows["html"]["write"]) == ("", "yes")
        assert rows["parquet"]["suffixes"] == ".parquet"
        assert {n: (bool(r["read"]), bool(r["write"])) for n, r in rows.items()} == tk.formats()


class TestSchema:
    def test_lists_the_tables(self, run: Run) -> None:
        assert run("schema").text.splitlines()[1].startswith("activity_totals ")

    def test_shows_the_columns_of_a_table(self, run: Run) -> None:
        frame = pl.read_csv(run("schema", "kernels", "--format", "csv").stdout)
        assert frame["column"].to_list() == schemas.table("kernels").names

    def test_with_added_columns(self, run: Run) -> None:
        assert "range_path" in run("schema", "kernels", "--correlated").text
        assert "range_path" not in run("schema", "kernels").text

    def test_json_is_json_schema(self, run: Run) -> None:
        one = json.loads(run("schema", "kernels", "--format", "json").text)
        every = json.loads(run("schema", "--format", "json").text)
        assert one["$schema"] == every["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert one["properties"]["start_ns"]["type"] == "integer"
        assert one["properties"]["start_ns"]["x-unit"] == "ns"
        assert every["$defs"]["kernels"] == one
        definitions = list(every["$defs"])
        assert definitions[: len(schemas.tables())] == list(schemas.tables())
        described = {name.split(".")[1] for name in definitions if "." in name}
        assert described >= {name for kind in KINDS for name in list_names(kind)} | {"why", "what_if"}

    def test_results(self, run: Run) -> None:
        report = json.loads(run("schema", "gpukernsum", "--format", "json").text)
        assert report["properties"]["Total Time (ns)"]["x-unit"] == "ns"
        pace = json.loads(run("schema", "recipe.nvtx_pace.pace_start", "--format", "json").text)
        assert pace["additionalProperties"]["type"] == ["integer", "null"]
        assert "Range Stack" in run("schema", "recipe.nvtx_gpu_proj_trace.trace").text
        assert "no table is called 'nothing'" in run("schema", "nothing", status=1).stderr
