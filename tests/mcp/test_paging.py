"""Pages are small, and the pages of an answer together are the answer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tracekit.errors import TracekitError
from tracekit.mcp.paging import (
    CHARACTERS_PER_TOKEN,
    MAX_ANSWERS,
    MAX_STRING,
    MIN_TOKENS,
    PageStore,
    cut,
    measure,
    shorten_strings,
)

LIMIT = MIN_TOKENS * CHARACTERS_PER_TOKEN
REPEATED, COPIES = st.integers(0, 30), st.integers(0, 9)
TEXTS = st.text(max_size=5) | st.builds(lambda text, number: text * number * 10, st.text(max_size=3), REPEATED)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda each: (
        st.lists(each, max_size=4)
        | st.builds(lambda value, number: [value] * number, each, COPIES)
        | st.builds(lambda name, value, number: {f"{name}{i}": value for i in range(number)}, TEXTS, each, COPIES)
    ),
    max_leaves=4,
)


def insert(whole: Any, page: dict[str, Any]) -> None:
    """Put the items of a page where the answer lacks them."""
    value = whole
    for part in [p.replace("~1", "/").replace("~0", "~") for p in page["path"].split("/")[1:]]:
        value = value[int(part)] if isinstance(value, list) else value[part]
    assert len(value) == page["from"]
    value.extend(copy.deepcopy(page["items"])) if isinstance(value, list) else value.update(
        copy.deepcopy(page["items"])
    )


def collect(store: PageStore, answer: Any) -> tuple[Any, int]:
    """Return the answer that all pages contain together, and their number."""
    page, number = store.create_first_page(answer), 1
    whole = copy.deepcopy(page["answer"])
    while page["next_page"] is not None:
        assert measure(page) <= LIMIT
        page = store.create_next_page(page["next_page"])
        insert(whole, page["answer"])
        number += 1
    assert measure(page) <= LIMIT
    assert page["omitted"] == []
    return whole, number


@settings(max_examples=examples(160))
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_pages_together_are_the_answer(answer: dict[str, Any]) -> None:
    assert collect(PageStore(MIN_TOKENS), answer)[0] == shorten_strings(answer)


def test_large_answers_have_many_pages() -> None:
    rows = [{"name": f"kernel {i}", "ids": list(range(i % 400))} for i in range(500)]
    answer = {"status": "answered", "results": [{"columns": ["name"], "rows": rows}], "undecoded": {"a/b~c": 1}}
    whole, number = collect(PageStore(MIN_TOKENS), answer)
    assert whole == answer
    assert number > 50


def test_one_large_object_is_divided() -> None:
    answer = {"undecoded": {f"class /{i}~": "x" * 500 for i in range(300)}}
    whole, number = collect(PageStore(MIN_TOKENS), answer)
    assert whole == answer
    assert number > 40


def test_rows_are_cut_before_columns() -> None:
    answer = {"results": [{"columns": [{"doc": "x" * 100}] * 10, "rows": list(range(10_000))}] * 2}
    page, omissions = cut(answer, LIMIT)
    assert [each.path for each in omissions] == [("results", 0, "rows"), ("results", 1, "rows")]
    assert len(page["results"][0]["columns"]) == 10
    assert min(len(each["rows"]) for each in page["results"]) > 50


def test_small_answers_are_unchanged() -> None:
    answer = {"status": "answered", "rows": [1, 2]}
    assert PageStore(MIN_TOKENS).create_first_page(answer) == {"answer": answer, "omitted": [], "next_page": None}


def test_long_strings_state_what_is_left_out() -> None:
    short = shorten_strings({"name": "x" * (MAX_STRING + 1234), "k" * 300: 1, "k" * 301: 2, "k" * 300 + "b": 3})
    assert short["name"] == "x" * MAX_STRING + "… [1,234 more characters]"
    assert sorted(short.values(), key=str)[:3] == [1, 2, 3]
    assert max(map(len, short)) < 240


@pytest.mark.parametrize("character", ["\x1f", "\U00010000", "漢", '"'])
def test_characters_that_json_escapes_count_as_they_are_written(character: str) -> None:
    answer = {character * 300: [character * 900] * 3, "a": character * 2000}
    assert collect(PageStore(MIN_TOKENS), answer)[0] == shorten_strings(answer)
    short = shorten_strings(character * 900)
    assert measure(short) < 1.2 * MAX_STRING + 40
    assert short.endswith("more characters]") or short == character * 900


def test_old_and_unknown_handles_have_an_error() -> None:
    store = PageStore(MIN_TOKENS)
    answer = {"rows": list(range(5000))}
    first = store.create_first_page(answer)["next_page"]
    assert store.create_next_page(first) | {"next_page": 0} == store.create_next_page(first) | {"next_page": 0}
    for _ in range(MAX_ANSWERS):
        last = store.create_first_page(answer)["next_page"]
    assert store.create_next_page(last)["answer"]["items"]
    for handle in (first, "", "x"):
        with pytest.raises(TracekitError, match="unknown, or its answer is no longer kept"):
            store.create_next_page(handle)
