"""The grammar of edits."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.diagnosis.causes import NAMES
from tracekit.core.diagnosis.edits import DEFAULT_SIDES, SIDES, Action, SizeLimit, StepEdit, parse_edit
from tracekit.errors import TracekitError, UnknownFormatError

HALF = Action("scaled", Decimal("0.5"))
REMOVED = Action("removed")


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("kernel *gemm* x0.5", StepEdit("kernel", "*gemm*", HALF, "gpu")),
        ("range data removed", StepEdit("range", "data", REMOVED, "cpu")),
        ("range forward pass x0.5 on both", StepEdit("range", "forward pass", HALF, "both")),
        ("range  turn on  x0.5", StepEdit("range", "turn on", HALF, "cpu")),
        ("range 'a  =  b' removed", StepEdit("range", "a  =  b", REMOVED, "cpu")),
        ("range removed removed", StepEdit("range", "removed", REMOVED, "cpu")),
        ("call cudaStreamSynchronize removed on gpu", StepEdit("call", "cudaStreamSynchronize", REMOVED, "gpu")),
        ("copy Host-to-Device =20us", StepEdit("copy", "Host-to-Device", Action("set", ns=20_000), "gpu")),
        ("copy * =0", StepEdit("copy", "*", Action("set", ns=0), "gpu")),
        ("copy * =1.5ms", StepEdit("copy", "*", Action("set", ns=1_500_000), "gpu")),
        ("copy pageable removed", StepEdit("copy", "", REMOVED, "gpu", is_pageable=True)),
        ("copy 'pageable' removed", StepEdit("copy", "pageable", REMOVED, "gpu")),
        (
            "copy Host-* pageable >=1KB < 64 KiB removed".replace("64 KiB", "64KiB"),
            StepEdit(
                "copy",
                "Host-*",
                REMOVED,
                "gpu",
                is_pageable=True,
                sizes=(SizeLimit(">=", 1000), SizeLimit("<", 65_536)),
            ),
        ),
        ("rank 1: range data x0.5", StepEdit("range", "data", HALF, "cpu", ranks=((1, 1),))),
        ("rank 0,2-5: kernel * x0.5", StepEdit("kernel", "*", HALF, "gpu", ranks=((0, 0), (2, 5)))),
        ("faster attention = kernel *softmax* x0.5", StepEdit("kernel", "*softmax*", HALF, "gpu", "faster attention")),
        ("rank = rank 1: call a x0.5", StepEdit("call", "a", HALF, "cpu", "rank", ((1, 1),))),
        ("cause:data_loading", StepEdit("cause", "data_loading", Action("cured"), "both")),
        ("cause:data_loading on cpu", StepEdit("cause", "data_loading", Action("cured"), "cpu")),
        ("cause:precision x0.5", StepEdit("cause", "precision", HALF, "both")),
        ("kernel a'b\"c'\"d'e\" x0.5", StepEdit("kernel", "ab\"cd'e", HALF, "gpu")),
    ],
)
def test_edits(text: str, edit: StepEdit) -> None:
    assert parse_edit(text) == edit
    assert parse_edit(str(edit)) == edit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "invalid edit '': there is no selector (character 1)\nHint: choose one of these selectors: kernel, range"),
        ("kernl * x2", "'kernl' is no selector (character 1)\nHint: did you mean 'kernel'?"),
        ("'kernel' * x2", "'kernel' is no selector (character 1)"),
        ("a = ", "there is no selector (character 5)"),
        ("= kernel * x2", "there is no name before '=' (character 1)\nHint: write NAME = EDIT, or remove '='"),
        ("copy * = 20us", "a time follows '=' and a space (character 10)\nHint: write =20us without a space"),
        ("kernel", "there is no pattern after 'kernel' (character 1)\nHint: write kernel PATTERN, such as kernel *"),
        ("kernel x2", "there is no pattern after 'kernel' (character 8)\nHint: write kernel * x2"),
        ("kernel * remove", "'remove' is no action (character 10)\nHint: end the edit with x0.5 to scale the time"),
        ("kernel *gemm*", "'*gemm*' is no action (character 8)"),
        ("kernel * 'x2'", "'x2' is no action (character 10)"),
        ("kernel * x-1", "'x-1' is no action (character 10)"),
        ("kernel * xnan", "'xnan' is no action (character 10)"),
        ("kernel * x1e9", "'x1e9' is no action (character 10)"),
        ("kernel * =-1us", "'=-1us' is no action (character 10)"),
        ("kernel * =1e99s", "'=1e99s' is no action (character 10)"),
        ("kernel * =11d", "'=11d' is no action (character 10)"),
        ("kernel * =99999999s", "'=99999999s' is no action (character 10)"),
        ("kernel '' x2", "the pattern is empty (character 8)\nHint: write kernel *"),
        ("copy '' x2", "the pattern is empty (character 6)\nHint: write copy *"),
        ("copy <abc x2", "'abc' is no size (character 7)\nHint: write a size, such as <64KiB"),
        ("copy < abc x2", "'abc' is no size (character 8)"),
        ("copy < x2", "there is no size (character 7)"),
        ("kernel * x2 on gpuu", "'gpuu' is no side (character 16)\nHint: did you mean 'gpu'?"),
        ("kernel * x2 on 'gpu'", "'gpu' is no side (character 16)"),
        ("rank", "there is no list of ranks (character 5)\nHint: write numbers and a colon, such as rank 0,2-5:"),
        ("rank 1 : kernel * x2", "'1' is no list of ranks (character 6)"),
        ("rank x: kernel * x2", "'x:' is no list of ranks (character 6)"),
        ("rank 5-2: kernel * x2", "the last rank of '5-2' is less than the first one (character 6)"),
        ("cause:dataloading", "'cause:dataloading' is no cause (character 1)\nHint: did you mean 'data_loading'?"),
        ("cause:precision gemm x2", "'gemm' is no action (character 17)\nHint: write cause:precision, or"),
        ("cause:precision gemm", "'gemm' is no action (character 17)\nHint: end the edit"),
        ("range 'data removed", "the quote is not closed (character 7)"),
        ("range d'ata removed", "the quote is not closed (character 8)"),
        ("kernel " + "a" * 5000 + " x2", "it is too long (character 4097)\nHint: use at most 4096 characters"),
        ("kernel " + "a" * 200, "a…' is no action (character 8)"),
        ("kernel \x1b[31m", "is no action (character 8)"),
    ],
)
def test_invalid_edits(text: str, message: str) -> None:
    with pytest.raises(UnknownFormatError) as error:
        parse_edit(text)
    assert message in str(error.value)
    assert str(error.value).count("\n") == 1
    assert "\x1b" not in str(error.value)
    assert len(error.value.message) < 400


PATTERNS = st.text(min_size=1, max_size=100).filter(lambda text: text.strip() != "")
ACTIONS = st.one_of(
    st.just(REMOVED),
    st.decimals(0, 999_999, places=3).map(lambda factor: Action("scaled", factor)),
    st.integers(0, 10**15).map(lambda ns: Action("set", ns=ns)),
    st.sampled_from([0, 10**3, 10**9, 3 * 10**6]).map(lambda ns: Action("set", ns=ns)),
)
RANKS = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)).map(sorted).map(tuple), min_size=1).map(tuple)
SIZES = st.builds(SizeLimit, st.sampled_from(["<", "<=", ">", ">="]), st.integers(0, 999_999_999))


@st.composite
def edits(draw: st.DrawFn) -> StepEdit:
    target = draw(st.sampled_from(["kernel", "range", "call", "copy", "cause"]))
    pattern = draw(st.sampled_from(NAMES) if target == "cause" else PATTERNS)
    action = draw(ACTIONS | st.just(Action("cured")) if target == "cause" else ACTIONS)
    side = draw(st.sampled_from([*SIDES, DEFAULT_SIDES[target]]))
    common = (target, pattern, action, side, draw(st.none() | PATTERNS), draw(st.none() | RANKS))
    if target != "copy":
        return StepEdit(*common)
    is_pageable, sizes = draw(st.booleans()), tuple(draw(st.lists(SIZES, max_size=2)))
    has_pattern = draw(st.booleans()) or not (is_pageable or sizes)
    return StepEdit("copy", pattern if has_pattern else "", *common[2:], is_pageable, sizes)


@given(edits())
def test_an_edit_can_be_written_and_parsed(edit: StepEdit) -> None:
    assert parse_edit(str(edit)) == edit


WORDS = st.sampled_from(
    [
        *("kernel", "range", "copy", "cause:", "cause:precision", "rank", "1:", "=", "=2us", "x2", "removed", "on"),
        *("cpu", "<", "<5", "pageable", "'", '"', "*", "a", "'on'"),
    ]
)


@given(st.text(max_size=50) | st.lists(WORDS, max_size=8).map(" ".join))
def test_any_text_is_an_edit_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(TracekitError):
        edit = parse_edit(text)
        assert parse_edit(str(edit)) == edit


def test_ranks() -> None:
    edit = parse_edit("rank 0,2-3: kernel * x2")
    assert [rank for rank in range(6) if edit.applies_to(rank)] == [0, 2, 3]
    assert not edit.applies_to(None)
    assert parse_edit("kernel * x2").applies_to(None)
