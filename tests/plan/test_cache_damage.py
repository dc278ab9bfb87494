"""The cache uses and deletes only what tracekit wrote, and damage never changes the rows that are read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import FIXTURES
from tracekit.cli import cli
from tracekit.plan import cache
from tracekit.plan.cache import capture as cached_capture
from tracekit.plan.cache import folder as cache_folder
from tracekit.plan.cache import identity, seal
from tracekit.system import files

EXPORT = FIXTURES / "train_amp.sqlite"
CAPTURES = {
    "nsys-sqlite": EXPORT,
    "nsys-rep": FIXTURES / "ranks" / "mpi_rank0.nsys-rep",
    "kineto": FIXTURES / "kineto" / "train.pt.trace.json.gz",
}
"""A capture of each format that is cached."""
TABLES = {
    "kernels": ["start_ns", "name"],
    "api_calls": ["start_ns", "name"],
    "nvtx_ranges": ["name", "start_ns", "end_ns"],
    "processes": ["process_id"],
}


@pytest.fixture(scope="module", autouse=True)
def small_files_are_cached() -> Iterator[None]:
    """Cache files of any size at once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cached_capture, "SMALLEST", 0)
        patched.setattr(files, "SETTLED_NS", -(10**12))
        patched.setenv("TRACEKIT_CACHE", "on")
        yield


def read(folder: Path | None, path: Path = EXPORT) -> dict[str, pa.Table]:
    """Read some tables with the cache in a folder, or without a cache if the folder is None."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRACEKIT_CACHE_DIR", str(folder))
        with tk.load(path, cache=folder is not None) as trace:
            counts = pa.table({name: [trace.count(name)] for name in TABLES})
            return {"counts": counts} | {name: trace.table(name, columns) for name, columns in TABLES.items()}


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module", params=CAPTURES)
def capture(request: pytest.FixtureRequest) -> Path:
    """A capture of each format that is cached, in turn."""
    return CAPTURES[request.param]


@pytest.fixture(scope="module")
def expected() -> dict[str, pa.Table]:
    return read(None)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one capture of each format."""
    folder = tmp_path_factory.mktemp("stored") / "cache"
    for path in CAPTURES.values():
        read(folder, path)
    return folder


@pytest.fixture(scope="module")
def rows(capture: Path) -> dict[str, pa.Table]:
    """The tables of the capture, read without the cache."""
    return read(None, capture)


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "cache"))


def clear(folder: Path) -> tuple[str, str]:
    result = CliRunner().invoke(cli, ["cache", "--clear", "--format", "json"], env={"TRACEKIT_CACHE_DIR": str(folder)})
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_every_cached_format_is_tested(stored: Path) -> None:
    assert CAPTURES.keys() == set(cached_capture.FORMATS)
    for name, path in CAPTURES.items():
        assert {file.name.partition(".")[0] for file in stored.glob(f"v1/*/{name}-*/*")} >= {*TABLES, "metadata"}
        assert all(table.num_rows for table in read(None, path).values())


