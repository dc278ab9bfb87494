"""Suggest the name that was probably meant by an unknown name: a similar name, a synonym, or a name of another kind."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple, get_args

from tracekit.text import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_LISTED = 10
"""Maximum number of names that a hint lists."""
_MAX_COMPARED, _MAX_LENGTH = 1000, 80  # comparing more names or longer names takes long
_IGNORED = re.compile(r"[^a-z0-9]+")


class NameKind(NamedTuple):
    """A kind of names, such as tables.

    Attributes:
        noun: Noun for one name of this kind, in the singular.
        known_names: The names that tracekit has without plug-ins.
        usage: A command that uses a name of this kind. ``{}`` stands for the name.
        synonyms: Other words for names of this kind, in lower case without punctuation, and the names that they mean.
    """

    noun: str
    known_names: tuple[str, ...]
    usage: str
    synonyms: Mapping[str, str]


def _pair(**words: str) -> dict[str, str]:
    """Return the name that each word means. The words for one name are separated by spaces."""
    return {_IGNORED.sub("", w): name.replace("__", "-") for name, listed in words.items() for w in listed.split()}


KINDS: Mapping[str, NameKind] = {
    "commands": NameKind(
        "command",
        get_args(names.CommandName),
        "tracekit {}",
        _pair(
            analyze="rule rules lint audit",
            check="gate regression regressions verify",
            cache="clean caches",
            convert="export to save transform translate write dump",
            correlate="join attribute link",
            diff="compare comparison difference differences delta versus vs regress",
            formats="format readers exporters types",
            info="describe about inspect metadata summary identify file version versions",
            recipe="recipes aggregate ranks multi multirank",
            redact="anonymize anonymise sanitize scrub mask privacy",
            rows="print query sql select head cat table get filter",
            schema="columns schemas declare",
            stats="top report reports stat statistics summarize summarise sum",
            tables="list ls count counts",
            view="show open gui ui serve server browse viewer web timeline plot",
            why="explain diagnose diagnosis bottleneck slow cause causes reason",
        ),
    ),
    "reports": NameKind(
        "report",
        tuple(dict.fromkeys(name.partition(":")[0] for name in get_args(names.ReportName))),
        "tracekit stats IN --report {}",
        _pair(
            advise="advice advisor findings finding recommendations recommend problems why hints",
            cuda_gpu_kern_sum="kernels kern kernelsum topkernels top gpukernels hotspots",
            cuda_gpu_trace="trace gputraces timeline",
            cuda_gpu_sum="gpu gpusummary",
            cuda_gpu_mem_time_sum="memory memtime memcpy copies transfers",
            cuda_gpu_mem_size_sum="memsize",
            cuda_api_sum="api cuda cudaapi calls apicalls runtime",
            nvtx_sum="nvtx ranges markers",
            osrt_sum="osrt os syscalls",
            mpi_event_sum="mpi",
            ncu_roofline="roofline",
            ncu_limiter="limiter limiters bottleneck",
            graph_summary="graph",
            gpu_memory_peak="peak peakmemory",
            allocator_peak="allocator snapshot",
            allocator_owners="leak leaks",
            allocator_segments="segments fragmentation",
            allocator_failures="oom outofmemory",
            group__op="groups group layers layer modules",
            op__type="ops optypes",
            iteration="iterations step",
            tensor__core="tensorcores",
        ),
    ),
    "rules": NameKind(
        "rule",
        get_args(names.RuleName),
        "tracekit analyze IN --rule {}",
        _pair(gpu_gaps="gaps gap idle", gpu_time_util="utilization util", cuda_api_sync="sync synchronization"),
    ),
    "recipes": NameKind(
        "recipe",
        get_args(names.RecipeName),
        "tracekit recipe IN --recipe {}",
        _pair(
            cuda_gpu_kern_sum="kernels kernel topkernels",
            mpi_sum="mpi",
            nccl_sum="nccl collectives",
            nvtx_sum="nvtx ranges",
            iteration_spread="stragglers straggler spread iterations steps",
            comm_sum="communication comm",
        ),
    ),
    "tables": NameKind(
        "table",
        get_args(names.TableName),
        "tracekit rows IN {}",
        _pair(
            kernels="kernel gpukernels",
            memcpys="memcpy copies copy transfers",
            memsets="memset",
            api_calls="api calls call runtime cudaapi cuda",
            nvtx_ranges="nvtx ranges range",
            nvtx_marks="marks markers mark",
            osrt_calls="osrt syscall",
            devices="gpus gpu device",
            iterations="steps step",
            group_nodes="groups layers modules",
            ncu_launches="ncu launches",
            ncu_metrics="metrics",
        ),
    ),
    "exporters": NameKind(
        "output format",
        get_args(names.ExporterName),
        "tracekit convert IN --to {}",
        _pair(
            chrome__trace="chrome json trace tracing catapult chromium",
            collapsed="flamegraph folded flame stackcollapse",
            csv="excel xlsx tsv text spreadsheet",
            dlprof__db="dlprof dldb",
            html="page web report",
            parquet="pandas duckdb pq",
            arrow="feather ipc",
            perfetto="pftrace proto perfettotrace",
            sqlite="db sqlite3 database sql",
            tfevents="tensorboard tb",
        ),
    ),
    "readers": NameKind(
        "input format",
        get_args(names.ReaderName),
        "tracekit info IN --from {}",
        _pair(
            chrome__trace="chrome catapult chromium devtools viztracer",
            dlprof__db="dlprof dldb",
            graphdef="tensorflow savedmodel pb",
            kineto="pytorch torch json profiler",
            memory__snapshot="memory snapshot pickle allocator",
            ncu__rep="ncu nsightcompute compute",
            nsys__rep="nsys nsight nsightsystems qdrep",
            nsys__sqlite="sqlite db sqlite3",
            rocpd="rocm rocprof rocprofv3 amd hip",
            tfevents="tensorboard tb events",
            xplane="jax xla xprof tpu xspace",
        ),
    ),
}
"""The kinds of names that tracekit declares, by the plural noun that messages use."""

OPTION_SYNONYMS = _pair(
    **{
        "--report": "reports name",
        "--rule": "rules",
        "--recipe": "recipes",
        "--limit": "top head rows count max n first num number",
        "--output": "out outfile file dest target",
        "--format": "style as type json csv table jsonl fmt",
        "--to": "output-format export",
        "--from": "input-format reader source-format",
        "--force": "overwrite replace yes",
        "--quiet": "silent",
        "--time": "window range start end",
        "--device": "gpu gpus devices",
        "--min-dur": "min-duration minimum-duration threshold",
        "--nvtx": "nvtx-range ranges",
        "--timeunit": "unit units time-unit",
        "--iterations": "steps step iteration",
        "--jobs": "workers processes threads parallel",
        "--where": "filter condition query select",
        "--sort": "order order-by sort-by",
        "--columns": "fields cols",
        "--fail-if": "fail assert check",
    }
)
"""Other words for options, without the dashes, and the options that they mean."""


def find_synonym(unknown_name: str, known_names: Sequence[str], synonyms: Mapping[str, str]) -> str | None:
    """Return the known name that an unknown name equals except for case and punctuation, or is a synonym of, if any."""
    plain = _IGNORED.sub("", unknown_name.lower())
    same = (name for name in known_names if plain and _IGNORED.sub("", name.lower()) == plain)
    meant = next(same, None) or synonyms.get(plain)
    return meant if meant in known_names else None


def find_similar_name(unknown_name: str, known_names: Sequence[str]) -> str | None:
    """Return the known name that is most similar to an unknown name, or None if all of them are very different."""
    return next(iter(difflib.get_close_matches(unknown_name[:_MAX_LENGTH], known_names, n=1)), None)


def choose_listed_names(
    known_names: Sequence[str], unknown_name: str, suggested_name: str | None = None, limit: int = MAX_LISTED
) -> list[str]:
    """Return the known names to list: the suggested name and the most similar ones, in the order of the known names."""
    if len(known_names) <= limit:
        return list(known_names)
    unknown_name = unknown_name.lower()[:_MAX_LENGTH]
    matcher = difflib.SequenceMatcher(b=unknown_name, autojunk=False)

    def compute_similarity(position: int) -> float:
        name = known_names[position][:_MAX_LENGTH]
        matcher.set_seq1(name.lower())
        contains = bool(unknown_name) and (unknown_name in name.lower() or name.lower() in unknown_name)
        return 2 * (known_names[position] == suggested_name) + contains + matcher.ratio()

    nearest = sorted(range(len(known_names)), key=compute_similarity, reverse=True)[:limit]
    return [known_names[position] for position in sorted(nearest)]


def find_usage_of_other_kind(plural_noun: str, unknown_name: str) -> str | None:
    """Return a sentence that says how a name of another kind is used, or None if no other kind has this name.

    Args:
        plural_noun: Kind of the names among which the name is unknown.
        unknown_name: The unknown name. Options after colons are ignored.
    """
    base = unknown_name.partition(":")[0]
    for kind in _list_other_kinds(plural_noun):
        if base in kind.known_names:
            article = "an" if kind.noun[0] in "aeiou" else "a"
            return f"{base!r} is the name of {article} {kind.noun}: use `{kind.usage.format(base)}`."
    return None


def create_hint(plural_noun: str, known_names: Iterable[str], unknown_name: str, *, quoted: bool = False) -> str:
    """Return a hint that suggests the name that was probably meant, and lists at most ``MAX_LISTED`` known names.

    Args:
        plural_noun: Plural noun for the names, such as ``tables``. If it is a key of ``KINDS``, names of other kinds
            and synonyms are suggested as well.
        known_names: The known names.
        unknown_name: The unknown name.
        quoted: Whether to quote the names, which is needed if they may be empty.
    """
    known = list(dict.fromkeys(known_names))
    if not known:
        return f"there are no {plural_noun}"
    compared = known[:_MAX_COMPARED]
    synonyms = KINDS[plural_noun].synonyms if plural_noun in KINDS else {}
    other = None
    meant = find_synonym(unknown_name, compared, synonyms)
    if meant is None:
        other = find_usage_of_other_kind(plural_noun, unknown_name)
    if meant is None and other is None:
        meant = find_similar_name(unknown_name, compared)
    if meant is None and other is None:
        other = _suggest_name_of_other_kind(plural_noun, unknown_name)
    suggestion = f"{other} Otherwise, " if other else f"did you mean {meant!r}? " if meant is not None else ""
    listed = choose_listed_names(compared, unknown_name, meant, MAX_LISTED - (other is not None))
    more = f", … ({len(known):,} in all)" if len(known) > len(listed) else ""
    shown = ", ".join(map(repr, listed) if quoted else listed)
    return f"{suggestion}choose one of these {plural_noun}: {shown}{more}"


def _suggest_name_of_other_kind(plural_noun: str, unknown_name: str) -> str | None:
    """Return a question that suggests a synonym or a similar name of another kind, or None."""
    base = unknown_name.partition(":")[0]
    for kind in _list_other_kinds(plural_noun):
        if meant := find_synonym(base, kind.known_names, kind.synonyms) or find_similar_name(base, kind.known_names):
            return f"did you mean the {kind.noun} {meant!r} (`{kind.usage.format(meant)}`)?"
    return None


def _list_other_kinds(plural_noun: str) -> list[NameKind]:
    """Return the kinds of names besides one of them. The list is empty if the noun stands for none of the kinds."""
    return [kind for noun, kind in KINDS.items() if noun != plural_noun] if plural_noun in KINDS else []
