"""The savings that ``tracekit why`` predicts against the true ones.

``python -m tests.benchmarks.why FOLDER…`` predicts what each cure saves, for the captures beside ``truth.jsonl`` in the
folders, and compares this with programs that were timed with and without the cause (see ``tests/why_truth.py``). The
folders are ``fixtures/why`` and, if it is beside the checkout, ``shared/captures/sick``; further ones are arguments. It
prints one line per capture and cause, without and with ``--step-time``, and a summary.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests import why_truth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.why_truth import Prediction, Program

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "fixtures" / "why", ROOT.parent / "shared" / "captures" / "sick")
HEADER = (
    *("capture", "cause", "rank", "low", "likely", "high", "true", "runs", "error"),
    *("likely with step time", "error with step time"),
)


def main(*folders: str) -> int:
    """Print the table of all folders, and return the exit status."""
    warnings.simplefilter("ignore")
    files = [f / "truth.jsonl" for f in (*FOLDERS, *map(Path, folders)) if (f / "truth.jsonl").exists()]
    for line in measured(list(read_programs(files))):
        print(line, flush=True)
    return 0


def read_programs(files: Iterable[Path]) -> Iterator[Program]:
    """Yield the programs of all files, each capture once."""
    names: set[str] = set()
    for file in files:
        for program in why_truth.read_programs(file):
            captures = tuple(paths for paths in program.captures if paths[0].name not in names)
            names |= {paths[0].name for paths in captures}
            yield replace(program, captures=captures)


def measured(programs: Sequence[Program]) -> Iterator[str]:
    """Predict the savings of programs, and yield the lines of a table and a summary."""
    yield from ("| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER)))
    without, with_time = why_truth.Assessment(), why_truth.Assessment()
    for program in programs:
        own, calibrated = why_truth.assess([program]), why_truth.assess([program], with_step_time=True)
        for prediction, other in zip(own.predictions, calibrated.predictions, strict=True):
            yield "| " + " | ".join(cells(prediction, other)) + " |"
        for capture, saving in own.findings.items():
            yield "| " + " | ".join([capture, "healthy", "", "", percent(saving), *[""] * (len(HEADER) - 5)]) + " |"
        without.add(own)
        with_time.add(calibrated)
    for name, assessment in (("Without", without), ("With", with_time)):
        yield ""
        yield f"{name} the time of a step without the profiler:"
        yield ""
        yield from assessment.summarize()


def cells(prediction: Prediction, calibrated: Prediction) -> list[str]:
    """Return the cells of one line of the table."""
    illness = prediction.illness
    rank = "unsure" if prediction.status == "unsure" else str(prediction.rank or "not listed")
    interval = [percent(v) for v in (prediction.low, prediction.likely, prediction.high)]
    true = [percent(illness.saving), f"{percent(illness.low)} to {percent(illness.high)}"]
    errors = ["" if p.is_unknowable else f"{100 * p.error:+.1f}" for p in (prediction, calibrated)]
    return [
        *(prediction.capture, f"`{illness.causes[0]}`", rank, *interval, *true, errors[0]),
        *(percent(calibrated.likely), errors[1]),
    ]


def percent(share: float) -> str:
    """Format a share in percent."""
    return f"{share:.1%}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
