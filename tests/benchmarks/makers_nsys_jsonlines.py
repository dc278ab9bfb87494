"""A JSON export of nsys with 800,000 events, against columns that Python collects from the parsed lines."""

from __future__ import annotations

import json
from pathlib import Path

TITLE = "nsys JSON export"
PACKAGES: tuple[str, ...] = ()
LAUNCHES, NAMES, PROCESS = 250_000, 200, 281497021972480


def write(folder: Path) -> Path:
    """Write ranges, calls and kernels."""
    path = folder / "large.json"
    with path.open("w") as file:
        names = ["cudaLaunchKernel_v7000", *(f"kernel_{n}" for n in range(NAMES))]
        file.write(json.dumps({"data": names, "files": []}, separators=(",", ":")) + "\n")
        for n in range(LAUNCHES):
            start, name = 10_000 * n, str(n % NAMES + 1)
            file.write(
                f'{{"Type":48,"TraceProcessEvent":{{"startNs":"{start}","endNs":"{start + 4000}","correlationId":{n},'
                f'"eventClass":0,"name":"0","returnValue32":0,"globalTid":"{PROCESS + 7}"}}}}\n'
                f'{{"Type":59,"NvtxEvent":{{"Type":59,"Timestamp":"{start}","Text":"step {n // 1000}","GlobalTid":'
                f'"{PROCESS + 7}","EndTimestamp":"{start + 4500}","DomainId":"0","NsTime":true}}}}\n'
                f'{{"Type":79,"CudaEvent":{{"startNs":"{start + 5000}","endNs":"{start + 9000}","correlationId":{n},'
                f'"deviceId":0,"contextId":"1","streamId":"7","eventClass":3,"globalPid":"{PROCESS}","kernel":'
                f'{{"demangledName":"{name}","shortName":"{name}","mangledName":"{name}","gridX":8,"gridY":1,"gridZ":1,'
                f'"blockX":128,"blockY":1,"blockZ":1,"staticSharedMemory":0,"dynamicSharedMemory":0,"gridId":"{n}",'
                f'"registersPerThread":32}}}}}}\n'
            )
        file.write('{"data":[]}\n')
    return path


def read_with_peer(path: str) -> int:
    """Parse all lines, and collect the values of each field of each kind of event."""
    columns: dict[tuple[str, ...], list[object]] = {}

    def collect(value: object, *keys: str) -> None:
        if isinstance(value, dict):
            for key, member in value.items():
                collect(member, *keys, key)
        else:
            columns.setdefault(keys, []).append(value)

    with Path(path).open() as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        collect(line)
    return len(lines)
