"""Units, labels, numbers and NVTX state of Nsight Compute: against the table of units, and brute force as oracle."""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import ncu_csv
from tests.conftest import SHARED
from tracekit.readers.ncu import nvtx, units
from tracekit.readers.ncu_csv import frame, numbers

TABLE = SHARED / "formats" / "ncu_units.tsv"
STYLES = {",": numbers.ENGLISH, ".": numbers.GERMAN, "\u202f": numbers.FRENCH, "'": numbers.SWISS}
ATTRIBUTES = ":none:none:none:none:none:none"


class TestUnits:
    @pytest.mark.parametrize(
        ("unit", "base", "power"),
        [
            ("", None, 0),
            ("ns", "ns", 0),
            ("us", "ns", 3),
            ("second", "ns", 9),
            ("nsecond", "ns", 0),
            ("msecond", "ns", 6),
            ("Kbyte", "byte", 3),
            ("Tbyte/s", "byte/s", 12),
            ("Mbyte/second", "byte/s", 6),
            ("Ghz", "hz", 9),
            ("cycle/nsecond", "hz", 9),
            ("cycle/usecond", "hz", 6),
            ("sector/us", "sector/s", 6),
            ("inst/nsecond", "inst/s", 9),
            ("Kbyte/block", "byte/block", 3),
            ("byte/cycle", "byte/cycle", 0),
            ("%", "%", 0),
            ("%/Kbyte", "%/byte", 3),
            ("register/thread", "register/thread", 0),
            ("SM", "SM", 0),
            ("Mystery", "Mystery", 0),
        ],
    )
    def test_printed(self, unit: str, base: str | None, power: int) -> None:
        assert units.find_base_unit_and_exponent(unit) == (base, power)

    def test_names_tell_the_units_that_the_raw_page_prints(self) -> None:
        header, (printed, *_) = ncu_csv.records("ncu_raw_base.csv")
        lead = header.index("CC") + 1
        told = {name: units.find_unit_of_metric(name) or "" for name in header[lead:]}
        assert told == dict(zip(header[lead:], printed[lead:], strict=True))

    @pytest.mark.parametrize(
        ("name", "unit"),
        [
            ("dram__bytes.sum.per_second", "byte/s"),
            ("gpc__cycles_elapsed.avg.per_second", "hz"),
            ("sm__inst_executed.avg.per_cycle_active", "inst/cycle"),
            ("sm__warps_active.avg.per_cycle_active", "warp"),
            ("breakdown:sm__throughput.avg", None),
            ("breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
            ("FE_B.TriageCompute.gr__ctas_launched_realtime.sum", "block"),
            ("SM.TriageA.sm__cycles_active.avg", "cycle"),
            ("SM.TriageA.sm__inst_executed_realtime.sum", "inst"),
            ("TPC.TriageA.tpc__warps_active_shader_cs_realtime.avg", "warp"),
            ("TPC.TriageA.tpc__warps_active_shader_cs_realtime.avg.pct_of_peak_sustained_elapsed", "%"),
            ("smsp__threads_launched.sum", "thread"),
            ("smsp__threads_launched.sum.per_second", "thread/s"),
            ("smsp__threads_launched.avg.per_cycle_active", "thread/cycle"),
            ("pmsampling:sm__cycles_active.avg", "cycle"),
            ("launch__registers_per_thread", "register/thread"),
            ("unheard_of", None),
        ],
    )
    def test_of_names(self, name: str, unit: str | None) -> None:
        assert units.find_unit_of_metric(name) == unit

    @pytest.mark.corpus
    @pytest.mark.skipif(not TABLE.is_file(), reason="no table of units beside the checkout")
    def test_of_every_known_name(self) -> None:
        known = [line.split("\t")[:2] for line in TABLE.read_text("utf-8").splitlines()[1:]]
        assert len(known) > 3000
        assert [(name, unit) for name, unit in known if (units.find_unit_of_metric(name) or "") != unit] == []


class TestLabels:
    def test_a_label_means_a_metric_within_its_section(self) -> None:
        memory = "Memory Throughput"
        assert units.find_metric_and_label("GPU Speed Of Light Throughput", memory) == (
            "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
            memory,
        )
        assert units.find_metric_and_label("Memory Workload Analysis", memory) == (
            "dram__bytes.sum.per_second",
            memory,
        )
        assert units.find_metric_and_label("Occupancy", memory) == (None, memory)

    @pytest.mark.parametrize("section", [None, units.COMMAND_LINE])
    def test_names_outside_of_sections(self, section: str | None) -> None:
        assert units.find_metric_and_label(section, "inst_executed") == ("inst_executed", None)

    @pytest.mark.parametrize(
        "name", ["dram__bytes.sum", "FE_B.TriageCompute.gr__ctas_launched.sum", "launch__grid_size"]
    )
    def test_names_in_place_of_labels(self, name: str) -> None:
        assert units.find_metric_and_label("Occupancy", name) == (name, None)

    def test_sections(self) -> None:
        assert units.find_section_id("GPU Speed Of Light") == units.find_section_id("GPU Speed Of Light Throughput")
        assert units.find_section_name("SpeedOfLight") == "GPU Speed Of Light Throughput"
        assert (units.find_section_id("?"), units.find_section_name("?"), units.find_section_id(None)) == (
            None,
            None,
            None,
        )

    def test_every_label_that_our_capture_prints_is_known(self) -> None:
        printed = {(r["Section Name"], r["Metric Name"]) for r in ncu_csv.rows("ncu_details.csv") if r["Metric Name"]}
        assert [p for p in printed if units.find_metric_and_label(*p)[0] is None] == []
        assert [s for s, _ in printed if units.find_section_id(s) is None and s != units.COMMAND_LINE] == []


class TestNumbers:
    @given(
        st.decimals(-(10**15), 10**15, places=6).flatmap(
            lambda d: st.tuples(
                st.just(d), st.sampled_from([0, 2, 6]), st.integers(0, 12), st.sampled_from(list(STYLES))
            )
        )
    )
    def test_values_are_the_nearest_to_what_is_printed(self, case: tuple[Decimal, int, int, str]) -> None:
        value, decimals, power, thousands = case
        shown = f"{value:,.{decimals}f}"
        point = "," if thousands in ".\u202f" else "."
        printed = shown.translate(str.maketrans({",": thousands, ".": point}))
        (made,) = numbers.parse_numbers(pl.Series([printed]), np.array([power]), STYLES[thousands]).rows(named=True)
        exact = Decimal(shown.replace(",", "")) * 10**power
        digits = len(re.sub(r"[^0-9]", "", shown).lstrip("0"))
        assert made["value"] == (float(exact) if digits < 16 else pytest.approx(float(exact), rel=3e-16))
        assert made["resolution"] == pytest.approx(10.0 ** (power - decimals), rel=1e-15)
        assert (made["text"], made["instances"]) == (None, None)

    @given(st.lists(st.text(max_size=12) | st.sampled_from(["1,234.50", "1.234", "nan", "", "7 (1; 2)"]), max_size=8))
    def test_any_text_is_a_number_or_kept(self, cells: list[str]) -> None:
        for style in STYLES.values():
            made = numbers.parse_numbers(pl.Series(cells, dtype=pl.String), np.zeros(len(cells), np.int64), style)
            assert made.height == len(cells)
            absent = ("", "n/a", "N/A", "no data", "-")
            for cell, row in zip(cells, made.iter_rows(named=True), strict=True):
                assert (row["value"] is not None) or row["text"] == (None if cell in absent else cell)

    @pytest.mark.parametrize(
        ("cells", "style"),
        [
            (["1,234.50"], numbers.ENGLISH),
            (["0.50", "12,345"], numbers.ENGLISH),
            (["1.234,50"], numbers.GERMAN),
            (["12.893.696"], numbers.GERMAN),
            (["0,125"], numbers.GERMAN),
            (["1\u202f234,50"], numbers.FRENCH),
            (["1\u00a0234", "0,5"], numbers.FRENCH),
            (["1'234.50"], numbers.SWISS),
            (["1,234", "1.234", "12", "text", ""], None),
        ],
    )
    def test_styles(self, cells: list[str], style: numbers.NumberStyle | None) -> None:
        assert numbers.detect_number_style(pl.Series(cells)) == style

    def test_far_from_what_fits(self) -> None:
        cells = ["99999999999999999999.5", "1e300", "9" * 400, "0." + "0" * 40 + "1", "-0"]
        made = numbers.parse_numbers(pl.Series(cells), np.full(5, 9), numbers.ENGLISH)
        assert made["value"].to_list() == [99999999999999999999.5e9, pytest.approx(1e309), float("inf"), 1e-32, 0]
        assert made["text"].null_count() == 5


def cell(thread: int, *entries: str) -> str:
    """A push/pop cell as ncu prints it."""
    return f"{thread} " + "".join(f' "{e}" ' for e in entries)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
DOMAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='\0:" \t\n\r'), min_size=1, max_size=6)


