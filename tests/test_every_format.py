"""Every format is read, correlated, rolled up and written to every format: what must work with any declared version."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tests.conftest import ALL
from tracekit import registry
from tracekit.errors import ExportError, MissingTableError

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = {
    "nsys-sqlite": ["train_amp.sqlite", "ddp2.sqlite", "empty.sqlite"],
    "nsys-rep": ["train_amp.nsys-rep", "nvtx_features.nsys-rep", "empty.nsys-rep"],
    "nsys-parquetdir": ["train_amp_parquetdir"],
    "nsys-arrowdir": ["train_amp_arrowdir"],
    "ncu-csv": ["ncu/ncu_details.csv", "ncu/ncu_nvtx_raw.csv", "ncu/ncu_per_nvtx.csv"],
    "ncu-rep": ["ncu/ncu_basic.ncu-rep"],
    "kineto": ["kineto/train.pt.trace.json.gz"],
    "graphdef": ["tensorflow/network.pb", "tensorflow/network.pbtxt"],
    "tfevents": ["tensorflow/runs"],
    "xplane": ["xplane/tpu.xplane.pb", "xplane/train.xplane.pb", "xplane/train.trace.json.gz"],
    "perfetto": ["perfetto/slices.pftrace"],
    "chrome-trace": ["chrome_trace/slices.json"],
    "rocpd": ["rocm/train_results.db"],
    "rpd": ["rocm/train.rpd"],
    "memory-snapshot": ["memory_snapshot/oom.pickle", "memory_snapshot/ring.pickle"],
    "rocprofv3-json": ["rocm/train_results.json"],
    "rocprof-csv": ["rocm/csv"],
    "ascend": ["ascend/trace_view.json"],
    "nccl": ["nccl/stuck_rank0.pickle", "nccl/stuck_rank0.json", "nccl/events.jsonl", "nccl/inspector_0.log"],
    "nsys-jsonlines": ["nsys_jsonlines/nvtx_features.jsonlines"],
    "proton": ["proton/scopes.hatchet", "proton/python.hatchet"],
    "nvprof-csv": ["nvprof_csv/traces.csv", "nvprof_csv/summary.csv"],
    "nvprof": ["nvprof/session.nvvp"],
}
WRITTEN = ("arrow", "dlprof-db", "parquet")
"""Formats that are read in turn from what was written."""
STACKS = ("collapsed", "pprof", "speedscope")
"""Formats of call stacks."""


@pytest.fixture(params=[path for paths in FILES.values() for path in (paths if ALL else paths[:1])], scope="module")
def trace(request: pytest.FixtureRequest) -> tk.Trace:
    """A trace of each file in turn."""
    return tk.load(FIXTURES / request.param)


def test_every_reader_is_asked() -> None:
    built_in = {*registry.BUILTIN_READERS}
    assert built_in == {*FILES, *WRITTEN}
    for name, paths in FILES.items():
        assert [tk.load(FIXTURES / path).format for path in paths] == [name] * len(paths)


@pytest.mark.slow
@pytest.mark.many(3)
def test_every_table_is_read(trace: tk.Trace) -> None:
    linked, rolled = trace.correlate(), trace.rollup()
    for name in trace.tables:
        for each in (trace, linked, rolled):
            table = each[name]
            table.validate(full=True)
            assert (each.count(name), each.frame(name).collect().height) == (table.num_rows,) * 2
    assert trace.wide().height == trace.count("ncu_launches")


def drawn(trace: tk.Trace, format: str) -> bool:
    """Whether a format that draws has anything to draw."""
    if format == "tfevents":
        return trace.rollup().count("ops") > 0
    return format not in ("chrome-trace", "perfetto") or trace.format not in ("ncu-csv", "ncu-rep", "graphdef")


@pytest.mark.many(8)
@pytest.mark.parametrize("format", sorted(e.format for e in registry.exporters().values()))
def test_every_format_is_written(trace: tk.Trace, format: str, tmp_path: Path) -> None:
    exporter = registry.exporter(format)
    path = tmp_path / f"out{exporter.suffixes[0]}"
    if not drawn(trace, format):
        with pytest.raises(ExportError, match=r"nothing to draw|no ops to draw"):
            trace.export(path, format=format)
        return
    has_stacks = "stacks" in trace.tables and trace.count("stacks") > 0
    if format in STACKS and not (has_stacks and trace.format != "memory-snapshot"):  # stacks of allocations only
        with pytest.raises(MissingTableError, match="no call stacks"):
            trace.export(path, format=format)
        return
    assert trace.export(path, format=format) == path
    if format in WRITTEN:
        with tk.load(path) as again:
            assert again.format == format
            for name in again.tables:
                again[name].validate(full=True)
                assert format == "dlprof-db" or trace.schema(name).optional or again[name].equals(trace[name])
