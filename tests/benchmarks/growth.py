"""How the CPU time and the peak memory of each command grow with the number of events: ``make bench JOB=growth``.

``SIZES=1,10,50`` are the sizes of the exports in millions of events, and ``LIMIT_MB=400`` is the value of ``--memory``.
The limit applies to the columns of tables, and not to the process. A command that fails does not stop the others.
``COMMANDS=correlate,why`` runs only the commands whose names contain one of these texts. Together with ``SIZES=50``, it
measures a large capture, which takes minutes per command.
matplotlib draws the plot, in an environment of its own: ``python growth.py VALUES IMAGE``.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import install

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
PLOTTING = ("matplotlib==3.10.7",)


def measured(exports: Mapping[int, Path], limit_mb: int, out: Path) -> Iterator[str]:
    """Run each command once on each export, yield the lines of a table, and draw the plot into a folder.

    Args:
        exports: The exports by number of events, in ascending order.
        limit_mb: The value of ``--memory`` in MB.
        out: Folder of the plot.
    """
    start, _ = _run(_START)
    yield f"Peak memory in MB and CPU time in s with `--memory {limit_mb}MB`. The interpreter and the libraries take"
    yield f"{start:.0f} MB. The last column is the memory beyond that in bytes per event."
    yield ""
    sizes = [f"{events / 1e6:g} M events" for events in exports]
    header = ["command", *(f"{size}, {unit}" for size in sizes for unit in ("MB", "s")), "bytes per event"]
    yield from ("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header)))
    measures: dict[str, list[tuple[float, float]]] = {}
    texts = os.environ.get("COMMANDS", "").split(",")
    for name, command in COMMANDS.items():
        if not any(text in name for text in texts):
            continue
        try:
            measures[name] = [_run_command(command, path, limit_mb) for path in exports.values()]
        except (subprocess.CalledProcessError, ValueError, IndexError) as error:
            print(getattr(error, "stderr", error), file=sys.stderr)
            yield f"| {name} | failed |" + " |" * (2 * len(exports))
            continue
        peak = measures[name][-1][0]
        cells = [f"{peak:,.0f} | {seconds:,.1f}" for peak, seconds in measures[name]]
        yield f"| {name} | {' | '.join(cells)} | {(peak - start) * 1e6 / max(exports):.0f} |"
    yield ""
    yield f"The plot is {draw(list(exports), measures, out)}."


def _run_command(command: tuple[str, ...], path: Path, limit_mb: int) -> tuple[float, float]:
    """Run a command; return its peak memory in MB and its CPU time in seconds."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        words = [word.format(path=path, out=Path(folder, "out")) for word in command]
        words += ["--memory", f"{limit_mb}MB"]
        return _run(f"sys.argv[1:] = {words!r}\nrunpy.run_module('tracekit', run_name='__main__')")


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


def draw(sizes: list[int], measures: Mapping[str, list[tuple[float, float]]], out: Path) -> Path:
    """Draw time and memory over the number of events, both axes logarithmic; return the path of the image."""
    path = out / "growth.svg"
    python = install(out / "plotting", PLOTTING)
    subprocess.run([python, __file__, json.dumps([sizes, measures]), path], check=True)
    return path


def plot(values: str, path: str) -> None:
    """Draw the plot. It runs in the environment that has matplotlib."""
    importlib.import_module("matplotlib").rcParams.update({"svg.hashsalt": "growth", "font.size": 9})
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots(1, 2)
    sizes, measures = json.loads(values)
    styles = [(line, color) for line in ("-", "--", ":") for color in range(10)]
    for number, title in enumerate(("peak memory in MB", "CPU time in s")):
        for (name, points), (line, color) in zip(measures.items(), styles, strict=False):
            ys = [point[number] for point in points]
            axes[number].plot(
                sizes[: len(ys)], ys, marker="o", markersize=3, linestyle=line, color=f"C{color}", label=name
            )
        axes[number].set(xscale="log", yscale="log", xlabel="events", title=title)
        axes[number].grid(which="both", alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    plot(*sys.argv[1:])
