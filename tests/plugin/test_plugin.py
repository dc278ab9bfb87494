"""A third party's plug-in, installed into an environment of its own and found through its entry points."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "example"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the plug-in installed, which borrows tracekit and its dependencies from this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    borrowed = [str(ROOT), *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}]
    Path(paths["purelib"], "borrowed.pth").write_text("\n".join(borrowed), "utf-8")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    source = folder / "source"
    source.mkdir()
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, *install, str(source)], check=True)
    return folder


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
