"""Whatever the tables hold, a roll-up gives declared tables and a database, or our own error."""

from __future__ import annotations

import tempfile
import warnings

import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.strategies import tables
from tests.conftest import examples
from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.plan import ROLLED_UP

READ = ("nvtx_ranges", "api_calls", "kernels", "memcpys", "memsets", "syncs", "graph_launches", "osrt_calls", "devices")
TEXTS = st.sampled_from(
    [
        *(
            "{'mod': 'm', 'op': 'conv2d'}",
            "{'mod': 'm', 'op': 'backward'}",
            "{'mod', 'op'}",
            "a, seq = 1",
            "x/y//z",
            "",
        ),
        *(
            "{'traceMarker': ['f:1'], 'funcStack': '/a(2)/b'}",
            "{'traceMarker': 7}",
            '{"model_config": {"num_workers": []}}',
        ),
        *("aten::conv2d, seq = 1, op_id = 3", "AddmmBackward0, seq = 1, op_id = 4", "Batch 3", None),
    ]
)


@st.composite
def captures(draw: st.DrawFn) -> dict[str, pa.Table]:
    made = {name: draw(tables(schemas.table(name), max_rows=5)) for name in READ}
    ranges = made["nvtx_ranges"]
    names = draw(st.lists(TEXTS, min_size=ranges.num_rows, max_size=ranges.num_rows))
    at = ranges.schema.get_field_index("name")
    text = pa.array(names, pa.string()).dictionary_encode()
    return made | {"nvtx_ranges": ranges.set_column(at, ranges.schema.field(at), text)}


@pytest.mark.slow
@pytest.mark.no_cover
@given(captures(), st.sampled_from([None, "pyprof", "emit-nvtx", "plain"]))
@settings(max_examples=examples(60))
def test_any_tables_roll_up(found: dict[str, pa.Table], dialect: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tk.TracekitWarning)
        try:
            trace = tk.Trace.from_tables(found).rollup(dialect=dialect)
            made = {name: trace[name] for name in ROLLED_UP}
            model = trace._view.model("dlprof")
            with tempfile.TemporaryDirectory() as folder:
                trace.export(f"{folder}/x.sqlite", format="dlprof-db")
                trace.export(f"{folder}/reports", format="dlprof-reports")
        except ExportError:
            raise
        except tk.TracekitError:
            return
    for name, table in made.items():
        table.validate(full=True)
        assert table.num_rows == trace.count(name)
    assert model["read_only_ops"].height == made["ops"].num_rows
    lost = {f"{n}.{c}" for n, f in model.items() for c in f.columns if f[c].null_count()}
    assert lost == set()
