"""Sentences about warnings of the profiler and about missing GPU work."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from tracekit import schemas
from tracekit.registry.notices import MAX_LENGTH, MAX_WARNINGS, RecordedWarning, format_notices, list_notices
from tracekit.trace import get_trace_view

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOT_RECORDED = "This capture contains no GPU work, because no kernels, memcpys, memsets or graph_launches were recorded"


def notices_of(trace: tk.Trace) -> list[str]:
    return list_notices(get_trace_view(trace))


def test_only_warnings_and_errors_are_notices_and_errors_come_first() -> None:
    texts = [("Info", "a"), ("Warning", "b"), ("Error", "c"), ("Warning", "b"), ("Warning", None)]
    rows = [{"diagnostic_id": i, "severity": severity, "text": text} for i, (severity, text) in enumerate(texts)]
    table = pa.Table.from_pylist(rows, schemas.arrow_schema(schemas.table("diagnostics")))
    trace = tk.Trace.from_tables({"diagnostics": table})
    assert notices_of(trace)[:3] == [
        "Error recorded by Nsight Systems: c",
        "Warning recorded by Nsight Systems: b (2 times)",
        "Warning recorded by Nsight Systems: a message without text",
    ]


def test_long_warnings_and_many_warnings_are_limited() -> None:
    warnings = [RecordedWarning("Error", "a tool", f"{i}\n\tx" + "y" * 10_000, 1) for i in range(MAX_WARNINGS + 3)]
    *listed, rest = format_notices(warnings, None)
    assert len(listed) == MAX_WARNINGS
    assert listed[0].startswith("Error recorded by a tool: 0 xyyy")
    assert max(map(len, listed)) < MAX_LENGTH + 40
    assert rest == "3 more warnings of the profiler are in the table diagnostics."


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("cpu_only.nsys-rep", f"{NOT_RECORDED}; record them with nsys profile --trace=cuda."),
        ("omp.sqlite", f"{NOT_RECORDED}; record them with nsys profile --trace=cuda."),
        ("um.sqlite", None),
        ("jax_mlp.sqlite", None),
        ("kineto/train.pt.trace.json.gz", None),
        ("ncu/ncu_basic.ncu-rep", None),
        ("ncu/ncu_details.csv", None),
        ("tensorflow/network.pb", None),
        ("train_amp_parquetdir", None),
    ],
)
def test_missing_gpu_work_of_each_format(path: str, expected: str | None) -> None:
    with tk.load(FIXTURES / path) as trace:
        explanations = [notice for notice in notices_of(trace) if notice.startswith("This capture")]
    assert explanations == ([] if expected is None else [expected])


def test_a_profiler_that_was_tracing_recorded_no_gpu_work() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        calls = trace.frame("api_calls").collect()
        none = trace.select(time=(0, 1))
        assert notices_of(none)[-1] == (
            "This capture contains no GPU work, because the selected part of the capture contains no such data."
        )
    (notice,) = notices_of(tk.Trace.from_tables({"api_calls": calls.to_arrow()}))
    assert notice == (
        "This capture contains no GPU work, because the profiler was recording, but no kernels, memcpys, memsets or "
        "graph_launches occurred."
    )


def test_an_empty_report_of_nsight_compute_is_explained_by_its_own_command() -> None:
    with tk.load(FIXTURES / "ncu" / "ncu_session.csv") as trace:
        assert trace.count("ncu_launches") == 0
        (notice,) = notices_of(trace)
    assert "no ncu_launches were recorded" in notice
    assert "ncu" in notice.partition(";")[2]
