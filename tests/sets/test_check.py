"""Checks of captures and baselines: which runs are read, the history, and how programs are recorded."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders import training_runs
from tests.builders.check_runs import make_runs
from tests.conftest import FIXTURES
from tracekit.core.check import check_runs, compute_run_id
from tracekit.errors import CorruptTraceError, ExportError, TracekitError, UnknownFormatError, UnsupportedVersionError
from tracekit.sets import history, recording
from tracekit.sets.comparison import write_baseline
from tracekit.sets.run_sources import list_run_sources

if TYPE_CHECKING:
    from tracekit.core.compare import Summary

TRAIN = FIXTURES / "train_amp.sqlite"


def names(path: Path | str, **options: bool) -> list[list[str]]:
    return [[Path(c).name for c in source.captures] for source in list_run_sources(path, **options)]


def save(folder: Path, name: str, runs: list[Summary]) -> Path:
    return write_baseline(runs, folder / name, overwrite=False)


def test_each_capture_of_a_folder_is_a_run_unless_names_differ_in_a_rank(tmp_path: Path) -> None:
    for name in ("b10", "b9", "a_rank0", "a_rank1"):
        shutil.copyfile(TRAIN, tmp_path / f"{name}.sqlite")
    save(tmp_path, "old.json", make_runs(3, 1))
    expected = [["old.json"], ["a_rank0.sqlite", "a_rank1.sqlite"], ["b9.sqlite"], ["b10.sqlite"]]
    assert sorted(names(tmp_path)) == sorted(expected)
    assert sorted(names(tmp_path / "*")) == sorted(expected)
    assert names(tmp_path / "b*.sqlite") == [["b9.sqlite"], ["b10.sqlite"]]
    assert names(tmp_path / "b*.sqlite", is_one_run=True) == [["b9.sqlite", "b10.sqlite"]]
    assert names(TRAIN) == [["train_amp.sqlite"]]


def test_folders_of_captures_are_runs(tmp_path: Path) -> None:
    for run in ("run1", "run2"):
        (tmp_path / run).mkdir()
        for rank in (0, 1):
            shutil.copyfile(TRAIN, tmp_path / run / f"x{rank}.sqlite")
    expected = [["x0.sqlite", "x1.sqlite"], ["x0.sqlite", "x1.sqlite"]]
    assert names(tmp_path) == expected
    assert names(tmp_path / "run*") == expected
    (tmp_path / "baselines").mkdir()
    save(tmp_path / "baselines", "1.json", make_runs(1, 1))
    assert names(tmp_path / "baselines") == [["1.json"]]


def test_paths_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_run_sources(tmp_path / "missing")
    with pytest.raises(TracekitError, match="no file matches this pattern"):
        list_run_sources(tmp_path / "*.x")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(UnknownFormatError):
        tk.check(tmp_path, TRAIN)
    with pytest.raises(UnknownFormatError):
        tk.check(tmp_path / "*.txt", TRAIN)


def test_ranks_are_no_runs(tmp_path: Path) -> None:
    for rank in (0, 1):
        shutil.copyfile(FIXTURES / "ranks" / f"mpi_rank{rank}.nsys-rep", tmp_path / f"host{rank}.nsys-rep")
    with pytest.raises(TracekitError, match="recorded ranks 0 and 1, so they are not two runs of one program"):
        tk.check(tmp_path, TRAIN)
    assert tk.check(tmp_path, TRAIN, one_run=True).runs_a == 1


@pytest.mark.slow
def test_captures_are_compared_with_a_saved_baseline(tmp_path: Path) -> None:
    runs = [training_runs.run(seed, iterations=4) for seed in range(5)]
    slow = [training_runs.run(seed, iterations=4, slow=(("kernel_f<(int)4>", 1.5),)) for seed in range(5, 10)]
    baseline = tk.save_runs(runs, tmp_path / "a.json")
    result = tk.check(baseline, slow, fail_if=["kernels[kernel_f*] > 10%", "kernels[kernel_a*] > 10%"])
    assert result.verdict == "slower"
    assert [r.status for r in result.conditions] == ["holds", "does_not_hold"]
    assert {row.level for row in result.rows} == {"step", "part", "phase", "op", "kernel"}
    slower = {row.name for row in result.rows if row.level == "kernel" and row.verdict == "slower"}
    assert slower == {"kernel_f<(int)*>"}
    with pytest.raises(UnsupportedVersionError, match="contains runs for tracekit check"):
        tk.diff(baseline, runs[0])
    with pytest.raises(ExportError, match="already exists"):
        tk.save_runs(runs[0], baseline)
    assert tk.check(baseline, runs, by=["kernels"]).verdict == "same"


def test_arguments_are_checked_before_files_are_read() -> None:
    for arguments in ({"by": ["kernel"]}, {"fail_if": "gpu_time"}, {"alpha": 2.0}, {"min_change": -1.0}):
        with pytest.raises(TracekitError):
            tk.check("missing", "missing", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"version":3}', '"runs" in the baseline must be a list of 1 to 1,000 runs'),
        ('"version":3,"runs":[]}', '"runs" in the baseline must be a list'),
        ('"version":3,"runs":[1]}', "the file is not a tracekit baseline"),
        ('"version":3,"runs":[{"format":"tracekit-baseline","version":3,"runs":[]}]}', "contains runs"),
        ('"version":NaN,"runs":[]}', '"version" in the baseline must be a positive integer'),
        ('"version":9}', "only versions up to 3"),
        ('"version":3,"runs":' + "[" * 100_000, "not valid JSON"),
    ],
)
def test_hostile_baselines(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"format":"tracekit-baseline",' + content)
    with pytest.raises(TracekitError, match=message) as raised:
        tk.check(path, make_runs(1, 1)[0])
    assert str(path) in str(raised.value)


def test_the_history_grows_and_makes_single_runs_testable(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    first = tk.check(make_runs(4, 1), make_runs(4, 2), by=["kernels"], history=folder)
    assert first.verdict == "same"
    (file,) = folder.iterdir()
    content = file.read_bytes()
    frame = pl.read_parquet(file)
    assert set(frame["side"]) == {"A", "B"}
    assert frame["run_id"].n_unique() == 8
    assert frame["checked_at"].dtype == pl.Datetime("us", "UTC")
    second = tk.check(make_runs(1, 3), make_runs(1, 4, factor=1.3), by=["kernels"], history=folder)
    assert (second.verdict, second.earlier_runs) == ("slower", 8)
    assert len(list(folder.iterdir())) == 2
    assert file.read_bytes() == content
    again = tk.check(make_runs(4, 1), make_runs(1, 5), by=["kernels"], history=folder)
    assert again.earlier_runs == 4  # the others are those of this baseline
    (folder / "notes.txt").write_text("other files are ignored")
    assert [sorted(sides) for sides in history.read_history(folder)] == [["A", "B"], ["A", "B"], ["B"]]


def test_damaged_histories(tmp_path: Path) -> None:
    a, b = make_runs(3, 1), make_runs(3, 2)
    file = history.add_to_history(tmp_path, check_runs(a, b), a, b)
    content = file.read_bytes()
    (read,) = history.read_history(tmp_path)
    assert [compute_run_id(run) for run in read["A"]] == [compute_run_id(run) for run in a]
    for damaged in (b"", b"PAR1", content[:-9], content[: len(content) // 2], bytes(1000)):
        file.write_bytes(damaged)
        with pytest.raises(CorruptTraceError, match="the file of the history is damaged"):
            history.read_history(tmp_path)
    frame = pl.read_parquet(content)
    negative = frame.with_columns(time_ns=pl.lit(-1))
    values = (
        {"kind": pl.lit("x"), "iterations": pl.lit("x")},
        {name: pl.concat_list(pl.lit(1)) for name in ("kind", "name", "gpus")},
        {name: pl.struct(pl.lit(1)) for name in ("kind", "name", "side", "time_ns")},
        {"is_inside": pl.lit("yes"), "name": pl.lit(b"x"), "iterations": pl.lit(None)},
        {"is_inside": pl.lit(None, pl.Boolean)},
    )
    changed = [frame.with_columns(value.alias(name)) for each in values for name, value in each.items()]
    for wrong in (negative, *changed):
        wrong.write_parquet(file)
        with pytest.raises(CorruptTraceError, match="the file of the history is damaged: "):
            history.read_history(tmp_path)
    frame.drop("time_ns").write_parquet(file)
    with pytest.raises(CorruptTraceError, match="has no column time_ns"):
        history.read_history(tmp_path)
    frame.filter(side="A").with_columns(side=pl.lit("C")).write_parquet(file)
    assert history.read_history(tmp_path) == [{}]
    with pytest.raises(TracekitError, match="the history cannot be read"):
        history.read_history(file)
    with pytest.raises(ExportError, match="the folder cannot be created"):
        history.add_to_history(file, check_runs(a, b), a, b)
    assert history.read_history(tmp_path / "missing") == []


def test_a_prediction_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "why.json"
    saving = {"low": -0.1, "likely": 0.0, "high": 0.1}
    answer = {"schema": 1, "data": {"step": {"mean_ns": 50_000_000}, "causes": [{"cause": "x", "saving": saving}]}}
    path.write_text(json.dumps(answer))
    result = tk.check(make_runs(5, 1), make_runs(5, 2), prediction=path, cause="x")
    assert result.prediction is not None
    assert (result.prediction.agreement, result.outcome) == ("inside", "passed")
    path.write_text("[" * 100_000)
    with pytest.raises(CorruptTraceError, match="the answer is not valid JSON"):
        tk.check(make_runs(5, 1), make_runs(5, 2), prediction=path)


# how programs are recorded


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only one on the PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install_nsys(folder: Path, body: str) -> None:
    """Put an nsys on the PATH that knows its arguments, its output and the command."""
    tool = folder / "nsys"
    start = "out = next(a for a in sys.argv if a.startswith('--output=')).removeprefix('--output=')\n"
    start += "command = sys.argv[sys.argv.index(f'--output={out}') + 1:]\n"
    tool.write_text(f"#!{sys.executable}\nimport os, shutil, signal, subprocess, sys, time\n{start}{body}\n", "utf-8")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_nsys_records_a_command_without_a_shell(tools: Path, tmp_path: Path) -> None:
    install_nsys(tools, f"print('talk'); shutil.copyfile({str(TRAIN)!r}, out); subprocess.run(command, check=True)")
    written = tmp_path / "written"
    code = f"import sys; open({str(written)!r}, 'a').write(repr(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "$HOME; rm -rf *", "--flag", "a b"]
    assert recording.choose_profiler(command) == "nsys"
    captures = []
    for capture in recording.record_runs(command, 2, "nsys"):
        assert capture.read_bytes() == TRAIN.read_bytes()
        captures.append(capture)
    assert not any(c.exists() for c in captures)
    assert written.read_text() == "['$HOME; rm -rf *', '--flag', 'a b']" * 2
    kept = list(recording.record_runs(command, 1, "nsys", tmp_path / "kept"))
    assert [path.parent.name for path in kept] == ["kept"]
    assert kept[0].exists()


def test_failures_of_programs(tools: Path, tmp_path: Path) -> None:
    install_nsys(tools, "sys.exit(subprocess.run(command).returncode)")
    target = tmp_path / "x.nsys-rep"
    with pytest.raises(TracekitError, match="ended with exit status 7\nHint: run the command on its own"):
        recording.record([sys.executable, "-c", "raise SystemExit(7)"], target, "nsys")
    with pytest.raises(TracekitError, match="the profiler wrote no capture of python"):
        recording.record([sys.executable, "-c", ""], target, "nsys")
    install_nsys(tools, "os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(TracekitError, match="was ended by signal 9"):
        recording.record(["x"], target, "nsys")
    with pytest.raises(TracekitError, match="-x is not the name of a program"):
        recording.record(["-x"], target, "nsys")
    with pytest.raises(TracekitError, match="the command missing cannot be run: No such file"):
        recording.record(["/missing", "a.py"], target, "pytorch")


def test_the_choice_of_the_profiler(tools: Path) -> None:
    assert recording.choose_profiler([sys.executable, "a.py"]) == "pytorch"
    with pytest.raises(TracekitError, match="nsys is not on the PATH, and the PyTorch profiler records only Python"):
        recording.choose_profiler(["./train"])
    with pytest.raises(TracekitError, match="the program nsys is not on the PATH"):
        recording.choose_profiler(["python"], "nsys")
    with pytest.raises(TracekitError, match="no command was passed"):
        recording.choose_profiler([])
    install_nsys(tools, "")
    assert recording.choose_profiler(["./train"]) == "nsys"
    assert recording.choose_profiler(["python3.11", "a.py"], "pytorch") == "pytorch"
    with pytest.raises(TracekitError, match=r"^the PyTorch profiler records only Python programs, not \./train"):
        recording.choose_profiler(["./train"], "pytorch")


TORCH = """
import json, os
class profile:
    def __init__(self, activities, record_shapes): self.activities = activities
    def start(self): self.began = True
    def stop(self): self.ended = True
    def export_chrome_trace(self, out):
        json.dump({"activities": self.activities, "ended": self.ended}, open(out, "w"))
