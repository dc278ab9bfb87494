"""The command line as a whole: speed of --help, errors, interruption, full disks, closed pipes, shell completion."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from tests import fork_server
from tracekit import cli
from tracekit.errors import TracekitWarning

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Show, Spawn

ROOT = Path(__file__).parents[2]
MODULE = [sys.executable, "-m", "tracekit"]
# a shell lets what it runs in the background ignore some signals, and nohup one more
HEAR = "[signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]"
HEARING = [sys.executable, "-c", f"import os, signal, sys; {HEAR}; os.execv(sys.argv[1], sys.argv[1:])"]
TRAIN = "fixtures/train_amp.sqlite"
HEAVY = {"polars", "pyarrow", "rich", "numpy"}


@pytest.fixture(scope="session")
def long_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture that takes seconds to convert: the kernels of a real one, many times over."""
    path = tmp_path_factory.mktemp("long") / "long.sqlite"
    shutil.copy(ROOT / TRAIN, path)
    with sqlite3.connect(path) as db:
        names = [r[1] for r in db.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")]
        shifted = ", ".join(f'"{n}" + n.value * 1000000000' if n in ("start", "end") else f'"{n}"' for n in names)
        numbers = "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 450) "
        db.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL {numbers} SELECT {shifted} FROM CUPTI_ACTIVITY_KIND_KERNEL, n"
        )
    db.close()
    return path


def imported(code: str) -> set[str]:
    """Top-level modules that some code imports."""
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.splitlines()[-1].split())


def test_importing_tracekit_imports_nothing_heavy() -> None:
    assert not HEAVY & imported("import tracekit")


@pytest.mark.many(6)
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([verb, "--help"] for verb in cli.COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"sys.argv = ['tracekit', *{arguments}]\nfrom tracekit.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert not HEAVY & imported(code)


def test_help_lists_every_verb(run: Run) -> None:
    text = run("--help").text
    assert all(f"  {verb}" in text for verb in cli.COMMANDS)


@pytest.mark.parametrize("verb", cli.COMMANDS)
def test_every_verb_has_help_and_the_summary_of_the_list(run: Run, verb: str) -> None:
    assert run(verb, "--help").text.startswith(f"Usage: tracekit {verb} ")
    assert run(verb, "-h").status == 0


def test_version(run: Run) -> None:
    assert run("--version").text == "tracekit 1.0.0\n"


def test_python_dash_m() -> None:
    assert subprocess.check_output([*MODULE, "--version"], cwd=ROOT) == b"tracekit 1.0.0\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["info"],
        ["rows", TRAIN],
        ["rows", TRAIN, "kernels", "-n", "-1"],
        ["rows", TRAIN, "kernels", "--time", "5"],
        ["rows", TRAIN, "kernels", "--format", "xml"],
        ["rows", TRAIN, "kernels", "--min-dur", "soon"],
        ["rows", TRAIN, "kernels", "--columns", " , "],
        ["stats", TRAIN, "--report", ""],
        ["convert", TRAIN],
        ["convert", TRAIN, "-"],
        ["convert", TRAIN, "-", "--to", "csv"],
        ["correlate", TRAIN],
        ["correlate", TRAIN, "-o", "-"],
    ],
)
def test_wrong_usage_ends_in_2(run: Run, arguments: list[str]) -> None:
    result = run(*arguments, status=2)
    assert result.stdout == b""
    assert "Error: " in result.stderr


