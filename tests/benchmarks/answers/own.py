"""The answers of ``tracekit why`` in the form of ``answers.schema.json``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tests import why_truth
from tests.benchmarks.answers import questions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.benchmarks.answers.questions import Question

IDS = 10
"""Number of ids per table that are kept as evidence."""

COMMAND = "tracekit why FILE… --format json"


def answer_questions(asked: Iterable[Question], date: str) -> dict[str, Any]:
    """Return the answers of ``tracekit why`` for the questions whose captures are on this machine."""
    rows, version = [], ""
    for question in asked:
        paths = question.find_captures()
        if paths is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            envelope = why_truth.explain(paths).to_envelope([path.name for path in paths])
        version = envelope["tool"]["version"]
        rows.append({"question": question.id, **read_envelope(envelope)})
    return {
        "schema": questions.SCHEMA,
        "tool": {"name": "tracekit why", "version": version},
        "provenance": {
            "command": COMMAND,
            "date": date,
            "mapping": "none: the names of the causes are those of causes.json",
            "notes": [f"of the ids of rows that why lists, the first {IDS} per table are kept"],
        },
        "answers": rows,
    }


def read_envelope(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer in what ``tracekit why --format json`` prints.

    Healthy statements, such as that kernels run at the bandwidth of the memory, name no cause. Neither does the remark
    that the GPU is idle for an unknown reason.
    """
    left_out = {*questions.read_causes()["healthy"], "gpu_idle_unexplained"}
    data = envelope["data"]
    causes = [_read_cause(cause) for cause in data["causes"] if cause["cause"] not in left_out]
    answer: dict[str, Any] = {"status": envelope["status"], "causes": causes}
    if causes:
        answer["together"] = data["together"]
    return answer


def _read_cause(cause: Mapping[str, Any]) -> dict[str, Any]:
    place, rows = cause["place"], cause["rows"]
    where: dict[str, Any] = {
        "ranges": [] if place["range"] is None else [place["range"]],
        "kernels": [name for row in rows if row["table"] == "kernels" for name in row["names"]],
    }
    if place["rank"] is not None:
        where["rank"] = place["rank"]
    return {
        "cause": cause["cause"],
        "status": cause["status"],
        "place": where,
        "saving": cause["saving"],
        "evidence": [{"table": row["table"], "ids": row["ids"][:IDS]} for row in rows],
    }
