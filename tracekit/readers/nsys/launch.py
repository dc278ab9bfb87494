"""Read the host name, and the environment variables with which launchers number processes.

Environments are private. Of all variables, only those in ``RANK_VARIABLES`` are used, and only if they are numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from tracekit.readers.nsys.tables import Where
from tracekit.registry.interface import RANK_VARIABLES, LaunchMetadata

if TYPE_CHECKING:
    from tracekit.readers.nsys.lookups import Lookups

_CAPTURE, _PROPERTIES = "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"
_ENVIRONMENT, _HOST = 610, 619
_MAX_HOST = 256
_NAMES = "|".join(RANK_VARIABLES)
_PROCESS_VARIABLE = r"^PROCESS_[0-9]+:ENVIRONMENT_VARIABLE$"
_LAUNCHED = rf'^(?:{_NAMES})="?[0-9]{{1,9}}"?$'
_VARIABLE = re.compile(rf'({_NAMES})="?([0-9]{{1,9}})"?')


def parse_rank_variables(*environments: str) -> dict[str, int]:
    """Return the values of rank variables, such as ``RANK``, in one or more environments, by variable name.

    Launchers number processes with these variables. A variable with different values in the environments is omitted.

    Args:
        environments: Environments with entries ``NAME=VALUE``. Reports separate the entries with NUL bytes, and
            exports with semicolons or newlines.
    """
    values: dict[str, set[int]] = {}
    for environment in environments:
        for entry in environment.split("\0") if "\0" in environment else re.split("[;\n]", environment):
            if match := _VARIABLE.fullmatch(entry):
                values.setdefault(match[1], set()).add(int(match[2]))
    return {name: next(iter(numbers)) for name, numbers in values.items() if len(numbers) == 1}


def read_launch_metadata(lookups: Lookups) -> LaunchMetadata:
    """Return the host name and the rank variables, such as ``RANK``, in a capture.

    If the environments of the program and of the profiler set the same variable, the value of the program is used.
    """
    properties = _read_property_values(lookups)
    variables = parse_rank_variables(*properties.get(_ENVIRONMENT, ())) | _read_variables_of_launched_processes(lookups)
    hosts = {host for host in properties.get(_HOST, ()) if 0 < len(host) <= _MAX_HOST}
    return LaunchMetadata(variables, next(iter(hosts)) if len(hosts) == 1 else None)


def _read_variables_of_launched_processes(lookups: Lookups) -> dict[str, int]:
    """Return the rank variables in the recorded environments of processes."""
    if _CAPTURE not in lookups.tables.columns:
        return {}
    raw = lookups.fetch(_CAPTURE, ["name", "value"])
    is_variable = pc.match_substring_regex(raw["name"], _PROCESS_VARIABLE)
    is_number = pc.match_substring_regex(raw["value"], _LAUNCHED)
    values = raw["value"].filter(pc.and_(is_variable, is_number)).unique()
    return parse_rank_variables(*values.to_pylist())


def _read_property_values(lookups: Lookups) -> dict[int, list[str]]:
    """Return the distinct values of the machine properties for environments and host names, by property number."""
    if not {"nameEnum", "value"} <= set(lookups.tables.columns.get(_PROPERTIES, ())):
        return {}
    rows = lookups.fetch(_PROPERTIES, ["nameEnum", "value"], Where("nameEnum", (_ENVIRONMENT, _HOST)))
    return {
        number: rows["value"].filter(pc.equal(rows["nameEnum"], number)).drop_null().unique().to_pylist()
        for number in (_ENVIRONMENT, _HOST)
    }