class TestRanges:
    @given(st.lists(st.lists(st.tuples(DOMAIN, TEXT), max_size=4), max_size=4))
    def test_plain_ranges_come_back(self, stacks: list[list[tuple[str, str]]]) -> None:
        cells = [cell(5, *(f"{d}:{t}{ATTRIBUTES}" for d, t in stack)) for stack in stacks]
        frame = pl.DataFrame(
            {"launch_id": range(len(cells)), "text": cells}, {"launch_id": pl.Int64, "text": pl.String}
        )
        found = nvtx.parse_nvtx_cells(frame, nvtx.PUSH_POP)
        expected = [(i, n + 1, d, t) for i, s in enumerate(stacks) for n, (d, t) in enumerate(s)]
        assert found.select("launch_id", "depth", "domain", "name").rows() == expected
        assert set(found["thread_id"]) <= {5}

    @given(
        DOMAIN,
        st.sampled_from(["UINT64", "INT64", "UINT32", "INT32"]),
        st.integers(0, 2**64 - 1),
        st.text("abc: ", min_size=1),
    )
    def test_attributes_come_back(self, domain: str, kind: str, payload: int, text: str) -> None:
        shown = cell(5, f"{domain}:{text}:{kind}:{payload}:ARGB:4278255360:UNICODE:more: text")
        (made,) = nvtx.parse_nvtx_cells(pl.DataFrame({"text": [shown]}), nvtx.PUSH_POP).rows(named=True)
        assert (made["domain"], made["name"], made["color"]) == (domain, text, 4278255360)
        assert (made["payload_type"], made["message_type"]) == (kind.lower(), "unicode")
        assert made["payload_int"] == payload - (1 << 64 if payload >> 63 else 0)

    def test_summaries_leave_out_the_domain(self) -> None:
        frame = pl.DataFrame({"text": [f' "a:b{ATTRIBUTES}"  "c{ATTRIBUTES}" ']})
        found = nvtx.parse_nvtx_cells(frame, nvtx.SUMMARY)
        assert found.select("domain", "name", "depth", "thread_id").rows() == [
            (None, "a:b", 1, None),
            (None, "c", 2, None),
        ]

    @pytest.mark.parametrize(
        ("entry", "expected"),
        [
            ("d::none:none:none:none:REGISTERED:handle", ("d", "handle", None, None, "registered")),
            ('d:x:JSON:{"a": "b: c"}:none:none:ASCII:m', ("d", "x", "json", '{"a": "b: c"}', "ascii")),
            ("d:x:WEIRD:1:none:none:STRANGE:m", ("d", "x", "string", "1", None)),
            ("a:b:in e:none:none:none:none:ASCII:in e", ("a:b", "in e", None, None, "ascii")),
            ("dom:Foo:none:none:none:none:ASCII:Foo", ("dom", "Foo", None, None, "ascii")),
            ("d:FLOAT X:Double:2.5:RGB:0xff00ff00:ASCII:FLOAT X", ("d", "FLOAT X", "double", None, "ascii")),
            ("<default domain>:none" + ATTRIBUTES, (None, "none", None, None, None)),
            ("no attributes", (None, "no attributes", None, None, None)),
        ],
    )
    def test_shapes(self, entry: str, expected: tuple[str | None, ...]) -> None:
        (made,) = nvtx.parse_nvtx_cells(pl.DataFrame({"text": [cell(1, entry)]}), nvtx.PUSH_POP).rows(named=True)
        assert tuple(made[c] for c in ("domain", "name", "payload_type", "payload_text", "message_type")) == expected
        assert made["entry"] == entry

    def test_a_text_that_looks_like_two_entries(self) -> None:
        (made,) = nvtx.parse_nvtx_cells(
            pl.DataFrame({"text": [cell(1, f'd:say "  "hello{ATTRIBUTES}')]}), nvtx.PUSH_POP
        ).rows(named=True)
        assert made["name"] == 'say "  "hello'

    @pytest.mark.parametrize("text", ["", "7 ", "7", 'x " ', '"', "no quotes"])
    def test_cells_without_ranges(self, text: str) -> None:
        assert nvtx.parse_nvtx_cells(pl.DataFrame({"text": [text]}), nvtx.PUSH_POP).height == 0

    def test_colors_in_both_writings(self) -> None:
        frame = pl.DataFrame(
            {"text": [cell(1, *(f"d:x:none:none:ARGB:{c}:none:none" for c in ("255", "0xFF", "blue")))]}
        )
        assert nvtx.parse_nvtx_cells(frame, nvtx.PUSH_POP)["color"].to_list() == [255, 255, None]

    def test_paths(self) -> None:
        ranges = pl.DataFrame(
            [(0, "push_pop", 2, "b"), (0, "push_pop", 1, None), (0, "start_end", 1, "s"), (3, "push_pop", 1, "c")],
            ["launch_id", "kind", "depth", "name"],
            orient="row",
        )
        assert nvtx.build_range_paths(ranges).rows() == [(0, "b", "/b", 2), (3, "c", "c", 1)]


