"""Causes in communication, as far as one process shows it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.builders.programs import HALF_GEMM, MS, US, Program, find_cure, steps
from tracekit.core.diagnosis.causes import communication, find_cures
from tracekit.core.diagnosis.causes.ranks import find_ends_of_barriers
from tracekit.core.diagnosis.inspection import Inspection
from tracekit.core.diagnosis.ranks import RankPlan

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def run(count: int, ns: int, *, stream: int = 7, compute: int = MS) -> Program:
    """Steps with some collectives, which run after or beside a kernel."""

    program = Program()

    def body(_: int) -> None:
        program.launch(HALF_GEMM, compute)
        for _ in range(count):
            program.launch(NCCL, ns, stream=stream)
        program.pause(100 * US)

    return steps(program, 4, body)


def test_small_messages() -> None:
    cure = find_cure(run(13, 20 * US), "small_messages")
    assert cure.evidence == "13 collectives per step transfer data for less than 50 µs each, 260 µs per step in total"
    assert "small_messages" not in run(12, 20 * US).causes()
    assert "small_messages" not in run(13, 60 * US).causes()


def test_messages_between_which_kernels_run_may_depend_on_them() -> None:
    program = Program()

    def body(_: int) -> None:
        for _ in range(13):
            program.launch(HALF_GEMM)
            program.launch(HALF_GEMM)
            program.launch(NCCL, 20 * US)

    cure = find_cure(steps(program, 4, body), "small_messages")
    (together, _), (alone, stays) = cure.operations
    assert (len(together), len(alone)) == (0, 52)
    assert [s[0] for s in stays] == [20 * US, 16 * US, 6 * US]


def test_small_messages_of_gradients_are_combined() -> None:
    """In training, kernels between collectives compute other gradients."""
    program = Program()

    def body(_: int) -> None:
        for _ in range(13):
            program.launch("layer_norm_backward")
            program.launch(HALF_GEMM)
            program.launch(NCCL, 20 * US)

    (together, _), (alone, _) = find_cure(steps(program, 4, body), "small_messages").operations
    assert (len(together), len(alone)) == (52, 0)


def test_exposed_communication() -> None:
    """The cure hides at most 7/8 of the communication, and at most two thirds of the computation."""
    cure = find_cure(run(1, MS), "communication_exposed")
    assert cure.is_unsure
    assert cure.missing
    assert cure.evidence == "1 collective per step: 1 ms per step, of which 100% while no computation runs"
    assert [stay[0] for stay in cure.operations[0][1]] == [int(MS * (1 - k * 0.66)) for k in (0.3, 0.7, 1.0)]
    much = find_cure(run(1, MS, compute=10 * MS), "communication_exposed")
    assert [stay[0] for stay in much.operations[0][1]] == [int(MS * (1 - k * 7 / 8)) for k in (0.3, 0.7, 1.0)]


def test_hidden_communication() -> None:
    assert "communication_exposed" not in run(1, 500 * US, stream=8).causes()
    assert "communication_exposed" not in run(1, 5 * US).causes()
    assert "communication_exposed" not in run(0, 0).causes()


def test_time_of_other_ranks() -> None:
    """The time for which other ranks are late is no transfer."""
    model = run(1, MS).model()
    late = np.where(model.find_class("nccl"), 900 * US, 0)
    inspection = Inspection(model, late)
    assert communication.find_transfer_times(inspection)[model.find_class("nccl")].tolist() == [100 * US] * 4
    (cure,) = [c for c in find_cures(inspection) if c.cause == "communication_exposed"]
    assert not cure.is_unsure
    assert not cure.missing
    assert [stay[0] for stay in cure.operations[0][1]] == [int(100 * US * (1 - k * 7 / 8)) for k in (0.3, 0.7, 1.0)]


def test_a_rank_that_waits_for_the_whole_time_transfers_something() -> None:
    model = run(1, MS).model()
    inspection = Inspection(model, np.where(model.find_class("nccl"), 2 * MS, 0))
    assert communication.find_transfer_times(inspection)[model.find_class("nccl")].tolist() == [US] * 4


@pytest.mark.parametrize("plan", [None, RankPlan(0, (0, 1))])
def test_without_calls_of_other_ranks_there_are_no_barriers(plan: RankPlan | None) -> None:
    assert not len(find_ends_of_barriers(Inspection(run(1, MS).model(), None, plan)))


def test_each_communicator_has_a_cure() -> None:
    model = run(2, MS).model()
    kernels = model.operations.row[model.find_class("nccl")]
    ids = model.events.operations["id"].gather(kernels.tolist()).to_list()
    schema = RankPlan(0, (0, 1)).calls.schema
    rows = [{"kernel_id": number, "communicator": f"c{i % 2}"} for i, number in enumerate(ids)]
    plan = RankPlan(0, (0, 1), calls=pl.DataFrame(rows, schema=schema))
    cures = [c for c in find_cures(Inspection(model, None, plan)) if c.cause == "communication_exposed"]
    assert [c.communicator for c in cures] == ["c0", "c1"]
    assert "1 collective per step of communicator c0: 1 ms per step" in cures[0].evidence
    one = plan.calls.with_columns(communicator=pl.lit("c0"))
    (cure,) = [
        c
        for c in find_cures(Inspection(model, None, RankPlan(0, (0, 1), calls=one)))
        if c.cause == "communication_exposed"
    ]
    assert cure.communicator == ""
