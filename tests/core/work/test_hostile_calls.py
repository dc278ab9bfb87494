"""Calls with arbitrary arguments: their work is unknown, or consists of plausible numbers."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.work import formulas
from tracekit.core.work.arguments import parse_call
from tracekit.core.work.call import MAX_NUMBER

NAMES = sorted(name for family in formulas.FAMILIES for name in family.FORMULAS)
sizes = st.one_of(st.integers(0, 8), st.sampled_from([-1, 1 << 20, 1 << 40, MAX_NUMBER, MAX_NUMBER + 1]))
shapes = st.lists(sizes, max_size=5)
arguments = st.one_of(shapes, shapes, st.lists(shapes, max_size=3))
types = st.sampled_from(
    ["float", "c10::BFloat16", "int", "long int", "Scalar", "", "TensorList", "c10::complex<float>"]
)
texts = st.sampled_from(
    ["", "0", "1", "2", "-1", "True", "False", "[1, 1]", "[0]", "[]", "same", "ij,jk->ik", "7" * 5000]
)


@given(
    st.sampled_from(NAMES), st.lists(arguments, max_size=9), st.lists(types, max_size=9), st.lists(texts, max_size=15)
)
def test_no_call_has_implausible_work(name: str, inputs: list[object], kinds: list[str], values: list[str]) -> None:
    call = parse_call(name, json.dumps(inputs), json.dumps(kinds), json.dumps(inputs), json.dumps(values))
    work = call and formulas.compute_work(call)
    if work:
        numbers = (work.flop, work.read_bytes, work.written_bytes, work.model_flop)
        assert all(n is None or 0 <= n <= MAX_NUMBER for n in numbers)
