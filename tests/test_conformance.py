"""What must hold of every real capture in each of its forms, report and exports, whatever it contains."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tracekit import registry, schemas

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
GOLDEN = FIXTURES / "golden"
EXPORTS = sorted(FIXTURES.glob("*.sqlite"))
REPORTS = sorted(FIXTURES.glob("*.nsys-rep"))
FOLDERS = sorted(FIXTURES.glob("*_parquetdir")) + sorted(FIXTURES.glob("*_arrowdir"))
TRACES = [
    *sorted((FIXTURES / "kineto").glob("*.json.gz")),
    *sorted((FIXTURES / "xplane").glob("*.xplane.pb")),
    FIXTURES / "chrome_trace" / "slices.json",
    FIXTURES / "perfetto" / "slices.pftrace",
    FIXTURES / "rocm" / "train_results.db",
    FIXTURES / "rocm" / "train.rpd",
    *sorted((FIXTURES / "memory_snapshot").glob("*.pickle")),
    FIXTURES / "nccl" / "events.jsonl",
    FIXTURES / "nvprof" / "session.nvvp",
    FIXTURES / "nvprof_csv" / "traces.csv",
    FIXTURES / "proton" / "scopes.hatchet",
    FIXTURES / "nsys_jsonlines" / "nvtx_features.jsonlines",
]
FORMATS = {
    ".pb": "xplane",
    ".json": "chrome-trace",
    ".jsonl": "nccl",
    ".pickle": "memory-snapshot",
    ".nvvp": "nvprof",
    ".csv": "nvprof-csv",
    ".hatchet": "proton",
    ".jsonlines": "nsys-jsonlines",
    ".pftrace": "perfetto",
    ".gz": "kineto",
    ".db": "rocpd",
    ".rpd": "rpd",
    ".sqlite": "nsys-sqlite",
    ".nsys-rep": "nsys-rep",
    "parquetdir": "nsys-parquetdir",
    "arrowdir": "nsys-arrowdir",
}
WHOLE = ["chrome-trace", "perfetto"]
BY_TABLE = ["csv", "parquet", "arrow"]


@pytest.fixture(params=[*EXPORTS, *REPORTS, *FOLDERS, *TRACES], ids=lambda p: p.name, scope="module")
def capture(request: pytest.FixtureRequest) -> Path:
    """Each real capture in turn, in every form that it is there in."""
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def before(capture: Path) -> tuple[list[tuple[Path, bytes, int]], list[Path]]:
    """What reading must not change, before the capture is read."""
    return state(capture), sorted(capture.parent.iterdir())


@pytest.fixture(scope="module")
def trace(capture: Path, before: object) -> Iterator[tk.Trace]:
    """The capture, loaded once for all tests."""
    with tk.load(capture) as trace:
        yield trace


@pytest.fixture(scope="module")
def again(capture: Path) -> Iterator[tk.Trace]:
    """The capture, loaded a second time."""
    with tk.load(capture) as trace:
        yield trace


@pytest.fixture(scope="module")
def description(trace: tk.Trace) -> dict[str, list[object]]:
    return described(trace)


@pytest.fixture(scope="module")
def exported(trace: tk.Trace, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Export the capture to a format, once for all tests."""
    folder = tmp_path_factory.mktemp("exported")
    return functools.cache(lambda name: trace.export(folder / f"out{suffix(name)}", format=name))


def suffix(format: str) -> str:
    return registry.exporter(format).suffixes[0]


def form(capture: Path) -> str:
    """The suffix of a file, or how the name of a folder ends."""
    return capture.suffix or capture.name.rpartition("_")[2]


def export_of(capture: Path) -> Path:
    """The SQLite export of the same capture."""
    return FIXTURES / f"{capture.name.removesuffix(form(capture)).removesuffix('_')}.sqlite"


