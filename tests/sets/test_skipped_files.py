"""Files beside the captures of a set that cannot be read: each is named with its reason, in every form of a set."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from tests.builders.torch_ranks import write_ranks
from tests.conftest import FIXTURES
from tracekit.errors import TracekitError, TracekitWarning, UnknownFormatError
from tracekit.sets import paths
from tracekit.sets.member import Member

RANKS = FIXTURES / "ranks"
PAGE = b"<!DOCTYPE html><html><body>404 Not Found</body></html>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 12345\n"
CONTENTS = {
    "empty": (b"", r"the file is empty \(0 bytes\)"),
    "zeros": (bytes(70_000), "the file begins with zeros only"),
    "page": (PAGE, "this is an HTML page"),
    "pointer": (POINTER, "this is a Git LFS pointer"),
    "text": (b"Killed by signal 9\n", "."),
}
OTHERS = {"link": "a symbolic link to a file that does not exist", "folder": "a folder", "denied": "permission denied"}
REASONS = {**{name: reason for name, (_, reason) in CONTENTS.items()}, **OTHERS}


def write_bad(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a file, link or folder that is no capture, although its name is that of one."""
    if kind == "link":
        path.symlink_to(path.parent / "gone")
    elif kind == "folder":
        path.mkdir()
    elif kind == "denied":
        path.write_bytes(b"private")
        deny_reading(path, monkeypatch)
    else:
        path.write_bytes(CONTENTS[kind][0])


