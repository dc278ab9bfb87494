"""Outputs appear whole or not at all, and replace nothing that must not be lost."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tracekit.errors import ExportError
from tracekit.system import interrupts, targets
from tracekit.system.platform import locks, renames
from tracekit.system.targets import rename
from tracekit.system.targets import target as target_module
from tracekit.system.targets.workspaces import REPLACED, create_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
OURS = frozenset(("kernels.csv", "memcpys.csv"))
STRACE = shutil.which("strace")


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    yield
    assert not list(tmp_path.glob("**/.tracekit-*"))


@pytest.fixture(params=["exchange", "two steps"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a folder is replaced: in one step, or in two where the system cannot exchange paths."""
    if request.param == "two steps":
        monkeypatch.setattr(renames, "_find_c_rename_function", lambda: None)
    return str(request.param)


def is_exported_file(path: Path) -> bool:
    return path.name in OURS


def write_file(path: Path, *, overwrite: bool = False, inputs: tuple[Path, ...] = (), text: str = "new") -> None:
    known = [targets.Input.from_path(p) for p in inputs]
    with targets.open_atomic_output(path, overwrite=overwrite, inputs=known) as new:
        new.write_text(text)


def write_folder(path: Path, *, overwrite: bool = False, inputs: tuple[Path, ...] = (), text: str = "new") -> None:
    known = [targets.Input.from_path(p) for p in inputs]
    with targets.open_atomic_output(path, is_exported_file=is_exported_file, overwrite=overwrite, inputs=known) as new:
        new.mkdir()
        (new / "kernels.csv").write_text(text)


def write_while(path: Path, action: Callable[[Path], object], *, folder: bool = False, overwrite: bool = False) -> None:
    """Write an output; before it is complete do something, which gets its path in the workspace."""
    with targets.open_atomic_output(
        path, is_exported_file=is_exported_file if folder else None, overwrite=overwrite
    ) as new:
        if folder:
            new.mkdir()
        else:
            new.write_text("new")
        action(new)


def fail(error: BaseException) -> Callable[[object], None]:
    def raise_it(_: object) -> None:
        raise error

    return raise_it


def old_folder(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).write_text("old")
    return path


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(error: ExportError, path: Path, what: str) -> None:
    assert str(error).startswith(f"{path}: {what}"), error
    assert "\nHint: " in str(error)


