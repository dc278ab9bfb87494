"""Captures of other makers: every table of a big file, against the format's own Python tool.

A module ``makers_NAME.py`` beside this one describes one format:

- ``TITLE``: the name of the job.
- ``PACKAGES``: what its peer needs from PyPI, pinned; empty if the peer is the standard library.
- ``write(folder)``: make the file once, and return its path.
- ``read_with_peer(path)``: read the file with the peer, and return a number that tells how much it read.

The module runs in the peer's environment too, and therefore imports tracekit only inside ``write``.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Measure, install, median_of_runs, peak_mib

if TYPE_CHECKING:
    from types import ModuleType

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("makers_*.py"))


def title(module: str) -> str:
    """Return the name of the job of a module."""
    return str(importlib.import_module(module).TITLE)


def measure(module: str, folder: Path) -> tuple[Measure, Measure]:
    """Measure tracekit and the peer in fresh processes; medians."""
    described = importlib.import_module(module)
    path = described.write(folder)
    peer = install(folder / module, described.PACKAGES) if described.PACKAGES else sys.executable
    own, other = (
        median_of_runs([python, __file__, module, reader, str(path)])
        for python, reader in ((sys.executable, "ours"), (peer, "peer"))
    )
    libraries = median_of_runs([sys.executable, __file__, module, "libraries", str(path)])["peak_mb"]
    net = max(0.0, own["peak_mb"] - libraries) * (1 << 20) / 1e6
    tables = own["tables_mb"]
    total = own["peak_mb"] * (1 << 20) / 1e6
    print(
        f"{described.TITLE}: tables {tables:.0f} MB, peak {total / tables:.1f} times that; without the "
        f"{libraries:.0f} MiB of the interpreter and libraries {net / tables:.1f} times"
    )
    return own, other


def read_with_tracekit(path: str) -> dict[str, float]:
    """Read every table; return the rows, and the size of the tables."""
    import tracekit as tk

    with tk.load(path) as trace:
        tables = [trace[name] for name in trace.tables]
        size = sum(table.nbytes for table in tables) / 1e6
        return {"rows": sum(table.num_rows for table in tables), "tables_mb": max(size, 1e-6)}


def load_libraries(_path: str) -> dict[str, float]:
    """Load what reading needs, and read an empty capture, so that the peak is that of the interpreter and libraries."""
    import tracekit as tk

    tables = [tk.Trace.from_tables({})[name] for name in ("kernels", "api_calls")]
    return {"rows": sum(table.num_rows for table in tables)}


def read_with_peer(described: ModuleType, path: str) -> dict[str, float]:
    """Read the file with the peer of a module."""
    return {"rows": described.read_with_peer(path)}


def main(module: str, reader: str, path: str) -> None:
    """Read once, and print the figures."""
    described = importlib.import_module(module)
    began = time.perf_counter()
    readers = {"ours": read_with_tracekit, "libraries": load_libraries}
    figures = readers[reader](path) if reader in readers else read_with_peer(described, path)
    seconds = time.perf_counter() - began
    print(json.dumps({**figures, "seconds": seconds, "peak_mb": peak_mib()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
