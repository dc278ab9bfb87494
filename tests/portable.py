"""Run tests of Linux in a process that lacks what Windows and macOS lack: ``pytest -p tests.portable``.

- Functions and flags of Linux are missing, and those of Windows exist: see ``tests.system.platform.simulated``.
- tracekit cannot read ``/proc``, so threads, memory, control groups and descriptors have to be found in another way.
- tracekit cannot rename or delete a file that is open or mapped, nor a folder that contains one.
- tracekit cannot create a file whose name Windows reserves, or whose name differs from another one only in its case.
- Processes are spawned and not forked.

On other systems, nothing is simulated, because the system itself is tested.
"""

# pathlib would call the functions that are checked
# ruff: noqa: PTH100, PTH112, PTH115, PTH118, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import platformdirs.unix  # noqa: F401 - needs functions of Linux on Linux
import pytest
import tracekit
from tests.system.platform.simulated import install_windows
from tracekit.system.platform import file_names, open_files, threads_of_process

PACKAGE = f"{Path(tracekit.__file__).parent}{os.sep}"
SYSTEM_FOLDERS = re.compile("/(?:proc|sys)/")
_IN_USE, _INVALID_NAME = 32, 123
_checking = threading.local()


UNSUITABLE = {
    "tests/sets/test_engines.py::TestDask": "Dask needs functions of Linux on Linux",
    "tests/readers/test_spilling.py::test_the_budget_is_half_of_the_free_memory": "the system reports another",
}
"""Tests that cannot run in such a process, and why."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that cannot run in such a process."""
    left_out = [item for item in items if item.nodeid.startswith(tuple(UNSUITABLE))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def install() -> None:
    """Simulate another system from now on, if this one is Linux."""
    if sys.platform != "linux":
        return
    multiprocessing.set_start_method("spawn", force=True)
    install_windows(setattr, delattr, signals=())
    open_files._DESCRIPTORS, threads_of_process.TASKS = "/proc/missing", "/proc/missing"
    sys.addaudithook(_check)


def _check(event: str, arguments: tuple[object, ...]) -> None:
    """Raise the error of Windows for what tracekit does. The hook runs before the operation."""
    check = _CHECKS.get(event)
    if check is None or getattr(_checking, "active", False) or not _is_from_tracekit():
        return
    _checking.active = True
    try:
        check(*arguments)
    finally:
        _checking.active = False


def _is_from_tracekit() -> bool:
    """Return whether a module of tracekit called the function, directly or by the standard library."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return True
        if f"{os.sep}site-packages{os.sep}" in name or f"{os.sep}tests{os.sep}" in name:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _check_open(path: object, mode: object, flags: object) -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        return
    name = os.fsdecode(path)
    if SYSTEM_FOLDERS.match(name):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    if isinstance(flags, int) and flags & os.O_CREAT:
        _check_name(name)


def _check_listing(path: object = ".") -> None:
    if isinstance(path, str | bytes | os.PathLike) and SYSTEM_FOLDERS.match(f"{os.fsdecode(path)}/"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))


def _check_rename(source: str, target: str, *_: object) -> None:
    _check_unused(source)
    if os.path.lexists(target):
        _check_unused(target)
    _check_name(os.fsdecode(target))


def _check_unused(path: str, *_: object) -> None:
    """Raise the error of Windows for a file in use."""
    real = os.path.join(os.path.realpath(os.path.dirname(os.fsdecode(path))), os.path.basename(os.fsdecode(path)))
    if any(used == real or used.startswith(f"{real}/") for used in _list_used_files()):
        error = PermissionError(errno.EACCES, "the file is in use", path)
        error.winerror = _IN_USE  # type: ignore[attr-defined]
        raise error


def _list_used_files() -> Iterator[str]:
    """Yield the paths of the files that this process has open or mapped."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # the descriptor of the listing itself
            continue
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            yield line.rstrip("\n").partition("/")[2].join(("/", ""))


def _check_name(path: str, *_: object) -> None:
    """Raise the error of Windows for a new file whose name it does not accept, or that exists in another case."""
    folder, name = os.path.split(os.path.abspath(path))
    if folder.startswith("/dev"):
        return
    if file_names.is_reserved(name):
        error = OSError(errno.EINVAL, "Windows does not accept this name", path)
        error.winerror = _INVALID_NAME  # type: ignore[attr-defined]
        raise error
    if os.path.isdir(folder) and name not in (entries := os.listdir(folder)):
        same = [entry for entry in entries if entry.casefold() == name.casefold()]
        if same:
            raise FileExistsError(errno.EEXIST, f"the name {same[0]} differs only in its case", path)


_CHECKS = {
    "open": _check_open,
    "os.listdir": _check_listing,
    "os.scandir": _check_listing,
    "os.mkdir": _check_name,
    "os.rename": _check_rename,
    "os.remove": _check_unused,
}

install()
