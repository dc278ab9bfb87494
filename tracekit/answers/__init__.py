"""Answer questions about captures in one envelope: typed values with units, evidence, coverage and a status.

``envelope`` defines the objects, ``captures`` describes what was read, ``evidence`` finds the recorded rows that belong
to a result, ``tables`` builds tables, and ``ask`` answers.
"""

from tracekit.system.lazy import create_lazy_getattr_and_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tracekit.answers.ask import answer, answer_check, answer_diff, answer_what_if
    from tracekit.answers.envelope import (
        ENVELOPE_VERSION,
        AnswerColumn,
        AnswerTable,
        CaptureFacts,
        Coverage,
        Envelope,
        Question,
        RowIds,
        StepCoverage,
    )

__all__ = [
    "ENVELOPE_VERSION",
    "AnswerColumn",
    "AnswerTable",
    "CaptureFacts",
    "Coverage",
    "Envelope",
    "Question",
    "RowIds",
    "StepCoverage",
    "answer",
    "answer_check",
    "answer_diff",
    "answer_what_if",
]

if not TYPE_CHECKING:  # so that type checkers report unknown attributes
    __getattr__, __dir__ = create_lazy_getattr_and_dir(
        globals(),
        {
            "ask": ("answer", "answer_check", "answer_diff", "answer_what_if"),
            "envelope": (
                *("ENVELOPE_VERSION", "AnswerColumn", "AnswerTable", "CaptureFacts", "Coverage", "Envelope"),
                *("Question", "RowIds", "StepCoverage"),
            ),
        },
    )
