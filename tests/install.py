"""Install the distributions of a folder in each way, and use them: ``python tests/install.py FOLDER``.

Each distribution is installed with each supported Python of this machine, with its declared dependencies, into a new
environment. Only wheels of dependencies are installed, so that nothing is compiled. The wheel is also run with ``uvx``
and ``pipx run``. A version of Python, uv or pipx that is not on the machine is reported as missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
CAPTURE = ROOT / "fixtures" / "train_amp.nsys-rep"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OUTPUTS = {
    "page.html": "html",
    "trace.json.gz": "chrome-trace",
    "tables": "parquet",
    "dlprof.sqlite": "dlprof-db",
    "csv": "csv",
}
COMMANDS = (
    ("why", str(CAPTURE)),
    ("stats", str(CAPTURE), "--report", "cuda_gpu_kern_sum"),
    *(("convert", str(CAPTURE), output, "--to", name) for output, name in OUTPUTS.items()),
)
VIEW = ("view", str(CAPTURE))
"""A command that needs an extra, and prints the command that installs it."""
BINARIES = "Scripts" if os.name == "nt" else "bin"


def main(folder: Path) -> int:
    """Try each distribution of a folder in each way, print one line each, and return the exit status."""
    wheels = sorted(folder.glob("*.whl"))
    distributions = [*wheels, *sorted(folder.glob("*.tar.gz"))]
    if not distributions:
        print(f"no wheel or source distribution in {folder}")
        return 1
    failed = [report(f"Python {v}", interpreter(v), path, error_of) for v in VERSIONS for path in distributions]
    failed += [report("uvx", program("uvx"), path, error_of_uvx) for path in wheels]
    failed += [report("pipx run", program("pipx"), path, error_of_pipx) for path in wheels]
    return int(any(failed))


def report(way: str, program: str | None, distribution: Path, find_error: Callable[[str, Path], str | None]) -> bool:
    """Try a distribution in one way, print the result, and return whether it failed."""
    if program is None:
        print(f"{way}: not on this machine")
        return False
    error = find_error(program, distribution.resolve())
    print(f"{way}: {distribution.name}: {error or 'installed, explained and converted a capture'}", flush=True)
    return error is not None


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version that runs, or None. Versions installed by pyenv count as well."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    own = f"{sys.version_info.major}.{sys.version_info.minor}" == version
    candidates = [sys.executable if own else None, shutil.which(f"python{version}")]
    for python in [*filter(None, candidates), *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        command = [str(python), "-c", "import venv, ensurepip"]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return str(python)
    return None


def program(name: str) -> str | None:
    """Return the path of a program of this environment or of the machine, or None."""
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", ""))
    return shutil.which(name, path=os.pathsep.join(folders))


def error_of(python: str, distribution: Path) -> str | None:
    """Install a distribution into a new environment and use it; return the output of what failed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        binaries = environment / BINARIES
        install = ["install", "--quiet", "--only-binary", ":all:", str(distribution)]
        for command in ([python, "-m", "venv", str(environment)], [str(binaries / "python"), "-m", "pip", *install]):
            if (error := run(command, folder)) is not None:
                return error
        return error_of_commands([str(binaries / "tracekit")], "pip install", folder)


def error_of_uvx(uvx: str, wheel: Path) -> str | None:
    """Run a wheel with ``uvx`` from an empty cache; return the output of what failed."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--cache-dir", str(Path(folder) / "cache"), "--no-build", "--python", sys.executable]
        return error_of_commands([uvx, *options, "--from", str(wheel), "tracekit"], "uvx --from", folder)


def error_of_pipx(pipx: str, wheel: Path) -> str | None:
    """Run a wheel with ``pipx run`` from an empty cache; return the output of what failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [pipx, "run", "--python", sys.executable, "--spec", str(wheel), "tracekit"]
        return error_of_commands(command, "pipx run --spec", folder, PIPX_HOME=str(Path(folder) / "pipx"))


def error_of_commands(tracekit: list[str], hint: str, folder: str, **variables: str) -> str | None:
    """Run the commands that need no extra, and one that does; return the output of what failed."""
    for arguments in COMMANDS:
        if (error := run([*tracekit, *arguments], folder, **variables)) is not None:
            return error
    if missing := [output for output in OUTPUTS if not (Path(folder) / output).exists()]:
        return f"did not write {', '.join(missing)}"
    error = run([*tracekit, *VIEW], folder, **variables)
    return None if error and hint in error and "tracekit[view]" in error else f"no hint {hint!r}: {error}"


def run(command: list[str], folder: str, **variables: str) -> str | None:
    """Run a command in a folder, and return its output if it failed."""
    environment = {**os.environ, "PYTHONUTF8": "1", **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, encoding="utf-8", errors="replace", capture_output=True, check=False
    )
    return f"{' '.join(command[:2])} failed:\n{done.stdout}{done.stderr}" if done.returncode else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
