"""What is left out is said: events that a table may lack by every verb that reads it, what is not decoded by info."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.readers.test_nsys_rep_unknown_events import KERNEL, activity, call, left_out, report
from tests.readers.test_nsys_undecoded import OF_TRAIN

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


def test_info_lists_what_is_not_decoded_of_an_export(run: Run) -> None:
    shown = run("info", "fixtures/train_amp.sqlite").text.partition("recorded, but not decoded:\n")[2]
    assert [line.split() for line in shown.splitlines()] == [[name, str(n)] for name, n in OF_TRAIN.items()]
    assert json.loads(run("info", "fixtures/train_amp_parquetdir", "--json").text)["undecoded"] == {
        n: {"count": rows, "bytes": None} for n, rows in OF_TRAIN.items()
    }
