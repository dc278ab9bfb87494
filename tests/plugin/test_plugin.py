"""A third party's plug-in, installed into an environment of its own and found through its entry points."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import tracekit as tk
from tracekit import registry
from tracekit.errors import ExportError, MissingTableError, SchemaError
from tracekit.text.names import ReportName, RuleName

pytestmark = pytest.mark.slow

SPANS = [
    {"kernel": "gemm", "device": 0, "from": 10_000, "to": 25_000, "registers": 32},
    {"kernel": "relu", "device": 0, "from": 20_000, "to": 40_000},
    {"kernel": "gemm", "device": 1, "from": 30_000, "to": 60_000, "registers": 32},
]
ROOT = Path(__file__).parents[2]
EXAMPLES = tuple(Path(__file__).parent / name for name in ("example", "json_example"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the plug-ins installed, which borrows tracekit and its dependencies from this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    borrowed = [str(ROOT), *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}]
    Path(paths["purelib"], "borrowed.pth").write_text("\n".join(borrowed), "utf-8")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    sources = [folder / "source" / example.name for example in EXAMPLES]
    for example, source in zip(EXAMPLES, sources, strict=True):
        source.mkdir(parents=True)
        for path in example.iterdir():
            if path.is_file():
                (source / path.name).write_bytes(path.read_bytes())
    subprocess.run([*pip, *install, *map(str, sources)], check=True)
    return folder


@pytest.fixture
def spans(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of the format gpu-spans, with the installed plug-in also available in this process."""
    monkeypatch.syspath_prepend(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    registry.readers.cache_clear()
    path = tmp_path / "a.spans.json"
    path.write_text(json.dumps({"gpu_spans": SPANS}))
    yield path
    registry.readers.cache_clear()


def tracekit(environment: Path, *args: str | Path, status: int = 0) -> str:
    """Run the command line in the environment."""
    command = [environment / "bin" / "python", "-m", "tracekit", *map(str, args)]
    done = subprocess.run(command, cwd=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_formats_lists_the_plugin(environment: Path) -> None:
    rows = {r["format"]: r for r in json.loads(tracekit(environment, "formats", "--format", "json"))}
    assert rows["lines"] == {
        "format": "lines",
        "read": "yes",
        "write": "yes",
        "suffixes": ".lines",
        "doc": "NVTX ranges as lines of text",
    }
    assert "nsys-sqlite" in rows


def test_files_are_recognized_by_content(environment: Path, tmp_path: Path) -> None:
    path = tmp_path / "unknown"
    path.write_text("#lines\n10 20 first range\n12 15 second\n")
    facts = json.loads(tracekit(environment, "info", path, "--json"))
    assert (facts["format"], facts["rows"]) == ("lines", {"nvtx_ranges": 2})


def test_load_in_python(environment: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.lines"
    path.write_text("#lines\n10 20 first range\n12 15 second\n")
    code = (
        "import sys, tracekit as tk\n"
        "trace = tk.load(sys.argv[1]).correlate()\n"
        "print(trace.format, trace['nvtx_ranges']['path'].to_pylist())\n"
        "print(tk.formats()['lines'])"
    )
    shown = subprocess.check_output([environment / "bin" / "python", "-c", code, path], text=True)
    assert shown == "lines ['first range', 'second']\n(True, True)\n"


@pytest.mark.thorough
def test_convert_there_and_back(environment: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "a.lines", tmp_path / "b.lines"
    tracekit(environment, "convert", ROOT / "fixtures" / "train_amp.sqlite", there)
    assert there.read_text().splitlines()[:2] == ["#lines", "19353794 477119046 Batch 0"]
    tracekit(environment, "convert", there, tmp_path / "tables", "--to", "parquet")
    tracekit(environment, "convert", tmp_path / "tables", back)
    assert back.read_bytes() == there.read_bytes()


def test_errors_of_the_plugin_are_messages(environment: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.lines"
    path.write_text("#lines\n10 20 first\nnonsense\n")
    message = tracekit(environment, "rows", path, "nvtx_ranges", status=1)
    assert message == f"tracekit: {path}: table nvtx_ranges, row 2: expected a line START END NAME\n"


def test_a_reader_of_kernels_as_installed(environment: Path, tmp_path: Path) -> None:
    path = tmp_path / "unknown"
    path.write_text(json.dumps({"gpu_spans": SPANS}))
    facts = json.loads(tracekit(environment, "info", path, "--json"))
    assert (facts["format"], facts["rows"]) == ("gpu-spans", {"kernels": 3})
    assert "compute" in tracekit(environment, "why", path)


def test_columns_that_a_reader_does_not_know_are_null(spans: Path) -> None:
    with tk.load(spans) as trace:
        kernels = trace["kernels"]
        assert kernels.drop_columns(["name"]).slice(1, 1).drop_null().num_rows == 0
        known = {c for c in kernels.column_names if kernels[c].null_count < 3}
        assert known == {"kernel_id", "start_ns", "end_ns", "device_id", "name", "registers_per_thread"}
        assert trace.correlate()["kernels"]["api_call_id"].null_count == 3
        assert trace.rollup().frame("iterations").collect()["end_ns"].to_list() == [60_000]


@pytest.mark.parametrize("name", registry.BUILTIN_EXPORTERS)
def test_every_exporter_writes_kernels_without_streams(spans: Path, tmp_path: Path, name: str) -> None:
    with tk.load(spans) as trace:
        target = tmp_path / "output"
        if name in ("collapsed", "speedscope", "pprof"):
            with pytest.raises(MissingTableError, match=r"^the trace has no call stacks"):
                trace.export(target, format=name)
        elif name == "tfevents":
            with pytest.raises(ExportError, match="the trace has no ops to draw"):
                trace.export(target, format=name)
        else:
            trace.export(target, format=name)
            assert target.exists()


def test_overlapping_kernels_of_unknown_streams_are_on_lanes(spans: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    with tk.load(spans) as trace:
        trace.export(target, format="chrome-trace")
    events = json.loads(target.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")]
    assert names == ["GPU 0", "GPU 1", "unknown stream", "unknown stream · lane 2", "unknown stream"]
    assert [e["tid"] for e in events if e["ph"] == "X"] == [1, 2, 3]


def test_every_report_has_rows_or_states_once_what_is_missing(spans: Path) -> None:
    names = [*get_args(ReportName), *get_args(RuleName)]
    with_rows = set()
    with tk.load(spans) as trace:
        for name in names:
            if name == "graph_summary":  # it needs a second file
                continue
            if (trace.analyze if name in get_args(RuleName) else trace.stats)(name).height:
                with_rows.add(name.partition(":")[0])
            else:
                reason = trace.explain_missing_rows(name).sentence
                assert "nsys" not in reason
                assert "in the format gpu-spans contain no " in reason or name.startswith("gpu_")
        assert round(sum(part.ns for part in trace.why().ledger)) == 50_000
    assert {"cuda_gpu_kern_sum", "cuda_gpu_trace", "cuda_gpu_sum", "steps"} <= with_rows
    assert tk.diff(spans, spans).verdict


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"from": None}, "column 'start_ns' of table 'kernels' is not nullable, but it has 1 nulls (row 3)"),
        ({"to": 5}, "column 'end_ns' of table 'kernels' is less than 'start_ns' in 1 rows (row 3)"),
        ({"device": 1 << 40}, "column 'device_id' of table 'kernels' cannot be cast to int32: "),
        ({"from": 2.5}, "column 'start_ns' of table 'kernels' cannot be cast to int64: "),
    ],
)
def test_invalid_rows_of_a_plugin(spans: Path, span: dict[str, object], message: str) -> None:
    spans.write_text(json.dumps({"gpu_spans": [*SPANS, {**SPANS[0], **span}]}))
    with tk.load(spans) as trace, pytest.raises(SchemaError) as caught:
        trace.table("kernels")
    assert str(caught.value).startswith(f"{spans}: {message}")
    assert "row 3)" in str(caught.value)
