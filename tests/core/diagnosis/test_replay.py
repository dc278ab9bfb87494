"""Replays of models, with and without edits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.programs import Program
from tests.builders.random_programs import captures, programs
from tracekit.core.diagnosis.model import Model
from tracekit.core.diagnosis.operations import NO_WAIT
from tracekit.core.diagnosis.replay import ModelReplay, create_unedited


def check_recorded_times(model: Model) -> None:
    """Check that the replay without edits has the recorded times."""
    engine = ModelReplay(model)
    result = engine.run(create_unedited(model))
    items, ops = model.items, model.operations
    assert result.item_start.tolist() == items.start.tolist()
    assert result.item_end.tolist() == items.end.tolist()
    assert result.op_start.tolist() == ops.start.tolist()
    assert result.op_end.tolist() == ops.end.tolist()
    assert engine.measure_steps(result).tolist() == model.bounds.tolist()
    assert engine.measure(create_unedited(model)) == model.duration_ns
    assert engine.error == 0


@pytest.mark.slow
@given(programs())
def test_the_replay_of_a_program_has_the_recorded_times(program: Program) -> None:
    check_recorded_times(program.model())


@pytest.mark.slow
@given(captures())
def test_the_replay_of_any_capture_has_the_recorded_times(program: Program) -> None:
    check_recorded_times(program.model())


@given(programs(max_steps=2), st.data())
def test_longer_work_never_ends_earlier(program: Program, data: st.DataObject) -> None:
    model = program.model()
    engine = ModelReplay(model)
    edit = create_unedited(model)
    item = data.draw(st.integers(0, len(model.items.start) - 1))
    edit.item_duration[item] += data.draw(st.integers(0, 10**6))
    if len(model.operations.start):
        operation = data.draw(st.integers(0, len(model.operations.start) - 1))
        edit.operation_duration[operation] += data.draw(st.integers(0, 10**6))
    before, after = engine.run(create_unedited(model)), engine.run(edit)
    for old, new in zip(before, after, strict=True):
        assert (new >= old).all()
    assert engine.measure(edit) >= model.duration_ns


@given(programs(max_steps=2), st.data())
def test_less_work_and_fewer_waits_never_end_later(program: Program, data: st.DataObject) -> None:
    model = program.model()
    engine = ModelReplay(model)
    edit = create_unedited(model)
    shares = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3)))
    edit.item_duration[:] *= np.resize(shares, len(edit.item_duration))
    edit.operation_duration[:] = edit.operation_duration * np.resize(shares[::-1], len(edit.operation_duration))
    edit.dropped_waits[:] = (model.items.wait != NO_WAIT) & data.draw(st.booleans())
    edit = edit._replace(max_gap_ns=data.draw(st.sampled_from([None, 300])))
    before, after = engine.run(create_unedited(model)), engine.run(edit)
    assert (after.item_end <= before.item_end).all()
    assert (after.op_end <= before.op_end).all()
    assert engine.measure(edit) <= model.duration_ns
