"""The peak memory of each command with ``--memory``: ``python memory.py EXPORT LIMIT`` prints a table.

``make bench JOB=memory`` needs it. The limit applies to the columns of tables, and not to the process, so the table
also shows the peak without the memory of the interpreter and the libraries, divided by the limit. A command that fails
does not stop the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = ["command", "peak MB", "beyond the start, MB", "limits", "CPU s"]
COMMANDS = {
    "convert to Parquet": ("convert", "{path}", "{out}", "--to", "parquet"),
    "convert to Arrow": ("convert", "{path}", "{out}", "--to", "arrow"),
    "convert to CSV": ("convert", "{path}", "{out}", "--to", "csv"),
    "convert to SQLite": ("convert", "{path}", "{out}.sqlite", "--to", "sqlite"),
    "convert to Chrome JSON": ("convert", "{path}", "{out}.json"),
    "convert to Perfetto": ("convert", "{path}", "{out}.pftrace"),
    "convert to HTML": ("convert", "{path}", "{out}.html"),
    "convert to DLProf": ("convert", "{path}", "{out}.dldb.sqlite"),
    "convert to event files": ("convert", "{path}", "{out}", "--to", "tfevents"),
    "correlate": ("correlate", "{path}", "-o", "{out}.parquet"),
    "stats, cuda_gpu_kern_sum": ("stats", "{path}", "--report", "cuda_gpu_kern_sum"),
    "stats, cuda_gpu_trace": ("stats", "{path}", "--report", "cuda_gpu_trace", "--format", "csv"),
    "stats, nvtx_pushpop_trace": ("stats", "{path}", "--report", "nvtx_pushpop_trace", "--format", "csv"),
    "stats, nvtx_kern_sum": ("stats", "{path}", "--report", "nvtx_kern_sum", "--format", "csv"),
    "info": ("info", "{path}"),
    "tables": ("tables", "{path}"),
    "rows": ("rows", "{path}", "kernels", "--correlated", "-n", "10"),
    "analyze": ("analyze", "{path}"),
    "recipe": ("recipe", "cuda_gpu_kern_sum", "{path}", "-o", "{out}"),
    "redact": ("redact", "{path}", "{out}.sqlite"),
    "diff": ("diff", "{path}", "{path}"),
    "summary": ("{path}",),
    "why": ("why", "{path}"),
}
"""The commands that read captures, except the viewer, which has a table of its own."""
_RUN = """
import atexit, json, resource, runpy, sys
sys.path.insert(0, {folder!r})
from measuring import peak_mib
def report():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([peak_mib() * 1.048576, usage.ru_utime + usage.ru_stime]), file=sys.stderr)
atexit.register(report)
"""
_START = "import numpy, polars, pyarrow.parquet, adbc_driver_sqlite.dbapi, tracekit.cli"


def measured(path: Path, limit_mb: int) -> Iterator[str]:
    """Run each command once on an export, and yield the lines of a table."""
    start, _ = _run(_START)
    yield f"Peak memory with `--memory {limit_mb}MB`. The interpreter and the libraries take {start:.0f} MB."
    yield ""
    yield from ("| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER)))
    for name, command in COMMANDS.items():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            words = [word.format(path=path, out=Path(folder, "out")) for word in command]
            words += ["--memory", f"{limit_mb}MB"]
            try:
                peak, seconds = _run(f"sys.argv[1:] = {words!r}\nrunpy.run_module('tracekit', run_name='__main__')")
            except (subprocess.CalledProcessError, ValueError, IndexError) as error:
                print(getattr(error, "stderr", error), file=sys.stderr)
                yield f"| {name} | failed | | | |"
                continue
        yield f"| {name} | {peak:,.0f} | {peak - start:,.0f} | {(peak - start) / limit_mb:.1f} | {seconds:.0f} |"


def _run(code: str) -> tuple[float, float]:
    """Run a program in a process of its own; return its peak memory in MB and its CPU time in seconds."""
    program = _RUN.format(folder=str(Path(__file__).parent)) + code
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TRACEKIT_CACHE": "off"}  # otherwise, only the first command reads the export
    run = subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    peak, seconds = json.loads(run.stderr.splitlines()[-1])
    return peak, seconds


if __name__ == "__main__":
    for line in measured(Path(sys.argv[1]), int(sys.argv[2])):
        print(line, flush=True)