def files(path: Path) -> list[Path]:
    """A file, or the files of a folder."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def state(path: Path) -> list[tuple[Path, bytes, int]]:
    """What reading must not change."""
    return [(p, p.read_bytes(), p.stat().st_mtime_ns) for p in files(path)]


def digest(table: pa.Table) -> str:
    """A digest of the values of a table, whatever its chunks and dictionaries."""
    return hashlib.sha256(pl.DataFrame(table).write_csv().encode()).hexdigest()[:16]


def described(trace: tk.Trace) -> dict[str, list[object]]:
    """Row count and digest of each table that has rows."""
    linked = trace.correlate()
    return {name: [table.num_rows, digest(table)] for name in trace.tables if (table := linked[name]).num_rows}


def test_tables_are_as_declared(trace: tk.Trace) -> None:
    assert trace.tables == list(schemas.tables())
    for name in trace.tables:
        table = trace[name]
        table.validate(full=True)
        assert table.schema.equals(schemas.arrow_schema(schemas.table(name)), check_metadata=True)
        assert table.num_rows == trace.count(name)
        assert trace.frame(name).collect().height == table.num_rows


@pytest.mark.every
def test_tables_are_golden(capture: Path, description: dict[str, list[object]], request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{capture.name if capture in [*REPORTS, *TRACES] else export_of(capture).stem}.json"
    if request.config.getoption("--golden") and capture not in FOLDERS:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(description, indent=1) + "\n", "utf-8")
    assert description == json.loads(path.read_text("utf-8"))


@pytest.mark.many(1)
def test_same_under_an_unknown_name(
    capture: Path, description: dict[str, list[object]], trace: tk.Trace, tmp_path: Path
) -> None:
    unknown = tmp_path / "unknown"
    (shutil.copytree if capture in FOLDERS else shutil.copyfile)(capture, unknown)
    with tk.load(unknown) as other:
        assert other.format == trace.format == FORMATS[form(capture)]
        assert described(other) == description


@pytest.mark.many(3)
@pytest.mark.parametrize("format", BY_TABLE[1:])
def test_exported_and_read_again_it_is_equal(trace: tk.Trace, exported: Callable[[str], Path], format: str) -> None:
    with tk.load(exported(format)) as again:
        assert again.format == format
        for name in trace.tables:
            assert again[name].equals(trace[name]), name


@pytest.mark.many(1)
def test_csv_holds_every_value(trace: tk.Trace, exported: Callable[[str], Path]) -> None:
    folder = exported("csv")
    whole = [t for t in trace.tables if not trace.schema(t).optional]
    assert {f.stem for f in folder.iterdir()} == set(whole)
    for name in whole:
        text = dict.fromkeys(trace.schema(name).names, pl.String)
        read = pl.read_csv(folder / f"{name}.csv", schema_overrides=text)
        expected = trace.frame(name).with_columns(pl.all().cast(pl.String))
        floats = [c.name for c in trace.schema(name).columns if c.type == "float64"]
        assert read.drop(floats).equals(expected.drop(floats).collect()), name


@pytest.mark.many(4)
@pytest.mark.parametrize("format", [*WHOLE, *BY_TABLE])
def test_exported_twice_it_is_the_same_bytes(
    again: tk.Trace, exported: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    second = again.export(tmp_path / f"out{suffix(format)}", format=format)
    contents = [{f.name: f.read_bytes() for f in files(path)} for path in (exported(format), second)]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_cut_short_it_is_our_error(capture: Path, tmp_path: Path, keep: float) -> None:
    if capture.suffix in (".gz", ".json", ".jsonl", ".pftrace"):
        pytest.skip("read as far as it goes, with a warning: tests/readers/test_kineto.py, test_nccl.py")
    cut = tmp_path / f"cut{capture.suffix}"
    if capture in FOLDERS:
        cut.mkdir()
    for file in files(capture):
        data = file.read_bytes()
        (cut / file.name if capture in FOLDERS else cut).write_bytes(data[: int(len(data) * keep)])
    named = r"cut/META_DATA_EXPORT\.\w+" if capture in FOLDERS else f"cut{capture.suffix}"
    with pytest.raises(tk.TracekitError, match=rf"{named}: .*\nHint: "):
        tk.load(cut)


@pytest.mark.many(1)
def test_the_input_is_not_touched(capture: Path, before: object, exported: Callable[[str], Path]) -> None:
    exported("chrome-trace")
    assert (state(capture), sorted(capture.parent.iterdir())) == before


def private_strings(capture: Path) -> set[str]:
    """Values of environments, command lines, hosts and users that the capture recorded."""
    with contextlib.closing(sqlite3.connect(f"file:{export_of(capture)}?mode=ro&immutable=1", uri=True)) as db:
        rows = db.execute("SELECT name, value FROM META_DATA_CAPTURE").fetchall()
        rows += db.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV").fetchall()
    marks = ("ENVIRONMENT", "ARGUMENT", "WORKING_DIR", "Hostname", "DISPLAY_NAME", "USER_NAME", "CommandLine")
    return {v for n, v in rows if v and any(m in n for m in marks) and len(v) > 5}


@pytest.mark.parametrize("format", [*WHOLE, *BY_TABLE])
def test_no_export_holds_what_is_private(capture: Path, exported: Callable[[str], Path], format: str) -> None:
    if capture in TRACES:
        pytest.skip("tests of their readers: test_kineto.py, test_xplane.py, test_rocm.py, test_memory_snapshot.py")
    secrets = private_strings(capture)
    assert secrets
    for file in files(exported(format)):
        content = pl.read_parquet(file).write_csv().encode() if format == "parquet" else file.read_bytes()
        assert [s for s in secrets if s.encode() in content] == []


@pytest.mark.slow
def test_attribution_equals_the_known_answers(tmp_path: Path) -> None:
    path = tmp_path / "known.sqlite"
    program = ROOT / "fixtures" / "programs" / "gen_nsys_sqlite.py"
    subprocess.run([sys.executable, program, path, "--kernels", "20000"], check=True, capture_output=True)
    truth = pl.read_parquet(f"{path}.truth.parquet")
    with tk.load(path) as trace:
        kernels = trace.correlate().frame("kernels").select("kernel_id", "range_id", "range_depth").collect()
    assert kernels["kernel_id"].equals(truth["kernel_rowid"])
    assert kernels["range_id"].fill_null(-1).equals(truth["nvtx_rowid"])
    assert kernels["range_depth"].to_list() == truth["depth"].to_list()
