"""Commands import and parse only what they need, because users wait for it at every start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLOW_MODULES = ("numpy.ma", "pyarrow.acero", "pyarrow.dataset", "pyarrow.parquet", "tracekit.exporters.parquet")
CODE = """
import sys
from tracekit.__main__ import main
try:
    main()
finally:
    from tracekit import schemas
    print(schemas._declaration.cache_info().currsize, *sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "cuda_api_sum", "nvtx_sum"])
def test_a_report_imports_no_slow_modules(report: str) -> None:
    command = [sys.executable, "-c", CODE, "stats", "fixtures/train_amp.nsys-rep", "--report", report]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stderr
    declarations, *modules = printed.split()
    assert "pyarrow.compute" in modules
    assert not {*SLOW_MODULES} & {*modules}
    assert int(declarations) < 10, "declarations of tables that the report does not use are parsed"
