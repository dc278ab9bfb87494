"""Only files in the roots are resolved, whatever the path, and errors do not tell which other files exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.conftest import FIXTURES
from tracekit.errors import TracekitError
from tracekit.mcp.roots import AllowedFolders


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "run").mkdir(parents=True)
    (root / "a.sqlite").write_bytes(b"a")
    (root / "run" / "a[1].sqlite").write_bytes(b"b")
    (tmp_path / "secret.sqlite").write_bytes(b"c")
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "c.sqlite").write_bytes(b"d")
    return root


def test_paths_in_a_root_are_resolved(root: Path) -> None:
    folders = AllowedFolders([root])
    for text in ("a.sqlite", "./a.sqlite", "run/../a.sqlite", str(root / "a.sqlite")):
        assert folders.resolve(text) == root / "a.sqlite"
        assert folders.show(folders.resolve(text)) == "a.sqlite"
    assert folders.resolve("run/a[1].sqlite").name == "a[1].sqlite"
    assert folders.resolve("run").is_dir()
    (root / "inside").symlink_to(root / "a.sqlite")
    assert folders.resolve("inside") == root / "a.sqlite"


def test_other_paths_have_one_error(root: Path) -> None:
    folders = AllowedFolders([root])
    (root / "link.sqlite").symlink_to(root.parent / "secret.sqlite")
    (root / "proc").symlink_to("/proc/self/environ")
    os.mkfifo(root / "pipe")
    refused = [
        *("missing.sqlite", "../secret.sqlite", str(root.parent / "secret.sqlite"), "/etc/passwd", "/etc/missing"),
        *("run/../../secret.sqlite", "link.sqlite", "proc", "pipe", "*.sqlite", "/dev/zero", "/proc/self/mem", "~/x"),
        *("file:///etc/passwd", "https://example.org/a.sqlite", "s3://bucket/a", f"file:{root}/a.sqlite", "a\0b"),
        *("../root2/c.sqlite", "x" * 5000, "\ud800", "@/etc/passwd", "a.sqlite/../../secret.sqlite"),
    ]
    messages = set()
    for text in refused:
        with pytest.raises(TracekitError) as error:
            folders.resolve(text)
        assert len(str(error.value)) < 500
        messages.add(error.value.message.rpartition(": ")[2])
    assert messages == {"no file or folder of this name in the allowed folders"}


def test_links_in_folders_must_not_leave_the_roots(root: Path) -> None:
    folders = AllowedFolders([root])
    (root / "run" / "rank1.sqlite").symlink_to(root.parent / "secret.sqlite")
    with pytest.raises(TracekitError, match="a link in the folder leaves the allowed folders"):
        folders.resolve("run")
    with pytest.raises(TracekitError, match="a link in the folder leaves"):
        folders.resolve(".")


def test_folders_with_pipes_are_refused(root: Path) -> None:
    os.mkfifo(root / "run" / "rank1.sqlite")
    with pytest.raises(TracekitError, match="a device, a pipe or a socket"):
        AllowedFolders([root]).resolve("run")


def test_several_roots_have_names(root: Path) -> None:
    other = root.parent / "other" / "root"
    other.mkdir(parents=True)
    (other / "b.sqlite").write_bytes(b"")
    folders = AllowedFolders([root, other, root])
    assert list(folders.folders) == ["root", "root-2"]
    assert folders.show(other / "b.sqlite") == "root-2/b.sqlite"
    assert folders.resolve("root-2/b.sqlite") == other / "b.sqlite"
    assert folders.resolve("b.sqlite") == other / "b.sqlite"
    with pytest.raises(TracekitError, match="no file or folder"):
        folders.resolve("root-2/../../secret.sqlite")


def test_a_root_is_a_folder() -> None:
    with pytest.raises(TracekitError, match="the root is not a folder"):
        AllowedFolders([FIXTURES / "README.md"])
