"""How time and memory grow with the number of kernels of an export that is read, correlated and rolled up.

``measured`` is what ``make bench`` needs. matplotlib draws the plot, in an environment of its own:
``python growth.py VALUES IMAGE``.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Measure, install, median_of_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HEADER = ["kernels", "s", "ns per kernel", "peak MiB", "bytes per kernel, beyond the start"]
PLOTTING = ("matplotlib==3.10.7",)
JOBS = str(Path(__file__).with_name("jobs.py"))


def measured(sizes: Sequence[int], export: Callable[[int], Path], out: Path) -> Iterator[str]:
    """Measure each size, yield the lines of a table, and draw the plot into a folder."""
    start = median_of_runs([sys.executable, JOBS, "start", ""], 3)["peak_mb"]
    yield from ("| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER)))
    points: list[tuple[int, Measure]] = []
    for size in sizes:
        measure = median_of_runs([sys.executable, JOBS, "end_to_end", str(export(size))], 3)
        points.append((size, measure))
        seconds, peak = measure["seconds"], measure["peak_mb"]
        cells = [f"{size:,}", f"{seconds:.2f}", f"{seconds / size * 1e9:.0f}", f"{peak:.0f}"]
        yield "| " + " | ".join([*cells, f"{(peak - start) * 2**20 / size:.0f}"]) + " |"
    yield ""
    yield f"The plot is {draw(points, out)}."


def draw(points: Sequence[tuple[int, Measure]], out: Path) -> Path:
    """Draw time and memory over the number of kernels, both axes logarithmic; return the path of the image."""
    values = [[size for size, _ in points], *([m[key] for _, m in points] for key in ("seconds", "peak_mb"))]
    path = out / "growth.svg"
    python = install(out / "plotting", PLOTTING)
    subprocess.run([python, __file__, json.dumps(values), path], check=True)
    return path


def plot(values: str, path: str) -> None:
    """Draw the plot. It runs in the environment that has matplotlib."""
    importlib.import_module("matplotlib").rcParams.update({"svg.hashsalt": "growth", "font.size": 9})
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots(1, 2)
    sizes, *measures = json.loads(values)
    for axis, ys, label in zip(axes, measures, ("time in s", "peak memory in MiB"), strict=True):
        axis.plot(sizes, ys, "o-", label="measured")
        axis.plot(sizes, [ys[-1] * n / sizes[-1] for n in sizes], "--", color="gray", label="proportional")
        axis.set(xscale="log", yscale="log", xlabel="kernels", title=label)
        axis.grid(which="both", alpha=0.3)
        axis.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    plot(*sys.argv[1:])
