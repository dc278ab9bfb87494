"""What the command line writes, where, and what it never replaces; names of all kinds."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tracekit import cli, registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
TRAIN = FIXTURES / "train_amp.sqlite"
SMALL = FIXTURES / "graph_node.sqlite"
WITH_STACKS = FIXTURES / "osrt_libs.sqlite"
OF_STACKS = ("collapsed", "pprof", "speedscope")
MODULE = [sys.executable, "-m", "tracekit"]
FOLDERS = ("parquet", "arrow", "csv", "dlprof-reports", "tfevents")
NOT_UTF8 = os.fsdecode(b"caf\xe9 \xff")
EMOJI = "🚀" * 60


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user: a capture and other precious files."""
    folder = tmp_path / "d"
    folder.mkdir()
    shutil.copy(SMALL, folder / "in.sqlite")
    (folder / "thesis.txt").write_text("precious")
    return folder


def source(format: str) -> Path:
    """A capture that a format can hold."""
    return WITH_STACKS if format in OF_STACKS else TRAIN


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Convert the capture to a format, once for all tests."""

    @functools.cache
    def export(format: str) -> Path:
        path = tmp_path_factory.mktemp("exported") / "plain"
        cli.cli.main(["convert", str(source(format)), str(path), "--to", format, "-q"], standalone_mode=False)
        return path

    return export


@pytest.mark.parametrize("format", FOLDERS)
@pytest.mark.parametrize("force", [[], ["-f"]])
def test_the_folder_of_the_input_is_not_replaced(run: Run, folder: Path, format: str, force: list[str]) -> None:
    before = files(folder)
    said = run("convert", folder / "in.sqlite", folder, "--to", format, *force, status=1).stderr
    problem = "this folder contains the input, so it cannot be replaced"
    assert said == f"tracekit: {folder}: {problem}\nHint: choose another name\n"
    assert files(folder) == before


@pytest.mark.parametrize("format", FOLDERS)
def test_a_folder_of_the_user_is_not_replaced(run: Run, folder: Path, format: str) -> None:
    before = files(folder)
    said = run("convert", SMALL, folder, "--to", format, "-f", status=1).stderr
    assert f"{folder}: this folder contains files that tracekit did not write: in.sqlite, thesis.txt\n" in said
    assert files(folder) == before


@pytest.mark.parametrize(
    "command",
    [
        ["rows", SMALL, "kernels", "-o", "OUT", "-f"],
        ["stats", SMALL, "-o", "OUT", "-f"],
        ["tables", SMALL, "-o", "OUT", "-f"],
        ["redact", SMALL, "OUT", "-f"],
        ["convert", SMALL, "OUT", "--to", "chrome-trace", "-f"],
        ["convert", SMALL, "OUT", "--to", "csv", "--table", "kernels", "-f"],
        ["correlate", SMALL, "-o", "OUT", "--to", "csv", "-f"],
        ["schema", "-o", "OUT", "-f"],
        ["formats", "-o", "OUT", "-f"],
    ],
    ids=lambda c: " ".join(map(str, c[:1] + c[2:])),
)
def test_a_folder_is_not_replaced_by_a_file(run: Run, folder: Path, command: list[str | Path]) -> None:
    before = files(folder)
    said = run(*(folder if a == "OUT" else a for a in command), status=1).stderr
    assert (
        f"tracekit: {folder}: a folder exists at this path, but the output is a file\nHint: pass the name of a file\n"
        in said
    )
    assert files(folder) == before


@pytest.mark.parametrize("name", ["kernels.parquet", "nvtx_ranges.parquet"])
def test_a_table_of_a_folder_that_is_read_is_not_replaced(run: Run, tmp_path: Path, name: str) -> None:
    tables = tmp_path / "tables"
    run("convert", SMALL, tables, "--to", "parquet")
    before = files(tables)
    said = run("correlate", tables, "-o", tables / name, "-f", status=1).stderr
    problem = "this file is part of the input, so it cannot be replaced"
    assert said == f"tracekit: {tables / name}: {problem}\nHint: choose another name\n"
    assert files(tables) == before


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["correlate", "stats"])
def test_the_second_input_is_not_replaced(run: Run, tmp_path: Path, verb: str) -> None:
    if verb == "correlate":
        second, option, source = tmp_path / "ncu.ncu-rep", "--ncu", FIXTURES / "train_amp.nsys-rep"
        shutil.copy(FIXTURES / "ncu" / "ncu_basic.ncu-rep", second)
        command = ["correlate", source, option, second, "--to", "csv"]
    else:
        run("convert", TRAIN, tmp_path / "run", "--to", "tfevents")
        (second,) = (tmp_path / "run").iterdir()
        command = ["stats", TRAIN, "-r", "graph_summary", "--graph", second]
    before = second.read_bytes()
    for out in (second, tmp_path / "link"):
        if out != second:
            out.symlink_to(second)
        said = run(*command, "-o", out, "-f", status=1).stderr
        problem = "this file is being read, so it cannot be replaced"
        assert f"tracekit: {out}: {problem}\nHint: choose another name\n" in said
    assert second.read_bytes() == before


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_only_files_are_replaced(run: Run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "special" if kind != "device" else Path("/dev/null")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
    before = path.lstat()
    for command in (["convert", SMALL, path, "--to", "chrome-trace"], ["rows", SMALL, "kernels", "-o", path]):
        said = run(*command, "-f", status=1).stderr
        name = {"pipe": "named pipe"}.get(kind, kind)
        assert said.startswith(f"tracekit: {path}: a {name} exists at this path")
        assert said.endswith(
            ", but only regular files can be replaced\nHint: choose another name, or - for standard output\n"
        )
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("format", FOLDERS)
@pytest.mark.parametrize("old", FOLDERS)
def test_a_folder_that_tracekit_wrote_is_replaced(
    run: Run, exported: Callable[[str], Path], tmp_path: Path, old: str, format: str
) -> None:
    target = shutil.copytree(exported(old), tmp_path / "out")
    run("convert", TRAIN, target, "--to", format, status=1)
    run("convert", TRAIN, target, "--to", format, "-f")
    assert files(target) == files(exported(format))


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.parametrize("format", FOLDERS)
def test_a_folder_with_one_more_file_is_not_replaced(run: Run, tmp_path: Path, format: str) -> None:
    target = tmp_path / "out"
    run("convert", TRAIN, target, "--to", format)
    (target / "notes.txt").write_text("precious")
    said = run("convert", TRAIN, target, "--to", format, "-f", status=1).stderr
    assert "files that tracekit did not write: notes.txt" in said
    assert (target / "notes.txt").read_text() == "precious"


@pytest.mark.parametrize("name", ["kernels.csv", "kernels.parquet", "kernels.arrow", "memcpys.csv"])
def test_a_file_of_that_name_by_somebody_else_is_kept(run: Run, tmp_path: Path, name: str) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / name).write_text("my own kernels\n1,2,3\n")
    run("convert", TRAIN, target, "--to", "csv", "-f", status=1)
    assert (target / name).read_text() == "my own kernels\n1,2,3\n"


def test_a_table_under_the_name_of_another_is_not_ours(tmp_path: Path) -> None:
    trace = tk.load(TRAIN)
    for name in ("csv", "parquet", "arrow"):
        exporter = registry.exporter(name)
        assert exporter.wrote is not None
        trace.export(tmp_path / name, format=name, tables=["kernels", "memcpys"])
        kernels = tmp_path / name / f"kernels{exporter.suffixes[0]}"
        assert exporter.wrote(kernels)
        assert registry.is_exported_file(kernels)
        assert not exporter.wrote(shutil.copy(kernels, tmp_path / f"syncs{exporter.suffixes[0]}"))
        assert not exporter.wrote(shutil.copy(kernels, tmp_path / "kernels.txt"))
        assert not exporter.wrote(tmp_path / f"api_calls{exporter.suffixes[0]}")


class TestNames:
    """Outputs and inputs under names that are long, or no UTF-8."""

    @pytest.mark.slow
    @pytest.mark.many(2)
    @pytest.mark.parametrize("name", [NOT_UTF8, EMOJI, "a b'\"$(x);`\\", "-x", "\x1b[2J\n"], ids=range(5))
    @pytest.mark.parametrize("format", sorted(registry.exporters()))
    def test_outputs(self, run: Run, exported: Callable[[str], Path], tmp_path: Path, format: str, name: str) -> None:
        parent = tmp_path / ("d" if name == EMOJI else name)  # SQLite opens paths of up to 504 bytes
        parent.mkdir()
        folder = registry.exporter(format).write is None
        target = parent / (name[:58] + ("" if folder else registry.exporter(format).suffixes[0]))
        run("convert", source(format), target, "--to", format)
        plain = exported(format)
        if plain.is_dir():
            assert files(target) == files(plain)
        else:
            assert target.read_bytes() == plain.read_bytes()
        assert list(parent.iterdir()) == [target]

    @pytest.mark.many(1)
    @pytest.mark.parametrize("name", [NOT_UTF8, EMOJI], ids=range(2))
    @pytest.mark.parametrize(
        "source",
        [
            "train_amp.sqlite",
            "train_amp.nsys-rep",
            "ncu/ncu_raw.csv",
            "ncu/ncu_basic.ncu-rep",
            "PARQUET",
            "ARROW",
            "DB",
            "JSON",
            "TF",
        ],
    )
    def test_inputs(self, run: Run, tmp_path: Path, source: str, name: str) -> None:
        made = {"PARQUET": "parquet", "ARROW": "arrow", "DB": "dlprof-db", "JSON": "chrome-trace", "TF": "tfevents"}
        parent = tmp_path / ("d" if name == EMOJI else name)
        parent.mkdir()
        path = parent / name
        if source in made:
            tk.load(TRAIN).export(path, format=made[source])
        else:
            shutil.copy(FIXTURES / source, path)
        facts = json.loads(run("info", path, "--json").text)
        assert os.fsencode(facts["path"]) == os.fsencode(path)
        assert facts["rows"]
        run("tables", path)
        run("convert", path, tmp_path / "out", "--to", "parquet")

    @pytest.mark.parametrize("form", ["parquetdir", "arrowdir"])
    def test_folders_of_nsys(self, run: Run, tmp_path: Path, form: str) -> None:
        path = tmp_path / NOT_UTF8
        shutil.copytree(next(FIXTURES.glob(f"*_{form}")), path)
        assert json.loads(run("info", path, "--json").text)["rows"]["kernels"] == 334

    @pytest.mark.slow
    def test_the_default_name_of_the_output(self, run: Run, tmp_path: Path) -> None:
        for name in (NOT_UTF8, EMOJI):
            shutil.copy(TRAIN, tmp_path / f"{name}.sqlite")
            run("convert", tmp_path / f"{name}.sqlite", "--to", "chrome-trace")
            assert (tmp_path / f"{name}.json").exists()

    def test_a_name_that_gets_too_long(self, run: Run, tmp_path: Path) -> None:
        name = f"🚀{EMOJI}.nsys-rep"
        shutil.copy(TRAIN.with_suffix(".nsys-rep"), tmp_path / name)
        said = run("convert", tmp_path / name, "--to", "dlprof-db", status=1).stderr
        assert "the output cannot be written: File name too long\nHint: choose another name or folder\n" in said
        assert [p.name for p in tmp_path.iterdir()] == [name]


def closed(*arguments: str | Path, stdout: bool = True, stderr: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the program with standard output or standard error closed."""
    shut = "".join(f"os.close({n});" for n, wanted in ((1, stdout), (2, stderr)) if wanted)
    code = f"import os, sys; {shut} os.execv(sys.executable, [sys.executable, '-m', 'tracekit', *sys.argv[1:]])"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


