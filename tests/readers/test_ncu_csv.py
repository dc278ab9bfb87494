"""CSV of Nsight Compute: our captures against the csv module and against one another, and what may surround them."""

from __future__ import annotations

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from polars.testing import assert_frame_equal
from tests.builders import ncu_csv
from tests.builders.ncu_csv import FOLDER, IDENTITY, LAUNCH, METRIC, details, digit, line, number, raw, reprinted, rows
from tests.test_conformance import digest
from tracekit import errors, registry, schemas
from tracekit.errors import TracekitWarning
from tracekit.readers.ncu_csv import frame

NAMES = sorted(p.name for p in FOLDER.glob("*.csv"))
LONG = ["ncu_details.csv", "ncu_stdout.csv"]
WIDE = ["ncu_raw.csv", "ncu_raw_base.csv"]
SUMMARIES = ["ncu_per_kernel.csv", "ncu_per_nvtx.csv"]
TABLES = ["ncu_launches", "ncu_metrics", "ncu_rules", "ncu_nvtx_ranges", "devices", "processes", "capture_info"]
GOLDEN = FOLDER.parent / "golden" / "ncu_csv.json"

Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a file."""

    def write(text: str | bytes, name: str = "some.csv", encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return write


def read(path: Path, *tables: str) -> list[pl.DataFrame]:
    """Tables of a file, with texts in place of dictionaries."""
    with tk.load(path) as trace:
        return [trace.frame(t).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect() for t in tables]


def metrics(path: Path) -> pl.DataFrame:
    return read(path, "ncu_metrics")[0]


def launches(path: Path) -> pl.DataFrame:
    return read(path, "ncu_launches")[0]


def whole(path: Path) -> dict[str, pl.DataFrame]:
    return dict(zip(TABLES, read(path, *TABLES), strict=True))


def assert_same(path: Path, other: Path) -> None:
    for name, table in whole(path).items():
        assert_frame_equal(table, whole(other)[name], check_exact=True)


class TestCaptures:
    """Every capture of ours."""

    @pytest.mark.parametrize("name", NAMES)
    def test_tables_are_as_declared_and_golden(self, name: str, request: pytest.FixtureRequest) -> None:
        made = {}
        with tk.load(FOLDER / name) as trace:
            assert trace.format == "ncu-csv"
            for table in trace.tables:
                found = trace[table]
                found.validate(full=True)
                assert found.num_rows == trace.count(table)
                assert found.schema.equals(schemas.arrow_schema(schemas.table(table)), check_metadata=True)
                if found.num_rows:
                    made[table] = [found.num_rows, digest(found)]
        golden = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {}
        if request.config.getoption("--golden"):
            GOLDEN.write_text(json.dumps(dict(sorted({**golden, name: made}.items())), indent=1) + "\n", "utf-8")
        else:
            assert made == golden[name]

    @pytest.mark.many(1)
    @pytest.mark.parametrize("name", NAMES)
    def test_same_under_an_unknown_name(self, name: str, tmp_path: Path) -> None:
        shutil.copyfile(FOLDER / name, tmp_path / "unknown")
        assert_same(tmp_path / "unknown", FOLDER / name)

    @pytest.mark.many(1)
    @pytest.mark.parametrize("format", ["parquet", "arrow"])
    @pytest.mark.parametrize("name", NAMES)
    def test_exported_and_read_again_it_is_equal(self, name: str, format: str, tmp_path: Path) -> None:
        with tk.load(FOLDER / name) as trace:
            folder = trace.export(tmp_path / "tables", format=format)
            with tk.load(folder) as again:
                counts = trace.count_all()
                assert again.count_all() == counts
                assert [t for t, rows in counts.items() if rows and digest(again[t]) != digest(trace[t])] == []

    @pytest.mark.many(1)
    @pytest.mark.parametrize("format", ["csv", "parquet", "arrow"])
    def test_exported_twice_it_is_the_same_bytes(self, format: str, tmp_path: Path) -> None:
        found = []
        for name in ("first", "second"):
            folder = tk.convert(FOLDER / "ncu_details.csv", tmp_path / name, to=format)
            found.append({p.name: p.read_bytes() for p in folder.iterdir()})
        assert found[0] == found[1]

    @pytest.mark.parametrize("name", [*LONG, *WIDE, *SUMMARIES])
    def test_no_table_holds_what_is_private(self, name: str) -> None:
        private = ("127.0.0.1", "/usr/bin", "/data")
        found = "".join(t.write_csv() for t in whole(FOLDER / name).values())
        assert [p for p in private if p in found] == []

    @pytest.mark.thorough
    def test_blocks_of_any_size_give_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = {name: whole(FOLDER / name) for name in NAMES}
        for size in (1 << 14, 100_003):
            monkeypatch.setattr(frame, "BLOCK_BYTES", size)
            for name in NAMES:
                for table, rows_ in whole(FOLDER / name).items():
                    assert_frame_equal(rows_, expected[name][table], check_exact=True)


class TestRows:
    """Every row and cell is accounted for, with its exact value."""

    @pytest.mark.parametrize("name", LONG)
    def test_metrics_of_details(self, name: str) -> None:
        expected = [r for r in rows(name) if r["Metric Name"]]
        found = metrics(FOLDER / name)
        assert found["launch_id"].to_list() == [int(r["ID"]) for r in expected]
        assert found["section"].to_list() == [r["Section Name"] for r in expected]
        named = found.select(pl.coalesce("label", "metric")).to_series()
        assert named.to_list() == [r["Metric Name"] for r in expected]
        for made, row in zip(found.iter_rows(named=True), expected, strict=True):
            exact = number(row["Metric Value"], row["Metric Unit"])
            assert made["value"] == (None if exact is None else float(exact))
            assert made["text"] == (row["Metric Value"] if exact is None else None)
            assert made["printed_unit"] == (row["Metric Unit"] or None)
            assert made["resolution"] == (
                None if exact is None else float(digit(row["Metric Value"], row["Metric Unit"]))
            )

    @pytest.mark.parametrize("name", WIDE)
    def test_cells_of_raw(self, name: str) -> None:
        header, (units, *found) = ncu_csv.records(name)
        lead = header.index("CC") + 1
        expected = []
        for launch, row in enumerate(found):
            for metric, unit, cell in list(zip(header, units, row, strict=True))[lead:]:
                exact = number(cell, unit)
                value = None if exact is None else float(exact)
                text = cell if exact is None else None
                base = ncu_csv.FACTORS.get(unit, (unit, 0))[0] or None
                if cell:
                    expected.append((launch, metric, value, text, base, unit or None))
        columns = ["launch_id", "metric", "value", "text", "unit", "printed_unit"]
        assert metrics(FOLDER / name).select(columns).rows() == expected

    @pytest.mark.many(1)
    @pytest.mark.parametrize("name", SUMMARIES)
    def test_rows_of_summaries(self, name: str) -> None:
        expected = rows(name)
        found = metrics(FOLDER / name)
        for made, row in zip(found.iter_rows(named=True), expected, strict=True):
            for column, cell in (("minimum", "Minimum"), ("maximum", "Maximum"), ("value", "Average")):
                exact = number(row[cell], row["Metric Unit"])
                assert made[column] == (None if exact is None else float(exact))
        groups = [c for c in expected[0] if c not in ("Section Name", *METRIC[1:3], "Minimum", "Maximum", "Average")]
        first = list(dict.fromkeys(tuple(r[c] for c in groups) for r in expected))
        invocations = groups.index("Invocations")
        assert launches(FOLDER / name)["invocations"].to_list() == [int(g[invocations]) for g in first]
        assert set(launches(FOLDER / name)["kind"]) == {"group"}

    def test_rules_of_details(self) -> None:
        expected = [r for r in rows("ncu_details.csv") if r.get("Rule Name")]
        (found,) = read(FOLDER / "ncu_details.csv", "ncu_rules")
        columns = {"section_id": "Section Name", "rule_id": "Rule Name", "type": "Rule Type"}
        columns |= {"message": "Rule Description", "speedup_type": "Estimated Speedup Type"}
        for column, header in columns.items():
            assert found[column].to_list() == [r[header] or None for r in expected]
        speedups = [r["Estimated Speedup"] for r in expected]
        assert found["speedup_percent"].to_list() == [float(s) if s else None for s in speedups]
        assert found["message_id"].to_list() == list(range(1, 49))
        assert found["section"].null_count() == 0

    def test_launches(self) -> None:
        expected = {r["ID"]: r for r in rows("ncu_details.csv")}
        for name in ("ncu_details.csv", *WIDE):
            found = launches(FOLDER / name)
            assert found["source_id"].to_list() == found["launch_id"].to_list() == list(range(12))
            assert found["name"].to_list() == [r["Kernel Name"] for r in expected.values()]
            grids = ["({}, {}, {})".format(*g) for g in found.select("grid_x", "grid_y", "grid_z").rows()]
            assert grids == [r["Grid Size"] for r in expected.values()]
            blocks = ["({}, {}, {})".format(*g) for g in found.select("block_x", "block_y", "block_z").rows()]
            assert blocks == [r["Block Size"] for r in expected.values()]
            fixed = {"kind": "kernel", "invocations": 1, "process_id": 3332, "device_id": 0, "context_id": 1}
            fixed |= {"stream_id": 7, "compute_major": 9, "compute_minor": 0}
            assert {c: found[c].unique().to_list() for c in fixed} == {c: [v] for c, v in fixed.items()}

    def test_durations_are_in_ns_and_of_the_most_precise_page(self, written: Written) -> None:
        exact = launches(FOLDER / "ncu_raw.csv")["duration_ns"]
        assert exact[:3].to_list() == [2368, 2304, 3424]
        rough = launches(FOLDER / "ncu_details.csv")["duration_ns"]
        assert ((exact - rough).abs() <= 5).all()
        both = (FOLDER / "ncu_details.csv").read_text("utf-8") + (FOLDER / "ncu_raw.csv").read_text("utf-8")
        assert launches(written(both))["duration_ns"].to_list() == exact.to_list()


class TestAgreement:
    """Pages of one report show the same values, within the digits they print."""

    def joined(self, first: str, second: str, *on: str) -> pl.DataFrame:
        a, b = metrics(FOLDER / first), metrics(FOLDER / second)
        both = a.join(b, on=["launch_id", *on], suffix="_other")
        assert both.height == a.height
        assert both.filter(pl.col("unit").ne_missing(pl.col("unit_other"))).height == 0
        return both.filter(pl.col("value").is_not_null())

    @pytest.mark.parametrize("first", ["ncu_raw.csv", "ncu_details.csv"])
    def test_with_the_raw_page_in_base_units(self, first: str) -> None:
        both = self.joined(first, "ncu_raw_base.csv", "metric")
        apart = (pl.col("value") - pl.col("value_other")).abs()
        known = (pl.col("resolution") + pl.col("resolution_other")) / 2
        assert both.filter(apart > known * (1 + 1e-9)).height == 0
        assert both.height == {"ncu_raw.csv": 6684, "ncu_details.csv": 588}[first]

    def test_texts_are_the_same(self) -> None:
        texts = [
            metrics(FOLDER / n).filter(pl.col("text").is_not_null()).select("launch_id", "metric", "text") for n in WIDE
        ]
        assert texts[0].height == 60
        assert_frame_equal(*texts)

    def test_the_summary_by_kernel_is_that_of_the_launches(self) -> None:
        keys = ["name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
        (groups,), single = read(FOLDER / "ncu_per_kernel.csv", "ncu_launches"), launches(FOLDER / "ncu_raw_base.csv")
        of_group = single.select("launch_id", *keys).join(groups.select(*keys, group="launch_id"), on=keys)
        assert of_group.height == single.height
        exact = metrics(FOLDER / "ncu_raw_base.csv").join(of_group, on="launch_id").group_by("group", "metric")
        own = exact.agg(
            low=pl.col("value").min(),
            high=pl.col("value").max(),
            mean=pl.col("value").mean(),
            last=pl.col("resolution").max(),
        )
        shown = metrics(FOLDER / "ncu_per_kernel.csv").rename({"launch_id": "group"}).drop_nulls("value")
        both = shown.join(own, on=["group", "metric"])
        assert both.height == shown.height > 500
        known = (pl.col("resolution") + pl.col("last")) / 2 * (1 + 1e-9)
        for column, of_launches in (("minimum", "low"), ("maximum", "high"), ("value", "mean")):
            assert both.filter((pl.col(column) - pl.col(of_launches)).abs() > known).height == 0
        assert groups["invocations"].sum() == single.height


class TestRanges:
    """NVTX ranges that were open at a launch."""

    def test_entries_are_the_cells(self) -> None:
        (found,) = read(FOLDER / "ncu_details.csv", "ncu_nvtx_ranges")
        cells = {int(r["ID"]): r[ncu_csv.PUSH_POP] for r in rows("ncu_details.csv")}
        for launch, cell in cells.items():
            own = found.filter(pl.col("launch_id") == launch)
            assert "3332 " + "".join(f' "{e}" ' for e in own["entry"]) == cell
            assert own["depth"].to_list() == list(range(1, own.height + 1))
            assert own["name"].to_list() == [e.removeprefix("<default domain>:")[:-30] for e in own["entry"]]
        assert set(found["thread_id"]) == {3332}
        assert found["domain"].null_count() == found.height

    def test_launches_carry_the_path(self) -> None:
        found = launches(FOLDER / "ncu_raw.csv")
        (ranges,) = read(FOLDER / "ncu_raw.csv", "ncu_nvtx_ranges")
        for launch in found.iter_rows(named=True):
            names = ranges.filter(pl.col("launch_id") == launch["launch_id"])["name"].to_list()
            assert launch["range_path"] == "/".join(names)
            assert (launch["range_name"], launch["range_depth"]) == (names[-1], len(names))
            assert launch["thread_id"] == 3332

    def test_the_summary_by_range_has_the_same_paths(self) -> None:
        by_range, single = launches(FOLDER / "ncu_per_nvtx.csv"), launches(FOLDER / "ncu_stdout.csv")
        assert Counter(by_range["range_path"]) == Counter(single["range_path"])
        assert set(read(FOLDER / "ncu_per_nvtx.csv", "ncu_nvtx_ranges")[0]["kind"]) == {"push_pop"}

    def test_domains_attributes_and_start_end_ranges(self, written: Written) -> None:
        identity = [*IDENTITY[:4], ncu_csv.PUSH_POP, ncu_csv.START_END, *IDENTITY[4:]]
        plain = ":none:none:none:none:none:none"
        pushed = f'11  "<default domain>:a:b{plain}"  "lib:x:UINT64:18446744073709551615:ARGB:255:ASCII:m" '
        started = f' "5:lib:load:DOUBLE:1.5:none:none:REGISTERED:r"  "9:<default domain>:w{plain}" '
        launch = [*LAUNCH[:4], pushed, started, *LAUNCH[4:]]
        (found,) = read(
            written(details(["s", "a__b.sum", "", "1"], launch=launch, identity=identity)), "ncu_nvtx_ranges"
        )
        shown = found.select("kind", "depth", "source_id", "thread_id", "domain", "name", "payload_type").rows()
        assert shown == [
            ("push_pop", 1, None, 11, None, "a:b", None),
            ("push_pop", 2, None, 11, "lib", "x", "uint64"),
            ("start_end", 1, 5, None, "lib", "load", "double"),
            ("start_end", 2, 9, None, None, "w", None),
        ]
        assert found["payload_int"].to_list() == [None, -1, None, None]
        assert found["payload_float"].to_list() == [None, None, 1.5, None]
        assert found["color"].to_list() == [None, 255, None, None]
        assert found["message_type"].to_list() == [None, "ascii", "registered", None]

    def test_a_renamed_kernel_gets_its_name_back(self, written: Written) -> None:
        def renamed(text: str) -> str:
            header, found = ncu_csv.records("ncu_raw.csv")
            name, cell = header.index("Kernel Name"), header.index(ncu_csv.PUSH_POP)
            lines = [line(header)]
            for row in found:
                innermost = row[cell].removesuffix('" ').rpartition("<default domain>:")[2][:-30]
                row[name] = f"{innermost}/{row[name]}" if innermost else row[name]
                lines.append(line(row))
            return "".join(lines)

        path = written(renamed("ncu_raw.csv"))
        assert "aten::" in path.read_text("utf-8").splitlines()[2].split('","')[6]
        assert launches(path)["name"].to_list() == launches(FOLDER / "ncu_raw.csv")["name"].to_list()


class TestMachine:
    """Facts, devices and processes."""

    def test_session_page(self) -> None:
        facts, devices, processes = read(FOLDER / "ncu_session.csv", "capture_info", "devices", "processes")
        assert dict(facts.rows()) == {
            "tool": "NVIDIA Nsight Compute",
            "tool_version": "2025.3.1.0",
            "cuda_version": "13.0",
            "created_local": "2026-11-21T02:21:13",
            "pages": "session",
        }
        assert processes.rows() == [(3332, "python3.12")]
        known = {"name": "NVIDIA H200", "sm_count": 132, "compute_major": 9, "memory_bytes": 150109880320}
        assert known.items() <= devices.row(0, named=True).items()

    def test_device_of_the_raw_page(self) -> None:
        devices, processes = read(FOLDER / "ncu_raw.csv", "devices", "processes")
        assert devices.drop(
            "chip", "memory_bandwidth_bytes_per_s", "peak_flop_per_s", "uuid", "bus_location"
        ).rows() == [
            (0, "NVIDIA H200", 0, 9, 0, 132, 1_980_000_000, 150_109_880_320, 62_914_560, 32, 64, 65536, 233_472)
        ]
        assert processes.rows() == [(3332, "python3.12")]

    def test_device_of_other_pages(self) -> None:
        for name in ("ncu_details.csv", *SUMMARIES):
            (devices,) = read(FOLDER / name, "devices")
            assert devices.select("device_id", "compute_major", "compute_minor", "name").rows() == [(0, 9, 0, None)]

    def test_numbers_that_fit_no_column_are_left_out(self, written: Written) -> None:
        values = {"multiprocessor_count": "1.50", "l2_cache_size": "1e30", "warp_size": "many", "total_memory": "nan"}
        named = {f"device__attribute_{k}": "" for k in values}
        (devices,) = read(written(raw(named, list(values.values()))), "devices")
        assert devices.select("sm_count", "l2_cache_bytes", "threads_per_warp", "memory_bytes").rows() == [(None,) * 4]


class TestSurroundings:
    """What may stand around and between rows does not change them."""

    TEXT = (FOLDER / "ncu_details.csv").read_text("utf-8").lstrip("\n")

    @pytest.mark.many(1)
    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
    def test_encodings(self, written: Written, encoding: str) -> None:
        text = self.TEXT if encoding != "utf-16-be" else "\ufeff" + self.TEXT
        assert_same(written(text.replace("\n", "\r\n"), encoding=encoding), FOLDER / "ncu_details.csv")

    def test_windows_code_page(self, written: Written) -> None:
        text = details(["s", "a__b.sum", "", "1"], launch=[*LAUNCH[:4], "größe", *LAUNCH[5:]])
        assert launches(written(text, encoding="cp1252"))["name"].to_list() == ["größe"]

    def test_prints_of_the_program_and_of_ncu(self, written: Written) -> None:
        lines = self.TEXT.splitlines(keepends=True)
        noise = [
            '==PROF== Profiling "k" - 1: 0%....100% - 9 passes\n',
            'step 3, loss "x\n',
            '"quoted", 5\n',
            "\n",
            '"\n',
        ]
        noise += ["==WARNING== Backing up device memory\n", "{'a': \"b\"}\n"]
        mixed = [*noise, "no newline at the end", lines[0]]
        for i, row in enumerate(lines[1:]):
            mixed += [noise[i % len(noise)], "epoch 1 " if i % 7 == 0 else "", row]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert_same(written("".join([*mixed, *noise])), FOLDER / "ncu_details.csv")
        assert {str(w.message).partition(": ")[2] for w in caught} == {
            "97 rows do not match the header of their table and were skipped"
        }

    @pytest.mark.slow
    def test_far_below_what_the_program_printed(self, written: Written) -> None:
        assert_same(written("loading …\n" * 50_000 + self.TEXT), FOLDER / "ncu_details.csv")

    def test_a_newline_inside_a_cell(self, written: Written) -> None:
        launch = [*LAUNCH[:4], 'k<"a\n\nb">(int)\n', *LAUNCH[5:]]
        text = details(["s", "a__b.sum", "", "1"], ["s", "a__c.sum", "", "2"], launch=launch)
        for path in (written(text), written(text.replace("\n", "\r\n"), "other.csv")):
            assert launches(path)["name"].to_list() == ['k<"a\n\nb">(int)\n']
            assert metrics(path)["value"].to_list() == [1, 2]

    @pytest.mark.parametrize(
        "text", ['say "hi" now', '5" disk', 'a",b', '"', 'q" c\nl', 'two "\nlines" here', 'x" y" z"']
    )
    def test_quotes_that_are_not_doubled(self, written: Written, text: str) -> None:
        identity = [*IDENTITY[:4], ncu_csv.PUSH_POP, *IDENTITY[4:]]
        cell = f'7  "lib:{text}:none:none:none:none:none:none" '.replace('"', '""').replace(
            text.replace('"', '""'), text
        )
        row = details(["s", "a__b.sum", "", "1"], launch=[*LAUNCH[:4], "CELL", *LAUNCH[4:]], identity=identity)
        other = details(["s", "a__b.sum", "", "2"], launch=["1", *LAUNCH[1:4], "", *LAUNCH[4:]], identity=identity)
        path = written(row.replace("CELL", cell) + other.partition("\n")[2])
        (ranges,) = read(path, "ncu_nvtx_ranges")
        assert metrics(path)["value"].to_list() == [1, 2]
        assert ranges.select("launch_id", "domain", "name").rows() == [(0, "lib", text)]

    def test_a_header_again_begins_another_run(self, written: Written) -> None:
        text = details(["s", "a__b.sum", "", "1"])
        found = launches(written(text + text))
        assert found.select("launch_id", "source_id").rows() == [(0, 0), (1, 0)]

    def test_processes_number_their_launches_on_their_own(self, written: Written) -> None:
        one, two = ([*LAUNCH[:1], pid, *LAUNCH[2:]] for pid in ("7", "8"))
        text = details(["s", "a__b.sum", "", "1"], launch=one) + line([*two, "s", "a__b.sum", "", "2"])
        text += line([*one, "s", "a__c.sum", "", "3"])
        assert launches(written(text)).select("launch_id", "process_id").rows() == [(0, 7), (1, 8)]
        assert metrics(written(text)).select("launch_id", "value").rows() == [(0, 1.0), (1, 2.0), (0, 3.0)]

    def test_pages_of_one_report_in_one_file(self, written: Written) -> None:
        parts = ["ncu_session.csv", "ncu_details.csv", "ncu_raw_base.csv", "ncu_per_kernel.csv"]
        path = written("\n".join((FOLDER / p).read_text("utf-8") for p in parts))
        found = whole(path)
        assert found["ncu_launches"]["kind"].to_list() == ["kernel"] * 12 + ["group"] * 11
        assert found["ncu_metrics"].height == 624 + 6744 + 539
        assert found["ncu_rules"].height == 48
        assert found["ncu_nvtx_ranges"].height == 79
        assert dict(found["capture_info"].rows())["pages"] == "session, details, raw, per-kernel"
        assert_frame_equal(found["ncu_launches"].head(12), launches(FOLDER / "ncu_raw_base.csv"))

    @pytest.mark.many(1)
    @pytest.mark.parametrize(
        ("thousands", "point"), [(".", ","), ("\u00a0", ","), ("\u202f", ","), ("'", "."), ("\u2019", ".")]
    )
    @pytest.mark.parametrize("name", ["ncu_details.csv", "ncu_per_kernel.csv"])
    def test_locales(self, written: Written, name: str, thousands: str, point: str) -> None:
        details_columns = ["Metric Value", "Estimated Speedup"]
        columns = details_columns if name == "ncu_details.csv" else ["Minimum", "Maximum", "Average"]
        swap = str.maketrans({",": thousands, ".": point})

        def printed(cell: str) -> str:
            return cell.translate(swap) if number(cell) is not None else cell

        assert_same(written(reprinted(name, printed, columns)), FOLDER / name)


class TestDialects:
    """Old names, units and shapes, from samples."""

    def test_before_2021(self, written: Written) -> None:
        identity = [*IDENTITY[:5], "Kernel Time", "Context", "Stream"]
        launch = [*LAUNCH[:5], "2020-Apr-07 17:01:05", "1", "7"]
        section = "GPU Speed Of Light"
        text = details(
            [section, "Duration", "usecond", "12.50"],
            [section, "SM Frequency", "cycle/nsecond", "1.25"],
            [section, "SOL SM", "%", "55.00"],
            ["Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "1.50"],
            ["Launch Statistics", "Registers Per Thread", "register/thread", "32"],
            launch=launch,
            identity=identity,
        )
        found = metrics(written(text))
        assert found.select("metric", "label", "value", "unit", "printed_unit").rows() == [
            ("gpu__time_duration.sum", "Duration", 12500.0, "ns", "usecond"),
            (None, "SM Frequency", 1.25e9, "hz", "cycle/nsecond"),
            ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "SOL SM", 55.0, "%", "%"),
            ("dram__bytes.sum.per_second", "Memory Throughput", 1.5e9, "byte/s", "Gbyte/second"),
            ("launch__registers_per_thread", "Registers Per Thread", 32.0, "register/thread", "register/thread"),
        ]
        (made,) = launches(written(text)).iter_rows(named=True)
        assert (made["created_local"], made["duration_ns"]) == ("2020-04-07T17:01:05", 12500)
        assert (made["grid_x"], made["device_id"], made["compute_major"], made["kind"]) == (None, None, None, "kernel")

    def test_rules_without_speedup(self, written: Written) -> None:
        header = line([*IDENTITY, *METRIC, "Rule Name", "Rule Type", "Rule Description"])
        metric = line([*LAUNCH, "Occupancy", "Theoretical Occupancy", "%", "50.00"]).removesuffix("\n") + ",\n"
        rule = line([*LAUNCH, "Occupancy", "", "", "", "Occupancy", "WRN", 'say "less", more'])
        path = written(header + metric + rule)
        assert read(path, "ncu_rules")[0].select("rule_id", "type", "message", "speedup_percent", "section").rows() == [
            ("Occupancy", "WRN", 'say "less", more', None, "Occupancy")
        ]
        assert metrics(path).height == 1

    @pytest.mark.parametrize(
        ("cell", "expected"),
        [("512", (512, 1, 1)), ("(512,1,1)", (512, 1, 1)), ("(2, 3)", (2, 3, 1)), ("", (None,) * 3)],
    )
    def test_sizes(self, written: Written, cell: str, expected: tuple[int | None, ...]) -> None:
        text = details(["s", "a__b.sum", "", "1"], launch=[*LAUNCH[:7], cell, cell, *LAUNCH[9:]])
        found = launches(written(text))
        assert found.select("grid_x", "grid_y", "grid_z").rows() == [expected]
        assert found.select("block_x", "block_y", "block_z").rows() == [expected]

    @pytest.mark.parametrize(("name", "kind"), [("range", "range"), ("graph", "graph"), ("", "kernel")])
    def test_results_that_are_no_kernels(self, written: Written, name: str, kind: str) -> None:
        text = details(["s", "a__b.sum", "", "1"], launch=[*LAUNCH[:4], name, "1", "", "", "", "0", "9.0"])
        (made,) = launches(written(text)).iter_rows(named=True)
        assert (made["kind"], made["name"], made["stream_id"]) == (kind, name or None, None)

    def test_cells_without_a_number(self, written: Written) -> None:
        cells = [
            "n/a",
            "no data",
            "",
            "nan",
            "inf",
            "-inf",
            "PolicySpread",
            "1,2",
            "12 (3; 4; 5)",
            "no data (1; 2)",
            "-5",
            "0.50",
        ]
        names = {f"a__{i}.sum": "" for i in range(len(cells))}
        found = metrics(written(raw(names, cells))).select("metric", "value", "text", "instances").rows()
        nan = float("nan")
        expected = [(None, None, None), (None, None, None), (nan, None, None), (float("inf"), None, None)]
        expected += [(float("-inf"), None, None), (None, "PolicySpread", None), (None, "1,2", None)]
        expected += [(12.0, "12 (3; 4; 5)", 3), (None, "no data (1; 2)", 2), (-5.0, None, None)]
        expected.append((0.5, None, None))
        kept = [name for name, cell in zip(names, cells, strict=True) if cell]
        assert str(found) == str([(name, *e) for name, e in zip(kept, expected, strict=True)])

    def test_summary_by_gpu(self, written: Written) -> None:
        header = ["Device", "CC", "Invocations", "Section Name", "Metric Name", "Metric Unit"]
        text = line([*header, "Minimum", "Maximum", "Average"])
        text += line(["1", "9.0", "1,200", "Occupancy", "Achieved Occupancy", "%", "1.00", "3.00", "2.50"])
        (made,) = launches(written(text)).iter_rows(named=True)
        assert (made["kind"], made["device_id"], made["invocations"], made["name"]) == ("group", 1, 1200, None)
        (value,) = metrics(written(text)).select("minimum", "maximum", "value").rows()
        assert value == (1.0, 3.0, 2.5)

    def test_a_raw_page_without_units(self, written: Written) -> None:
        lines = raw({"dram__bytes.sum": "Kbyte"}, ["5.376000"]).splitlines(keepends=True)
        with pytest.warns(TracekitWarning, match=r"some.csv: a raw page has no row of units: the values of the page"):
            found = metrics(written(lines[0] + lines[2]))
        assert found.select("value", "unit").rows() == [(5.376, None)]

    def test_a_source_page_beside_others_is_left_out(self, written: Written) -> None:
        source = '"Kernel Name","k"\n"#","Address","Source","# Samples"\n"1","0x10","MOV R1","5"\n'
        with pytest.warns(TracekitWarning, match=r"some.csv: source pages are not supported"):
            assert metrics(written(details(["s", "a__b.sum", "", "1"]) + source)).height == 1


class TestRefusals:
    """Files without a table, and damaged ones."""

    HEADER = line([*IDENTITY, *METRIC])

    @pytest.mark.parametrize(
        ("text", "kind", "said", "hint"),
        [
            (
                "==ERROR== x\n",
                errors.MissingTableError,
                "ncu printed 1 message (1 error) and no table",
                "run ncu with --csv, and let it finish",
            ),
            (
                "==PROF== Connected to process 7 (/usr/bin/app)\n==ERROR== The application returned an error code (1).",
                errors.MissingTableError,
                "ncu profiled nothing: the program failed",
                "make sure that the program runs without ncu",
            ),
            (
                "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n",
                errors.MissingTableError,
                "ncu has no permission to read performance counters",
                "allow this user to read performance counters: https://developer.nvidia.com/ERR_NVGPUCTRPERM",
            ),
            (
                "==PROF== Disconnected from process 7\n==WARNING== No kernels were profiled.\n",
                errors.MissingTableError,
                "ncu profiled no kernel",
                "check the options of ncu that select kernels, such as --kernel-name",
            ),
            (
                HEADER,
                errors.MissingTableError,
                "ncu printed 0 messages (0 errors) and a header, but no rows",
                "run ncu",
            ),
            (
                "    Section: Occupancy\n    Block Limit SM   block   32\n",
                errors.UnsupportedVersionError,
                "the file contains a page that ncu printed as plain text instead of CSV",
                "print the raw page with ncu --import REPORT --page raw --csv",
            ),
            (
                '==PROF== x\n"Kernel Name","k"\n"#","Address","Source"\n"1","0x10","MOV"\n',
                errors.UnsupportedVersionError,
                "the file contains only source pages of ncu, which are not supported",
                "print the raw page with ncu --import REPORT --page raw --csv",
            ),
            (
                HEADER + '"0","7","app"\n"1","7","app',
                errors.CorruptTraceError,
                "table ncu_launches: none of the 2 rows matches the header of its table",
                "run ncu --csv again",
            ),
        ],
    )
    def test_reasons(self, written: Written, text: str, kind: type[Exception], said: str, hint: str) -> None:
        path = written(text)
        with pytest.raises(kind) as caught:
            tk.load(path)
        first, second = str(caught.value).splitlines()
        assert first == f"{path}: {said}"
        assert second.startswith(f"Hint: {hint}")
        assert "/usr" not in str(caught.value)

    @pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\0" * 5000, "x" * 5000])
    def test_other_files_are_not_recognized(self, written: Written, text: str) -> None:
        path = written(text)
        with pytest.raises(errors.UnknownFormatError):
            tk.load(path)
        with pytest.raises(errors.MissingTableError, match="ncu printed 0 messages"):
            tk.load(path, format="ncu-csv")

    @pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
    @pytest.mark.parametrize("name", [*LONG, *WIDE, *SUMMARIES])
    @pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
    def test_cut_short_the_rows_before_are_read(self, written: Written, name: str, keep: float) -> None:
        data = (FOLDER / name).read_bytes()
        path = written(data[: int(len(data) * keep)])
        if keep == 0.1 and name in WIDE:
            with pytest.raises(errors.TracekitError, match="\nHint: "):
                tk.load(path)
            return
        found = metrics(path)
        assert found.height > 0
        assert_frame_equal(found, metrics(FOLDER / name).head(found.height), check_exact=True)

    def test_rows_that_do_not_fit_are_counted(self, written: Written) -> None:
        text = details(["s", "a__b.sum", "", "1"], ["s", "a__c.sum", "", "2"])
        text += line([*LAUNCH, "s", "a__d.sum", "", "3", "more", "and more"]) + line(LAUNCH) + '"0","7","cut'
        with pytest.warns(TracekitWarning, match=r"some.csv: 3 rows do not match the header of their table"):
            assert metrics(written(text))["value"].to_list() == [1, 2]

    def test_a_line_without_end(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frame, "MAX_LINE_BYTES", 1 << 20)
        monkeypatch.setattr(frame, "BLOCK_BYTES", 1 << 16)
        with pytest.raises(
            errors.CorruptTraceError,
            match=r"has a line longer than 1 MiB, the most",
        ):
            tk.load(written(self.HEADER + '"0","' + "x" * (2 << 20)))

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(
            errors.TracekitError, match=r"the file cannot be read: Is a directory\nHint: copy the file again"
        ):
            tk.load(tmp_path, format="ncu-csv")


def test_it_is_a_built_in() -> None:
    assert registry.reader("ncu-csv").suffixes == (".csv", ".txt", ".log")


def test_numbers_of_a_file_are_exact_decimals() -> None:
    assert number("5.376000", "Kbyte") == Decimal(5376)
    assert metrics(FOLDER / "ncu_raw.csv").filter(metric="dram__bytes.sum")["value"][0] == 5376.0


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (bytes(300), "the file ends with zeros, as after an interrupted copy, so rows may be missing"),
        (b"0,1,gemm,1,2", "the last row does not end with a line break, so its last value may be truncated"),
        (b"a message of the program", None),
        (b'"0","1","gemm","1","2"', None),
        (b"\n", None),
    ],
)
def test_the_end_of_a_file_shows_whether_it_is_truncated(end: bytes, text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes((FOLDER / "ncu_details.csv").read_bytes() + end)
    assert frame.describe_damaged_end(path) == text
    if text is not None:
        with pytest.warns(TracekitWarning, match=text):
            tk.load(path).close()
