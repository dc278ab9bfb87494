"""What ``tracekit why --format json`` prints has the declared schema, whatever the capture."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import pytest
import tracekit as tk
from tests import why_schema
from tests.conftest import FIXTURES, ROOT

SCHEMA = why_schema.read_file()
CAPTURES = {
    "train_amp.sqlite": "answered",
    "ddp2.sqlite": "answered",
    "why/scratch.nsys-rep": "answered",
    "why/recommender.pt.trace.json.gz": "answered",
    "why/stream_triad.nsys-rep": "nothing_found",
    "cpu_only.sqlite": "not_recorded",
    "empty.sqlite": "not_applicable",
    "ncu/ncu_raw.csv": "not_applicable",
    "why/idle_streams.nsys-rep": "unsure",
}


@pytest.mark.every
@pytest.mark.many(5)
@pytest.mark.parametrize("name", CAPTURES)
def test_an_answer_has_the_declared_schema(name: str) -> None:
    envelope = tk.load(FIXTURES / name).why().to_envelope([name])
    assert why_schema.validate(envelope) == []
    assert envelope["status"] == envelope["data"]["status"] == CAPTURES[name]
    step = envelope["data"]["step"] or {"median_ns": 0}
    assert sum(part["ns"] for part in envelope["data"]["ledger"]) == step["median_ns"]


def test_the_answer_for_a_set_has_the_declared_schema() -> None:
    names = [f"ranks/mpi_rank{i}.nsys-rep" for i in (0, 1)]
    envelope = tk.load_many([FIXTURES / name for name in names]).why().to_envelope(names, ["a warning"])
    assert why_schema.validate(envelope) == []
    assert [rank["rank"] for rank in envelope["data"]["ranks"]] == [0, 1]
    assert (envelope["input"], envelope["warnings"]) == (names, ["a warning"])


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (("status",), "unknown", "$.status: 'unknown' is not one of"),
        (("schema",), 2, "$.schema: 2 is not 1"),
        (("data", "step", "count"), -1, "$.data.step.count: -1 is less than 0"),
        (("data", "step", "median_ns"), 1.5, "$.data.step.median_ns: 1.5 is not of type integer"),
        (("data", "ledger", 0, "part"), "coffee", "$.data.ledger[0].part: 'coffee' is not one of"),
        (("data", "causes", 0, "saving", "likely"), 1.5, "$.data.causes[0].saving.likely: 1.5 is more than 1"),
        (("data", "causes", 0, "saving", "extra"), 1, "$.data.causes[0].saving: extra is unknown"),
        (("data", "causes", 0, "rows", 0, "ids"), None, "$.data.causes[0].rows[0].ids: None is not of type array"),
        (("data", "cold"), 3, "$.data.cold: 3 is not of type"),
    ],
)
def test_an_answer_with_a_different_schema_is_invalid(path: tuple[Any, ...], value: object, error: str) -> None:
    envelope = json.loads(json.dumps(answer_of_scratch()))
    part = envelope
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert any(error in line for line in why_schema.validate(envelope))


def test_a_missing_field_is_invalid() -> None:
    envelope = copy.deepcopy(answer_of_scratch())
    del envelope["data"]["together"]
    assert why_schema.validate(envelope) == ["$.data: together is missing"]


@functools.cache
def answer_of_scratch() -> dict[str, Any]:
    return tk.load(FIXTURES / "why" / "scratch.nsys-rep").why().to_envelope(["scratch.nsys-rep"])


def test_every_field_is_described_and_documented() -> None:
    page = (ROOT / "docs" / "why.md").read_text("utf-8")
    for name, definition in SCHEMA["$defs"].items():
        for field, schema in definition["properties"].items():
            assert schema.get("description"), f"{name}.{field}"
            assert f"`{field}`" in page, field
