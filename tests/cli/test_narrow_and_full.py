"""What users of narrow terminals, full disks and old captures see."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests import fork_server
from tests.cli.conftest import MODULE, ROOT, Run, Show
from tracekit.cli.info import _describe_device, format_metadata

TRAIN = "fixtures/train_amp.sqlite"
FULL = Path("/dev/full")


def test_sentences_break_between_words(show: Show) -> None:
    said = show("tables", TRAIN, columns=40)
    docs = re.findall(r"(?m)^doc +(.*(?:\n {9}.*)*)", said)
    words = {word for doc in docs for word in doc.split()}
    assert len(docs) > 20
    assert {"tool,", "wavefronts", "traced"} & words
    assert max(map(len, said.splitlines())) <= 40
    assert "Environments, command lines, us" not in said


def test_sizes_that_are_not_known_are_left_out() -> None:
    known = {"name": "A", "compute_major": 7, "compute_minor": 5, "sm_count": 72}
    assert _describe_device(known | {"memory_bytes": 0}, ()) == "A, compute capability 7.5, 72 SMs"
    assert _describe_device(known | {"memory_bytes": 3 << 30}, ()).endswith(", 3,072 MiB")


def test_one_row_is_not_rows() -> None:
    facts = {"path": "x", "format": "nsys-rep", "span_ns": None, "devices": [], "undecoded": {}}
    shown = list(format_metadata(facts | {"rows": {"kernels": 1, "memcpys": 2}}))
    assert shown[-2:] == ["  kernels  1 row", "  memcpys  2 rows"]


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "command",
    [
        ["info", TRAIN],
        ["stats", TRAIN, "--format", "csv"],
        ["stats", TRAIN, "-r", "nvtx_sum", "--format", "jsonl"],
        ["rows", TRAIN, "kernels", "-n", "0", "--format", "csv"],
        ["convert", TRAIN, "-", "--to", "chrome-trace"],
    ],
)
def test_a_full_disk_behind_standard_output(command: list[str], tmp_path: Path) -> None:
    with FULL.open("wb") as full, (tmp_path / "stderr").open("w+b") as talk:
        done = fork_server.run([*MODULE, *command], cwd=ROOT, streams=[full.fileno(), full.fileno(), talk.fileno()])
    assert done.returncode == 1
    talk = (tmp_path / "stderr").read_text()
    assert re.fullmatch(r"tracekit: No space left on device( \(os error \d+\))?\n", talk)


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_buffered_output_to_a_full_disk_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own, as the interpreter writes what is buffered when it exits."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with FULL.open("wb") as full:
        done = subprocess.run(
            [*MODULE, "info", TRAIN], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "tracekit: No space left on device\n")


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError("No space left on device (os error 28)")]
)
def test_a_full_disk_is_told_alike(error: OSError, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("polars.DataFrame.write_csv", fails)
    said = run("stats", TRAIN, "-r", "nvtx_sum", "--format", "csv", "-o", tmp_path / "o.csv", status=1).stderr
    assert "the output cannot be written: No space left on device" in said
    assert said.endswith("\nHint: free space on the disk, or choose another folder\n")
    assert list(tmp_path.iterdir()) == []
