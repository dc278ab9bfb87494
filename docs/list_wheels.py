"""Write ``docs/wheels.csv``: for which systems and versions of Python the dependencies have wheels.

Run ``python docs/list_wheels.py`` in an environment with all extras. The files of each package are listed by pip, from
the index that pip is configured to use, and nothing is downloaded. The versions are those of ``constraints.txt``. The
dependencies of dependencies are those of the installed versions.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.metadata
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link
from pip._internal.models.target_python import TargetPython

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.tags import Tag

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "wheels.csv"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def _list_linux_platforms(machine: str) -> list[str]:
    """Return the platforms of wheels that run with glibc 2.28, of Debian 10, RHEL 8 and newer."""
    return [f"manylinux_2_{n}_{machine}" for n in range(28, 4, -1)] + [f"manylinux2014_{machine}"]


SYSTEMS = {
    "Linux x86-64": (_list_linux_platforms("x86_64"), "linux", "x86_64"),
    "Linux arm64": (_list_linux_platforms("aarch64"), "linux", "aarch64"),
    "musl x86-64": (["musllinux_1_2_x86_64", "musllinux_1_1_x86_64"], "linux", "x86_64"),
    "musl arm64": (["musllinux_1_2_aarch64", "musllinux_1_1_aarch64"], "linux", "aarch64"),
    "macOS x86-64": (["macosx_15_0_x86_64"], "darwin", "x86_64"),
    "macOS arm64": (["macosx_15_0_arm64"], "darwin", "arm64"),
    "Windows x86-64": (["win_amd64"], "win32", "AMD64"),
    "Windows arm64": (["win_arm64"], "win32", "ARM64"),
}
"""The platforms of wheels, ``sys_platform`` and ``platform_machine`` by system, the best platform first."""
NOT_NEEDED = "-"
ANY = frozenset({"py3-none-any", "py2.py3-none-any", "py2-none-any"})
"""Tags of wheels for all systems."""
SYSTEMS_OF_ANY = {"wasmtime": {"Windows x86-64"}}
"""The systems on which the wheel for all systems works, by package, if it contains a library for these only."""


def read_declared() -> dict[str, list[str]]:
    """Return the requirements of each part, by name of the extra. That of the default installation is empty."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def list_needed(requirements: Iterable[str], system: str) -> set[str]:
    """Return the names of all packages that requirements need on a system, directly or not."""
    _, platform, machine = SYSTEMS[system]
    environments = [
        {"sys_platform": platform, "platform_machine": machine, "python_version": version, "extra": ""}
        | {"platform_system": {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}[platform]}
        | {"os_name": "nt" if platform == "win32" else "posix", "python_full_version": f"{version}.0"}
        for version in VERSIONS
    ]
    seen: set[tuple[str, str]] = set()
    queue = [(Requirement(text), "") for text in requirements]
    while queue:
        requirement, extra = queue.pop()
        name, marker = canonicalize_name(requirement.name), requirement.marker
        if marker and not any(marker.evaluate(environment | {"extra": extra}) for environment in environments):
            continue
        for each in ("", *requirement.extras):
            if (name, each) not in seen:
                seen.add((name, each))
                queue += [(Requirement(text), each) for text in _read_requirements(name)]
    return {name for name, _ in seen}


def _read_requirements(name: str) -> list[str]:
    """Return the requirements of an installed package. Those of packages for other systems are not known."""
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


class Index:
    """The package index that pip is configured to use."""

    def __init__(self) -> None:
        command = create_command("download")
        options, _ = command.parse_args(["--quiet", "--disable-pip-version-check", "nothing"])
        session = command._build_session(options)  # noqa: SLF001
        self._collector = command._build_package_finder(options, session)._link_collector  # noqa: SLF001

    def list_wheels(self, name: str, version: str | None) -> tuple[Version, list[frozenset[Tag]]]:
        """Return the version of a package, by default the newest one, and the tags of each of its wheels."""
        wheels: dict[Version, list[frozenset[Tag]]] = {}
        for location in self._collector.search_scope.get_index_urls_locations(name):
            content = self._collector.fetch_response(Link(location))
            for link in parse_links(content) if content else ():
                if link.filename.endswith(".whl") and not link.is_yanked:
                    with contextlib.suppress(InvalidWheelFilename):  # of old releases
                        _, of, _, tags = parse_wheel_filename(link.filename)
                        wheels.setdefault(of, []).append(tags)
        chosen = Version(version) if version else max(v for v in wheels if not v.is_prerelease)
        return chosen, wheels.get(chosen, [])


def describe_wheels(name: str, wheels: list[frozenset[Tag]]) -> dict[str, str]:
    """Return the versions of Python for which a wheel works, separated by spaces, by system."""
    cells = {}
    for system, (platforms, _, _) in SYSTEMS.items():
        works = {str(tag) for tags in wheels for tag in tags}
        if system not in SYSTEMS_OF_ANY.get(name, SYSTEMS):
            works -= ANY
        tags = {v: {str(tag) for tag in _create_target(platforms, v).get_unsorted_tags()} for v in VERSIONS}
        cells[system] = " ".join(version for version, accepted in tags.items() if works & accepted)
    return cells


def _create_target(platforms: list[str], version: str) -> TargetPython:
    return TargetPython(platforms=platforms, py_version_info=tuple(map(int, version.split("."))), implementation="cp")


def main() -> None:
    """Write the table: all declared dependencies, and the dependencies of these that are not pure Python."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    index, rows, done = Index(), [], set()
    parts = read_declared()
    declared = {part: [canonicalize_name(Requirement(text).name) for text in texts] for part, texts in parts.items()}
    for part, texts in parts.items():
        needed = {system: list_needed(texts, system) for system in SYSTEMS}
        for name in [*declared[part], *sorted(set().union(*needed.values()) - set(declared[part]))]:
            is_declared = name in declared[part]
            if name in done and not is_declared:
                continue
            done.add(name)
            version, wheels = index.list_wheels(name, pinned.get(name))
            is_pure = all(str(tag) in ANY for tags in wheels for tag in tags)
            if is_declared or not is_pure:
                row = {"part": part, "package": name, "version": str(version)}
                row |= {"declared": str(is_declared), "pure": str(is_pure)} | describe_wheels(name, wheels)
                rows.append(row | {system: NOT_NEEDED for system, names in needed.items() if name not in names})
            print(part or "default", name, version, "pure" if is_pure else f"{len(wheels)} wheels", file=sys.stderr)
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
