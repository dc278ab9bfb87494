"""What markers of PyProf say, and what is not believed."""

from __future__ import annotations

import polars as pl
import pytest
from tracekit.core.ops import emit_nvtx
from tracekit.errors import TracekitWarning


def test_settings_are_merged_and_damage_is_passed_over() -> None:
    texts = [
        '{"model_config": {"a": 1, "b": 2}}',
        "{",
        "[" * 100_000,
        '{"model_config": 7}',
        '{"model_config": {"b": 3}}',
    ]
    assert emit_nvtx.merge_program_settings(pl.Series(texts)) == {"a": 1, "b": 3}


def test_numbers_with_a_point_have_17_digits() -> None:
    assert emit_nvtx.to_json({"b": [0.1, 2], "a": None}) == '{"a":null,"b":[0.10000000000000001,2]}'


def test_endless_markers_are_not_parsed() -> None:
    text = "{'mod': 'm', 'op': '" + "x" * emit_nvtx.MAX_TEXT_LENGTH + "'}"
    with pytest.warns(TracekitWarning, match="1 of 1 distinct PyProf markers cannot be parsed"):
        assert emit_nvtx.parse_op_markers(pl.Series([text])).height == 0


def test_arguments_end_at_a_value_that_json_lacks() -> None:
    given = "{'name': 'a', 'type': 'float', 'value': 0.5}, {'name': 'b', 'type': 'bool', 'value': True}, {'name': 'c'}"
    found = emit_nvtx.parse_op_markers(pl.Series([f"{{'mod': 'm', 'op': 'dropout', 'args': [{given}]}}"]))
    assert found["parameters"].to_list() == [
        '[{"data_type":"","name":"a","value":["0.5"]},{"data_type":"","name":"b","value":null}]'
    ]
