"""The JSON Schema of what ``--format answer`` prints, derived from the classes of the envelope.

It is the content of ``schemas/answer.json``.
"""

from __future__ import annotations

import json
from typing import Any

from schemas.generate import why_schema
from tracekit import schemas
from tracekit.answers import envelope
from tracekit.core.check import prediction, result
from tracekit.core.compare.conditions import ConditionResult

FILE = schemas.FOLDER / "answer.json"
_CLASSES_OF_CHECK = (
    *(ConditionResult, prediction.PredictedSaving, prediction.PredictionResult),
    *(result.CheckedRun, result.CheckRow, result.Check),
)
_CLASSES = (
    *(envelope.StepCoverage, envelope.CaptureFacts, envelope.AnswerColumn, envelope.RowIds, envelope.AnswerTable),
    *(envelope.Coverage, envelope.Question, envelope.Envelope),
)


def build() -> dict[str, Any]:
    """Return the JSON Schema of the envelope."""
    answers = (why_schema.build(), why_schema.build(why_schema.CLASSES_OF_WHAT_IF, "what-if"))
    definitions = {name: schema for each in answers for name, schema in each["$defs"].items()}
    definitions |= {cls.__name__: why_schema.build_class(cls) for cls in (*_CLASSES_OF_CHECK, *_CLASSES)}
    definitions["AnswerTable"]["properties"]["rows"]["items"] = {"type": "object"}
    main = definitions.pop("Envelope")
    names = [cls.__name__ for cls in envelope.list_answer_classes().values()]
    variants = [{"$ref": f"#/$defs/{name}"} for name in names]
    main["properties"]["schema"] = {"const": envelope.ENVELOPE_VERSION, "description": "Version of the envelope."}
    main["properties"]["tool"] = {"const": "tracekit", "description": "Name of the program that answers."}
    main["properties"]["answer"]["anyOf"] = [*variants, {"type": "null"}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"tracekit:answer:v{envelope.ENVELOPE_VERSION}",
        "title": "tracekit answer",
        "description": "What commands print with --format answer. The schema of the rows of a result is the one of its "
        "name in the output of tracekit schema --format json.",
        **main,
        "$defs": definitions,
    }


def text() -> str:
    """Return the content of the file."""
    return json.dumps(build(), indent=2, ensure_ascii=False) + "\n"
