"""Alarms as objects, JSON and sentences."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.builders.watched_ranks import Delay
from tests.core.watch.test_comparison import reduced
from tracekit.core.watch import (
    ALARM_KINDS,
    SCHEMA,
    Alarm,
    CapturePlace,
    compare_ranks,
    create_alarm_window,
    describe_broken_capture,
    describe_findings,
    describe_missing_ranks,
    identify,
)
from tracekit.core.watch.comparison import LATE_RANK, SLOW_PHASE, PhaseLoss, RankFinding

WINDOW = create_alarm_window(7, CapturePlace(0, 7, 5, 9))


def alarms_for(*delays: Delay, **options: object) -> list[Alarm]:
    return describe_findings(compare_ranks(reduced(8, *delays, **options)), WINDOW, {3: "rank3.json"})


def test_a_late_rank() -> None:
    (alarm,) = alarms_for(Delay(3, "data", 2000))
    assert (alarm.kind, alarm.rank, alarm.phase, alarm.on, alarm.file) == ("late_rank", 3, "data", "cpu", "rank3.json")
    assert alarm.sentence.startswith("other ranks wait for rank 3, which is late by 1")
    assert alarm.sentence.endswith("on the other ranks")
    assert alarm.window == WINDOW
    assert alarm.lost_low_ns is not None
    assert alarm.lost_ns is not None
    assert alarm.lost_high_ns is not None
    assert alarm.lost_low_ns <= alarm.lost_ns <= alarm.lost_high_ns
    assert alarm.causes[0].phase == "data"


def test_sentences_of_each_kind() -> None:
    (slow,) = alarms_for(Delay(3, "forward", 2000, on="gpu"), collectives=False)
    assert slow.sentence.startswith("rank 3 is slow, and lost 16")
    assert "'forward' takes" in slow.sentence
    assert "on the GPU per step" in slow.sentence
    (lost,) = alarms_for(Delay(3, "forward", 9000, every=4), collectives=False)
    assert lost.sentence.startswith("rank 3 lost time in a few steps, and lost 18")
    unknown = RankFinding(LATE_RANK, 2, 10, 5, 15, 4, 8, (), "NCCL 0")
    (late,) = describe_findings([unknown], WINDOW, {})
    assert late.sentence.endswith("(5 ns to 15 ns): no phase explains it")
    assert (late.phase, late.on, late.file, late.causes) == (None, None, None, ())
    (bare,) = describe_findings([unknown._replace(kind=SLOW_PHASE)], WINDOW, {})
    assert bare.sentence == "rank 2 lost 10 ns in 4 steps (5 ns to 15 ns)"
    whole = PhaseLoss("", "cpu", 9, 5, 15, 4, 2, is_steady=True, steps=4, ranks=8)
    (step,) = describe_findings([unknown._replace(causes=(whole,))], WINDOW, {})
    assert "the step outside of all phases" in step.sentence


def test_missing_ranks() -> None:
    assert create_alarm_window(7, CapturePlace(0, 7, 5, 9)) == WINDOW
    one, two = describe_missing_ranks([4, 9], 6, WINDOW)
    assert (one.kind, one.rank, two.rank, one.ranks, one.count) == ("missing_rank", 4, 9, 6, 1)
    assert one.sentence == "rank 4 has no capture of window 7, unlike 6 other ranks"
    (many,) = describe_missing_ranks(range(100), 6, WINDOW)
    assert (many.rank, many.count) == (None, 100)
    assert many.sentence.startswith("100 ranks have no capture of window 7: 0, 1, 2")


def test_hostile_text_is_escaped() -> None:
    alarm = describe_broken_capture("a\x1b[2J\n" + "x" * 1000, "no\x07reason", rank=3)
    assert "\x1b" not in alarm.sentence
    assert "\x07" not in alarm.sentence
    assert len(alarm.sentence) < 300
    assert alarm.to_json().isascii()
    assert "\n" not in alarm.to_json()
    evil = PhaseLoss("\x1b]0;t\x07\u202e", "cpu", 9, 5, 15, 4, 2, is_steady=True, steps=4, ranks=8)
    (step,) = describe_findings([RankFinding(SLOW_PHASE, 1, 10, 5, 15, 4, 8, (evil,))], WINDOW, {})
    assert step.sentence.isprintable()
    assert step.to_json().isascii()


def test_json_holds_every_attribute() -> None:
    (alarm,) = alarms_for(Delay(3, "data", 2000))
    alarm = identify(alarm, id=5, time_utc="2026-01-31T23:59:59Z", watch="ab", consecutive=2)
    values = json.loads(alarm.to_json())
    assert values.pop("schema") == SCHEMA
    assert set(values) == {f.name for f in dataclasses.fields(Alarm)}
    assert Alarm.from_json(alarm.to_json()) == alarm
    broken = describe_broken_capture("a", "b")
    assert Alarm.from_json(broken.to_json()) == broken
    assert {alarm.kind, broken.kind} <= set(ALARM_KINDS)
    assert alarm.key == ("late_rank", 3, "data")
    with pytest.raises(dataclasses.FrozenInstanceError):
        alarm.rank = 2  # type: ignore[misc]