def test_devices_without_attributes() -> None:
    assert set(units.compute_device_values({}).values()) == {None}


def test_attributes_of_devices() -> None:
    found = units.compute_device_values(
        {"display_name": "H200", "clock_rate": 1980000.0, "warp_size": "32", "total_memory": "x"}
    )
    told = {"name": "H200", "clock_rate_hz": 1_980_000_000, "threads_per_warp": 32}
    assert {name: value for name, value in found.items() if value is not None} == told
    assert units.compute_device_values(
        {"display_name": 3.0, "warp_size": 1e12, "l2_cache_size": float("inf")}
    ) == units.compute_device_values({})


@given(st.text('ab,"\n', max_size=60), st.integers(1, 7))
def test_lines_and_stray_quotes_in_windows_of_any_size(text: str, window: int) -> None:
    raw = text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "WINDOW", window)
        _, starts = frame.build_byte_array_and_line_starts(raw)
        found = frame.find_row_numbers_with_stray_quotes(raw)
    ends = [i for i, c in enumerate(text) if c == "\n"]
    assert starts.tolist() == [i for i in (0, *(e + 1 for e in ends)) if i < len(text)]
    inside = [i for i in range(1, len(text) - 1) if text[i] == '"' and not {text[i - 1], text[i + 1]} & set('",\n')]
    assert found == sorted({sum(e < i for e in ends) for i in inside})
