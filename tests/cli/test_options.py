"""Options that several verbs share."""

from __future__ import annotations

import click
import pytest
from tracekit.cli.options import parse_duration, parse_time_window
from tracekit.text import parse_nanoseconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("7ns", 7),
        ("10us", 10_000),
        ("10µs", 10_000),
        ("1.5 ms", 1_500_000),
        ("0.1s", 100_000_000),
        ("123456789.123456789s", 123_456_789_123_456_789),
        ("-2ms", -2_000_000),
    ],
)
def test_times_are_exact(text: str, value: int) -> None:
    assert parse_nanoseconds(text) == value


@pytest.mark.parametrize("text", ["", "x", "1h", "nan", "infs", "1e30s", "1.2.3"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - callers add the message
        parse_nanoseconds(text)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1.5s:2s", (1_500_000_000, 2_000_000_000)),
        ("10ms:", (10_000_000, None)),
        (":5", (None, 5)),
        (":", (None, None)),
    ],
)
def test_spans_may_be_open(text: str, span: tuple[int | None, int | None]) -> None:
    assert parse_time_window(text) == span


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "is not a time window A:B, such as 1.5s:2s"),
        ("a:b", "is not a time window A:B"),
        ("2:1", "the end must be after the start"),
        ("3:3", "the end must be after the start"),
    ],
)
def test_what_is_no_span_is_refused(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        parse_time_window(text)


def test_what_is_no_duration_is_refused() -> None:
    assert parse_duration("10us") == 10_000
    with pytest.raises(click.BadParameter, match="'soon' is not a duration, such as 10us"):
        parse_duration("soon")
