"""Commands import and parse only what they need, because users wait for it at every start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLOW_MODULES = ("numpy.ma", "pyarrow.acero", "pyarrow.dataset", "pyarrow.parquet", "tracekit.exporters.parquet")
UNUSED_MODULES = ("google.protobuf", "html", "platformdirs", "secrets", "tomllib", "tracekit.plan.cache.folder")
CODE = """
import sys
from tracekit.__main__ import main
try:
    main()
finally:
    from tracekit import schemas
    print(schemas._build_table_schema.cache_info().currsize, *sys.modules, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "cuda_api_sum", "nvtx_sum"])
def test_a_report_imports_no_slow_modules(report: str) -> None:
    command = [sys.executable, "-c", CODE, "stats", "fixtures/train_amp.nsys-rep", "--report", report]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stderr
    declarations, *modules = printed.split()
    assert "pyarrow.compute" in modules
    assert not {*SLOW_MODULES, *UNUSED_MODULES, "tracekit.core.dlprof", "tracekit.core.ops"} & {*modules}
    assert int(declarations) < 10, "declarations of tables that the report does not use are parsed"


@pytest.mark.many(1)
@pytest.mark.parametrize("format_name", ["perfetto", "chrome-trace", "parquet", "dlprof-db"])
def test_a_conversion_imports_no_slow_modules(format_name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, "convert", "fixtures/train_amp.nsys-rep", str(tmp_path / "out")]
    run = subprocess.run([*command, "--to", format_name], check=True, capture_output=True, text=True, cwd=ROOT)
    modules = {*run.stderr.splitlines()[-1].split()}
    assert "tracekit.plan.exporting" in modules
    assert not {"numpy.ma", "pyarrow.acero", *UNUSED_MODULES} - {"google.protobuf"} & modules


COSTS = """
import dataclasses, gc, sys
from tracekit.__main__ import main
collections, generated = [], []
gc.callbacks.append(lambda phase, _: collections.append(phase))
process_class = dataclasses._process_class
def count(cls, *arguments):
    generated.append(cls.__module__)
    return process_class(cls, *arguments)
dataclasses._process_class = count
try:
    gc.collect(0)
    collections.clear()
    main()
finally:
    own = [module for module in generated if module.startswith("tracekit.")]
    print(len(collections), len(own), gc.get_freeze_count(), file=sys.stderr)
"""


@pytest.mark.slow
def test_a_report_collects_no_garbage_and_generates_few_dataclasses() -> None:
    """A collection takes 10 ms or more after the imports, and a frozen dataclass 0.3 ms, but a named tuple 0.04 ms.

    At exit, the interpreter collects only objects that are not frozen.
    """
    command = [sys.executable, "-c", COSTS, "stats", "fixtures/train_amp.nsys-rep", "--report", "cuda_gpu_kern_sum"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stderr
    collections, dataclasses, frozen = map(int, printed.split())
    assert collections == 0
    assert dataclasses <= 50
    assert frozen > 50_000


@pytest.mark.thorough
def test_a_recipe_imports_no_modules_of_other_recipes() -> None:
    files = ["fixtures/ranks", "--rank", "mpi_rank0.nsys-rep=0", "--rank", "mpi_rank1.nsys-rep=1"]
    command = [sys.executable, "-c", CODE, "recipe", "cuda_gpu_kern_sum", *files]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stderr
    _, *modules = printed.split()
    assert "tracekit.core.recipes.sums" in modules
    unused = {*SLOW_MODULES, "tracekit.core.communication", "tracekit.core.ops", "tracekit.core.correlate"}
    assert not unused & {*modules}


@pytest.mark.slow
def test_a_test_imports_only_what_it_tests() -> None:
    code = "import pytest, sys; pytest.main(['-q', '-n', '0', 'tests/text/test_text.py']); print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert " passed in " in printed
    modules = printed.splitlines()[-1].split()
    assert len([name for name in modules if name.startswith("tracekit.")]) < 20
    assert not {"flask", "numpy", "pyarrow", "rich"} & {*modules}
