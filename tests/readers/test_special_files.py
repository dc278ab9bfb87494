"""Named pipes, sockets, devices and folders in the place of files: refused at once, without waiting for them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
import tracekit as tk
from tests import fork_server
from tests.builders.nsys_sqlite import FIXTURES
from tests.builders.tfevents import scalar, written

ROOT = Path(__file__).parents[2]
FORMATS = ("nsys-rep", "ncu-rep", "kineto", "graphdef", "tfevents", "parquet", "arrow")
FOLDERS = ("nsys-parquetdir", "nsys-arrowdir")
KINDS = {"pipe": "a named pipe", "socket": "a socket", "device": "a device", "folder": "a folder"}
Job = tuple[Path, str | None, str | None]


def put(path: Path, kind: str) -> Path:
    """Put something that is no regular file under a name."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.relpath(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


def outcomes(*jobs: Job) -> list[str]:
    """Run ``special.py``: what is said of each job."""
    listed = json.dumps([(str(path), name, table) for path, name, table in jobs])
    command = [sys.executable, "-m", "tests.readers.special", listed]
    done = fork_server.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-2000:]}"
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.many(2)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("linked", [False, True])
def test_named_as_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, linked: bool) -> None:
    monkeypatch.chdir(tmp_path)
    path = put(tmp_path / "events.out.tfevents.1", kind)
    if linked:
        path = tmp_path / "link.tfevents"
        path.symlink_to("events.out.tfevents.1")
    found = outcomes(*((path, name, None) for name in (None, *FORMATS, *FOLDERS)))
    for said in found:
        assert said.startswith(f"{path}: "), said
        assert "neither a file nor a folder" in said or f"this is {KINDS[kind]}, not a regular file" in said, said
        assert said.endswith("\nHint: write its content to a file first"), said


@pytest.mark.many(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_as_a_table_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        trace.export(tmp_path / "folder", format=format, tables=["kernels", "api_calls"])
    path = tmp_path / "folder" / f"kernels.{format}"
    path.unlink()
    put(path, kind)
    folder = path.parent
    first, second, third = outcomes((folder, None, "kernels"), (folder, format, "kernels"), (folder, None, "api_calls"))
    assert (
        first == second == f"{path}: this is {KINDS[kind]}, not a regular file\nHint: write its content to a file first"
    )
    assert third == "781 rows"


@pytest.mark.many(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", FOLDERS)
def test_as_a_table_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(FIXTURES / format.replace("nsys-", "train_amp_"), tmp_path / "folder"))
    (path,) = folder.glob("CUPTI_ACTIVITY_KIND_KERNEL.*")
    path.unlink()
    put(path, kind)
    said, others = outcomes((folder, None, "kernels"), (folder, format, "api_calls"))
    assert said.startswith(f"{path}: ")
    assert "not a regular file" in said or "neither a file nor a folder" in said or "a folder whose content" in said
    assert others == "781 rows"


@pytest.mark.parametrize("kind", KINDS)
def test_as_an_event_file_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, scalar(1, 1))
    path = put(tmp_path / "events.out.tfevents.2", kind)
    found = outcomes((tmp_path, None, "scalars"), (tmp_path, "tfevents", "scalars"))
    warned = {"pipe": f"; {path}: this is a named pipe, not a regular file, and was skipped"}
    warned["socket"] = f"; {path}: this is a socket, not a regular file, and was skipped"
    assert found == [f"1 rows{warned.get(kind, '')}"] * 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["saved_model.pb", "saved_model.pbtxt"])
def test_as_a_saved_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = put(tmp_path / name, kind)
    found = outcomes((tmp_path, None, "graph_nodes"), (tmp_path, "graphdef", "graph_nodes"))
    for said in found:
        assert said.startswith(f"{path}: ")
        assert "neither a file nor a folder" in said or "a folder whose content" in said