def supported_activities(): return ["CPU"]
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that looks like the profiler of PyTorch, which Python imports."""
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("")
    (tmp_path / "lib" / "torch" / "profiler.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    return tmp_path


@pytest.mark.parametrize("form", ["file", "module", "code"])
@pytest.mark.usefixtures("tools")
def test_the_pytorch_profiler_records_python_programs(torch: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import sys\nassert __name__ == '__main__'\nassert not any(p.endswith('system') for p in sys.path)\n"
        f"open({str(torch / 'seen')!r}, 'w').write(repr(sys.argv[1:]))"
    )
    (torch / "program.py").write_text(source)
    monkeypatch.chdir(torch)
    target = {"file": ["program.py"], "module": ["-m", "program"], "code": ["-c", source]}[form]
    command = [sys.executable, "-X", "utf8", "-B", *target, "--lr", "0.1 x"]
    recording.record(command, torch / "out.pt.trace.json", "pytorch")
    assert json.loads((torch / "out.pt.trace.json").read_text()) == {"activities": ["CPU"], "ended": True}
    assert (torch / "seen").read_text() == "['--lr', '0.1 x']"


@pytest.mark.usefixtures("tools")
def test_programs_that_the_pytorch_profiler_cannot_record(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = torch / "out.pt.trace.json"
    for command in ([sys.executable], [sys.executable, "-u"], [sys.executable, "-m"], [sys.executable, "-"]):
        with pytest.raises(TracekitError, match="the command does not name a Python program"):
            recording.record(command, out, "pytorch")
    with pytest.raises(TracekitError, match="ended with exit status 3"):
        recording.record([sys.executable, "-c", "raise SystemExit(3)"], out, "pytorch")
    assert out.exists()
    monkeypatch.setenv("PYTHONPATH", "")
    (torch / "lib" / "torch" / "profiler.py").unlink()
    monkeypatch.setenv("PYTHONPATH", str(torch / "lib"))
    with pytest.raises(TracekitError, match=r"nsys is not on the PATH, and the Python of python.* has no PyTorch"):
        recording.record([sys.executable, "-c", ""], out, "pytorch")


def test_an_interruption_ends_the_program(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_nsys(
        tools,
        "def stop(*_):\n    open(out, 'w').write('interrupted'); sys.exit(0)\n"
        "signal.signal(signal.SIGINT, stop)\nopen(out + '.began', 'w').close()\ntime.sleep(60)",
    )
    capture = tmp_path / "x.nsys-rep"
    monkeypatch.setattr(recording, "_GRACE_S", 0.05)

    def interrupt(self: object, _: float) -> None:
        del self
        if Path(f"{capture}.began").exists():
            monkeypatch.undo()
            monkeypatch.setenv("PATH", os.defpath)
            raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        recording.record(["x"], capture, "nsys")
    assert capture.read_text() == "interrupted"