class TestFiles:
    def test_a_new_file(self, tmp_path: Path) -> None:
        write_file(tmp_path / "out")
        assert contents(tmp_path) == {"out": "new"}

    def test_a_file_is_replaced_if_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("old")
        with pytest.raises(ExportError) as caught:
            write_file(tmp_path / "out")
        message = "the output already exists\nHint: overwrite it with -f or overwrite=True"
        refused(caught.value, tmp_path / "out", message)
        write_file(tmp_path / "out", overwrite=True)
        assert contents(tmp_path) == {"out": "new"}

    def test_a_file_that_appears_meanwhile_is_not_lost(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        with pytest.raises(ExportError, match="the output already exists"):
            write_while(path, lambda _: path.write_text("of another program"))
        assert contents(tmp_path) == {"out": "of another program"}

    @pytest.mark.usefixtures("swap")
    def test_a_file_that_appears_in_the_last_moment_is_not_lost(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "out"
        monkeypatch.setattr(target_module.Target, "check_may_be_written", lambda _: None)
        with pytest.raises(ExportError, match="the output cannot be written: File exists"):
            write_while(path, lambda _: path.write_text("of another program"))
        assert contents(tmp_path) == {"out": "of another program"}

    def test_a_failure_leaves_what_was_there(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("old")
        with pytest.raises(ZeroDivisionError):
            write_while(tmp_path / "out", fail(ZeroDivisionError()), overwrite=True)
        assert contents(tmp_path) == {"out": "old"}

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_folder_is_never_replaced_by_a_file(self, tmp_path: Path, overwrite: bool) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        with pytest.raises(ExportError) as caught:
            write_file(folder, overwrite=overwrite)
        refused(
            caught.value,
            folder,
            "a folder exists at this path, but the output is a file\nHint: pass the name of a file",
        )
        assert contents(folder) == {"kernels.csv": "old"}

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_an_empty_folder_is_not_replaced_by_a_file_either(self, tmp_path: Path, overwrite: bool) -> None:
        (tmp_path / "d").mkdir()
        with pytest.raises(ExportError, match="a folder exists at this path"):
            write_file(tmp_path / "d", overwrite=overwrite)
        assert (tmp_path / "d").is_dir()

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("linked", [False, True])
    def test_a_pipe_is_never_replaced(self, tmp_path: Path, overwrite: bool, linked: bool) -> None:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        if linked:
            path = tmp_path / "link"
            path.symlink_to("pipe")
        with pytest.raises(ExportError) as caught:
            write_file(path, overwrite=overwrite)
        refused(caught.value, path, "a named pipe exists at this path, but only regular files can be replaced")
        assert (tmp_path / "pipe").is_fifo()

    def test_a_device_is_never_replaced(self) -> None:
        with pytest.raises(
            ExportError, match="/dev/null: a device exists at this path, but only regular files can be replaced"
        ):
            write_file(Path("/dev/null"), overwrite=True)
        assert Path("/dev/null").is_char_device()

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "out").write_text("old")
        (tmp_path / "link").symlink_to("real/out")
        write_file(tmp_path / "link", overwrite=True)
        assert (tmp_path / "link").is_symlink()
        assert contents(tmp_path / "real") == {"out": "new"}

    def test_a_dangling_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("real")
        write_file(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_text() == "new"

    def test_a_link_to_nowhere_says_which_folder_is_missing(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("missing/out")
        with pytest.raises(ExportError) as caught:
            write_file(tmp_path / "link")
        refused(caught.value, tmp_path / "link", "the folder of the output does not exist")

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("link")
        with pytest.raises(ExportError, match="cannot be written"):
            write_file(tmp_path / "link", overwrite=True)

    def test_there_is_no_such_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError) as caught:
            write_file(tmp_path / "missing" / "out")
        refused(caught.value, tmp_path / "missing" / "out", "the folder of the output does not exist\nHint: create ")

    @pytest.mark.parametrize("name", ["x" * 300, "🚀" * 62 + ".json"])
    def test_a_long_name(self, tmp_path: Path, name: str) -> None:
        if len(name.encode()) < 256:
            write_file(tmp_path / name)
            assert contents(tmp_path) == {name: "new"}
            return
        with pytest.raises(ExportError, match="cannot be written: File name too long\nHint: choose another name"):
            write_file(tmp_path / name)

    def test_a_name_that_is_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / os.fsdecode(b"caf\xe9")
        write_file(path)
        assert path.read_text() == "new"

    @pytest.mark.parametrize("name", [".", "..", "sub/..", "/"])
    def test_names_that_are_none(self, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        with pytest.raises(ExportError, match="a folder exists at this path"):
            write_file(Path(name), overwrite=True)

    def test_a_folder_that_vanishes(self, tmp_path: Path) -> None:
        folder = tmp_path / "d"
        folder.mkdir()
        with pytest.raises(ExportError, match="the folder of the output does not exist"):
            write_while(folder / "out", lambda _: shutil.rmtree(folder))
        assert not folder.exists()

    def test_errors_name_the_target_and_not_the_workspace(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError) as caught:
            write_while(
                tmp_path / "out", lambda new: fail(ExportError("cannot hold it", path=new / "a", hint="try b"))(new)
            )
        assert str(caught.value) == f"{tmp_path / 'out'}: cannot hold it\nHint: try b"
        with pytest.raises(ExportError) as caught:
            write_while(tmp_path / "out", fail(ExportError("cannot hold it", path="other")))
        assert str(caught.value) == "other: cannot hold it"


class TestInputs:
    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("how", ["same", "relative", "link", "hard link", "renamed"])
    def test_an_input_is_never_replaced(
        self, tmp_path: Path, overwrite: bool, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "in"
        path.write_text("input")
        known = targets.Input.from_path(path)
        other = tmp_path / "other"
        if how == "relative":
            other = Path("in")
        elif how == "link":
            other.symlink_to("in")
        elif how == "hard link":
            other.hardlink_to(path)
        elif how == "renamed":
            path.rename(other)
        else:
            other = path
        with (
            pytest.raises(ExportError) as caught,
            targets.open_atomic_output(other, overwrite=overwrite, inputs=[known]) as new,
        ):
            new.write_text("new")
        refused(caught.value, other, "this file is being read, so it cannot be replaced\nHint: choose another name")
        assert other.read_text() == "input"

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_every_input_counts(self, tmp_path: Path, overwrite: bool) -> None:
        for name in ("a", "b", "c"):
            (tmp_path / name).write_text(name)
        for name in ("a", "b", "c"):
            with pytest.raises(ExportError, match="this file is being read, so it cannot be replaced"):
                write_file(
                    tmp_path / name, overwrite=overwrite, inputs=(tmp_path / "a", tmp_path / "b", tmp_path / "c")
                )
        assert contents(tmp_path) == {"a": "a", "b": "b", "c": "c"}

    @pytest.mark.parametrize("name", ["kernels.csv", "sub/kernels.csv", "linked.csv"])
    def test_a_file_in_a_folder_that_is_read_is_never_replaced(self, tmp_path: Path, name: str) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        old_folder(folder / "sub", "kernels.csv")
        (tmp_path / "elsewhere").write_text("old")
        (folder / "linked.csv").symlink_to(tmp_path / "elsewhere")
        for path in (folder / name, (folder / name).resolve()):
            with pytest.raises(ExportError) as caught:
                write_file(path, overwrite=True, inputs=(folder,))
            refused(caught.value, path, "this file is part of the input, so it cannot be replaced")
            assert path.read_text() == "old"

    def test_a_new_file_beside_those_that_are_read(self, tmp_path: Path) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        write_file(folder / "report.csv", inputs=(folder,))
        assert contents(folder) == {"kernels.csv": "old", "report.csv": "new"}

    @pytest.mark.parametrize("where", ["kernels.csv", "sub/kernels.csv", ""])
    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.usefixtures("swap")
    def test_a_folder_that_holds_an_input_is_never_replaced(self, tmp_path: Path, overwrite: bool, where: str) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        old_folder(folder / "sub", "kernels.csv")
        (tmp_path / "link").symlink_to("d")
        for path in (folder, tmp_path / "link"):
            for read in (folder / where, tmp_path / "link" / where):
                with pytest.raises(ExportError) as caught:
                    write_folder(path, overwrite=overwrite, inputs=(read,))
                refused(caught.value, path, "this folder contains the input, so it cannot be replaced")
        assert contents(folder) == {"kernels.csv": "old", "sub/kernels.csv": "old"}

    def test_an_input_that_is_gone_protects_nothing_else(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("old")
        write_file(tmp_path / "out", overwrite=True, inputs=(tmp_path / "gone",))
        assert contents(tmp_path) == {"out": "new"}


class TestFolders:
    def test_a_new_folder(self, tmp_path: Path) -> None:
        write_folder(tmp_path / "d")
        assert contents(tmp_path) == {"d/kernels.csv": "new"}

    @pytest.mark.usefixtures("swap")
    def test_a_folder_of_ours_is_replaced_if_asked_for(self, tmp_path: Path) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv", "memcpys.csv")
        with pytest.raises(ExportError, match="the output already exists"):
            write_folder(folder)
        write_folder(folder, overwrite=True)
        assert contents(tmp_path) == {"d/kernels.csv": "new"}

    @pytest.mark.usefixtures("swap")
    def test_an_empty_folder_is_replaced_if_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        write_folder(tmp_path / "d", overwrite=True)
        assert contents(tmp_path) == {"d/kernels.csv": "new"}

    @pytest.mark.parametrize("foreign", ["notes.txt", "sub/kernels.csv", ".hidden", "link.csv", "pipe"])
    @pytest.mark.usefixtures("swap")
    def test_a_folder_with_anything_else_is_never_replaced(self, tmp_path: Path, foreign: str) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        path = folder / foreign
        path.parent.mkdir(exist_ok=True)
        if foreign == "link.csv":
            path.symlink_to("kernels.csv")
        elif foreign == "pipe":
            os.mkfifo(path)
        else:
            path.write_text("precious")
        with pytest.raises(ExportError) as caught:
            write_folder(folder, overwrite=True)
        refused(
            caught.value,
            folder,
            f"this folder contains files that tracekit did not write: {foreign.partition('/')[0]}\n",
        )
        assert os.path.lexists(path)
        assert (folder / "kernels.csv").read_text() == "old"

    def test_many_other_files_are_named_in_short(self, tmp_path: Path) -> None:
        folder = old_folder(tmp_path / "d", *(f"{n}.txt" for n in range(200)))
        with pytest.raises(ExportError, match=r"files that tracekit did not write: [^,]+, [^,]+, [^,]+, …"):
            write_folder(folder, overwrite=True)

    def test_a_file_is_not_replaced_by_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "d").write_text("old")
        with pytest.raises(ExportError) as caught:
            write_folder(tmp_path / "d", overwrite=True)
        refused(caught.value, tmp_path / "d", "a file exists at this path, but the output is a folder")
        assert contents(tmp_path) == {"d": "old"}

    @pytest.mark.usefixtures("swap")
    def test_a_link_to_a_folder_stays(self, tmp_path: Path) -> None:
        old_folder(tmp_path / "real", "kernels.csv")
        (tmp_path / "link").symlink_to("real")
        write_folder(tmp_path / "link", overwrite=True)
        assert (tmp_path / "link").is_symlink()
        assert contents(tmp_path / "real") == {"kernels.csv": "new"}

    @pytest.mark.usefixtures("swap")
    def test_a_file_put_into_the_folder_meanwhile_is_not_lost(self, tmp_path: Path) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        with pytest.raises(ExportError, match="files that tracekit did not write: notes"):
            write_while(folder, lambda _: (folder / "notes").write_text("precious"), folder=True, overwrite=True)
        assert contents(folder) == {"kernels.csv": "old", "notes": "precious"}

    def test_an_interruption_between_the_two_steps(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        monkeypatch.setattr(renames, "_find_c_rename_function", lambda: None)
        real = Path.rename

        def interrupted(self: Path, other: Path) -> Path:
            if self.parent.name == "new":
                raise KeyboardInterrupt
            return real(self, other)

        monkeypatch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_folder(folder, overwrite=True)
        assert contents(tmp_path) == {"d/kernels.csv": "old"}

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY])
    def test_a_folder_that_cannot_be_replaced_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")

        def fail(*_: object) -> int:
            renames.ctypes.set_errno(number)
            return -1

        monkeypatch.setattr(renames, "_find_c_rename_function", lambda: fail)
        with pytest.raises(ExportError, match=f"the output cannot be written: {os.strerror(number)}"):
            write_folder(folder, overwrite=True)
        assert contents(tmp_path) == {"d/kernels.csv": "old"}

    def test_a_file_system_that_cannot_exchange(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def unsupported(*_: object) -> int:
            renames.ctypes.set_errno(errno.EINVAL)
            return -1

        monkeypatch.setattr(renames, "_find_c_rename_function", lambda: unsupported)
        folder = old_folder(tmp_path / "d", "kernels.csv")
        write_folder(folder, overwrite=True)
        write_file(tmp_path / "f")
        assert contents(tmp_path) == {"d/kernels.csv": "new", "f": "new"}


class TestRenaming:
    def test_exchange(self, tmp_path: Path) -> None:
        one, other = old_folder(tmp_path / "one", "a"), old_folder(tmp_path / "other", "b")
        if not rename.exchange_paths(one, other):
            pytest.skip("this system cannot exchange paths")
        assert (list(contents(one)), list(contents(other))) == (["b"], ["a"])

    @pytest.mark.usefixtures("swap")
    def test_rename_without_replacing(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("a")
        (tmp_path / "b").symlink_to("nowhere")
        with pytest.raises(FileExistsError):
            rename.rename_without_replacing(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "a").read_text() == "a"

    def test_a_c_library_without_the_functions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(renames.ctypes, "CDLL", lambda *_, **__: object())
        assert renames._find_c_rename_function.__wrapped__() is None

    def test_macos_has_another_function(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []

        class Library:
            @staticmethod
            def renamex_np(source: bytes, target: bytes, flags: object) -> int:
                calls.append((source, target, flags.value))  # type: ignore[attr-defined]
                return 0

        monkeypatch.setattr(renames.ctypes, "CDLL", lambda *_, **__: Library)
        monkeypatch.setattr(renames.sys, "platform", "darwin")
        call = renames._find_c_rename_function.__wrapped__()
        assert call is not None
        assert (call(b"a", b"b", "exchange"), call(b"a", b"b", "noreplace")) == (0, 0)
        assert calls == [(b"a", b"b", 2), (b"a", b"b", 4)]


WRITER = """
import os, signal, sys
from pathlib import Path
from tracekit.system import interrupts, targets
from tracekit.system.platform import renames
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_DFL)
if "two steps" in sys.argv: renames._find_c_rename_function = lambda: None
if "watch" in sys.argv: interrupts.install_signal_handlers()
with targets.open_atomic_output(Path(sys.argv[1]), is_exported_file=lambda p: True, overwrite=True) as new:
    new.mkdir()
    (new / "kernels.csv").write_text("new")
    print("writing", flush=True)
    if "wait" in sys.argv: signal.pause()
print("written", flush=True)
"""


def writer(path: Path, *words: str, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    command = [*wrapper, sys.executable, "-c", WRITER, str(path), *words]
    # a signal that meets coverage inside its own lock would never be answered
    unwatched = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    return subprocess.Popen(command, cwd=ROOT, env=unwatched, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def killed(path: Path, number: int) -> tuple[int, bytes]:
    """Send a signal to a process while it writes; return its status and what it said."""
    with writer(path, "wait", "watch") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"writing\n"
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, said


class TestKilled:
    def test_the_next_run_clears_what_a_killed_one_left(self, tmp_path: Path) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        assert killed(folder, signal.SIGKILL)[0] == -signal.SIGKILL
        assert len(list(tmp_path.glob(".tracekit-*.partial"))) == 1
        assert contents(folder) == {"kernels.csv": "old"}
        write_file(tmp_path / "other")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "other"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_leaves_nothing(self, tmp_path: Path, number: signal.Signals) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        assert killed(folder, number) == (128 + number, interrupts.MESSAGE)
        assert contents(tmp_path) == {"d/kernels.csv": "old"}

    def test_a_process_at_work_is_left_alone(self, tmp_path: Path) -> None:
        with writer(tmp_path / "d", "wait") as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"writing\n"
                write_file(tmp_path / "other")
                assert len(list(tmp_path.glob(".tracekit-*.partial"))) == 1
            finally:
                process.kill()
        write_file(tmp_path / "other", overwrite=True)

    def test_a_folder_that_was_in_neither_place_is_put_back(self, tmp_path: Path) -> None:
        left = tmp_path / ".tracekit-0123abcd.partial"
        (left / REPLACED).mkdir(parents=True)
        old_folder(left / REPLACED / "d", "kernels.csv")
        (left / "lock").touch()
        write_file(tmp_path / "other")
        assert contents(tmp_path) == {"d/kernels.csv": "old", "other": "new"}

    def test_a_folder_that_was_replaced_is_not_put_back(self, tmp_path: Path) -> None:
        left = tmp_path / ".tracekit-0123abcd.partial"
        (left / REPLACED).mkdir(parents=True)
        old_folder(left / REPLACED / "d", "kernels.csv")
        (left / "lock").touch()
        (tmp_path / "d").mkdir()
        write_file(tmp_path / "other")
        assert contents(tmp_path) == {"other": "new"}

    @pytest.mark.parametrize("age_s", [0, 3600])
    def test_one_that_has_no_lock_yet_is_cleared_when_it_is_old(self, tmp_path: Path, age_s: int) -> None:
        left = tmp_path / ".tracekit-0123abcd.partial"
        left.mkdir()
        os.utime(left, (time.time() - age_s,) * 2)
        write_file(tmp_path / "other")
        assert left.exists() == (age_s == 0)
        shutil.rmtree(left, ignore_errors=True)

    def test_what_only_looks_alike_is_left_alone(self, tmp_path: Path) -> None:
        for name in (".tracekit-notes.partial", "tracekit-0123abcd.partial", ".tracekit-0123abcd.partial.d"):
            old_folder(tmp_path / name, "lock", "precious")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "lock").write_text("")
        (tmp_path / ".tracekit-0123abcd.partial").symlink_to("elsewhere")
        (tmp_path / ".tracekit-0123abce.partial").write_text("a file")
        before = contents(tmp_path)
        write_file(tmp_path / "other")
        assert contents(tmp_path) == before | {"other": "new"}
        for path in tmp_path.glob(".tracekit-*"):
            path.unlink() if not path.is_dir() or path.is_symlink() else shutil.rmtree(path)

    def test_a_lock_that_is_a_pipe_or_a_folder(self, tmp_path: Path) -> None:
        left = [tmp_path / ".tracekit-0123abcd.partial", tmp_path / ".tracekit-0123abce.partial"]
        for path in left:
            path.mkdir()
        os.mkfifo(left[0] / "lock")
        (left[1] / "lock").mkdir()
        write_file(tmp_path / "other")
        assert [p.exists() for p in left] == [True, True]
        for path in left:
            shutil.rmtree(path)

    def test_of_another_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        left = tmp_path / ".tracekit-0123abcd.partial"
        old_folder(left, "lock")
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        write_file(tmp_path / "other")
        assert left.exists()
        shutil.rmtree(left)


class TestWorkspace:
    def test_a_system_without_locks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locks, "fcntl", None)
        with create_workspace(tmp_path) as room:
            assert list(room.iterdir()) == []
        assert list(tmp_path.iterdir()) == []

    def test_a_file_system_without_locks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.ENOLCK, "no locks")

        monkeypatch.setattr(locks.fcntl, "flock", fail)
        with create_workspace(tmp_path) as room, create_workspace(tmp_path) as other:
            assert room.is_dir()
            assert other.is_dir()
        assert list(tmp_path.iterdir()) == []

    def test_another_process_that_clears_it_in_the_wrong_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tracekit.system.targets import workspaces as module

        real, held = locks.fcntl.flock, []

        def flock(lock: int, how: int) -> None:
            if len(held) < 2:
                held.append(lock)
                raise BlockingIOError
            real(lock, how)

        monkeypatch.setattr(locks.fcntl, "flock", flock)
        with create_workspace(tmp_path) as room:
            assert list(tmp_path.iterdir()) == [room]
        monkeypatch.setattr(module, "_lock_workspace", lambda *_: False)
        with pytest.raises(OSError, match="keep deleting"), create_workspace(tmp_path):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_threads_that_are_still_writing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = shutil.rmtree, []

        def busy(path: Path, **options: bool) -> None:
            calls.append(path)
            (path / "new").touch() if len(calls) < 3 else real(path, **options)

        monkeypatch.setattr("tracekit.system.targets.deletion.shutil.rmtree", busy)
        with create_workspace(tmp_path):
            pass
        assert len(calls) == 3
        assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(STRACE is None, reason="needs strace")
class TestInjected:
    """Signals that the system delivers at one particular system call."""

    @staticmethod
    def injected(path: Path, call: str, number: str, when: int, *words: str) -> tuple[int, bytes]:
        wrapper = (str(STRACE), "-qq", "-o", os.devnull, "-e", f"trace={call}")
        inject = ("-e", f"inject={call}:signal={number}:when={when}")
        with writer(path, *words, wrapper=(*wrapper, *inject)) as process:
            said, talk = process.communicate(timeout=120)
        if b"ptrace" in talk or b"Operation not permitted" in talk:
            pytest.skip("strace may not trace here")
        return process.returncode, said

    @pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGINT"])
    @pytest.mark.parametrize(
        ("words", "call", "when"),
        [(("exchange",), "renameat2", 1), (("two steps",), "rename", 1), (("two steps",), "rename", 2)],
    )
    def test_the_old_or_the_new_folder_is_there(
        self, tmp_path: Path, number: str, words: tuple[str, ...], call: str, when: int
    ) -> None:
        folder = old_folder(tmp_path / "d", "kernels.csv")
        status, said = self.injected(folder, call, number, when, "watch", *words)
        if number == "SIGKILL":
            assert status != 0
            if call == "rename":  # in neither place for a moment: the next run puts it back
                write_file(tmp_path / "next")
            assert contents(folder) in ({"kernels.csv": "old"}, {"kernels.csv": "new"})
            write_file(tmp_path / "next", overwrite=True)
        else:
            assert (status, said) == (0, b"writing\nwritten\n")
            assert contents(folder) == {"kernels.csv": "new"}
