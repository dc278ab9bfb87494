"""How a capture tells to record what is missing: with the profiler that wrote it."""

from __future__ import annotations

import polars as pl
import pytest
from tracekit import registry, schemas
from tracekit.core.diagnosis.recording import find_command


@pytest.mark.parametrize(
    ("tool", "table", "command"),
    [
        ("rocprofv3", "cpu_samples", "rocprof-sys-sample"),
        ("rocprofv3", "overheads", "rocprofv3 --sys-trace"),
        ("rocmProfileData", "kernels", "runTracer.sh of rocmProfileData"),
        ("XLA profiler", "python_samples", "jax.profiler.trace with ProfileOptions.python_tracer_level = 1"),
        ("nvprof", "cpu_samples", "nvprof --cpu-profiling on"),
        ("PyTorch profiler", "cpu_samples", "nsys profile --sample"),
        ("nvprof", "osrt_calls", "nsys profile --trace=cuda,nvtx,osrt"),
        ("nvprof", "python_samples", "nsys profile --python-sampling=true"),
        ("NVIDIA Nsight Systems", "cpu_samples", "nsys profile --sample"),
        (None, "cpu_samples", "nsys profile --sample"),
    ],
)
def test_the_profiler_of_the_capture_records_more(tool: str | None, table: str, command: str) -> None:
    info = pl.LazyFrame({"name": ["os", "tool"], "value": ["Linux", tool]}, {"name": pl.String, "value": pl.String})
    devices = pl.LazyFrame(schema=schemas.polars_schema(schemas.table("devices")))
    tables = {"capture_info": info, "devices": devices}
    assert find_command(tables.__getitem__, table, "nsys profile --sample") == command


def test_every_declared_format_and_table_exists() -> None:
    for profiler in schemas.load_profilers():
        assert {*profiler["tables"]} <= {*schemas.table_names()}
        assert {*profiler["formats"]} <= {*registry.BUILTIN_READERS}
