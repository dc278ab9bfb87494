"""Tests of the memory limits of control groups, with folders that look like those of Linux."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tracekit.system.platform import control_groups, memory_size

MIB = 1 << 20
UNLIMITED_V1 = 9223372036854771712
"""The limit that Linux reports for a control group of version 1 without a limit."""


def write_group(folder: Path, **files: object) -> None:
    """Write the files of a control group. A double underscore in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def write_process(folder: Path, groups: str, *mounts: str) -> Path:
    """Write the files cgroup and mountinfo of a process, and return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / "cgroup").write_text(groups)
    lines = ["23 1 0:22 / / rw - overlay overlay rw", *mounts, "not a mount", "1 - cgroup2 cgroup2 rw"]
    (folder / "mountinfo").write_text("\n".join(lines) + "\n")
    return folder


def mount_v2(point: Path, root: str = "/") -> str:
    return f"31 23 0:28 {root} {point} ro,nosuid shared:9 - cgroup2 cgroup2 rw,memory_recursiveprot"


def mount_v1(point: Path, root: str = "/", controllers: str = "memory") -> str:
    return f"35 31 0:32 {root} {point} rw,relatime - cgroup cgroup rw,{controllers}"


def write_meminfo(folder: Path, free_bytes: int) -> Path:
    file = folder / "meminfo"
    file.write_text(f"MemAvailable: {free_bytes >> 10} kB\n")
    return file


def test_the_limit_of_a_container_is_less_than_the_memory_of_the_host(tmp_path: Path) -> None:
    point = tmp_path / "fs"
    statistics = f"anon {600 * MIB}\ninactive_file {250 * MIB}\nactive_file {50 * MIB}\nslab_reclaimable {100 * MIB}"
    write_group(point, memory__max=4096 * MIB, memory__high="max", memory__current=1000 * MIB, memory__stat=statistics)
    process = write_process(tmp_path / "self", "0::/\n", mount_v2(point))
    assert memory_size.read_available_memory_bytes(write_meminfo(tmp_path, 512 << 30), process) == (4096 - 600) * MIB
    assert memory_size.read_available_memory_bytes(write_meminfo(tmp_path, 1 << 30), process) == 1 << 30
    assert memory_size.read_total_memory_bytes(process) == min(
        4096 * MIB, memory_size.read_total_memory_bytes(tmp_path / "none")
    )


def test_the_smallest_limit_of_the_group_and_its_ancestors_counts(tmp_path: Path) -> None:
    point = tmp_path / "fs"
    write_group(point / "slurm" / "job" / "step", memory__max="max", memory__high=900 * MIB, memory__current=100 * MIB)
    write_group(point / "slurm" / "job", memory__max=1000 * MIB, memory__high=990 * MIB, memory__current=700 * MIB)
    write_group(point / "slurm", memory__max="max")
    write_group(point / "other", memory__max=1)
    process = write_process(tmp_path / "self", "0::/slurm/job/step\n", mount_v2(point))
    assert control_groups.read_free_memory_bytes(process) == 290 * MIB
    assert control_groups.read_memory_limit_bytes(process) == 900 * MIB


def test_usage_above_the_limit_leaves_nothing(tmp_path: Path) -> None:
    write_group(tmp_path / "fs", memory__high=10 * MIB, memory__current=12 * MIB)
    process = write_process(tmp_path / "self", "0::/\n", mount_v2(tmp_path / "fs"))
    assert control_groups.read_free_memory_bytes(process) == 0


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/docker/a", "/docker/a"),
        ("/docker/a/child", "/docker/a"),
        ("/docker/a", "/"),
        ("/elsewhere", "/docker/a"),
        ("/../outside", "/"),
    ],
)
def test_version_1_with_the_path_of_the_host_or_of_the_container(path: str, root: str, tmp_path: Path) -> None:
    """The files of the container are at the mount point, also if the path on the host does not exist there."""
    point = tmp_path / "memory"
    statistics = f"cache 1\ntotal_inactive_file {3 * MIB}\ntotal_active_file {MIB}\ninactive_file 99"
    write_group(point, memory__limit_in_bytes=64 * MIB, memory__usage_in_bytes=10 * MIB, memory__stat=statistics)
    write_group(point / "child", memory__limit_in_bytes=UNLIMITED_V1, memory__usage_in_bytes=MIB)
    write_group(tmp_path / "outside", memory__limit_in_bytes=1)
    write_group(tmp_path / "cpu", memory__limit_in_bytes=1)
    groups = f"5:cpu,cpuacct:/\n4:memory:{path}\n1:name=systemd:/\n0::/\n"
    mounts = mount_v1(tmp_path / "cpu", controllers="cpu,cpuacct"), mount_v1(point, root), mount_v2(tmp_path / "v2")
    process = write_process(tmp_path / "self", groups, *mounts)
    assert control_groups.read_free_memory_bytes(process) == 58 * MIB
    assert control_groups.read_memory_limit_bytes(process) == 64 * MIB


def test_an_unlimited_group_of_version_1_does_not_change_the_free_memory(tmp_path: Path) -> None:
    write_group(tmp_path / "fs", memory__limit_in_bytes=UNLIMITED_V1, memory__usage_in_bytes=MIB)
    process = write_process(tmp_path / "self", "4:memory:/\n", mount_v1(tmp_path / "fs"))
    assert memory_size.read_available_memory_bytes(write_meminfo(tmp_path, 3 << 30), process) == 3 << 30


def test_spaces_in_a_mount_point_are_unescaped(tmp_path: Path) -> None:
    write_group(tmp_path / "a b", memory__max=MIB)
    process = write_process(tmp_path / "self", "0::/\n", mount_v2(tmp_path / "a\\040b"))
    assert control_groups.read_memory_limit_bytes(process) == MIB


@pytest.mark.parametrize("content", [b"", b"max", b"-1", b"4e9", b"1" * 5000, "٣".encode(), b"\xff\xfe", b"\0"])
def test_invalid_limits_are_ignored(content: bytes, tmp_path: Path) -> None:
    write_group(tmp_path / "fs", memory__max=MIB)
    (tmp_path / "fs" / "memory.max").write_bytes(content)
    process = write_process(tmp_path / "self", "0::/\n", mount_v2(tmp_path / "fs"))
    assert control_groups.read_free_memory_bytes(process) is None
    assert control_groups.read_memory_limit_bytes(process) is None


@pytest.mark.parametrize("content", [b"", b"inactive_file", b"inactive_file x y\n\n \xff", b"inactive_file -5"])
def test_invalid_usage_and_statistics_are_ignored(content: bytes, tmp_path: Path) -> None:
    write_group(tmp_path / "fs", memory__max=MIB, memory__current="?")
    (tmp_path / "fs" / "memory.stat").write_bytes(content)
    process = write_process(tmp_path / "self", "0::/\n", mount_v2(tmp_path / "fs"))
    assert control_groups.read_free_memory_bytes(process) == MIB


def test_missing_files_and_damaged_lists_are_ignored(tmp_path: Path) -> None:
    assert control_groups.read_free_memory_bytes(tmp_path / "none") is None
    (tmp_path / "folder" / "cgroup").mkdir(parents=True)
    assert control_groups.read_free_memory_bytes(tmp_path / "folder") is None
    process = write_process(
        tmp_path / "self", "nonsense\n:::\n0::\n", mount_v2(tmp_path / "none"), mount_v2(Path("\0"))
    )
    assert control_groups.read_free_memory_bytes(process) is None


def test_a_limit_that_is_removed_or_changed_later_is_read_again(tmp_path: Path) -> None:
    write_group(tmp_path / "fs", memory__max=MIB)
    process = write_process(tmp_path / "self", "0::/\n", mount_v2(tmp_path / "fs"))
    assert control_groups.read_free_memory_bytes(process) == MIB
    write_group(tmp_path / "fs", memory__max=2 * MIB)
    assert control_groups.read_free_memory_bytes(process) == 2 * MIB
    write_group(tmp_path / "fs", memory__max="max")
    assert control_groups.read_free_memory_bytes(process) is None


def test_the_memory_is_assumed_where_the_system_does_not_report_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert memory_size.read_total_memory_bytes() > 1 << 28
    monkeypatch.delattr(os, "sysconf")
    assert memory_size.read_total_memory_bytes(tmp_path / "none") == 8 << 30