def test_no_arguments_show_the_help(run: Run) -> None:
    assert "Commands:" in run(status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "nothing.sqlite"], "tracekit: nothing.sqlite: No such file or directory\n"),
        (["info", "pyproject.toml"], "tracekit: pyproject.toml: no reader recognizes the content\nHint: pass a file"),
        (["info", TRAIN, "--from", "x"], "tracekit: no reader is called 'x'\nHint: choose one of these readers: "),
        (["convert", TRAIN, "--to", "x"], "tracekit: no exporter is called 'x'\nHint: choose one of these exporters: "),
        (
            ["convert", TRAIN, "out.xyz"],
            "tracekit: out.xyz: no exporter writes files with this suffix\nHint: choose one of these exporters: ",
        ),
        (
            ["rows", TRAIN, "kernel"],
            "tracekit: no table is called 'kernel'\nHint: did you mean 'kernels'? choose one of these tables: ",
        ),
        (
            ["rows", TRAIN, "kernels", "--columns", "x"],
            "tracekit: table 'kernels' has no column 'x'\nHint: choose one of these columns: ",
        ),
        (["stats", TRAIN, "-r", "cuda_api_sum,x"], "tracekit: unknown report 'x'\nHint: choose one of these reports: "),
        (["schema", "x"], "tracekit: no table is called 'x'\nHint: choose one of these tables: "),
    ],
)
def test_errors_are_a_message_on_stderr_and_1(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments, status=1)
    assert result.stderr.startswith(message)
    assert result.stdout == b""


def test_an_error_without_a_file_name_is_a_message_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the machine is on fire")

    monkeypatch.setattr(cli.cli, "main", fail)
    assert run("info", TRAIN, status=1).stderr == "tracekit: the machine is on fire\n"


def test_warnings_go_to_stderr_as_talk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(*_: object, **__: object) -> None:
        warnings.warn("3 rows dropped", TracekitWarning, stacklevel=1)

    monkeypatch.setattr(cli.cli, "main", warned)
    result = run("info", TRAIN)
    assert (result.stdout, result.stderr) == (b"", "tracekit: warning: 3 rows dropped\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt, click.Abort])
def test_an_interruption_ends_in_130(run: Run, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli.cli, "main", interrupted)
    assert run("info", TRAIN, status=130).stderr == "tracekit: interrupted\n"


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_conversion_leaves_nothing(long_capture: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [*MODULE, "convert", str(long_capture), str(tmp_path / "out.json")]
    # a signal that meets coverage inside its own lock would never be answered
    unwatched = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*HEARING, *command], cwd=ROOT, env=unwatched, **pipes) as process:
        try:
            _wait_for_output(tmp_path, process)
            process.send_signal(number)
            _, talk = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, talk.strip()) == (128 + number, b"tracekit: interrupted")
    assert not list(tmp_path.iterdir())


def test_signals_that_are_ignored_stay_ignored(run: Run) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run("--version")
    kept = signal.signal(signal.SIGHUP, before)
    assert kept is signal.SIG_IGN


def _wait_for_output(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until something is being written."""
    until = time.monotonic() + 60
    while not any(p.stat().st_size for p in folder.glob(".*.partial/new/*")):
        assert process.poll() is None, "ended before it could be interrupted"
        assert time.monotonic() < until, "nothing was written"
        time.sleep(0.01)


def with_full_disk(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process that can write files of 4 KiB at most."""
    code = (
        "import resource, sys\n"
        "from tracekit.cli import main\n"
        "limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))\n"
        "limit(4096)\n"
        "try: main()\n"
        "finally: limit(resource.RLIM_INFINITY)"
    )
    command = [sys.executable, "-c", code, *map(str, args)]
    return fork_server.run(command, cwd=ROOT, text=True)


@pytest.mark.many(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, []) for name in ("out.json", "out.json.gz")),
        *((f"out.{suffix}", ["--table", "kernels"]) for suffix in ("json", "json.gz", "csv", "parquet", "arrow")),
        *(("out", ["--to", name]) for name in ("csv", "parquet", "arrow")),
    ],
)
def test_a_full_disk_leaves_nothing(tmp_path: Path, name: str, options: list[str]) -> None:
    result = with_full_disk("convert", TRAIN, tmp_path / name, *options)
    assert result.returncode == 1, result
    assert result.stderr.startswith(f"tracekit: {tmp_path / name}: the output cannot be written: ")
    assert result.stderr.count("\n") == 2, "a message and a hint"
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("precious")
    assert with_full_disk("convert", TRAIN, tmp_path / "out.json", "-f").returncode == 1
    assert (tmp_path / "out.json").read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("style", ["table", "csv", "json", "jsonl"])
