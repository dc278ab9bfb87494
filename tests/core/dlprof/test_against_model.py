"""Random exports give the database that the rough model of DLProf beside the checkout gives, value by value."""

from __future__ import annotations

import functools
import importlib.util
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from tests.builders.pytorch_programs import Export, disorder, programs
from tests.conftest import ALL

MODEL = Path(__file__).parents[4] / "shared" / "prototypes" / "dlprof_model.py"
pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not MODEL.is_file(), reason="no model beside the checkout")]
FAST = (Phase.explicit, Phase.reuse, Phase.generate)
NOT_TOLD = {
    "read_only_system_config": {"dlprof_version", "dlprof_build", "original_command", "profile_name"},
    "aggregations": {"server_user_name", "server_host_name", "start_timestamp"},
    "expert_systems_feedback": {"problem", "recommendation"},
}


@functools.cache
def model() -> Any:
    spec = importlib.util.spec_from_file_location("dlprof_model", MODEL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


def numbers(text: str) -> list[str]:
    """Numbers of a sentence, without those of what is asked for (``> 0``) and of addresses."""
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*/)", re.sub(r"num_workers > 0|https\S+|\d%? *times", "", text))


def compared(export: Export, key_op: str | None, span: tuple[int, int] | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        export.write(path)
        low, high = span or (0, 0xFFFFFFFF)
        try:
            expected = model().build(str(path), key_op or "", low, high)
        except ZeroDivisionError:
            assume(False)
        with warnings.catch_warnings(), tk.load(path) as trace:
            warnings.simplefilter("ignore", tk.TracekitWarning)
            trace = trace.rollup(key_op=key_op, iterations=span, dialect="pyprof", tensor_cores="dlprof")
            made = trace._view.model("dlprof")
    for name, frame in made.items():
        rows = [row[1:] for row in expected.t.get(name, [])]
        if name == "expert_systems_feedback":
            assert [numbers(r[2]) for r in rows] == [numbers(t) for t in frame["problem"]]
        known = [i for i, c in enumerate(frame.columns) if c not in NOT_TOLD.get(name, ())]
        found = frame.select(frame.columns[i] for i in known).rows()
        assert found == [tuple(r[i] for i in known) for r in rows], name


keys = st.sampled_from([None, None, None, "RELU_1", "CONV2D_2", "/module/loss", "nothing"])
spans = st.none() | st.tuples(st.integers(0, 2), st.integers(0, 3)).map(lambda t: (min(t), max(t)))


@pytest.mark.thorough
@given(programs(), keys, spans)
@settings(max_examples=200 if ALL else 12, phases=FAST)
def test_programs(export: Export, key_op: str | None, span: tuple[int, int] | None) -> None:
    compared(export, key_op, span)


@given(disorder(), keys, spans)
@settings(max_examples=60 if ALL else 5, phases=FAST)
def test_disorder(export: Export, key_op: str | None, span: tuple[int, int] | None) -> None:
    compared(export, key_op, span)
