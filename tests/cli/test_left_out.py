"""Events that are left out of a table are warned of by every verb that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.readers.test_nsys_rep_left_out import KERNEL, activity, call, left_out, report

if TYPE_CHECKING:
    from tests.cli.conftest import Run

VERBS = {
    "info": [],
    "tables": [],
    "stats": ["--report", "cuda_api_sum"],
    "rows": ["api_calls"],
    "convert": ["out.json", "--to", "chrome-trace", "--force"],
    "correlate": ["-o", "out.parquet", "--force"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_warns_once(run: Run, verb: str, tmp_path: Path) -> None:
    with report(tmp_path, call(0) + call(120) + activity(79, KERNEL)) as trace:
        path = str(trace.path)
    more = [str(tmp_path / a) if a.startswith("out.") else a for a in VERBS[verb]]
    done = run(verb, path, *more)
    assert done.status == 0
    assert done.stderr.count(left_out(1, "call of class 120")) == 1
