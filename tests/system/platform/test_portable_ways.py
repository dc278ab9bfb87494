"""The ways that work on every system do the same as the special ones of Linux."""

from __future__ import annotations

import errno
import functools
import io
import os
import subprocess
import sys
import threading
import types
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.system.platform import simulated
from tracekit.errors import ExportError
from tracekit.plan.cache import seal
from tracekit.sets import ranks, recording
from tracekit.system import interrupts, memory, targets
from tracekit.system.files import FileState, InputFile
from tracekit.system.platform import (
    console,
    file_names,
    locks,
    memory_size,
    open_files,
    ownership,
    positional_reads,
    processes,
    renames,
    temporary_files,
)
from tracekit.system.targets import workspaces
from tracekit.system.targets.rename import rename_without_replacing

if TYPE_CHECKING:
    from collections.abc import Callable


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="simulates another system on Linux")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> simulated.Kernel32:
    """A process in which the modules and functions of Windows exist, and those of Linux do not."""
    return simulated.install_windows(functools.partial(monkeypatch.setattr, raising=False), monkeypatch.delattr)


@pytest.fixture(params=["pread", "seek"])
def positions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads with and without ``pread``."""
    if request.param == "seek":
        monkeypatch.delattr(os, "pread", raising=False)
        monkeypatch.delattr(os, "preadv", raising=False)


@pytest.mark.usefixtures("positions")
class TestReads:
    def test_many_threads_read_from_one_descriptor(self, tmp_path: Path) -> None:
        content = np.arange(1 << 14, dtype=np.uint32)
        (tmp_path / "file").write_bytes(content.tobytes())
        failed = []
        with InputFile(tmp_path / "file") as file:

            def read(start: int) -> None:
                for row in range(start, len(content), 16 * 37):
                    target = bytearray(4)
                    file.read_into(4 * row, memoryview(target))
                    if not target == file.read(4 * row, 4) == content[row].tobytes():
                        failed.append(row)

            threads = [threading.Thread(target=read, args=(37 * number,)) for number in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failed == []

    def test_a_short_read_at_the_end(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"0123456789")
        with (tmp_path / "file").open("rb") as file:
            assert positional_reads.read_at(file.fileno(), 8, 5) == b"89"
            assert positional_reads.read_at(file.fileno(), 10, 5) == b""
            target = bytearray(b"....")
            assert positional_reads.read_into(file.fileno(), 7, memoryview(target)) == 3
            assert target == b"789."

    def test_a_sealed_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.columns"
        path.write_bytes(seal.create_header("a.columns") + b"content")
        seal.append_trailer(path, "a.columns")
        sealed = seal.open_sealed(path, "a.columns")
        with sealed.file as file:
            assert seal.is_intact(sealed, "a.columns")
            file.seek(seal.HEADER_BYTES)
            assert file.read(sealed.size) == b"content"


@needs_linux
class TestEntries:
    def test_a_link_is_not_followed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_bytes(b"content")
        (tmp_path / "link").symlink_to("file")
        for has_flag in (True, False):
            if not has_flag:
                monkeypatch.delattr(os, "O_NOFOLLOW")
            descriptor = open_files.open_entry_for_reading(tmp_path / "file")
            assert os.read(descriptor, 7) == b"content"
            os.close(descriptor)
            with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
                open_files.open_entry_for_reading(tmp_path / "link")

    def test_a_link_that_replaces_the_file_in_the_last_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_bytes(b"content")
        (tmp_path / "secret").write_bytes(b"secret")
        monkeypatch.delattr(os, "O_NOFOLLOW")
        real = os.open

        def replace_and_open(path: Path, *arguments: int) -> int:
            path.unlink()
            path.symlink_to("secret")
            return real(path, *arguments)

        monkeypatch.setattr(os, "open", replace_and_open)
        count = sum(1 for _ in Path("/proc/self/fd").iterdir())
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            open_files.open_entry_for_reading(tmp_path / "file")
        assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == count

    def test_bytes_are_appended_unchanged(self, tmp_path: Path) -> None:
        for _ in range(2):
            descriptor = open_files.open_for_appending(tmp_path / "log")
            os.write(descriptor, b"line\n")
            os.close(descriptor)
        assert (tmp_path / "log").read_bytes() == b"line\nline\n"

    def test_the_owner_is_not_compared_without_user_numbers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tmp_path.chmod(0o777)
        status = tmp_path.stat()
        assert (ownership.is_own(status), ownership.can_others_write(status)) == (True, True)
        monkeypatch.setattr(os, "geteuid", lambda: -1)
        assert not ownership.is_own(status)
        monkeypatch.delattr(os, "geteuid")
        assert (ownership.is_own(status), ownership.can_others_write(status)) == (True, False)


@needs_linux
class TestRenames:
    @pytest.fixture(autouse=True)
    def _without_the_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(renames, "_find_c_rename_function", lambda: None)

    def test_a_file_gets_its_new_name_only_if_it_is_free(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("a")
        assert renames.rename_exclusively(tmp_path / "a", tmp_path / "b")
        (tmp_path / "a").write_text("other")
        with pytest.raises(FileExistsError):
            renames.rename_exclusively(tmp_path / "a", tmp_path / "b")
        assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "other", "b": "a"}

    @pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
    def test_a_file_system_without_second_names(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "link", fail)
        (tmp_path / "a").write_text("a")
        assert not renames.rename_exclusively(tmp_path / "a", tmp_path / "b")
        rename_without_replacing(tmp_path / "a", tmp_path / "b")
        (tmp_path / "a").write_text("other")
        with pytest.raises(FileExistsError):
            rename_without_replacing(tmp_path / "a", tmp_path / "b")
        assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "other", "b": "a"}

    def test_a_file_in_use_is_renamed_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pauses: list[float] = []
        monkeypatch.setattr(renames.time, "sleep", pauses.append)

        def fail(times: int, winerror: int | None) -> Callable[[], str]:
            def action() -> str:
                if len(pauses) < times:
                    error = PermissionError(errno.EACCES, "in use")
                    error.winerror = winerror  # type: ignore[attr-defined]
                    raise error
                return "renamed"

            return action

        assert renames.repeat_while_in_use(fail(3, 32)) == "renamed"
        assert len(pauses) == 3
        with pytest.raises(PermissionError):
            renames.repeat_while_in_use(fail(10, None))
        with pytest.raises(PermissionError):
            renames.repeat_while_in_use(fail(10**6, 5))
        assert sum(pauses) <= 1.1


@needs_linux
@pytest.mark.usefixtures("windows")
class TestWindows:
    def test_locks(self, tmp_path: Path) -> None:
        assert (locks.has_locks(), locks.can_delete_locked_files()) == (True, False)
        first, second = (open_files.create_for_locking(tmp_path / "lock") for _ in range(2))
        assert (locks.try_to_lock(first), locks.try_to_lock(second)) == (True, False)
        os.close(first)
        assert locks.try_to_lock(second)
        os.close(second)
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            locks.try_to_lock(second)

    def test_a_workspace_is_unlocked_before_it_is_deleted(self, tmp_path: Path) -> None:
        left = tmp_path / ".tracekit-0123abcd.partial"
        left.mkdir()
        (left / "lock").touch()
        with workspaces.create_workspace(tmp_path) as folder, workspaces.create_workspace(tmp_path) as other:
            assert sorted(tmp_path.iterdir()) == sorted([folder, other])
        assert list(tmp_path.iterdir()) == []

    def test_a_workspace_that_another_process_is_deleting_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, marked = Path.mkdir, []

        def mark(self: Path, *arguments: int, **options: bool) -> None:
            real(self, *arguments, **options)
            if not marked:
                marked.append(self)
                (self / "abandoned").touch()

        monkeypatch.setattr(Path, "mkdir", mark)
        with workspaces.create_workspace(tmp_path) as folder:
            assert folder not in marked
        assert list(tmp_path.iterdir()) == []

    def test_a_signal_deletes_the_workspace(self, tmp_path: Path) -> None:
        before = len(interrupts._cleanups)
        with workspaces.create_workspace(tmp_path) as folder:
            (folder / "file").touch()
            interrupts._cleanups[before]()
            assert list(tmp_path.iterdir()) == []

    def test_outputs(self, tmp_path: Path) -> None:
        for text in ("first", "second"):
            with targets.open_atomic_output(tmp_path / "out.json", overwrite=True) as new:
                new.write_text(text)
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("out.json", "second")]

    @pytest.mark.parametrize("name", ["NUL", "con.json", "COM1.csv", "lpt9 .txt", "a.", "a ", "a:b", "a?", "CONOUT$"])
    def test_names_of_devices_are_no_outputs(self, tmp_path: Path, name: str) -> None:
        with (
            pytest.raises(ExportError, match="Windows does not accept this name of a file\nHint: choose another name"),
            targets.open_atomic_output(tmp_path / name),
        ):
            pass

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("report.nsys-rep", "report.nsys-rep"),
            ("NUL.json.gz", "_NUL.json.gz"),
            ("a:b?.json", "a_b_.json"),
            (". .", "_"),
            ("COM10.json", "COM10.json"),
            ("console.json", "console.json"),
            ("x" * 500 + ".pt.trace.json.gz", "x" * 103 + ".pt.trace.json.gz"),
        ],
    )
    def test_names_of_temporary_files(self, name: str, expected: str) -> None:
        assert file_names.create_file_name(name) == expected
        assert not file_names.is_reserved(expected)

    def test_memory(self, windows: simulated.Kernel32, tmp_path: Path) -> None:
        assert memory_size.read_total_memory_bytes(tmp_path) == windows.total
        assert memory_size.read_available_memory_bytes(tmp_path / "none", tmp_path) == windows.free
        assert processes.measure_memory(os.getpid()) == windows.private
        assert processes.measure_memory(0) == 0
        windows.fails = True
        assert memory_size.read_total_memory_bytes(tmp_path) == memory_size.DEFAULT_TOTAL_BYTES
        assert memory_size.read_available_memory_bytes(tmp_path / "none", tmp_path) == memory_size.DEFAULT_FREE_BYTES

    def test_temporary_files_are_sparse(self, windows: simulated.Kernel32) -> None:
        with memory.limit_memory(0):
            assert memory.allocate_zeros(3, np.int64).tolist() == [0, 0, 0]
            assert memory.spill_to_temporary_file(pa.table({"a": [1, 2]})).to_pydict() == {"a": [1, 2]}
        assert windows.calls["DeviceIoControl"] == 2

    def test_processes(self) -> None:
        assert processes.get_group_options() == {"creationflags": 0x200}
        with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
            assert not processes.interrupt(process)
            processes.kill_group(process.pid)
            assert process.wait(60) != 0

    def test_a_recorded_program_that_ignores_an_interruption_is_killed(
        self,
    ) -> None:
        """Ctrl-C reaches it by the console. Windows cannot send it to one process."""
        calls: list[str] = []

        class Process:
            def wait(self, seconds: float) -> None:
                calls.append("wait")
                if "kill" not in calls:
                    raise subprocess.TimeoutExpired("program", seconds)

            def kill(self) -> None:
                calls.append("kill")

        process: Any = Process()
        recording._end(process)
        assert calls == ["wait", "kill", "wait"]

    def test_consoles(self, windows: simulated.Kernel32, tmp_path: Path) -> None:
        with (tmp_path / "console").open("w") as stream:
            assert console.interprets_escape_sequences(stream)
            windows.fails = True
            assert not console.interprets_escape_sequences(stream)

    def test_shares_of_other_machines(self) -> None:
        assert file_names.convert_file_url("file://machine/share/a%20b") == "//machine/share/a b"
        assert file_names.convert_file_url("file:///C:/a") == "/C:/a"
        share: Any = types.SimpleNamespace(absolute=lambda: PureWindowsPath("//machine/share/a b"))
        assert file_names.build_sqlite_uri(share) == "file:////machine/share/a%20b"
        assert file_names.build_sqlite_uri(Path("/a b")) == "file:///a%20b"

    def test_a_rank_is_named_by_the_end_of_its_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths: list[Any] = [PureWindowsPath("C:/runs/a/report.nsys-rep"), PureWindowsPath("C:/runs/b/report.nsys-rep")]
        assert ranks.name_uniquely(paths[1], paths) == "b/report.nsys-rep"
        monkeypatch.setattr(os, "sep", "\\")
        assert ranks._match_paths("a\\report.nsys-rep", paths) == paths[:1]


@needs_linux
class TestTemporaryFiles:
    def test_space_is_reserved_by_zeros(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
        size = (1 << 20) + 5
        with temporary_files.open_unnamed_file() as file:
            temporary_files.reserve_space(file, size)
            status = os.fstat(file.fileno())
        assert (status.st_size, status.st_blocks * 512 >= size) == (size, True)

    def test_a_full_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
        with Path("/dev/full").open("wb") as file, pytest.raises(OSError, match="No space left"):
            temporary_files.reserve_space(file, 1 << 21)


class TestConsoles:
    @pytest.mark.parametrize(
        ("encoding", "expected"), [("cp1252", "… µs -> \\u65e5".encode("cp1252")), ("ascii", b"... us -> \\u65e5")]
    )
    def test_characters_that_a_console_lacks(
        self, encoding: str, expected: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        console.accept_all_characters()
        stream.write("… µs → 日")
        stream.flush()
        assert stream.buffer.getvalue() == expected  # type: ignore[attr-defined]
        assert console.encode("… µs → 日", console.get_encoding(stream)) == expected

    def test_utf_8_is_not_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="UTF8")
        monkeypatch.setattr(sys, "stdout", stream)
        console.accept_all_characters()
        assert (stream.errors, console.get_encoding(stream)) == ("strict", "utf-8")
        assert console.encode("… \udce9", "utf-8") == "… ".encode() + b"\xe9"

    @pytest.mark.parametrize(("term", "expected"), [("xterm", True), ("dumb", False)])
    def test_terminals_without_escape_sequences(
        self, term: str, expected: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TERM", term)
        assert console.interprets_escape_sequences(io.StringIO()) is expected


def test_ctrl_break_ends_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, object] = {2: 0, 15: 1, 21: 0}
    module = types.SimpleNamespace(
        SIGINT=2, SIGTERM=15, SIGBREAK=21, SIG_DFL=0, SIG_IGN=1, default_int_handler=None,
        getsignal=handlers.get, signal=handlers.__setitem__,
    )  # fmt: skip
    monkeypatch.setattr(interrupts, "signal", module)
    interrupts.install_signal_handlers()
    assert handlers == {2: interrupts._clean_up_and_exit, 15: 1, 21: interrupts._clean_up_and_exit}
    interrupts.ignore_signals()
    assert handlers == {2: 1, 15: 1, 21: 1}


def test_macos_reports_the_footprint_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    class Library:
        @staticmethod
        def proc_pid_rusage(process_id: int, version: int, usage: Any) -> int:
            usage._obj[9] = 12345
            return 0 if (process_id, version) == (7, 0) else -1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    assert (processes._measure_footprint(7), processes._measure_footprint(8)) == (12345, 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert processes._measure_footprint(7) == 0


def test_the_state_of_an_entry_does_not_depend_on_the_way_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    descriptor = open_files.open_for_reading(tmp_path / "file")
    assert FileState.read(descriptor) == FileState.read_entry(tmp_path / "file")
    os.close(descriptor)