def deny_reading(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file be unreadable, also for root."""
    opening = os.open

    def open_or_refuse(name: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(name) == os.fspath(path):
            raise PermissionError(13, os.strerror(13), os.fspath(name))
        return opening(name, *arguments, **options)

    monkeypatch.setattr(os, "open", open_or_refuse)


FORMS: dict[str, Callable[[Path], Any]] = {
    "folder": lambda folder: folder,
    "pattern": lambda folder: folder / "*",
    "list": lambda folder: sorted(folder.iterdir()),
    "URL of the folder": lambda folder: f"local://{folder}",
    "URL of a pattern": lambda folder: f"local://{folder}/*",
    "URLs": lambda folder: [f"local://{path}" for path in sorted(folder.iterdir())],
}


LOCAL = ("link", "denied")
"""Kinds of files of which a storage of fsspec knows nothing."""
CASES = [
    (kind, suffix, form)
    for kind, suffix, form in itertools.product(REASONS, paths.CAPTURE_SUFFIXES, FORMS)
    if kind not in LOCAL or "URL" not in form
]


def load_with_warnings(named: Any, **options: Any) -> tuple[tk.TraceSet, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TracekitWarning)
        traces = tk.load_many(named, **options)
    return traces, [str(w.message) for w in caught]


@pytest.mark.many(12)
@pytest.mark.parametrize(("kind", "suffix", "form"), CASES)
def test_a_file_named_like_a_capture_is_named_with_its_reason(
    kind: str, suffix: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path, 2)
    bad = tmp_path / f"rank2{suffix}"
    write_bad(bad, kind, monkeypatch)
    named = FORMS[form](tmp_path)
    traces, messages = load_with_warnings(named)
    assert traces.ranks == [0, 1]
    about = [message for message in messages if bad.name in message]
    assert len(about) == 1
    assert about[0].startswith(f"{bad}: the capture was skipped, because it cannot be read: ")
    with pytest.raises((TracekitError, OSError), match=bad.name):
        tk.load_many(named, strict=True)
    assert re.search("folder|no file matches this URL" if kind == "folder" else REASONS[kind], about[0])


@pytest.mark.parametrize("form", FORMS)
def test_files_that_are_no_captures_are_counted_in_one_line(form: str, tmp_path: Path) -> None:
    write_ranks(tmp_path, 2)
    for number in range(7):
        (tmp_path / f"log{number}.json").write_text("[1, 2]")
    (tmp_path / ".hidden").write_text("nothing")
    named = sorted(tmp_path.glob("[lr]*")) if form == "list" else FORMS[form](tmp_path)
    if form == "URLs":
        named = [f"local://{path}" for path in sorted(tmp_path.glob("[lr]*"))]
    traces, messages = load_with_warnings(named)
    assert traces.ranks == [0, 1]
    names = "log0.json, log1.json, log2.json, log3.json, log4.json, …"
    expected = f"7 other files and folders were skipped, because no reader recognizes the content: {names}"
    assert [m for m in messages if "hidden" not in m] == [expected]
    assert load_with_warnings(named, strict=True)[0].ranks == [0, 1]


def test_damaged_captures_are_skipped_with_their_reason(tmp_path: Path) -> None:
    for name in ("mpi_rank0.nsys-rep", "mpi_rank1.nsys-rep"):
        shutil.copy(RANKS / name, tmp_path / name)
    (tmp_path / "rank2.nsys-rep").write_bytes((RANKS / "mpi_rank0.nsys-rep").read_bytes()[:40_000])
    shutil.copy(FIXTURES / "empty.sqlite", tmp_path / "rank3.sqlite")
    os.truncate(tmp_path / "rank3.sqlite", 5000)
    for form in FORMS.values():
        traces, messages = load_with_warnings(form(tmp_path))
        assert traces.ranks == [0, 1]
        assert len(traces.errors) == 2
        assert sum("the capture was skipped" in m for m in messages) == len(messages) == 2
    with pytest.raises(TracekitError, match=r"rank[23]\."):
        tk.load_many(tmp_path, strict=True)


def test_without_any_capture_the_reasons_are_the_error(tmp_path: Path) -> None:
    (tmp_path / "rank0.nsys-rep").write_bytes(POINTER)
    for form in FORMS.values():
        with pytest.raises(
            UnknownFormatError, match=r"rank0\.nsys-rep: this is a Git LFS pointer.*\nHint: run: git lfs"
        ):
            tk.load_many(form(tmp_path))
    (tmp_path / "rank1.sqlite").write_bytes(b"")
    for form in FORMS.values():
        with pytest.raises(
            UnknownFormatError, match=r"none of 2 files can be read: rank0\.nsys-rep: .*; rank1\.sqlite: "
        ):
            tk.load_many(form(tmp_path))


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    write_ranks(tmp_path, 2)
    with pytest.raises(FileNotFoundError):
        tk.load_many([tmp_path / "rank0.pt.trace.json", tmp_path / "rank2.pt.trace.json"])
    with pytest.raises(FileNotFoundError):
        tk.load_many([f"local://{tmp_path}/rank0.pt.trace.json", f"local://{tmp_path}/rank2.pt.trace.json"])


def test_ranks_of_skipped_files_are_ignored(tmp_path: Path) -> None:
    write_ranks(tmp_path, 2)
    (tmp_path / "c.nsys-rep").write_bytes(b"")
    ranks = {"rank0.pt.trace.json": 1, "rank1.pt.trace.json": 0, "c.nsys-rep": 2}
    traces, messages = load_with_warnings(tmp_path, ranks=ranks)
    assert traces.ranks == [0, 1]
    assert len(messages) == 1
    with pytest.raises(TracekitError, match=r"'d\.nsys-rep', which matches no capture"):
        load_with_warnings(tmp_path, ranks={**ranks, "d.nsys-rep": 3})


class TestFormsOfOneRun:
    """A report and its exports, or a trace and its compressed copy, are one rank."""

    @pytest.mark.parametrize("form", FORMS)
    def test_the_report_is_read(self, form: str, tmp_path: Path) -> None:
        for name in ("mpi_rank0.nsys-rep", "mpi_rank0.sqlite"):
            shutil.copy(FIXTURES / name, tmp_path / name)
        if "URL" not in form:
            shutil.copytree(FIXTURES / "train_amp_parquetdir", tmp_path / "mpi_rank0_pqtdir")
        shutil.copy(RANKS / "mpi_rank1.nsys-rep", tmp_path)
        traces, messages = load_with_warnings(FORMS[form](tmp_path))
        assert [m.name for m in traces.captures] == ["mpi_rank0.nsys-rep", "mpi_rank1.nsys-rep"]
        assert len(messages) == 1
        assert "mpi_rank0.nsys-rep is read instead of mpi_rank0" in messages[0]

    def test_the_export_is_read_if_the_report_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "mpi_rank0.nsys-rep").write_bytes(b"")
        shutil.copy(FIXTURES / "mpi_rank0.sqlite", tmp_path)
        shutil.copy(RANKS / "mpi_rank1.nsys-rep", tmp_path)
        traces, messages = load_with_warnings(tmp_path)
        assert [m.name for m in traces.captures] == ["mpi_rank0.sqlite", "mpi_rank1.nsys-rep"]
        assert [m.partition(": ")[0] for m in messages] == [str(tmp_path / "mpi_rank0.nsys-rep")]

    def test_of_a_trace_and_its_compressed_copy_the_trace_is_read(self, tmp_path: Path) -> None:
        import gzip

        write_ranks(tmp_path, 2)
        with gzip.open(tmp_path / "rank0.pt.trace.json.gz", "wb") as file:
            file.write((tmp_path / "rank0.pt.trace.json").read_bytes())
        traces, messages = load_with_warnings(tmp_path)
        assert [m.name for m in traces.captures] == ["rank0.pt.trace.json", "rank1.pt.trace.json"]
        assert "rank0.pt.trace.json is read instead of rank0.pt.trace.json.gz" in messages[0]

    def test_other_files_of_one_name_are_not_one_run(self, tmp_path: Path) -> None:
        """A name alone does not make a database of DLProf an export of the report."""
        formats = {
            tmp_path / "a.nsys-rep": "nsys-rep",
            tmp_path / "a.sqlite": "dlprof-db",
            tmp_path / "b.nsys-rep": "nsys-rep",
            tmp_path / "b.qdrep": "nsys-rep",
            tmp_path / "b.sqlite": "nsys-sqlite",
            tmp_path / "b.nsys-rep.sqlite": "nsys-sqlite",
            tmp_path / "c" / "b.sqlite": "nsys-sqlite",
        }
        assert paths.find_replaced_captures(formats) == {
            tmp_path / name: tmp_path / "b.nsys-rep" for name in ("b.sqlite", "b.nsys-rep.sqlite")
        }

    def test_traces_beside_profiles_of_xla_are_the_same_run(self, tmp_path: Path) -> None:
        names = ["a.xplane.pb", "a.trace.json.gz", "b.xplane.pb", "perfetto_trace.json.gz", "c/d.trace.json.gz"]
        formats = {tmp_path / name: "xplane" for name in names} | {tmp_path / "model.pb": "graphdef"}
        assert paths.find_replaced_captures(formats) == {
            tmp_path / name: tmp_path / "a.xplane.pb" for name in ("a.trace.json.gz", "perfetto_trace.json.gz")
        }


class TestReplacedMembers:
    """A member that another file replaces after the set was loaded is an error that names it."""

    def write(self, folder: Path) -> tk.TraceSet:
        for name in ("mpi_rank0.nsys-rep", "mpi_rank1.nsys-rep"):
            shutil.copy(RANKS / name, folder / name)
        return tk.load_many(folder)

    @pytest.mark.parametrize(
        "use",
        [
            lambda s: s.frame("kernels").collect(),
            lambda s: s.stats("cuda_gpu_kern_sum"),
            lambda s: s.count("kernels"),
            lambda s: s.open(0),
            lambda s: s.recipe("cuda_gpu_kern_sum"),
            lambda s: s.correlate().select(ranks=[0]).table("kernels"),
        ],
    )
    def test_is_an_error(self, use: Callable[[tk.TraceSet], Any], tmp_path: Path) -> None:
        traces = self.write(tmp_path)
        assert traces.members
        shutil.copy(FIXTURES / "ddp2.nsys-rep", tmp_path / "new").replace(tmp_path / "mpi_rank0.nsys-rep")
        with pytest.raises(
            TracekitError,
            match=r"mpi_rank0\.nsys-rep: the file has changed since the set was loaded\nHint: load it again",
        ):
            use(traces)

    def test_of_ranks_that_were_given(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        traces = tk.load_many(tmp_path, ranks={"mpi_rank0": 0, "mpi_rank1": 1})
        (tmp_path / "mpi_rank1.nsys-rep").write_bytes((RANKS / "mpi_rank0.nsys-rep").read_bytes())
        with pytest.raises(TracekitError, match=r"mpi_rank1\.nsys-rep: the file has changed"):
            traces.count("kernels")

    def test_that_is_a_folder(self, tmp_path: Path) -> None:
        folder = shutil.copytree(FIXTURES / "train_amp_parquetdir", tmp_path / "rank0_pqtdir")
        traces = tk.load_many(folder)
        assert traces.count("kernels")
        file = next(iter(sorted(folder.iterdir())))
        file.write_bytes(file.read_bytes() + b"0")
        with pytest.raises(TracekitError, match="rank0_pqtdir: the folder has changed since the set was loaded"):
            traces.count("kernels")

    @pytest.mark.parametrize("change", ["size", "content"])
    def test_at_a_url(self, change: str, tmp_path: Path) -> None:
        """This machine reads the copy that ``load_many`` downloaded. Other machines download the file again."""
        self.write(tmp_path)
        loaded = tk.load_many(f"local://{tmp_path}")
        traces = tk.TraceSet([dataclasses.replace(member, kept_copy=None) for member in loaded.captures])
        assert traces.count("kernels") == 30
        file = tmp_path / "mpi_rank0.nsys-rep"
        content = file.read_bytes()
        other = (FIXTURES / "ddp2.nsys-rep").read_bytes()
        file.write_bytes(other if change == "size" else other[: len(content) // 2] + content[len(content) // 2 :])
        with pytest.raises(TracekitError, match=r"mpi_rank0\.nsys-rep: the (size of the )?file (has )?changed"):
            traces.count("kernels")

    def test_that_was_removed(self, tmp_path: Path) -> None:
        traces = self.write(tmp_path)
        (tmp_path / "mpi_rank0.nsys-rep").unlink()
        with pytest.raises(FileNotFoundError, match=r"mpi_rank0\.nsys-rep"):
            traces.count("kernels")


class TestEqualNames:
    """Two members with one file name can be told apart by their folders, as the hint says."""

    def write(self, folder: Path) -> list[Path]:
        files = [folder / node / "run" / "trace.nsys-rep" for node in ("node0", "node1")]
        for file in files:
            file.parent.mkdir(parents=True)
            shutil.copy(FIXTURES / "mpi_rank0.nsys-rep", file)
        return files

    def test_the_hint_is_true(self, tmp_path: Path) -> None:
        files = self.write(tmp_path)
        with pytest.raises(TracekitError) as raised:
            tk.load_many(files)
        assert "2 captures have rank 0: node0/run/trace.nsys-rep (by MPI), node1/run/trace.nsys-rep (by MPI)" in str(
            raised.value
        )
        name = "node1/run/trace.nsys-rep"
        assert f"ranks={{'{name}': N}} or --rank {name}=N" in str(raised.value.hint)
        assert [m.path for m in tk.load_many(files, ranks={name: 1}).captures] == files

    def test_a_name_of_both_is_an_error_that_lists_them(self, tmp_path: Path) -> None:
        files = self.write(tmp_path)
        for name in ("trace.nsys-rep", "trace", "run/trace.nsys-rep"):
            with pytest.raises(
                TracekitError,
                match=r"matches 2 captures\nHint: choose one of the captures node0/run/trace\.nsys-rep, node1/run",
            ):
                tk.load_many(files, ranks={name: 1})

    def test_ranks_of_all_are_read_from_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = self.write(tmp_path)
        monkeypatch.chdir(tmp_path)
        names = {"node1/run/trace.nsys-rep": 0, str(files[0]): 1}
        traces = tk.load_many(files, ranks=names)
        assert [(m.path, m.is_read) for m in traces.captures] == [(files[1], False), (files[0], False)]


def test_a_member_without_a_stamp_is_not_checked(tmp_path: Path) -> None:
    Member(tmp_path / "gone", 0, "nsys-rep").check_unchanged()


def test_suffixes_of_captures() -> None:
    assert all(paths.has_capture_suffix(f"A{suffix.upper()}") for suffix in paths.CAPTURE_SUFFIXES)
    assert not any(map(paths.has_capture_suffix, ("a.json", "a.json.gz", "a.csv", "a.pb", "a.parquet", "sqlite")))
