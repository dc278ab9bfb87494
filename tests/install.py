"""Install the distributions of a folder with each supported Python, and use them: ``python tests/install.py FOLDER``.

Each is installed with its declared dependencies into a new environment. Without a Python of a supported version on the
machine, that version is reported as missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CAPTURE = ROOT / "fixtures" / "train_amp.nsys-rep"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OUTPUTS = {"trace.json.gz": "chrome-trace", "tables": "parquet", "dlprof.sqlite": "dlprof-db", "csv": "csv"}


def main(folder: Path) -> int:
    """Try each distribution of a folder with each Python, print one line each, and return the exit status."""
    distributions = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if not distributions:
        print(f"no wheel or source distribution in {folder}")
        return 1
    failures = [failure for version in VERSIONS for failure in failures_with(version, distributions)]
    return 1 if failures else 0


def failures_with(version: str, distributions: list[Path]) -> list[Path]:
    """Return the distributions that cannot be installed and used with a version of Python."""
    python = interpreter(version)
    if python is None:
        print(f"Python {version}: not on this machine")
        return []
    failures = []
    for distribution in distributions:
        error = error_of(python, distribution)
        print(f"Python {version}: {distribution.name}: {error or 'installed, converted a capture'}")
        failures += [distribution] if error else []
    return failures


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version that runs, or None."""
    python = shutil.which(f"python{version}")
    command = [str(python), "-c", "import venv, ensurepip"]
    if python is None or subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    return python


def error_of(python: str, distribution: Path) -> str | None:
    """Install a distribution into a new environment and convert a capture; return the output of what failed."""
    with tempfile.TemporaryDirectory() as folder:
        binaries = Path(folder) / "environment" / "bin"
        commands = [
            [python, "-m", "venv", str(binaries.parent)],
            [str(binaries / "pip"), "install", "--quiet", str(distribution.resolve())],
            [str(binaries / "tracekit"), "stats", str(CAPTURE), "--report", "cuda_gpu_kern_sum"],
            *([str(binaries / "tracekit"), "convert", str(CAPTURE), o, "--to", f] for o, f in OUTPUTS.items()),
        ]
        for command in commands:
            done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
            if done.returncode:
                return f"{' '.join(command[:2])} failed:\n{done.stdout}{done.stderr}"
        missing = [output for output in OUTPUTS if not (Path(folder) / output).exists()]
    return f"did not write {', '.join(missing)}" if missing else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
