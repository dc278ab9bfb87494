"""Write ``docs/install_sizes.csv``: the size of an installation, what each part adds, and the time that this takes.

Run ``python docs/measure_install.py WHEEL`` in an environment with pip and uv. All packages are downloaded once and
then installed from the files. The time is that of the processor, so it does not depend on the network and on other
programs.
"""

from __future__ import annotations

import csv
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "install_sizes.csv"
_MB = 1e6
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def measure_part(files: Path, folder: Path, extra: str) -> dict[str, str]:
    """Install the default installation, or add a part to a copy of it, and return the figures of what is added.

    Args:
        files: Folder of the downloaded wheels.
        folder: Folder of the environment ``default``, which is created for the default installation.
        extra: Name of the part. Empty for the default installation.
    """
    offline = ["--no-index", "--find-links", str(files), f"tracekit[{extra}]" if extra else "tracekit"]
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    uv_install = [str(uv), "--cache-dir", str(folder / "cache"), "pip", "install", "--quiet"]
    by_uv, _ = _install(
        folder, folder / f"{extra}-uv", lambda python: [*uv_install, "--python", python, *offline], is_copy=bool(extra)
    )
    environment = folder / (extra or "default")
    by_pip, packages = _install(
        folder, environment, lambda python: [*PIP, "--python", python, "install", *offline], is_copy=bool(extra)
    )
    names = {path.name.partition(".dist-info")[0] for path in packages}
    wheels = [path for path in files.glob("*.whl") if "-".join(path.name.split("-")[:2]) in names]
    return {
        "part": extra,
        "packages": str(len(wheels)),
        "download_mb": f"{sum(path.stat().st_size for path in wheels) / _MB:.1f}",
        "installed_mb": f"{sum(path.stat().st_size for path in packages if path.is_file()) / _MB:.1f}",
        "pip_seconds": f"{by_pip:.1f}",
        "uv_seconds": f"{by_uv:.1f}",
    }


def _install(
    folder: Path, environment: Path, build_command: Callable[[str], list[str]], *, is_copy: bool
) -> tuple[float, list[Path]]:
    """Install into a new environment or a copy of the default one.

    Returns:
        The processor time in seconds, and the new files and folders.
    """
    if is_copy:
        shutil.copytree(folder / "default", environment, symlinks=True, copy_function=os.link)
    else:
        _run([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    (packages,) = environment.glob("lib/python*/site-packages")
    before, seconds = set(packages.rglob("*")), _get_processor_time()
    _run(build_command(str(environment / "bin" / "python")))
    return _get_processor_time() - seconds, [path for path in packages.rglob("*") if path not in before]


def _get_processor_time() -> float:
    """Return the processor time of the finished child processes in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def main(wheel: Path) -> None:
    """Measure all parts, and write the table."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory() as files:
        command = [*PIP, "download", "--only-binary", ":all:", "--dest", files]
        _run([*command, f"{wheel.resolve()}[{','.join(extras)}]"])
        write(Path(files), extras)


def write(files: Path, extras: Iterable[str]) -> None:
    """Write the table, given the folder of the downloaded wheels and the names of the parts."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for extra in ("", *extras):
            rows.append(measure_part(files, Path(folder), extra))
            print(*rows[-1].values(), flush=True)
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
