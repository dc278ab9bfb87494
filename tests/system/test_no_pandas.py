"""The command line never imports pandas; code that uses pandas is not hindered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PANDAS = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
raise ImportError("a pandas that only says that somebody looked for it")
"""
CAPTURES = (
    "train_amp.sqlite",
    "train_amp.nsys-rep",
    "train_amp_parquetdir",
    "ncu/ncu_raw.csv",
    "ncu/ncu_basic.ncu-rep",
    "kineto/train.pt.trace.json.gz",
)
COMMANDS = """
import json, sys
from tracekit.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        assert not end.code, arguments
"""


def run(pandas: Path, code: str, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(pandas.parent)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout


@pytest.fixture
def pandas(tmp_path: Path) -> Path:
    """A package of that name that leaves a mark when it is imported."""
    package = tmp_path / "site" / "pandas"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PANDAS)
    return package


def test_the_mark_is_left(pandas: Path) -> None:
    run(pandas, "import pyarrow; pyarrow.array([1])")
    assert (pandas / "imported").exists()


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("capture", CAPTURES)
def test_no_command_imports_it(pandas: Path, tmp_path: Path, capture: str) -> None:
    path = str(ROOT / "fixtures" / capture)
    commands = [["info", path, "--json"], ["tables", path], ["convert", path, str(tmp_path / "out"), "--to", "parquet"]]
    run(pandas, COMMANDS, json.dumps(commands))
    assert not (pandas / "imported").exists()


@pytest.mark.thorough
def test_no_analysis_imports_it(pandas: Path) -> None:
    commands = (
        ("stats", "fixtures/train_amp.nsys-rep", "--report", "cuda_gpu_kern_sum"),
        ("rows", "fixtures/train_amp.sqlite", "kernels", "--correlated", "--where", "duration_ns > 1000"),
        ("rows", "fixtures/ncu/ncu_basic.ncu-rep", "ncu_metrics", "--wide", "--format", "csv"),
        ("stats", "fixtures/train_amp.sqlite", "--report", "advise"),
    )
    run(pandas, COMMANDS, json.dumps(commands))
    assert not (pandas / "imported").exists()


CODE = """
import sys
from tracekit.system import no_pandas
{}
import pandas, pyarrow
print(pyarrow.array(pandas.Series([1.5, None])).null_count, pyarrow.table({{"a": [1]}}).to_pandas().shape)
"""


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize(
    "before",
    [
        "no_pandas.hide_pandas(); no_pandas.allow_pandas()",
        "no_pandas.allow_pandas(); no_pandas.hide_pandas()",
        "import pandas; no_pandas.hide_pandas()",
        "no_pandas.allow_pandas()",
        "no_pandas.hide_pandas(); no_pandas.hide_pandas(); no_pandas.allow_pandas(); no_pandas.hide_pandas()",
    ],
)
def test_plug_ins_may_use_it(before: str) -> None:
    pytest.importorskip("pandas")
    said = subprocess.check_output([sys.executable, "-c", CODE.format(before)], text=True)
    assert said == "1 (1, 1)\n"


def test_where_it_is_not_installed(pandas: Path) -> None:
    switches = "from tracekit.system import no_pandas; no_pandas.hide_pandas(); no_pandas.allow_pandas()"
    code = f"{switches}; import pyarrow; pyarrow.array([1])"
    assert run(pandas, code) == ""
