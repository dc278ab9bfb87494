"""URLs contain the complete state of a page."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tracekit.errors import TracekitError
from tracekit.view.state import CaptureAggregation, PageState, parse_url

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
BOUND = st.none() | st.integers(0, 10**9)
AT = st.builds(CaptureAggregation, st.integers(0, 3), BOUND, BOUND, st.none() | TEXT.filter(bool))
NAMES = st.sampled_from(["ops.filter", "ops.sort", "table:kernels.search", "by", "a&b", "="])


@settings(max_examples=examples(400))
@given(st.sampled_from(["", "ops", "table", "timeline"]), AT, st.dictionaries(NAMES, TEXT))
def test_a_url_gives_its_state_back(page: str, at: CaptureAggregation, parameters: dict[str, str]) -> None:
    url = urlsplit(PageState(page, at).make_url(**parameters))
    assert not url.netloc
    assert parse_url(url.path, url.query, 4) == PageState(page, at, parameters)
    assert parse_url(url.path, f"?{url.query}&token=x", 4).at == at


def test_states_of_other_pages_and_captures() -> None:
    state = PageState("ops", CaptureAggregation(1, 2, 3, "x"), {"ops.search": "y"})
    assert state.make_url("kernels") == "/kernels?capture=1&iterations=2%3A3&key_op=x"
    assert state.make_url("kernels", a="b c").endswith("&a=b+c")
    assert state.get("ops.search") == "y"
    assert state.get("ops.sort", "z") == "z"
    assert state.select_capture(0) == PageState("ops")
    assert (state.at.is_default, CaptureAggregation(2).is_default) == (False, True)


@pytest.mark.parametrize(
    "query",
    [
        *("capture=4", "capture=-1", "capture=x", "capture=²", "capture=" + "1" * 30),
        *("iterations=x:1", "iterations=1:-2", "iterations=1:2:3"),
    ],
)
def test_urls_that_are_not_valid(query: str) -> None:
    with pytest.raises(TracekitError, match="URL"):
        parse_url("/ops", query, 4)


def test_urls_that_are_too_long_or_not_text() -> None:
    with pytest.raises(TracekitError, match="more than 65,536 characters"):
        parse_url("/", "a" * 70_000, 1)
    for path, query in ((5, ""), ("/", ["a"])):
        with pytest.raises(TracekitError, match="not a string"):
            parse_url(path, query, 1)  # type: ignore[arg-type]
