"""tracekit deletes only what it created, and only one module deletes."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import FIXTURES, ROOT
from tracekit.errors import ExportError
from tracekit.system import targets
from tracekit.system.files import FileState
from tracekit.system.targets import deletion, rename
from tracekit.system.targets.workspaces import create_workspace, delete_from_workspace

DELETES, RENAMES = "tracekit/system/targets/deletion.py", "tracekit/system/targets/rename.py"
SECOND_NAMES = "tracekit/system/platform/renames.py"
DELETING = {
    "os": {"unlink", "remove", "rmdir", "removedirs", "truncate", "ftruncate"},
    "shutil": {"rmtree", "move"},
    "tempfile": {"TemporaryDirectory", "NamedTemporaryFile", "mkdtemp", "mkstemp"},
}
RENAMING = {"os": {"rename", "renames", "replace"}}
METHODS_THAT_DELETE = {"unlink", "rmdir", "rmtree"}
MAY_DELETE = re.compile(
    rf"\b({'|'.join({*METHODS_THAT_DELETE, *(n for names in DELETING.values() for n in names)} - {'remove'})})\b"
    r"|os\.(remove|rename|replace)|import (remove|rename|replace)|\.(rename|replace)\(([\w.]+|[^\"'()]+/[^()]+)\)"
)
"""What occurs in every module that may delete or rename, so that only these modules are parsed."""


def find_calls(tree: ast.AST, functions: dict[str, set[str]], methods: set[str]) -> Iterator[int]:
    """Yield the lines in which a module calls or imports one of the functions, or calls one of the methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in methods or node.attr in functions.get(owner, ()):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and functions.get(node.module or "", set()) & {
            n.name for n in node.names
        }:
            yield node.lineno


def find_path_renames(tree: ast.AST) -> Iterator[int]:
    """Yield the lines in which a module may rename a path: ``x.rename(y)`` or ``x.replace(y)`` with a name as ``y``.

    Frames are renamed with mappings, and values are replaced with keywords or two arguments.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
            is_path = len(node.args) == 1 and isinstance(node.args[0], ast.Attribute | ast.Name | ast.BinOp)
            names = {n.id for n in ast.walk(node.func.value) if isinstance(n, ast.Name)} - {"pl", "dataclasses"}
            if node.func.attr in ("rename", "replace") and is_path and any(_may_be_path(name) for name in names):
                yield node.lineno


def _may_be_path(name: str) -> bool:
    return any(word in name for word in ("path", "file", "folder", "source", "target", "new", "old", "temporary"))


@pytest.mark.parametrize("case", ["os.remove(x)", "from shutil import rmtree", "p.unlink()", "path.rename(other)"])
def test_the_search_works(case: str) -> None:
    tree = ast.parse(case)
    assert [*find_calls(tree, DELETING, METHODS_THAT_DELETE), *find_path_renames(tree)] == [1]


@pytest.mark.slow
def test_only_one_module_deletes() -> None:
    deleting, renaming = set(), set()
    compiler = ROOT / "tracekit" / "native" / "compile.py"  # not in the wheel
    for path in sorted({*(ROOT / "tracekit").rglob("*.py")} - {compiler}):
        if not MAY_DELETE.search(text := path.read_text("utf-8")):
            continue
        tree, name = ast.parse(text), path.relative_to(ROOT).as_posix()
        deleting.update(f"{name}:{n}" for n in find_calls(tree, DELETING, METHODS_THAT_DELETE))
        renaming.update(f"{name}:{n}" for n in [*find_calls(tree, RENAMING, set()), *find_path_renames(tree)])
    others = [place.partition(":")[0] for place in deleting if not place.startswith(f"{DELETES}:")]
    assert others == [SECOND_NAMES]  # os.unlink removes the old name of a file that has a second one
    assert [place for place in renaming if not place.startswith(f"{RENAMES}:")] == []
    assert deleting
    assert renaming


WATCHED = """
import os, sys, traceback
from pathlib import Path

root, allowed = os.path.realpath(sys.argv[1]), ("deletion.py", "rename.py")
import tracekit
package = os.path.dirname(tracekit.__file__)
seen = set()

def audit(event, arguments):
    if event in ("os.remove", "os.rmdir", "os.rename", "os.truncate", "shutil.rmtree", "shutil.move"):
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(package):
            frame = frame.f_back
        if frame is not None:
            seen.add(frame.f_code.co_filename)