@given(data=st.data())
def test_damage_never_changes_rows(
    data: st.DataObject,
    capture: Path,
    stored: Path,
    rows: dict[str, pa.Table],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = Path(shutil.copytree(stored, tmp_path_factory.mktemp("damaged") / "cache"))
    files = list_files(folder)
    for path in data.draw(st.lists(st.sampled_from(list_files_of(capture, folder)), min_size=1, max_size=4)):
        content = bytearray(path.read_bytes())
        kind = data.draw(st.sampled_from(["flip", "truncate", "append", "other file", "zeros", "swap ends"]))
        if kind == "flip":
            for _ in range(data.draw(st.integers(1, 3))):
                content[data.draw(st.integers(0, len(content) - 1)) if content else 0] ^= data.draw(st.integers(1, 255))
        elif kind == "truncate":
            del content[data.draw(st.integers(0, len(content))) :]
        elif kind == "append":
            content += data.draw(st.binary(min_size=1, max_size=80))
        elif kind == "other file":
            content = bytearray(data.draw(st.sampled_from(files)).read_bytes())
        elif kind == "zeros":
            content = bytearray(len(content))
        else:
            content = content[len(content) // 2 :] + content[: len(content) // 2]
        path.write_bytes(content or b"x")
        path.chmod(data.draw(st.sampled_from([0o600, 0o400, 0o620, 0o666])))
    for _ in range(2):
        assert read(folder, capture) == rows
    shutil.rmtree(folder.parent)


def list_files_of(capture: Path, folder: Path) -> list[Path]:
    """List the files of the cache that are read for a capture: its columns, its metadata and its digest."""
    (entry,) = folder.glob(f"v1/*/*-{capture.stat().st_size}-*")
    return [*list_files(entry), folder / "known" / f"{identity.hash_path(capture)}.json"]


@pytest.mark.parametrize("kind", ["truncated", "bit flip", "zeros", "swapped", "mode"])
def test_each_kind_of_damage_to_all_files(capture: Path, folder: Path, rows: dict[str, pa.Table], kind: str) -> None:
    files = list_files_of(capture, folder)
    contents = [path.read_bytes() for path in files]
    for number, path in enumerate(files):
        content = contents[number]
        if kind == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif kind == "bit flip":
            path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        elif kind == "zeros":
            path.write_bytes(bytes(len(content)))
        elif kind == "swapped":
            path.write_bytes(contents[number - 1])
        else:
            path.chmod(0o666)
    for _ in range(2):
        assert read(folder, capture) == rows


def test_entries_that_are_swapped(folder: Path, tmp_path: Path) -> None:
    """Entries of captures, with the files that tracekit wrote in them, are exchanged in a circle."""
    entries = sorted(folder.glob("v1/*/*"))
    assert len(entries) == len(CAPTURES)
    for number, entry in enumerate(entries):
        entry.rename(tmp_path / str(number))
    for number in range(len(entries)):
        (tmp_path / str(number)).rename(entries[number - 1])
    for _ in range(2):
        for path in CAPTURES.values():
            assert read(folder, path) == read(None, path)


def test_entries_of_other_users_are_not_used(
    capture: Path, folder: Path, rows: dict[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(seal, "is_intact", lambda *_: pytest.fail("a file of another user was read"))
    cache_folder._reported.clear()
    with pytest.warns(tk.TracekitWarning, match="another user owns it"):
        assert read(folder, capture) == rows


def test_a_damaged_file_is_deleted_and_stored_again(
    folder: Path, expected: dict[str, pa.Table], caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = (p for p in folder.rglob("kernels.*.columns") if "nsys-sqlite" in p.parent.name)
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with caplog.at_level(logging.DEBUG, "tracekit"):
        assert read(folder) == expected
    assert "is damaged and is deleted" in caplog.text
    assert path.read_bytes() == content
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "tracekit"):
        assert read(folder) == expected
    assert not caplog.records


def test_a_file_without_a_trailer_is_neither_used_nor_replaced(folder: Path, expected: dict[str, pa.Table]) -> None:
    for path in list_files(folder):
        path.write_bytes(b"notes of the user")
    for _ in range(2):
        assert read(folder) == expected
    assert [p.read_bytes() for p in list_files(folder) if b"notes" in p.read_bytes()] == [b"notes of the user"] * len(
        [p for p in list_files(folder) if ".1." not in p.name]
    )
    assert [p for p in list_files(folder) if ".1." in p.name]
    assert "files and folders in the cache were not deleted" in "".join(map(str, _warnings_of(lambda: clear(folder))))
    assert {p.read_bytes() for p in list_files(folder)} == {b"notes of the user"}


def _warnings_of(call: Callable[[], object]) -> list[Warning | str]:
    with pytest.warns(tk.TracekitWarning) as recorded:
        call()
    return [warning.message for warning in recorded]


@pytest.mark.parametrize("mode", [0o622, 0o660, 0o606])
def test_files_that_others_can_write_are_not_used(folder: Path, expected: dict[str, pa.Table], mode: int) -> None:
    for path in list_files(folder):
        path.chmod(mode)
        with pytest.raises(seal.NotSealedError, match="another user owns it or can write to it"):
            seal.open_sealed(path, path.relative_to(folder).as_posix())
    assert read(folder) == expected
    clear(folder)
    assert list_files(folder) == []


@pytest.mark.parametrize("level", ["v1", "v1/*", "v1/*/*", "known"])
def test_folders_that_others_can_write_are_not_used(
    folder: Path, expected: dict[str, pa.Table], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(seal, "is_intact", lambda _, place: opened.append(Path(place)) or False)
    for path in folder.glob(level):
        path.chmod(0o777)
    with pytest.warns(tk.TracekitWarning, match="is not used, because it is a link, or another user owns it"):
        assert read(folder) == expected
    assert not [path for path in opened if path.match(f"{level}/*")]


def test_entries_of_other_users_are_neither_used_nor_deleted(
    folder: Path, expected: dict[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in list_files(folder)}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.warns(tk.TracekitWarning):
        assert read(folder) == expected
    with pytest.warns(tk.TracekitWarning, match=r"\d+ files and folders in the cache were not deleted"):
        assert cache.CacheFolder(folder).delete_entries() == []
    assert {path: path.read_bytes() for path in list_files(folder)} == before


def test_an_entry_that_is_a_link_is_not_used(folder: Path, expected: dict[str, pa.Table], tmp_path: Path) -> None:
    for number, path in enumerate(folder.glob("v1/*/*")):
        path.rename(tmp_path / f"moved{number}")
        path.symlink_to(tmp_path / f"moved{number}")
    moved = list_files(tmp_path / "moved0")
    assert moved
    with pytest.warns(tk.TracekitWarning, match="it is a link"):
        assert read(folder) == expected
    clear(folder)
    assert list_files(tmp_path / "moved0") == moved


def test_links_and_pipes_instead_of_files(folder: Path, expected: dict[str, pa.Table], tmp_path: Path) -> None:
    for number, path in enumerate(list_files(folder)):
        path.rename(tmp_path / f"{number}")
        os.mkfifo(path) if number % 2 else path.symlink_to(tmp_path / f"{number}")
    for _ in range(2):
        assert read(folder) == expected
    assert _warnings_of(lambda: clear(folder))
    assert all(os.path.lexists(tmp_path / str(number)) for number in range(2))
    assert not [p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()]


class TestClear:
    """``tracekit cache --clear`` and the limit delete only files that tracekit wrote."""

    @pytest.mark.parametrize("keep", [32, 63, 64, 65, 127, 128, -64, -1])
    def test_truncated_files_are_deleted(self, folder: Path, keep: int) -> None:
        notes = next(folder.glob("v1/*/*")) / "notes.columns"
        notes.write_bytes(b"tracekit-cache\x02\n" + bytes(200))
        for path in list_files(folder):
            if path != notes:
                path.write_bytes(path.read_bytes()[:keep])
        assert _warnings_of(lambda: clear(folder))
        assert list_files(folder) == [notes]

    def test_files_that_are_cut_to_nothing_stay(self, folder: Path) -> None:
        path = list_files(folder)[-1]
        path.write_bytes(path.read_bytes()[:31])
        clear(folder) if "known" in path.parts else _warnings_of(lambda: clear(folder))
        assert list_files(folder) == [path]

    def test_files_of_the_version_before_are_not_used_and_deleted(
        self, folder: Path, expected: dict[str, pa.Table], caplog: pytest.LogCaptureFixture
    ) -> None:
        """They have no header, and a trailer with another constant."""
        files = list_files(folder)
        for path in files:
            place, content = path.relative_to(folder).as_posix(), path.read_bytes()[64:-64]
            size = len(content)
            digest = hashlib.blake2b(f"{place}\0{size}".encode(), digest_size=16).digest()
            path.write_bytes(content + b"tracekit-cache\x01\n" + size.to_bytes(8, "little") + digest + bytes(24))
        old = {path: path.read_bytes() for path in files}
        other = Path(shutil.copytree(folder, folder.parent / "other"))
        clear(other)
        assert list_files(other) == []
        with caplog.at_level(logging.DEBUG, "tracekit"):
            assert read(folder) == expected
        assert "is damaged and is deleted" in caplog.text
        read_again = [p for p in list_files_of(EXPORT, folder) if p.name.startswith("kernels")]
        assert read_again
        assert not [p for p in read_again if p.read_bytes() == old[p]]

    def test_files_of_the_user_stay(self, folder: Path) -> None:
        names = (
            "notes",
            "v1/notes",
            "v1/data/notes",
            "v1/data/nsys-rep-5-abc/notes.columns",
            "known/notes.json",
            f"known/{'0' * 32}.json",
            *(f"{path.relative_to(folder)}/kernels.{'0' * 16}.columns" for path in folder.glob("v1/*/*")),
            *(f"{path.relative_to(folder)}/sub/metadata.json" for path in folder.glob("v1/*/*")),
        )
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"of the user: {name}")
        (folder / "empty").mkdir()
        assert f"{2 * len(CAPTURES)} files and folders in the cache were not deleted" in str(
            _warnings_of(lambda: clear(folder))
        )
        assert [p.relative_to(folder).as_posix() for p in list_files(folder)] == sorted(names, key=Path)
        assert all((folder / name).read_text() == f"of the user: {name}" for name in names)
        assert (folder / "empty").is_dir()

    def test_a_folder_without_a_cache(self, tmp_path: Path) -> None:
        for name in ("v1/16charsofversion/thesis.pdf", "known/people.json", "v1/project/src/main.py"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("of the user")
        before = sorted(tmp_path.rglob("*"))
        assert json.loads(clear(tmp_path)[0]) == []
        assert sorted(tmp_path.rglob("*")) == before

    def test_what_links_refer_to_stays(self, folder: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        for name in ("v1", "known"):
            (folder / name).rename(tmp_path / name)
            (folder / name).symlink_to(tmp_path / name)
        shutil.copytree(tmp_path / "v1", outside)
        before = list_files(tmp_path)
        clear(folder)
        cache.CacheFolder(folder, limit=0).delete_excess_entries()
        assert list_files(tmp_path) == before

    def test_a_copied_file_stays(self, folder: Path) -> None:
        (first, *_) = folder.glob("v1/*/*/metadata.json")
        copy = first.with_name("copy.json")
        shutil.copy(first, copy)
        assert _warnings_of(lambda: clear(folder))
        assert list_files(folder) == [copy]

    def test_the_limit_deletes_no_files_of_the_user(self, folder: Path) -> None:
        kept = [path / "notes" for path in folder.glob("v1/*/*")]
        for path in kept:
            path.write_text("of the user")
        cache.CacheFolder(folder, limit=0).delete_excess_entries()
        assert [p for p in list_files(folder) if p.parent.parent.parent.name == "v1"] == sorted(kept)
        assert cache.CacheFolder(folder).list_entries() == []

    def test_a_file_that_is_replaced_in_the_last_moment_stays(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = cache_folder.deletion.delete

        def replace_before(path: Path, which: tuple[int, int]) -> bool:
            path.with_suffix(".new").write_text("of the user")
            path.with_suffix(".new").rename(path)
            return real(path, which)

        number = len(list_files(folder))
        monkeypatch.setattr(cache_folder.deletion, "delete", replace_before)
        clear(folder)
        assert [p.read_text() for p in list_files(folder)] == ["of the user"] * number

    def test_damaged_and_unlisted_entries_are_cleared(self, folder: Path) -> None:
        for path in folder.glob("v1/*/*/source.json"):
            path.write_bytes(b"x" + path.read_bytes()[1:])
        assert len(json.loads(clear(folder)[0])) == len(CAPTURES)
        assert list_files(folder) == []


def test_files_are_private(stored: Path) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in stored.rglob("*")}
    assert modes == {0o600, 0o700}


def test_the_umask_does_not_make_the_cache_public(
    tmp_path: Path, expected: dict[str, pa.Table], caplog: pytest.LogCaptureFixture
) -> None:
    before = os.umask(0)
    try:
        with caplog.at_level(logging.DEBUG, "tracekit"):
            for _ in range(2):
                assert read(tmp_path / "cache") == expected
    finally:
        os.umask(before)
    assert not caplog.records
    assert cache.CacheFolder(tmp_path / "cache").list_entries()
