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


@pytest.mark.many(1)
@pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "cuda_api_sum", "nvtx_sum"])
def test_a_report_imports_no_slow_modules(report: str) -> None:
    command = [sys.executable, "-c", CODE, "stats", "fixtures/train_amp.nsys-rep", "--report", report]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stderr
    declarations, *modules = printed.split()
    assert "pyarrow.compute" in modules
    assert not {*SLOW_MODULES, "tracekit.core.dlprof", "tracekit.core.ops"} & {*modules}
    assert int(declarations) < 10, "declarations of tables that the report does not use are parsed"


@pytest.mark.thorough
def test_a_recipe_imports_no_modules_of_other_recipes() -> None:
    files = ["fixtures/ranks", "--rank", "mpi_rank0.nsys-rep=0", "--rank", "mpi_rank1.nsys-rep=1"]
    command = [sys.executable, "-c", CODE, "recipe", "cuda_gpu_kern_sum", *files]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stderr
    _, *modules = printed.split()
    assert "tracekit.core.recipes.sums" in modules
    unused = {*SLOW_MODULES, "tracekit.core.communication", "tracekit.core.ops", "tracekit.core.correlate"}
    assert not unused & {*modules}