sys.addaudithook(audit)
os.environ.update(TRACEKIT_CACHE="on", TRACEKIT_CACHE_DIR=f"{root}/cache")
from tracekit.plan.cache import capture
from tracekit.system import files
capture.SMALLEST, files.SETTLED_NS = 0, -(10**12)
from click.testing import CliRunner
from tracekit.cli import cli
for line in sys.argv[2:]:
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, (line, result.output, result.exception)
print(*sorted(os.path.relpath(name, package) for name in seen))
"""


@pytest.mark.slow
def test_only_these_modules_delete_at_run_time(tmp_path: Path) -> None:
    """Watch the deletions of whole commands with an audit hook, which sees every deletion by Python."""
    ranks, export = FIXTURES / "ranks", FIXTURES / "mpi_rank0.sqlite"
    commands = [
        f"convert {ranks} {tmp_path}/csv --to csv --table kernels",
        f"convert {ranks} {tmp_path}/csv --to csv --table kernels -f",
        f"stats {export} --report cuda_gpu_kern_sum",
        "cache --clear",
    ]
    command = [sys.executable, "-c", WATCHED, str(tmp_path), *commands]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert set(ended.stdout.split()) - {"system/targets/rename.py"} == {"system/targets/deletion.py"}, ended.stderr


class TestDelete:
    def test_another_file_at_the_path_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("ours")
        state = FileState.read_entry(path)
        assert state is not None
        path.rename(tmp_path / "moved")
        path.write_text("of the user")
        assert not deletion.delete(path, state)
        path.unlink()
        path.symlink_to(tmp_path / "moved")
        assert not deletion.delete(path, state)
        path.unlink()
        assert not deletion.delete(path, state)
        assert deletion.delete(tmp_path / "moved", state)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("is_folder", [False, True])
    def test_a_file_that_is_moved_there_in_the_last_moment_is_put_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
    ) -> None:
        path, other = tmp_path / "path", tmp_path / "other"
        for created in (path, other):
            created.mkdir()
            (created / "file").write_text(created.name)
        if not is_folder:
            path, other = path / "file", other / "file"
        state = FileState.read_entry(path)
        assert state is not None
        real = deletion.rename_without_replacing

        def swap(source: Path, target: Path) -> None:
            if source == path:
                path.rename(tmp_path / "kept")
                other.rename(path)
            real(source, target)

        monkeypatch.setattr(deletion, "rename_without_replacing", swap)
        assert not deletion.delete(path, state)
        assert (path / "file" if is_folder else path).read_text() == "other"

    def test_what_links_in_a_folder_refer_to_stays(self, tmp_path: Path) -> None:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "file").touch()
        with create_workspace(tmp_path) as folder:
            (folder / "link").symlink_to(tmp_path / "outside")
            (folder / "file").symlink_to(tmp_path / "outside" / "file")
        assert list(tmp_path.rglob("*")) == [tmp_path / "outside", tmp_path / "outside" / "file"]

    def test_a_workspace_that_was_replaced_stays(self, tmp_path: Path) -> None:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "file").touch()
        with create_workspace(tmp_path) as folder:
            folder.rename(tmp_path / "moved")
            (tmp_path / "outside").rename(folder)
        assert (folder / "file").exists()
        shutil.rmtree(folder)
        with create_workspace(tmp_path / "moved") as folder:
            folder.rename(tmp_path / "moved again")
            folder.symlink_to(tmp_path)
        assert folder.is_symlink()
        assert (tmp_path / "moved again").is_dir()

    def test_an_abandoned_workspace_without_a_lock_is_deleted_only_if_it_is_empty(self, tmp_path: Path) -> None:
        left = tmp_path / ".tracekit-0123abcd.partial"
        left.mkdir()
        (left / "thesis").write_text("of the user")
        os.utime(left, (0, 0))
        with create_workspace(tmp_path):
            pass
        assert (left / "thesis").read_text() == "of the user"

    def test_files_outside_workspaces_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with create_workspace(tmp_path) as folder:
            (folder / "file").touch()
            delete_from_workspace(folder / "file")
            delete_from_workspace(folder / "file")
            assert not (folder / "file").exists()
            with pytest.raises(ValueError, match="is not in a workspace of this process"):
                delete_from_workspace(tmp_path / "file")
        with pytest.raises(ValueError, match="is not in a workspace of this process"):
            delete_from_workspace(folder / "file")
        assert (tmp_path / "file").exists()


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_target_that_is_replaced_in_the_last_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    """With ``--force``, exactly the file that was checked is replaced."""
    target, precious = tmp_path / "out", tmp_path / "precious"
    for path, text in ((target, "old"), (precious, "of the user")):
        if is_folder:
            path.mkdir()
        (path / "kernels.csv" if is_folder else path).write_text(text)
    real = rename.exchange_paths

    def swap(first: Path, second: Path) -> bool:
        if precious.exists():
            second.rename(tmp_path / "moved")
            precious.rename(second)
        return real(first, second)

    monkeypatch.setattr(rename, "exchange_paths", swap)
    is_exported_file = (lambda _: True) if is_folder else None
    with (  # noqa: PT012 - the error is raised at the end of the block
        pytest.raises(ExportError, match="another file was moved to this path in the meantime"),
        targets.open_atomic_output(target, overwrite=True, is_exported_file=is_exported_file) as new,
    ):
        if is_folder:
            new.mkdir()
        (new / "kernels.csv" if is_folder else new).write_text("new")
    assert (target / "kernels.csv" if is_folder else target).read_text() == "of the user"
    assert not list(tmp_path.glob(".tracekit-*"))


@pytest.mark.thorough
def test_dask_deletes_only_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask deletes folders in ``dask-scratch-space`` that it considers abandoned."""
    import tempfile

    import tracekit as tk
    from tracekit.sets.dask_engine import DaskEngine

    pytest.importorskip("distributed")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stale = tmp_path / "dask-scratch-space" / "worker-abc"
    stale.mkdir(parents=True)
    (stale / "file").touch()
    (tmp_path / "dask-scratch-space" / "worker-abc.dirlock").touch()
    ranks = tk.load_many(FIXTURES / "ranks", engine=DaskEngine(workers=1))
    assert ranks.map(lambda trace: trace.count("kernels")) == [15, 15]
    assert sorted(p.name for p in tmp_path.rglob("*")) == [
        "dask-scratch-space",
        "file",
        "worker-abc",
        "worker-abc.dirlock",
    ]
