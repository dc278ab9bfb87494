"""Every public export goes through info, all reports and Chrome trace. Nothing of what is read is printed."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from tests import fork_server
from tests.builders.reports import REPORTS_OF_NSYS
from tests.cli.conftest import MODULE
from tracekit import cli
from tracekit.cli.stats import DEFAULT

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
FILES = sorted(CORPUS.glob("**/*.sqlite")) if CORPUS.is_dir() else []
OTHER = ("dlprof_dldb.sqlite", "dlprof_dldb_1.sqlite", "dlprof_dldb_7.sqlite")  # databases of DLProf
EXPORTS = [p for p in FILES if p.name not in OTHER]
pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not FILES, reason="no corpus beside the checkout")]

PRIVATE = ("ENVIRONMENT", "ARGUMENT", "WORKING_DIR", "Hostname", "DISPLAY_NAME", "USER_NAME", "CommandLine")
COUNTED = {
    "cuda_gpu_kern_sum": ("Instances", ["kernels"]),
    "cuda_gpu_kern_gb_sum": ("Instances", ["kernels"]),
    "cuda_api_sum": ("Num Calls", ["api_calls"]),
    "nvtx_sum": ("Instances", ["nvtx_ranges"]),
    "cuda_gpu_sum": ("Instances", ["kernels", "memcpys", "memsets"]),
    "cuda_api_gpu_sum": ("Instances", ["api_calls", "kernels", "memcpys", "memsets"]),
    "cuda_gpu_mem_time_sum": ("Count", ["memcpys", "memsets"]),
    "cuda_gpu_mem_size_sum": ("Count", ["memcpys", "memsets"]),
}
LISTED = {
    "cuda_api_trace": ["api_calls"],
    "cuda_gpu_trace": ["kernels", "memcpys", "memsets"],
}
DRAWN = {
    "kernels": "kernel_id",
    "memcpys": "memcpy_id",
    "memsets": "memset_id",
    "api_calls": "api_call_id",
    "osrt_calls": "osrt_call_id",
    "nvtx_ranges": "range_id",
    "graph_launches": "graph_launch_id",
    "syncs": "sync_id",
}


class Verbs:
    """Runs verbs in this process on one file; keeps what they print."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
        self._path, self._patch, self._captured = path, monkeypatch, capsysbinary
        self.said = b""

    def __call__(self, verb: str, *args: str | Path) -> bytes:
        """Return what a verb prints on stdout; it must succeed."""
        self._patch.setattr(sys, "argv", ["tracekit", verb, str(self._path), *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = self._captured.readouterr()
        assert ended.value.code == 0, verb
        self.said += printed.err
        return printed.out


def private(trace: tk.Trace) -> set[bytes]:
    """Values of environments, command lines, hosts and users; but those that the program wrote into its ranges."""
    path = trace.path
    assert path is not None
    statements = ("SELECT name, value FROM META_DATA_CAPTURE", "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV")
    rows: list[tuple[str, Any]] = []
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        for statement in statements:
            try:
                rows += db.execute(statement)
            except sqlite3.OperationalError:  # an export of a release before these tables
                continue
    chosen = "\n".join(str(name) for name in trace.table("nvtx_ranges", ["name"])["name"].unique().to_pylist())
    texts = {str(v) for n, v in rows if v is not None and any(mark in n for mark in PRIVATE)}
    return {t.encode() for t in texts if len(t) > 8 and t not in chosen}


def reports_in(printed: bytes) -> dict[str, list[dict[str, Any]]]:
    """Read reports printed as JSON lines."""
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in printed.splitlines():
        row = json.loads(line)
        found[row.pop("report")].append(row)
    return found


def drawn_in(file: Path) -> dict[str, set[int]]:
    """Read which rows a Chrome trace draws, by the argument that numbers them."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for event in json.loads(file.read_bytes())["traceEvents"]:
        for key in DRAWN.values() & event.get("args", {}).keys() if event["ph"] == "X" else ():
            found[key].add(event["args"][key])
    return found


@pytest.mark.many(2)
@pytest.mark.parametrize("number", range(len(EXPORTS)))
def test_info_stats_and_convert(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    verbs = Verbs(EXPORTS[number], monkeypatch, capsysbinary)
    facts = json.loads(verbs("info", "--json"))
    printed = verbs("info")
    reports = reports_in(verbs("stats", "--report", ",".join(REPORTS_OF_NSYS), "--format", "jsonl"))
    csv = verbs("stats", "--report", ",".join(REPORTS_OF_NSYS), "--format", "csv")
    out = tmp_path / "out.json"
    verbs("convert", out, "--to", "chrome-trace", "--quiet")
    with tk.load(EXPORTS[number]) as trace:
        counts = {name: trace.count(name) for name in trace.tables}
        check_info(facts, counts)
        check_reports(reports, counts, trace)
        check_drawing(drawn_in(out), counts, trace)
        secrets = private(trace)
    without = {n for n in REPORTS_OF_NSYS if f"{n}: no rows".encode() in verbs.said}
    assert reports.keys() | without == set(REPORTS_OF_NSYS)
    assert not reports.keys() & without
    assert csv.count(b"\n") >= sum(map(len, reports.values())) + len(reports)
    everything = b"\n".join((printed, verbs.said, csv, out.read_bytes()))
    assert sum(secret in everything for secret in secrets) == 0


def check_info(facts: dict[str, Any], counts: dict[str, int]) -> None:
    assert facts["format"] == "nsys-sqlite"
    assert facts["rows"] == {name: n for name, n in counts.items() if n}
    assert len(facts["devices"]) == counts["devices"]
    if any(counts[t] for t in DRAWN if t != "syncs"):
        first, last = facts["span_ns"]
        assert first <= last


def check_reports(reports: dict[str, list[dict[str, Any]]], counts: dict[str, int], trace: tk.Trace) -> None:
    unnamed = trace.table("memcpys", ["copy_kind"])["copy_kind"].null_count
    for name, (column, tables) in COUNTED.items():
        left_out = unnamed if "memcpys" in tables else 0
        assert sum(row[column] for row in reports.get(name, ())) == sum(counts[t] for t in tables) - left_out, name
    for name, tables in LISTED.items():
        assert len(reports.get(name, ())) >= sum(counts[t] for t in tables), name
    for rows in reports.values():
        shares = [row["Time (%)"] for row in rows if row.get("Time (%)") is not None]
        assert not shares or sum(shares) == pytest.approx(100, abs=0.06 * len(shares))


def check_drawing(drawn: dict[str, set[int]], counts: dict[str, int], trace: tk.Trace) -> None:
    for table, key in DRAWN.items():
        assert len(drawn[key]) == counts[table], table
        assert drawn[key] == set(trace.table(table, [key])[key].to_pylist()), table


@pytest.mark.parametrize("name", OTHER)
def test_databases_of_dlprof_are_told_from_exports(name: str) -> None:
    (path,) = (p for p in FILES if p.name == name)
    with tk.load(path) as trace:
        assert trace.format == "dlprof-db"
        assert trace.count("kernels") == trace["kernels"].num_rows
        assert trace.count("op_instances") == trace["op_instances"].num_rows > 0


def kernels_of(path: Path) -> int:
    with tk.load(path) as trace:
        return trace.count("kernels")


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["smallest", "largest", "most kernels"])
def test_in_a_process_of_its_own(which: str, tmp_path: Path) -> None:
    sizes = sorted(EXPORTS, key=lambda p: p.stat().st_size)
    path = {"smallest": sizes[0], "largest": sizes[-1], "most kernels": max(EXPORTS, key=kernels_of)}[which]
    out = tmp_path / "out.json"
    commands = (
        ["info", path],
        ["stats", path, "--report", DEFAULT],
        ["convert", path, out, "--to", "chrome-trace", "--quiet"],
    )
    for command in commands:
        done = fork_server.run([*MODULE, *command], timeout=60)
        assert done.returncode == 0, command[0]
        assert b"Traceback" not in done.stderr, command[0]
    assert json.loads(out.read_bytes())["displayTimeUnit"] == "ns"
