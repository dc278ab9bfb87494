"""Determine how much memory the control groups of Linux leave to this process.

Containers and cluster jobs are limited by control groups (cgroups), which ``/proc/meminfo`` does not take into account.
The limit of a group applies to all processes in the group and in the groups below it. Files of control groups that are
missing or invalid are ignored, because containers hide some of these files. Other systems have no such files.
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
"""Limit from which a group counts as unlimited. Version 1 reports the largest multiple of the page size."""
_ESCAPED_BYTE = re.compile(r"\\([0-7]{3})")
_MOUNT_ROOT, _MOUNT_POINT, _MIN_MOUNT_FIELDS = 3, 4, 5
"""Positions of fields in a line of mountinfo, and the minimum number of fields before the separator."""


class _GroupFiles(NamedTuple):
    """Names of the files of a control group, and of the lines of ``memory.stat`` that state reclaimable memory."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]


_FILES = {
    "cgroup2": _GroupFiles(
        ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
    ),
    "cgroup": _GroupFiles(
        ("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
    ),
}
"""Names of the files of a control group, by type of its file system."""


class _MemoryMount(NamedTuple):
    """A mounted file system of control groups.

    Attributes:
        type: ``cgroup`` or ``cgroup2``.
        root: Path of the control group that is mounted.
        mount_point: Folder at which the group is mounted.
    """

    type: str
    root: str
    mount_point: str


class MemoryGroup(NamedTuple):
    """A control group with a memory limit.

    Attributes:
        folder: Folder of the group.
        files: Names of the files of the group.
    """

    folder: Path
    files: _GroupFiles

    def read_memory_limit_bytes(self) -> int | None:
        """Return the memory limit of the group in bytes, or None if the group has no limit."""
        limits = [_read_number(self.folder / name) for name in self.files.limits]
        return min((limit for limit in limits if limit is not None and limit < _UNLIMITED_BYTES), default=None)

    def read_free_bytes(self) -> int | None:
        """Return how many bytes the group can still allocate, or None if the group has no limit.

        Reclaimable memory, such as the file cache, counts as free, because the system reclaims it at the limit.
        """
        if (limit := self.read_memory_limit_bytes()) is None:
            return None
        used = _read_number(self.folder / self.files.usage) or 0
        statistics = dict(line.split(" ", 1) for line in _read_lines(self.folder / "memory.stat") if " " in line)
        reclaimable = sum(_parse_number(statistics.get(name, "")) or 0 for name in self.files.reclaimable)
        return max(0, limit - max(0, used - reclaimable))


@functools.cache
def find_memory_groups(process_folder: Path = PROCESS_FOLDER) -> tuple[MemoryGroup, ...]:
    """Return the control groups with a memory limit that contain a process: its own group and the groups above it.

    The result is cached, because a process rarely moves to another group. The values of the limits are not cached.

    Args:
        process_folder: The folder of the process in ``/proc``.
    """
    paths = dict(_read_control_group_types_and_paths(process_folder / "cgroup"))
    groups = {
        MemoryGroup(folder, _FILES[kind]): None
        for kind, root, mount_point in _list_memory_mounts(process_folder / "mountinfo")
        if kind in paths
        for folder in _list_folders_up_to_root(paths[kind], root, mount_point)
    }
    return tuple(group for group in groups if group.read_memory_limit_bytes() is not None)


def read_free_memory_bytes(process_folder: Path = PROCESS_FOLDER) -> int | None:
    """Return how many bytes the control groups of this process can still allocate, or None if there is no limit."""
    free = [group.read_free_bytes() for group in find_memory_groups(process_folder)]
    return min((size for size in free if size is not None), default=None)


def read_memory_limit_bytes(process_folder: Path = PROCESS_FOLDER) -> int | None:
    """Return the smallest memory limit of the control groups of this process in bytes, or None if there is no limit."""
    limits = [group.read_memory_limit_bytes() for group in find_memory_groups(process_folder)]
    return min((limit for limit in limits if limit is not None), default=None)


def _read_control_group_types_and_paths(group_file: Path) -> Iterator[tuple[str, str]]:
    """Yield the type of the file system and the path of each control group that can limit the memory of a process."""
    for line in _read_lines(group_file):
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            yield "cgroup", path
        elif hierarchy == "0" and not controllers:
            yield "cgroup2", path


def _list_memory_mounts(mountinfo: Path) -> Iterator[_MemoryMount]:
    """Yield the mounted file systems of control groups that can limit memory."""
    for line in _read_lines(mountinfo):
        mount, _, file_system = line.partition(" - ")
        fields = mount.split(" ")
        kind, _, options = file_system.partition(" ")
        is_memory = kind == "cgroup2" or (kind == "cgroup" and "memory" in re.split("[ ,]", options))
        if is_memory and len(fields) >= _MIN_MOUNT_FIELDS:
            root, mount_point = fields[_MOUNT_ROOT], fields[_MOUNT_POINT]
            yield _MemoryMount(kind, _unescape_mount_field(root), _unescape_mount_field(mount_point))


def _list_folders_up_to_root(group_path: str, root: str, mount_point: str) -> list[Path]:
    """Return the folders of a control group and of the groups above it, up to the mount point.

    In a container, ``group_path`` may be a path on the host. The mount point is then the group of the container.
    """
    group, mounted = PurePosixPath(group_path), PurePosixPath(root)
    if ".." in group.parts or not group.is_relative_to(mounted):
        return [Path(mount_point)]
    below = group.relative_to(mounted)
    return [Path(mount_point, parent) for parent in (below, *below.parents)]


def _unescape_mount_field(field: str) -> str:
    """Return a field of ``mountinfo`` without the octal escape sequences that represent spaces and backslashes."""
    return _ESCAPED_BYTE.sub(lambda match: chr(int(match[1], 8)), field)


def _read_number(file: Path) -> int | None:
    return _parse_number(next(iter(_read_lines(file)), ""))


def _parse_number(text: str) -> int | None:
    """Return the value of a non-negative decimal number, or None for any other text, such as ``max``."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(1 << 64)) else None


def _read_lines(file: Path) -> list[str]:
    """Return the lines of a file, or an empty list if the file cannot be read."""
    try:
        return file.read_text("utf-8", "surrogateescape").splitlines()
    except (OSError, ValueError):
        return []
