"""``tracekit analyze``: its output in every style, its messages, and its errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import tracekit as tk
from tests.builders.reports import RULES
from tests.conftest import FIXTURES

if TYPE_CHECKING:
    from tests.cli.conftest import Run

TRAIN = FIXTURES / "train_amp.sqlite"


def test_every_rule_is_listed(run: Run) -> None:
    listed = {line.split()[0]: line for line in run("analyze", "--list").text.splitlines()[1:]}
    assert set(listed) == set(RULES)
    assert all(line.split()[-1] for line in listed.values())


def test_several_rules(run: Run) -> None:
    done = run("analyze", TRAIN)
    assert done.text.startswith("# cuda_api_sync\n")
    assert "\n\n# gpu_time_util\nRow#  In-Use (%)" in done.text
    assert done.stderr.splitlines()[0] == "cuda_memcpy_async: the rule found nothing"
    gaps = tk.load(TRAIN).analyze("gpu_gaps:gap=10")
    as_json = json.loads(run("analyze", TRAIN, "-r", "gpu_gaps:gap=10", "--format", "json").text)
    assert as_json == gaps.to_dicts()
    lines = run("analyze", TRAIN, "-r", "gpu_gaps:gap=10,gpu_time_util", "--format", "jsonl").text.splitlines()
    assert [json.loads(line)["report"] for line in lines] == ["gpu_gaps:gap=10"] * gaps.height + ["gpu_time_util"]


def test_selection(run: Run) -> None:
    whole, part = (
        run("analyze", TRAIN, "-r", "cuda_api_sync", "--format", "csv", *more).text
        for more in ((), ("--time", "480ms:"))
    )
    assert 0 < len(part.splitlines()) < len(whole.splitlines())
    assert set(part.splitlines()) < set(whole.splitlines())


def test_unknown_rules_are_reported_before_the_file_is_opened(run: Run) -> None:
    done = run("analyze", "missing.sqlite", "-r", "nvtx_sum", status=1)
    assert done.stderr.startswith("tracekit: unknown rule 'nvtx_sum'\nHint: 'nvtx_sum' is the name of a report: use `")
    assert "Otherwise, choose one of these rules: cuda_mem" in done.stderr
