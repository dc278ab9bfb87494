"""Explain why steps take as long as they do: the ledger of a step, its causes, and what each cure would save.

- ``events``: the events of one process, with its steps
- ``operations``: what the CPU and the GPU do in steps
- ``model`` and ``replay``: the event model, which consists of this and of what held it back, and its replay after edits
- ``ledger``: the parts of the time of steps
- ``roofline``: the figures about the GPU from which rules conclude
- ``inspection`` and ``causes``: the rules that find causes
- ``cures``: what a cure changes, and the prediction of what it saves
- ``answer``: the result
- ``ranks``: the comparison of the ranks of a job, and the prediction of what cures save in it
- ``diagnose``: all of these together
- ``texts``: the result as texts
- ``edits`` and ``what_if``: edits that users declare, what they select, and the prediction
"""

from tracekit.core.diagnosis.answer import Why
from tracekit.core.diagnosis.diagnose import (
    Options,
    diagnose,
    examine_processes,
    explain_hang,
    explain_job,
    profile_processes,
)
from tracekit.core.diagnosis.ranks import Examination, RankPlan, RankProfile, plan_ranks
from tracekit.core.diagnosis.what_if import WhatIf, check_matches, combine, parse_edits, predict

__all__ = [
    "Examination",
    "Options",
    "RankPlan",
    "RankProfile",
    "WhatIf",
    "Why",
    "check_matches",
    "combine",
    "diagnose",
    "examine_processes",
    "explain_hang",
    "explain_job",
    "parse_edits",
    "plan_ranks",
    "predict",
    "profile_processes",
]
