"""Determine how much memory the control groups of Linux leave to this process.

Containers and cluster jobs are limited by control groups (cgroups), which ``/proc/meminfo`` does not take into account.
The limit of a group applies to all processes in the group and below it. Files that are missing or invalid are ignored,
because containers hide some of them.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESS_FOLDER = Path("/proc/self")
"""The folder in which Linux lists the control groups and mounts of this process."""
_UNLIMITED_BYTES = 1 << 62
"""Limit from which a group is unlimited. Version 1 reports the largest multiple of the page size."""
_ESCAPED_BYTE = re.compile(r"\\([0-7]{3})")
_MOUNT_ROOT, _MOUNT_POINT, _MIN_MOUNT_FIELDS = 3, 4, 5
"""Positions of fields in a line of mountinfo before the separator, and their smallest number."""


class _Files(NamedTuple):
    """The files of one version of control groups, and the names of the reclaimable memory in ``memory.stat``."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]


_FILES = {
    "cgroup2": _Files(
        ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
    ),
    "cgroup": _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}
"""The files by the name of the file system."""


class MemoryGroup(NamedTuple):
    """A control group with a memory limit.

    Attributes:
        folder: Folder of the group.
        files: Names of its files.
    """

    folder: Path
    files: _Files

    def read_limit_bytes(self) -> int | None:
        """Return the memory limit of the group in bytes, or None if it has none."""
        limits = [_read_number(self.folder / name) for name in self.files.limits]
        return min((limit for limit in limits if limit is not None and limit < _UNLIMITED_BYTES), default=None)

    def read_free_bytes(self) -> int | None:
        """Return the memory that the group can still allocate in bytes, or None if it has no limit.

        Pages of the file cache count as free, because the system reclaims them before the limit is exceeded.
        """
        if (limit := self.read_limit_bytes()) is None:
            return None
        used = _read_number(self.folder / self.files.usage) or 0
        statistics = dict(line.split(" ", 1) for line in _read_lines(self.folder / "memory.stat") if " " in line)
        reclaimable = sum(_to_number(statistics.get(name, "")) or 0 for name in self.files.reclaimable)
        return max(0, limit - max(0, used - reclaimable))


@functools.cache
def find_memory_groups(process_folder: Path = PROCESS_FOLDER) -> tuple[MemoryGroup, ...]:
    """Return the control groups with a memory limit that contain the process: its own group and those above it.

    The result is cached, because a process rarely moves to another group. Limits themselves are read each time.

    Args:
        process_folder: The folder of the process in ``/proc``.
    """
    paths = dict(_read_control_group_paths(process_folder / "cgroup"))
    groups = {
        MemoryGroup(folder, _FILES[kind]): None
        for kind, root, mount_point in _list_memory_mounts(process_folder / "mountinfo")
        if kind in paths
        for folder in _list_folders_up_to_root(paths[kind], root, mount_point)
    }
    return tuple(group for group in groups if group.read_limit_bytes() is not None)


def read_free_memory_bytes(process_folder: Path = PROCESS_FOLDER) -> int | None:
    """Return the memory that control groups still allow this process to allocate in bytes, or None without a limit."""
    free = [group.read_free_bytes() for group in find_memory_groups(process_folder)]
    return min((size for size in free if size is not None), default=None)


def read_memory_limit_bytes(process_folder: Path = PROCESS_FOLDER) -> int | None:
    """Return the smallest memory limit of the control groups of this process in bytes, or None without a limit."""
    limits = [group.read_limit_bytes() for group in find_memory_groups(process_folder)]
    return min((limit for limit in limits if limit is not None), default=None)


def _read_control_group_paths(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind of file system and the path of the control group that controls the memory of the process."""
    for line in _read_lines(file):
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            yield "cgroup", path
        elif hierarchy == "0" and not controllers:
            yield "cgroup2", path


def _list_memory_mounts(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, root and mount point of the file systems of control groups that can limit memory."""
    for line in _read_lines(file):
        mount, _, file_system = line.partition(" - ")
        fields = mount.split(" ")
        kind, _, options = file_system.partition(" ")
        is_memory = kind == "cgroup2" or (kind == "cgroup" and "memory" in re.split("[ ,]", options))
        if is_memory and len(fields) >= _MIN_MOUNT_FIELDS:
            yield kind, _unescape(fields[_MOUNT_ROOT]), _unescape(fields[_MOUNT_POINT])


def _list_folders_up_to_root(path: str, root: str, mount_point: str) -> list[Path]:
    """Return the folders of a control group and of the groups above it, up to the mount point.

    In a container, the path may be that on the host. The mount point is then the group of the container.
    """
    group, mounted = PurePosixPath(path), PurePosixPath(root)
    if ".." in group.parts or not group.is_relative_to(mounted):
        return [Path(mount_point)]
    below = group.relative_to(mounted)
    return [Path(mount_point, parent) for parent in (below, *below.parents)]


def _unescape(field: str) -> str:
    """Replace the octal escape sequences with which mountinfo writes spaces and backslashes."""
    return _ESCAPED_BYTE.sub(lambda match: chr(int(match[1], 8)), field)


def _read_number(file: Path) -> int | None:
    return _to_number(next(iter(_read_lines(file)), ""))


def _to_number(text: str) -> int | None:
    """Return a non-negative decimal number, or None for anything else, such as the word max."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(1 << 64)) else None


def _read_lines(file: Path) -> list[str]:
    """Return the lines of a file, or an empty list if it cannot be read."""
    try:
        return file.read_text("utf-8", "surrogateescape").splitlines()
    except (OSError, ValueError):
        return []
