"""A watch of generated captures that are not read: their text names the window, the ranks and the delays."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tests.builders.watched_ranks import Delay, build_tables
from tracekit.core.watch import CaptureSummary, MatchRule, merge_summaries, summarize_capture
from tracekit.errors import TracekitError
from tracekit.watching.files import WatchedFolder
from tracekit.watching.reduction import ReducedCapture
from tracekit.watching.watcher import Watcher, WatchOptions, open_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracekit.core.watch import Alarm
    from tracekit.sets.member import Member

SIZE = 4
_summaries: dict[int, CaptureSummary] = {}


def reduce_text(text: str) -> ReducedCapture:
    """Reduce a capture that a test wrote."""
    values = json.loads(text)
    window, rank = values["window"], values["rank"]
    content = hashlib.sha256(text.encode()).hexdigest()
    if values.get("other"):
        return ReducedCapture(content, "", None)
    if window not in _summaries:
        tables = build_tables(window, range(8), delays=[Delay(1, "data", 3000)] if window % 2 else [])
        _summaries[window] = summarize_capture(tables, {r: r for r in range(8)}, SIZE)
    whole = _summaries[window]
    return ReducedCapture(content, "kineto", merge_summaries([select_rank(whole, rank)]))


def select_rank(summary: CaptureSummary, rank: int) -> CaptureSummary:
    return CaptureSummary(summary.ranks.filter(rank=rank), summary.times.filter(rank=rank))


@dataclass
class TextEngine:
    """An engine that reduces texts, and remembers what it read."""

    skips_errors: bool = False
    read: list[str] = field(default_factory=list)

    def map(self, _: Callable[[Member], Any], members: Sequence[Member]) -> Iterator[tuple[Member, Any]]:
        for member in members:
            self.read.append(member.path.name)
            try:
                yield member, reduce_text(member.path.read_text())
            except OSError as e:
                yield member, e
            except ValueError:
                yield member, TracekitError("the capture is damaged", path=member.path, hint="record it again")


@dataclass
class Site:
    """A folder of captures with a state beside it."""

    root: Path
    options: dict[str, Any] = field(default_factory=dict)
    engine: TextEngine = field(default_factory=TextEngine)
    reports: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = self.root / "captures"
        self.folder.mkdir()
        self.state = self.root / "state"

    def add(self, window: int, *ranks: int, name: str = "rank{rank}_{window}.pt.trace.json", **more: Any) -> None:
        for rank in ranks:
            path = self.folder / name.format(rank=rank, window=window)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"window": window, "rank": rank, **more}))

    def watch(self, **options: Any) -> list[Alarm]:
        """Look once, and return the alarms."""
        folder = WatchedFolder(self.folder)
        chosen = WatchOptions(**{"once": True, "settle_s": 0, "rule": MatchRule("steps"), **self.options, **options})
        with open_state(self.state, folder) as state:
            return list(Watcher(folder, state, chosen, self.engine, report=self.reports.append).run())

    def count(self, name: str) -> int:
        with open_state(self.state, WatchedFolder(self.folder)) as state:
            return state.get_count(name)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