@pytest.mark.parametrize(
    "verb", [["rows", TRAIN, "nvtx_ranges", "-n", "0"], ["stats", TRAIN, "-r", "nvtx_pushpop_trace"]]
)
def test_a_closed_pipe_is_silent(verb: list[str], style: str) -> None:
    with subprocess.Popen(
        [*MODULE, *verb, "--format", style], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        talk = process.stderr.read()
    assert talk in (b"", b"1,534 of 1,534 rows\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_ask_for_a_completion_script(shell: str) -> None:
    result = _completion(f"{shell}_source", "")
    assert b"_TRACEKIT_COMPLETE" in result.stdout


@pytest.mark.many(3)
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tracekit co", ["convert", "correlate"]),
        ("tracekit rows x.sqlite kern", ["kernels"]),
        ("tracekit schema memc", ["memcpys"]),
        ("tracekit convert x.sqlite --to par", ["parquet"]),
        ("tracekit convert x.sqlite --from nsys-s", ["nsys-sqlite"]),
        ("tracekit convert x.sqlite --table sync", ["syncs"]),
        ("tracekit stats x.sqlite -r osrt_sum,cuda_api_s", ["osrt_sum,cuda_api_sum"]),
        ("tracekit stats x.sqlite --format js", ["json", "jsonl"]),
    ],
)
def test_completion_knows_the_names(typed: str, offered: list[str]) -> None:
    result = _completion("bash_complete", typed)
    assert [line.partition(b",")[2].decode() for line in result.stdout.splitlines()] == offered, result


def _completion(instruction: str, typed: str) -> subprocess.CompletedProcess[bytes]:
    words = typed.split(" ")
    environment = os.environ | {
        "_TRACEKIT_COMPLETE": instruction,
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    code = "import sys; sys.argv = ['tracekit']; from tracekit.cli import main; main()"
    return fork_server.run([sys.executable, "-c", code], cwd=ROOT, env=environment)


@pytest.mark.thorough
def test_a_progress_bar_shows_on_a_terminal_only(show: Show, spawn: Spawn, tmp_path: Path) -> None:
    assert "converting" in show("convert", TRAIN, tmp_path / "a.json", columns=80)
    assert "converting" not in show("convert", TRAIN, tmp_path / "b.json", "-q", columns=80)
    assert spawn("convert", TRAIN, tmp_path / "c.json").stderr == f"wrote {tmp_path / 'c.json'}\n"


def test_a_terminal_of_80_columns_shows_readable_statistics(show: Show) -> None:
    shown = show("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "-q", columns=80)
    assert "    23.3        1,533.628          4  …bn_bw_1C11_kernel_new… (int)128, (" in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if not line.startswith("("))


def test_a_wide_terminal_shows_a_table_with_bold_headings(show: Show) -> None:
    shown = show("stats", TRAIN, "-r", "cuda_gpu_kern_sum", "-q", columns=160, color=True)
    assert shown.startswith("\x1b[1mTime (%)  Total Time (µs)  Instances")
    assert "    23.3        1,533.628          4   383.407" in shown


def test_garbage_is_collected_less_often() -> None:
    code = "import gc, sys; sys.argv = ['tracekit', '--version']\nfrom tracekit.__main__ import main\ntry: main()\n"
    code += "except SystemExit: print(gc.get_threshold()[0] > 10_000)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("True\n")


@pytest.mark.parametrize("name", ["help", "version"])
def test_options_that_are_passed_as_commands_are_suggested(run: Run, name: str) -> None:
    result = run(name, status=2)
    assert f"unknown command '{name}'; did you mean `tracekit --{name}`?" in result.stderr