class TestClosedStreams:
    @pytest.mark.slow
    @pytest.mark.many(1)
    @pytest.mark.parametrize(
        "command",
        [
            ["info", TRAIN],
            ["stats", TRAIN, "-q"],
            ["rows", TRAIN, "kernels"],
            ["convert", TRAIN, "-", "--to", "chrome-trace"],
        ],
        ids=lambda c: c[0],
    )
    def test_standard_output(self, command: list[str | Path]) -> None:
        done = closed(*command)
        assert done.returncode == 1
        assert done.stderr == "tracekit: standard output is closed\nHint: write to a file with -o FILE\n"

    def test_help(self) -> None:
        assert closed("--help").stderr == ""

    @pytest.mark.thorough
    def test_a_file_is_written_nevertheless(self, tmp_path: Path) -> None:
        done = closed("convert", TRAIN, tmp_path / "o.json")
        assert (done.returncode, done.stderr) == (0, f"wrote {tmp_path / 'o.json'}\n")
        assert json.loads((tmp_path / "o.json").read_text())["traceEvents"]
        assert closed("correlate", TRAIN, "-o", tmp_path / "k.csv", stdout=True, stderr=True).returncode == 0
        assert (tmp_path / "k.csv").stat().st_size > 1000

    @pytest.mark.thorough
    def test_nothing_is_printed_into_a_file_that_takes_the_place(self, tmp_path: Path) -> None:
        done = closed("redact", SMALL, tmp_path / "r.sqlite", stdout=True, stderr=True)
        assert done.returncode in (0, 1)
        with tk.load(tmp_path / "r.sqlite") as trace:
            assert trace.count("kernels") == 52

    def test_errors_without_standard_error(self) -> None:
        done = closed("info", "nothing", stdout=False, stderr=True)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.parametrize("format", sorted(registry.exporters()))
