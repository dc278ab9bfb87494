"""What a watched folder contains: links, pipes, deep folders, folders of tables, and other forms of a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.system import remote
from tracekit.system.remote import Listing
from tracekit.watching import files
from tracekit.watching.files import MAX_DEPTH, WatchedFolder, list_other_forms

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(f.name for f in WatchedFolder(folder).list_files())


def test_files_of_subfolders(tmp_path: Path) -> None:
    for name in ("b.json", "a/c.json", "a/d/e.json", ".hidden", ".git/f", ".x.nsys-rep"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert names(tmp_path) == [".x.nsys-rep", "a/c.json", "a/d/e.json", "b.json"]


def test_links_pipes_and_loops(tmp_path: Path) -> None:
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "real.json").write_text("x")
    run = tmp_path / "run"
    (run / "link.json").symlink_to(tmp_path / "real.json")
    (run / "dangling").symlink_to(tmp_path / "nothing")
    (run / "sub" / "loop").symlink_to(run)
    (run / "self").symlink_to(run / "self")
    (run / "device").symlink_to("/dev/zero")
    os.mkfifo(run / "pipe")
    assert names(run) == ["link.json"]


def test_very_deep_folders_are_reported(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * (MAX_DEPTH + 2))
    deep.mkdir(parents=True)
    (deep / "f").write_text("x")
    (tmp_path / "d" / "g").write_text("x")
    folder = WatchedFolder(tmp_path)
    with pytest.warns(TracekitWarning, match=f"it is more than {MAX_DEPTH} folders deep"):
        assert [f.name for f in folder.list_files()] == ["d/g"]
    assert [f.name for f in folder.list_files()] == ["d/g"]  # without another warning


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_unreadable_folders_are_reported(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o000)
    with pytest.warns(TracekitWarning, match="this folder is not searched: Permission denied"):
        assert names(tmp_path) == []


def test_a_subfolder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "f").write_text("x")
    scan = os.scandir

    def deny(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(files.os, "scandir", deny)
    with pytest.warns(TracekitWarning, match="this folder is not searched: Permission denied"):
        assert names(tmp_path) == ["f"]


def test_fingerprints_show_changes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("x")
    (before,) = WatchedFolder(tmp_path).list_files()
    os.utime(path, (1, 1))
    (touched,) = WatchedFolder(tmp_path).list_files()
    path.write_text("xy")
    (grown,) = WatchedFolder(tmp_path).list_files()
    assert len({before.fingerprint, touched.fingerprint, grown.fingerprint}) == 3


def test_folders_of_tables_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "rank0_pqtdir").mkdir()
    (tmp_path / "rank0_pqtdir" / "a.parquet").write_text("xx")
    (first,) = WatchedFolder(tmp_path).list_files()
    assert (first.name, first.size) == ("rank0_pqtdir", 2)
    (tmp_path / "rank0_pqtdir" / "b.parquet").write_text("yyy")
    (second,) = WatchedFolder(tmp_path).list_files()
    assert second.size == 5
    assert second.fingerprint != first.fingerprint


def test_outputs_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "alarms.jsonl").write_text("x")
    folder = WatchedFolder(tmp_path)
    folder.ignore(tmp_path / "alarms.jsonl")
    folder.ignore(tmp_path / "nothing")
    assert list(folder.list_files()) == []


def test_only_folders_are_watched(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(TracekitError, match="this is a file, not a folder"):
        WatchedFolder(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        WatchedFolder(tmp_path / "nothing")


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_text("x")
    with pytest.raises(TracekitError, match="the folder contains more than 2 files"):
        names(tmp_path)


def test_the_files_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "list_url", lambda url: Listing([f"{url}a", f"{url}b"], [f"{url}c/"], is_folder=True))
    folder = WatchedFolder("https://host/run/")
    assert [f.name for f in folder.list_files()] == ["https://host/run/a", "https://host/run/b"]
    assert folder.exists("https://host/run/a")
    assert str(folder.get_path("https://host/run/a")) == "/host/run/a"


@pytest.mark.parametrize(
    ("name", "preferred", "others"),
    [
        ("r.sqlite", ["r.nsys-rep", "r.qdrep"], ["r.nsys-rep.sqlite", "r.qdrep.sqlite", "r_pqtdir", "r_arwdir"]),
        ("r.nsys-rep.sqlite", ["r.nsys-rep", "r.qdrep"], ["r.sqlite", "r.qdrep.sqlite", "r_pqtdir", "r_arwdir"]),
        ("r.nsys-rep", [], ["r.sqlite", "r.nsys-rep.sqlite", "r.qdrep.sqlite", "r_pqtdir", "r_arwdir"]),
        ("t.json.gz", ["t.json"], []),
        ("t.json", [], ["t.json.gz"]),
        ("x.txt", [], []),
    ],
)
def test_other_forms_of_a_file(name: str, preferred: list[str], others: list[str]) -> None:
    assert list_other_forms(name) == (preferred, others)
