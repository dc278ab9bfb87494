"""What ``tracekit why --format json`` prints has the declared schema, whatever the capture."""

from __future__ import annotations

import copy
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from schemas.generate import why_schema
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
    "ncu/ncu_raw.csv": "answered",
    "why/idle_streams.nsys-rep": "unsure",
    "jax_mlp.nsys-rep": "unsure",
    "train_amp_parquetdir": "answered",
    "tensorflow/network.pb": "not_applicable",
    "tensorflow/runs": "not_applicable",
    "ncu/ncu_basic.ncu-rep": "answered",
}
KEYS_OF_DATA = {"step", "ledger", "causes", "together", "replay_error", "status"}
KEYS_OF_STEP = {"name", "count", "cold", "median_ns", "covered"}
KEYS_OF_CAUSE = {"cause", "place", "evidence", "rows", "change", "saving", "after", "status"}


def check(envelope: Any) -> None:
    """Check the keys of an envelope and of its data, and the sums of its figures."""
    assert why_schema.validate(envelope) == []
    assert list(envelope) == ["schema", "tool", "input", "status", "warnings", "data"]
    data = envelope["data"]
    assert data.keys() >= KEYS_OF_DATA
    assert envelope["status"] == data["status"]
    assert data["step"] is None or data["step"].keys() >= KEYS_OF_STEP
    assert all(part.keys() >= {"part", "class", "ns", "share"} for part in data["ledger"])
    assert all(cause.keys() >= KEYS_OF_CAUSE for cause in data["causes"])
    assert sum(part["ns"] for part in data["ledger"]) == (data["step"] or {"median_ns": 0})["median_ns"]
    assert 0 <= data["together"] <= 1
    assert sum(cause["after"] for cause in data["causes"]) == pytest.approx(data["together"])
    for rank in data.get("ranks", ()):
        check({**envelope, "data": rank, "status": rank["status"]})


@pytest.mark.every
@pytest.mark.many(8)
@pytest.mark.parametrize("name", CAPTURES)
def test_an_answer_has_the_declared_schema(name: str) -> None:
    envelope = tk.load(FIXTURES / name).why().to_envelope([name])
    check(envelope)
    assert envelope["status"] == CAPTURES[name]


@pytest.mark.slow
def test_the_answer_for_a_database_of_dlprof_has_the_declared_schema(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        path = trace.export(tmp_path / "dlprof.sqlite", format="dlprof-db")
    with tk.load(path) as trace:
        envelope = trace.why().to_envelope([path.name])
    check(envelope)
    assert (envelope["status"], envelope["data"]["step"]["count"]) == ("answered", 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_the_answer_for_a_set_with_a_broken_rank_has_the_declared_schema(tmp_path: Path) -> None:
    paths = [shutil.copy(FIXTURES / "why" / f"ddp_straggler_rank{rank}.nsys-rep", tmp_path) for rank in (0, 1)]
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:100_000])
    envelope = tk.load_many(paths).why().to_envelope(["rank0", "rank1"])
    check(envelope)
    assert envelope["data"]["step"] is not None


@pytest.mark.slow
def test_the_answer_for_a_set_has_the_declared_schema() -> None:
    names = [f"ranks/mpi_rank{i}.nsys-rep" for i in (0, 1)]
    envelope = tk.load_many([FIXTURES / name for name in names]).why().to_envelope(names, ["a warning"])
    check(envelope)
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