def test_a_folder_that_vanishes_meanwhile(
    run: Run, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    from tracekit.system.targets import workspaces

    real = workspaces._lock_workspace

    def vanish(*arguments: object) -> bool:
        locked = real(*arguments)  # type: ignore[arg-type]
        shutil.rmtree(folder)
        return locked

    monkeypatch.setattr(workspaces, "_lock_workspace", vanish)
    said = run("convert", source(format), folder / "out", "--to", format, status=1).stderr
    assert said.startswith(f"tracekit: {folder / 'out'}: ")
    assert said.count("\n") == 2
    assert not folder.exists()


@pytest.mark.slow
def test_a_folder_that_vanishes_while_a_database_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.exporters import databases

    folder = tmp_path / "d"
    folder.mkdir()
    real = databases.DatabaseWriter.insert

    def insert(self: databases.DatabaseWriter, *arguments: object) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(databases.DatabaseWriter, "insert", insert)
    said = run("convert", TRAIN, folder / "out", "--to", "dlprof-db", status=1).stderr
    assert said.startswith(f"tracekit: {folder / 'out'}: ")
    assert said.count("\n") == 2


@pytest.mark.slow
def test_a_path_that_is_too_long_for_sqlite(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 250) / ("e" * 250)
    folder.mkdir(parents=True)
    said = run("convert", TRAIN, folder / "out", "--to", "dlprof-db", status=1).stderr
    assert said.startswith(f"tracekit: {folder / 'out'}: the output cannot be written: the path has ")
    assert "but SQLite paths have at most 504 bytes" in said
    assert said.endswith("\nHint: choose a shorter path\n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("length", [504, 505])
def test_the_longest_path_that_sqlite_opens(run: Run, tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("d" * 200)
    folder.mkdir()
    path = folder / ("n" * (length - len(os.fsencode(folder)) - 1))
    shutil.copy(TRAIN, path)
    done = run("info", path, status=int(length > 504))
    if length > 504:
        said = "its path has 505 bytes, but SQLite supports at most 504 bytes\nHint: move it to a shorter path"
        assert done.stderr == f"tracekit: {path}: {said}\n"
    else:
        assert "api_calls" in done.stdout.decode()
