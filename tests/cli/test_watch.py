"""``tracekit watch``: alarms as lines, metrics, restarts after kills, and Ctrl-C."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from tests.builders.watched_ranks import Delay, write_window
from tests.cli.conftest import MODULE, ROOT
from tests.conftest import ALL
from tracekit.errors import TracekitError
from tracekit.watching.state import WatchState

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


def test_alarms_are_lines_of_json(run: Run, tmp_path: Path) -> None:
    write_window(tmp_path / "run", 0, range(3), steps=4, delays=[Delay(1, "forward", 4000)])
    metrics = tmp_path / "t.prom"
    result = run("watch", tmp_path / "run", "--once", "--settle", "0s", "--prometheus", metrics)
    (line,) = map(json.loads, result.text.splitlines())
    assert (line["schema"], line["kind"], line["rank"], line["phase"]) == (
        "tracekit.watch/1",
        "late_rank",
        1,
        "forward",
    )
    assert "window 1, steps 0 to 3: 3 ranks, 0 missing, 1 alarm" in result.stderr
    assert 'tracekit_watch_lost_seconds{rank="1",kind="late_rank",phase="forward"}' in metrics.read_text()


def test_real_captures_of_two_ranks(run: Run, tmp_path: Path) -> None:
    for rank in range(2):
        name = f"ddp_straggler_rank{rank}.nsys-rep"
        (tmp_path / name).write_bytes((ROOT / "fixtures" / "why" / name).read_bytes())
    alarms = tmp_path / "alarms.jsonl"
    result = run("watch", tmp_path, "--once", "--settle", "0s", "--alarms", alarms, "-q")
    assert result.text == ""
    (line,) = map(json.loads, alarms.read_text().splitlines())
    assert (line["kind"], line["rank"], line["phase"], line["on"]) == ("late_rank", 1, "data", "cpu")
    assert line["causes"][0]["own_ns"] == pytest.approx(12_000_000, rel=0.01)


def test_errors(run: Run, tmp_path: Path) -> None:
    assert "No such file" in run("watch", tmp_path / "no", "--once", status=1).stderr
    (tmp_path / "state").write_text("x")
    (tmp_path / "run").mkdir()
    result = run("watch", tmp_path / "run", "--once", "--state", tmp_path / "state", status=1)
    assert "this is not a state of tracekit watch" in result.stderr
    capture = tmp_path / "rank0.nsys-rep"
    capture.write_bytes((ROOT / "fixtures" / "empty.nsys-rep").read_bytes())
    result = run("watch", tmp_path / "run", "--once", "--alarms", capture, status=1)
    assert "this file contains something else than alarms" in result.stderr
    result = run("watch", tmp_path / "run", "--once", "--prometheus", capture, status=1)
    assert "is not replaced" in result.stderr
    assert capture.read_bytes() == (ROOT / "fixtures" / "empty.nsys-rep").read_bytes()
    assert "'soon' is not a duration" in run("watch", tmp_path / "run", "--wait", "soon", status=2).stderr


def watch(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [*MODULE, "watch", folder / "run", "--state", folder / "state", "--alarms", folder / "alarms.jsonl"]
    command += ["--prometheus", folder / "t.prom", "--interval", "100ms", "--settle", "0s", *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for(folder: Path, metric: str, process: subprocess.Popen[str], seconds: float = 120) -> bool:
    """Wait until a metric has a value, and return whether it does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if (folder / "t.prom").exists() and metric in (folder / "t.prom").read_text():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_a_killed_watch_continues_without_loss_and_ends_at_once(tmp_path: Path) -> None:
    """It is killed at random moments. Afterwards, each capture was counted once, and each alarm was written once."""
    rng = random.Random(3)
    for window in range(2):
        write_window(tmp_path / "run", window, range(2), steps=2, delays=[Delay(window, "data", 9000)])
    for _ in range(4 if ALL else 1):
        process = watch(tmp_path)
        wait_for(tmp_path, "tracekit_watch_captures_total", process)
        time.sleep(rng.uniform(0, 1.5))
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        (tmp_path / "t.prom").unlink(missing_ok=True)
    process = watch(tmp_path)
    assert wait_for(tmp_path, "tracekit_watch_windows_total 2", process)
    while (tmp_path / "alarms.jsonl").read_text().count("\n") < 2 and process.poll() is None:
        time.sleep(0.02)
    with pytest.raises(TracekitError, match="another watch uses this state"):
        WatchState(tmp_path / "state", str(tmp_path / "run"))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert time.monotonic() - began < 1
    assert process.stderr is not None
    assert process.stderr.read().endswith("tracekit: interrupted\n")
    process.stderr.close()
    text = (tmp_path / "t.prom").read_text()
    assert "tracekit_watch_captures_total 4\n" in text
    assert "tracekit_watch_duplicates_total 0\n" in text
    lines = [json.loads(line) for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    assert sorted((line["rank"], line["phase"]) for line in lines) == [(0, "data"), (1, "data")]
    assert [line["id"] for line in lines] == [1, 2]
