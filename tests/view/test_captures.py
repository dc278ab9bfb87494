"""Captures that the viewer cannot open are listed with their reasons, and do not stop the others."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
from tests.builders.torch_ranks import write_ranks
from tests.conftest import FIXTURES
from tests.view.support import running, show
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.view import ranks
from tracekit.view.captures import ViewedCaptures
from tracekit.view.opening import open_captures

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 12345\n"


def open_with_warnings(*paths: Path, strict: bool = False) -> tuple[ViewedCaptures, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TracekitWarning)
        opened = open_captures(paths, strict=strict)
    return opened, [str(w.message) for w in caught]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks and files that cannot be read: a pointer, a truncated report and a link to nothing."""
    write_ranks(tmp_path, 2)
    (tmp_path / "rank2.nsys-rep").write_bytes(POINTER)
    (tmp_path / "rank3.nsys-rep").write_bytes((FIXTURES / "ddp2.nsys-rep").read_bytes()[:50_000])
    (tmp_path / "rank4.sqlite").symlink_to(tmp_path / "gone")
    return tmp_path


def test_the_others_are_opened_and_the_reasons_are_listed(folder: Path) -> None:
    for paths in ([folder], [folder / "rank*"], sorted(folder.iterdir())):
        captures, messages = open_with_warnings(*paths)
        assert [c.name for c in captures.all] == ["rank0.pt.trace.json", "rank1.pt.trace.json"]
        reasons = dict(captures.unreadable)
        assert sorted(reasons) == ["rank2.nsys-rep", "rank3.nsys-rep", "rank4.sqlite"]
        assert "Git LFS pointer" in reasons["rank2.nsys-rep"]
        assert len(messages) == 3
        members = ranks.get_rank_set(captures)
        assert members is not None
        assert members.ranks == [0, 1]
        captures.close()
        with pytest.raises((TracekitError, FileNotFoundError)):
            open_with_warnings(*paths, strict=True)


@pytest.mark.slow
def test_every_page_lists_them(folder: Path) -> None:
    with warnings.catch_warnings(action="ignore", category=TracekitWarning), running(folder) as viewer:
        for page in ("/", "/kernels"):
            text = " ".join(show(viewer, page))
            assert "3 captures cannot be read" in text
            assert "rank2.nsys-rep" in text
            assert "this is a Git LFS pointer" in text


def test_without_any_capture_it_does_not_start(folder: Path) -> None:
    with pytest.raises(TracekitError, match=r"rank2\.nsys-rep: this is a Git LFS pointer"):
        open_captures([folder / "rank2.nsys-rep"])
    with pytest.raises(TracekitError, match=r"none of 2 files can be read: rank2\.nsys-rep: .*; rank3\.nsys-rep: "):
        open_captures([folder / "rank2.nsys-rep", folder / "rank3.nsys-rep"])


def test_a_capture_that_fails_later_does_not_stop_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captures, _ = open_with_warnings(folder)
    read = ranks._read_recorded_metadata

    def fail_for_first(capture: object) -> object:
        if capture is captures.all[0]:
            raise TracekitError("the file is damaged", path="rank0")
        return read(capture)  # type: ignore[arg-type]

    monkeypatch.setattr(ranks, "_read_recorded_metadata", fail_for_first)
    assert ranks.get_rank_set(captures) is None
    assert ("rank0.pt.trace.json", "the file is damaged") in captures.unreadable
    captures.add_unreadable("rank0.pt.trace.json", TracekitError("the file is damaged"))
    assert len(captures.unreadable) == 4
    captures.close()


def test_equal_names_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    files = [tmp_path / node / "trace.nsys-rep" for node in ("node0", "node1")]
    for file in files:
        file.parent.mkdir()
        shutil.copy(FIXTURES / "empty.nsys-rep", file)
    captures = open_captures(files)
    assert [c.name for c in captures.all] == ["node0/trace.nsys-rep", "node1/trace.nsys-rep"]
    captures.close()
    captures = open_captures([files[0], files[0]])
    assert [c.name for c in captures.all] == ["trace.nsys-rep", "trace.nsys-rep"]
    captures.close()
