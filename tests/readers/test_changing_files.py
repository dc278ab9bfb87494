"""Files that shrink, are rewritten, replaced or removed while they are open: an error that says so, never a crash."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from tests import fork_server
from tests.builders.nsys_sqlite import FIXTURES
from tests.builders.tfevents import event, scalar, written
from tests.conftest import ALL
from tracekit.errors import TracekitError
from tracekit.registry.source import Source
from tracekit.system.files import CHANGED_HINT, REMOVED_HINT

ROOT = Path(__file__).parents[2]
ONE_DESCRIPTOR = {
    "nsys-rep": ("train_amp.nsys-rep", "kernels", "nvtx_ranges"),
    "ncu-rep": ("ncu/ncu_basic.ncu-rep", "ncu_launches", "ncu_rules"),
}
"""Formats of which the file stays open: a new file of the same name does not matter."""
REOPENED = {
    "parquet": ("kernels.parquet", "kernels", "api_calls", "api_calls.parquet"),
    "arrow": ("kernels.arrow", "kernels", "api_calls", "api_calls.arrow"),
    "nsys-parquetdir": ("train_amp_parquetdir", "kernels", "api_calls", "CUPTI_ACTIVITY_KIND_RUNTIME.parquet"),
    "nsys-arrowdir": ("train_amp_arrowdir", "kernels", "api_calls", "CUPTI_ACTIVITY_KIND_RUNTIME.arrow"),
}
"""Formats that are folders, whose files are opened when they are read."""
IN_MEMORY = {
    "kineto": ("kineto/train.pt.trace.json.gz", "kernels", "nvtx_ranges"),
    "graphdef": ("tensorflow/network.pb", "graph_nodes", "graph_edges"),
}
"""Formats that are read at once."""
CHANGES = ("truncate", "empty", "overwrite", "grow", "replace", "delete", "pipe")
SAID = {
    "truncate": "the file changed while it was open: it had {size} bytes, but now it ",
    "empty": "the file changed while it was open: it had {size} bytes, but now it has 0",
    "overwrite": "the file changed while it was open",
    "grow": "the file changed while it was open: it had {size} bytes, but now it ",
    "replace": "the file was replaced by another file while it was open",
    "delete": "the file was removed while it was open",
    "pipe": "this is a named pipe, not a regular file",
}


def program(*arguments: object) -> dict[str, Any]:
    """Run ``changing.py``; a signal that ends it fails the test."""
    command = [sys.executable, "-W", "error", "-m", "tests.readers.changing", *map(str, arguments)]
    done = fork_server.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-3000:]}"
    assert "ResourceWarning" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def message(file: Path, change: str, size: int) -> str:
    return f"TracekitError: {file}: {SAID[change].format(size=size)}"


@pytest.mark.slow
@pytest.mark.many(4)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format", ONE_DESCRIPTOR)
def test_a_report_that_changes_while_it_is_open(tmp_path: Path, format: str, change: str) -> None:
    name, first, second = ONE_DESCRIPTOR[format]
    file = Path(shutil.copyfile(FIXTURES / name, tmp_path / "report"))
    size = file.stat().st_size
    found = program("main", file, format, change, first, second, "")
    assert found["given"] > 0
    if change in ("replace", "delete", "pipe"):
        with tk.load(FIXTURES / name) as trace:
            assert (found["said"], found["rows"]) == ("", trace.count(second))
        return
    assert found["said"].startswith(message(file, change, size))
    assert found["said"].endswith(f"\nHint: {CHANGED_HINT}")


@pytest.mark.many(2)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format", REOPENED)
def test_a_member_of_a_folder_that_changes(tmp_path: Path, format: str, change: str) -> None:
    name, first, second, member = REOPENED[format]
    folder = tmp_path / "folder"
    if format.startswith("nsys-"):
        shutil.copytree(FIXTURES / name, folder)
    else:
        with tk.load(FIXTURES / "train_amp.sqlite") as trace:
            trace.export(folder, format=format)
    file = folder / member
    size = file.stat().st_size
    found = program("main", folder, format, change, first, second, member)
    assert found["given"] == 334
    assert found["said"].startswith(message(file, change, size))
    hint = {"pipe": "write its content to a file first", "delete": REMOVED_HINT}.get(change, CHANGED_HINT)
    assert found["said"].endswith(f"\nHint: {hint}")


@pytest.mark.many(2)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_columns_that_were_read_stay_as_they_were(tmp_path: Path, format: str, change: str) -> None:
    """The first table itself is in the file that changes: what was given of it does not."""
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        trace.export(tmp_path / "folder", format=format)
    member = f"kernels.{format}"
    found = program("main", tmp_path / "folder", format, change, "kernels", "kernels", member)
    assert (found["said"], found["given"]) == ("", 334)


@pytest.mark.many(2)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format", IN_MEMORY)
def test_what_is_read_at_once_stays(tmp_path: Path, format: str, change: str) -> None:
    name, first, second = IN_MEMORY[format]
    file = Path(shutil.copyfile(FIXTURES / name, tmp_path / Path(name).name))
    found = program("main", file, format, change, first, second, "")
    with tk.load(FIXTURES / name) as trace:
        assert (found["said"], found["rows"]) == ("", trace.count(second))


@pytest.mark.parametrize("change", CHANGES)
def test_graphs_in_event_files(tmp_path: Path, change: str) -> None:
    """A log that grows is as it should be; the graphs in any other one are gone."""
    file = written(tmp_path, scalar(1, 1), event(graph_def=b"\x0a\x05\x0a\x01n\x12\x00" * 50))
    found = program("main", file, "tfevents", change, "scalars", "graph_nodes", "")
    assert found["given"] == 1
    if change == "grow":
        assert (found["said"], found["rows"]) == ("", 50)
    else:
        said = {"delete": "the file was removed while it was open", "pipe": "this is a named pipe, not a regular file"}
        assert found["said"].startswith(
            f"TracekitError: {file}: {said.get(change, 'the file changed while it was open: the ')}"
        )


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("format", [*ONE_DESCRIPTOR, *IN_MEMORY, "parquet", "arrow"])
def test_a_file_that_is_truncated_and_rewritten_all_the_time(tmp_path: Path, format: str) -> None:
    if format in ("parquet", "arrow"):
        with tk.load(FIXTURES / "train_amp.sqlite") as trace:
            file = trace.export(tmp_path / f"kernels.{format}", tables=["kernels"])
    else:
        name = (ONE_DESCRIPTOR | IN_MEMORY)[format][0]
        file = Path(shutil.copyfile(FIXTURES / name, tmp_path / Path(name).name))
    found = program("race", file, format, 4 if ALL else 1.5)
    assert found["error"] > 3


def test_a_file_that_was_replaced_before_it_is_opened(tmp_path: Path) -> None:
    """What is recognized is what is read."""
    from tracekit.registry import detection

    file = Path(shutil.copyfile(FIXTURES / "train_amp.nsys-rep", tmp_path / "a.nsys-rep"))
    source = Source(file)
    reader = detection.detect_reader(source)
    other = tmp_path / "b.nsys-rep"
    shutil.copyfile(FIXTURES / "empty.nsys-rep", other)
    other.replace(file)
    with pytest.raises(TracekitError, match="the file was replaced by another file while it was open"):
        reader.open(source)
