"""Why rows are missing: not recorded, not decoded, nothing found, not selected, or not applicable, in every format."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import warnings
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import Parts, event, strings
from tests.cli.conftest import Run
from tracekit import schemas
from tracekit.errors import TracekitWarning, UnknownFormatError
from tracekit.readers.nsys_rep import entries, layout
from tracekit.registry.absence import State, describe_undecoded, find_recording_command
from tracekit.registry.analyses import RECIPE, REPORT, RULE, list_names

FIXTURES = Path(__file__).parents[2] / "fixtures"
WDDM = FIXTURES.parents[1] / "shared/corpus/makers/nsys_new/robodo2020__GPU_final/Report 1.nsys-rep"
TRAIN_REP, TRAIN = FIXTURES / "train_amp.nsys-rep", FIXTURES / "train_amp.sqlite"
NCU, NCU_CSV = FIXTURES / "ncu/ncu_basic.ncu-rep", FIXTURES / "ncu/ncu_details.csv"
PARQUETDIR, ARROWDIR = FIXTURES / "train_amp_parquetdir", FIXTURES / "train_amp_arrowdir"
GRAPH = FIXTURES / "tensorflow/network.pb"
KINETO = FIXTURES / "kineto/train.pt.trace.json.gz"
NSYS_TRACE = "record them with nsys profile --trace="
CASES = [
    (TRAIN_REP, "openacc_sum", State.NOT_RECORDED, "no openacc_events were recorded", f"{NSYS_TRACE}openacc"),
    (TRAIN, "osrt_sum", State.NOT_RECORDED, "no osrt_calls were recorded", f"{NSYS_TRACE}osrt"),
    (TRAIN, "mpi_calls", State.NOT_RECORDED, "no mpi_calls were recorded", f"{NSYS_TRACE}mpi"),
    (PARQUETDIR, "ucx_gpu_time_util_map", State.NOT_RECORDED, "no ucx_calls were recorded", f"{NSYS_TRACE}ucx"),
    (ARROWDIR, "vulkan_api_sum", State.NOT_RECORDED, "no graphics_calls were recorded", f"{NSYS_TRACE}opengl"),
    (FIXTURES / "cpu_only.sqlite", "ops", State.NOT_RECORDED, "no kernels or graph_launches", f"{NSYS_TRACE}cuda"),
    (FIXTURES / "empty.sqlite", "cuda_gpu_kern_sum", State.NOT_RECORDED, "no kernels were", f"{NSYS_TRACE}cuda"),
    (TRAIN, "gpu_gaps", State.NOTHING_FOUND, "(334 kernels, 20 memcpys, 20 memsets)", None),
    (TRAIN, "nvtx_startend_sum", State.NOTHING_FOUND, "nothing of this kind was found in the recorded data", None),
    (TRAIN, "um_sum", State.NOTHING_FOUND, "(20 memcpys)", "--cuda-um-gpu-page-faults=true"),
    (NCU, "cuda_gpu_kern_sum", State.NOT_APPLICABLE, "captures in the format ncu-rep contain no kernels", None),
    (NCU_CSV, "advise", State.NOT_APPLICABLE, "captures in the format ncu-csv contain no kernels", None),
    (NCU_CSV, "ncu_nvtx_ranges", State.NOTHING_FOUND, "ncu_nvtx_ranges", None),
    (TRAIN, "ncu_limiter", State.NOT_APPLICABLE, "captures in the format nsys-sqlite contain no ncu_launches", None),
    (KINETO, "osrt_sum", State.NOT_APPLICABLE, "captures in the format kineto contain no osrt_calls", None),
    (KINETO, "cuda_gpu_mem_time_sum", State.NOTHING_FOUND, "(8 memcpys)", None),
    (GRAPH, "kernels", State.NOT_APPLICABLE, "captures in the format graphdef contain no kernels", None),
]


@pytest.mark.parametrize(("path", "name", "state", "reason", "hint"), CASES)
def test_each_state_has_its_sentence(path: Path, name: str, state: State, reason: str, hint: str | None) -> None:
    with tk.load(path) as trace:
        absence = trace.explain_missing_rows(name)
    assert absence.state is state, absence
    assert reason in absence.reason
    assert absence.hint is None if hint is None else hint in (absence.hint or "")
    assert absence.sentence == (absence.reason if absence.hint is None else f"{absence.reason}; {absence.hint}")


def test_tables_in_memory_and_parquet_may_come_from_any_tool(tmp_path: Path) -> None:
    assert tk.Trace.from_tables({}).explain_missing_rows("cuda_gpu_kern_sum").state is State.NOT_RECORDED
    with tk.load(TRAIN) as trace:
        path = trace.export(tmp_path / "kernels.parquet", tables=["kernels"])
        assert trace.select(time=(0, 1)).explain_missing_rows("kernels").state is State.NOT_SELECTED
    with tk.load(path) as trace:
        assert trace.explain_missing_rows("ncu_launches").state is State.NOT_RECORDED
        assert trace.explain_missing_rows("memsets").reason == "the profiler was recording, but no memsets occurred"


@pytest.mark.slow
@pytest.mark.parametrize("path", [TRAIN, NCU_CSV, KINETO], ids=lambda p: p.name)
def test_everything_that_has_a_name_can_be_explained(path: Path) -> None:
    all_names = [*schemas.table_names(), *(name for kind in (REPORT, RULE, RECIPE) for name in list_names(kind))]
    with tk.load(path) as trace:
        for name in all_names:
            absence = trace.explain_missing_rows(name)
            assert absence.reason
            assert not absence.reason.endswith(".")
        for recipe in ("cuda_gpu_kern_pace", "nvtx_pace", "nvtx_gpu_proj_pace"):
            assert re.search("[a-z]+_ranges|kernels", trace.explain_missing_rows(recipe).reason), recipe
        with pytest.raises(UnknownFormatError, match="unknown report 'nothing'"):
            trace.explain_missing_rows("nothing")


def made_report(path: Path) -> Path:
    """A report with two WDDM events, a Vulkan call and a CUDA call."""
    thread = (13, 1 << 56 | 7 << 24 | 9)
    call = ((1, 10), (2, 20), (3, 1), (7, 0), (8, 0), thread)
    wddm = event(109, layout.API, (1, 5), (2, 6), thread)
    block = wddm + wddm + event(48, layout.API, *call, (6, 53)) + event(48, layout.API, *call, (6, 0))
    path.write_bytes(Parts([block], [strings("name")]).pack())
    return path


def test_undecoded_events_are_named_where_they_would_be(tmp_path: Path, run: Run) -> None:
    path = made_report(tmp_path / "made.nsys-rep")
    with tk.load(path) as trace:
        assert trace.undecoded["WDDM event"].tables[0] == "wddm_packets"
        with pytest.warns(TracekitWarning, match="wddm_packets has no rows, because 2 WDDM events are recorded"):
            trace.frame("wddm_packets")
        with pytest.warns(TracekitWarning, match="graphics_calls has no rows, because 1 Vulkan call is"):
            trace.table("graphics_calls")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trace.frame("wddm_packets").collect()  # warned once
            trace.frame("openacc_events").collect()
            trace.frame("api_calls").collect()
        absence = trace.explain_missing_rows("wddm_queue_sum")
        assert absence.state is State.NOT_DECODED
        assert absence.sentence == (
            "2 WDDM events are recorded, but tracekit does not decode them; "
            "export the report with nsys export --type sqlite, and load the export"
        )
    said = run("stats", path, "-r", "wddm_queue_sum,openacc_sum").stderr
    assert "wddm_queue_sum: no rows, because 2 WDDM events are recorded, but tracekit does not decode them" in said
    assert "openacc_sum: no rows, because no openacc_events were recorded" in said
    assert "khr_debug_events: 1 Vulkan call is recorded, but tracekit does not decode it" in run("tables", path).stderr
    assert "the table wddm_packets has no rows, because 2 WDDM events" in run("rows", path, "wddm_packets").stderr


@pytest.mark.skipif(not WDDM.is_file(), reason="no public captures beside the checkout")
def test_wddm_events_of_a_public_report(run: Run) -> None:
    with tk.load(WDDM) as trace:
        assert trace.count("wddm_packets") == 569
        assert tk.stats(trace, "wddm_queue_sum")["Instances"].to_list() == [111, 45, 28]
        with pytest.warns(TracekitWarning, match="wddm_paging_packets has no rows, because 30 WDDM events"):
            trace.frame("wddm_paging_packets")
    said = run("info", WDDM).stdout
    assert b"This capture contains no GPU work, because no kernels, memcpys, memsets or graph_launches were" in said


def test_messages_of_commands(run: Run) -> None:
    assert run("analyze", FIXTURES / "cpu_only.sqlite", "-r", "gpu_gaps").stderr == (
        "gpu_gaps: not analyzed, because no kernels, memcpys or memsets were recorded; "
        "record them with nsys profile --trace=cuda\n"
    )
    assert run("analyze", TRAIN, "-r", "gpu_gaps").stderr == "gpu_gaps: the rule found nothing\n"
    assert run("rows", TRAIN, "mpi_calls").stderr == (
        "mpi_calls: no rows, because no mpi_calls were recorded; record them with nsys profile --trace=mpi\n"
    )
    said = run("rows", TRAIN, "kernels", "--where", "grid_x < 0").stderr
    assert said == "kernels: no row meets the condition of --where\n"
    ranks = run("stats", FIXTURES / "ranks", "-r", "openacc_sum").stderr
    assert ranks.count("no openacc_events were recorded") == 1


WHOLE = {
    "nsys-rep": ["2 WDDM events and 1 Vulkan call are recorded, but tracekit does not decode them"],
    "nsys-sqlite": ["3 rows of WDDM_QUEUES_UTILIZATION and 1 row of NEW_EVENTS are recorded, but tracekit does not"],
    "kineto": ["3 unheard_events events and 2 events without category are recorded, but tracekit does not decode them"],
    "tfevents": ["histogram events, ", " are recorded, but tracekit does not decode them"],
}


def made_capture(style: str, folder: Path) -> Path:
    """A capture in a format, with rows in tables and with events that tracekit does not decode."""
    if style == "nsys-rep":
        return made_report(folder / "made.nsys-rep")
    if style == "tfevents":
        return FIXTURES / "tensorflow" / "runs"
    if style == "nsys-sqlite":
        path = Path(shutil.copy(TRAIN, folder / "made.sqlite"))
        path.chmod(0o644)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE WDDM_QUEUES_UTILIZATION (start INTEGER)")
            database.execute("INSERT INTO WDDM_QUEUES_UTILIZATION VALUES (1), (2), (3)")
            database.execute("CREATE TABLE NEW_EVENTS (start INTEGER)")
            database.execute("INSERT INTO NEW_EVENTS VALUES (1)")
        return path
    common = {"ph": "X", "ts": 5, "dur": 1, "pid": 7, "tid": 7}
    made = [
        {**common, "cat": "cpu_op", "name": "aten::add"},
        {**common, "cat": "overhead", "name": "Buffer Flush"},
        *({**common, "cat": "unheard_events", "name": "x"} for _ in range(3)),
        {"ph": "i", "name": "[memory]", "ts": 6, "pid": 7, "tid": 7},
        {"ph": "i", "name": "Record Window End", "ts": 9, "pid": "", "tid": ""},
        {**common, "cat": "Trace", "name": "PyTorch Profiler (0)"},
        {**common, "cat": "gpu_user_annotation", "name": "step"},
    ]
    path = folder / "made.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": made}))
    return path


@pytest.mark.many(6)
@pytest.mark.parametrize("target", ["parquet", "csv", "arrow", "sqlite"])
@pytest.mark.parametrize("style", WHOLE)
def test_an_export_counts_the_events_that_it_lacks(run: Run, tmp_path: Path, style: str, target: str) -> None:
    path = made_capture(style, tmp_path)
    said = run("convert", path, "-o", tmp_path / "out", "--to", target).stderr
    assert said.count("the output is incomplete, because") == 1, said
    assert all(text in said for text in WHOLE[style]), said
    assert "META_DATA" not in said
    assert "Trace" not in said.replace("Tracekit", "")


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.parametrize("style", ["parquet", "csv", "arrow", "sqlite", "chrome-trace"])
def test_an_export_of_ranks_counts_the_events_that_it_lacks(run: Run, tmp_path: Path, style: str) -> None:
    (tmp_path / "in").mkdir()
    for rank in range(2):
        shutil.copy(made_capture("nsys-sqlite", tmp_path), tmp_path / "in" / f"rank{rank}.sqlite")
    shutil.copy(TRAIN, tmp_path / "in" / "rank2.sqlite")
    said = run("convert", tmp_path / "in", "-o", tmp_path / "out", "--to", style).stderr
    assert said.count("the output is incomplete") == 1, said
    expected = (
        "6 rows of WDDM_QUEUES_UTILIZATION and 2 rows of NEW_EVENTS are recorded, but tracekit does not decode them"
    )
    assert f"the output is incomplete, because {expected} (2 of 3 ranks)\n" in said


def test_an_export_of_some_tables_counts_only_their_events(tmp_path: Path) -> None:
    path = made_report(tmp_path / "made.nsys-rep")
    events = "2 WDDM events and 1 Vulkan call"
    with tk.load(path) as trace, warnings.catch_warnings():
        warnings.simplefilter("error")
        trace.select(tables=["api_calls"]).export(tmp_path / "few.json", format="chrome-trace")
        trace.export(tmp_path / "few.parquet", tables=["api_calls"])
    with (
        tk.load(path) as trace,
        pytest.warns(TracekitWarning, match=r"the output is incomplete, because 2 WDDM events"),
    ):
        trace.export(tmp_path / "one.parquet", tables=["wddm_packets"])
    with tk.load(path) as trace, pytest.warns(TracekitWarning, match=f"the output is incomplete, because {events}"):
        trace.export(tmp_path / "folder", format="parquet")


@pytest.mark.filterwarnings("ignore:.*1 unknown or incomplete event was skipped")
def test_rows_and_undecoded_events_of_one_table(tmp_path: Path) -> None:
    """A table that has rows may also lack events."""
    thread = (13, 1 << 56 | 7 << 24 | 9)
    call = ((1, 10), (2, 20), (3, 1), (7, 0), (8, 0), thread)
    block = event(48, layout.API, *call, (6, 0)) + event(48, layout.API, *call, (6, 200))
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(Parts([block], [strings("name")]).pack())
    with tk.load(path) as trace:
        assert trace.count("api_calls") == 1
        (name,) = trace.undecoded
        assert "api_calls" in trace.undecoded[name].tables
    with (
        tk.load(path) as trace,
        pytest.warns(TracekitWarning, match="the output is incomplete, because 1 call of class"),
    ):
        trace.export(tmp_path / "folder", format="csv")


def test_long_lists_of_undecoded_events_are_shortened() -> None:
    counts = {f"class {n}" + "x" * 200 * (n == 30): tk.Undecoded(n) for n in range(1, 31)}
    text = describe_undecoded(counts)
    assert text.startswith(f"30 class 30{'x' * 72}… events, 29 class 29 events, ")
    assert text.endswith(" and 210 events of 20 other classes are recorded, but tracekit does not decode them")


def test_every_class_of_undecoded_events_names_declared_tables() -> None:
    for event_class, tables in entries.TABLES_OF_UNDECODED_EVENTS.items():
        assert set(tables) <= set(schemas.table_names()), event_class
        assert entries.list_tables_of_undecoded_events(event_class) == tables
    assert entries.list_tables_of_undecoded_events("NVTX start of a push/pop range") == ("nvtx_ranges", "nvtx_marks")
    assert "kernels" in entries.list_tables_of_undecoded_events("GPU activity of type 5")
    assert entries.list_tables_of_undecoded_events("call of class 200") == ("api_calls", "osrt_calls")
    assert entries.list_tables_of_undecoded_events("memory map") == ()


def test_commands_fit_the_format() -> None:
    assert find_recording_command("kernels", "nsys-rep") == "nsys profile --trace=cuda"
    assert (find_recording_command("kernels", "kineto") or "").startswith("torch.profiler.profile(activities=")
    assert find_recording_command("stacks", "kineto") == "torch.profiler.profile(with_stack=True)"
    assert find_recording_command("devices", "kineto") is None
    assert find_recording_command("nvtx_ranges", "rocpd") == "rocprofv3 --marker-trace, with ranges of ROCTX"
    assert find_recording_command("mpi_calls", "xplane") == "jax.profiler.trace"
    assert find_recording_command("ncu_launches", "rpd") == find_recording_command("ncu_launches", "nsys-rep")


def test_the_page_of_a_recipe_states_why_it_is_empty(run: Run, tmp_path: Path) -> None:
    run("recipe", FIXTURES / "cpu_only.sqlite", "-r", "mpi_sum", "--format", "html", "-o", tmp_path / "out")
    text = (tmp_path / "out" / "mpi_sum.html").read_text("utf-8")
    assert "This capture contains no GPU work, because no kernels" in text
    assert "mpi_sum: no rows, because no mpi_calls were recorded; record them with nsys profile --trace=mpi" in text
    assert "nothing to draw" not in text


def test_ops_without_shapes_say_what_to_record(run: Run) -> None:
    """The rows of reports on the work of ops remain, so the message is not that there are none."""
    names = ["op_roofline", "step_mfu"]
    shapeless, shaped = FIXTURES / "layers" / "layers_inside.nsys-rep", FIXTURES / "train_amp.sqlite"
    said = run("stats", shapeless, "-r", ",".join(names)).stderr
    assert said.count("record shapes with torch.profiler.profile(record_shapes=True) or, on NVIDIA GPUs, with") == 2
    assert all(f"{name}: no shapes of ops whose work can be computed were recorded: " in said for name in names)
    assert "shapes" not in run("stats", shaped, "-r", ",".join(names)).stderr
