"""Generated programs: random calls, streams, graphs, waits and copies."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st
from tests.builders.programs import LAUNCH, Program

UNIT = 500
"""Times are multiples of this number of ns, so that some of them are equal and some exceed the limits of the model."""
LENGTHS = st.sampled_from([0, 1, 2, 3, 7, 15, 40, 130, 250, 420, 3000])
STREAMS = st.sampled_from([7, 7, 7, 8, 9])
KERNELS = ("k", "ampere_sgemm_128x64_nn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "void softmax_warp_forward<float>")
CALLS = ("cudaGetDevice", "cudaMalloc_v3020", "cuModuleLoadData", "cudaHostAlloc_v3020", "cudaEventQuery_v3020")
LABELS = ("forward", "backward", "load batch", "save checkpoint", "aten::mm", "optimizer")


@st.composite
def programs(draw: st.DrawFn, *, max_steps: int = 4, max_events: int = 12) -> Program:
    """A program whose events are possible: GPU operations start after their launch, one after another on a stream."""
    program = Program(process=draw(st.sampled_from([1, 1, 1, 0])))
    for number in range(draw(st.integers(1, max_steps))):
        start = program.now
        for _ in range(draw(st.integers(0, max_events))):
            _add_event(draw, program)
            program.pause(UNIT * draw(LENGTHS))
        program.range(f"step {number}", start, program.now)
        program.pause(UNIT * draw(st.sampled_from([0, 0, 5])))
    if not any(program.tables[t] for t in ("kernels", "memcpys", "memsets", "graph_launches")):
        program.launch()
    return program


def _add_event(draw: st.DrawFn, program: Program) -> None:
    kind = draw(st.sampled_from([_launch] * 4 + [_graph, _opaque, _copy, _memset, _wait, _event, _call, _other]))
    stream, ns, delay = draw(STREAMS), UNIT * draw(LENGTHS), UNIT * draw(LENGTHS)
    kind(draw, program, stream, ns, delay)
    if draw(st.booleans()):
        program.range(draw(st.sampled_from(LABELS)), max(0, program.now - ns), program.now + UNIT)


def _launch(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    name = draw(st.sampled_from(KERNELS))
    program.launch(name, ns, stream=stream, delay=delay, grid_x=draw(st.integers(1, 200)))
    _nest(draw, program)


def _graph(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    call = program.do("cudaGraphLaunch_v10000")
    start = max(program.now, program.free.get(stream, 0)) + delay
    for node in range(draw(st.integers(1, 4))):
        begin = start + UNIT * draw(LENGTHS)
        end = begin + ns
        program.kernel(call, begin, end, stream_id=stream, graph_node_id=node)
        program.free[stream] = max(program.free.get(stream, 0), end)


def _opaque(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    call = program.do("cudaGraphLaunch_v10000")
    program.graph(call, program.now + delay, program.now + delay + ns, stream_id=stream)


def _copy(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    memory = draw(st.sampled_from(["Pinned", "Pageable"]))
    kind = draw(st.sampled_from(["Host-to-Device", "Device-to-Host", "Device-to-Device"]))
    size = draw(st.sampled_from([4, 70_000, 2_000_000]))
    program.transfer(kind, ns, blocks=memory == "Pageable", stream=stream, src_memory_kind=memory, bytes=size)


def _memset(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    call = program.do("cudaMemsetAsync_v3020")
    program.memset(call, program.now + delay, program.now + delay + ns, stream_id=stream)


def _wait(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    name = draw(st.sampled_from(["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"]))
    begin = program.now
    program.sync(program.wait(name), begin, program.now, stream_id=stream)


def _event(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    program.event(program.do("cudaEventRecord_v3020", 1000), stream_id=stream, event_sync_id=3)
    call = program.do("cudaStreamWaitEvent_v3020", 1000)
    program.sync(call, program.now - 1000, program.now, stream_id=draw(STREAMS), event_sync_id=3)


def _call(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    program.do(draw(st.sampled_from(CALLS)), ns)
    _nest(draw, program)


def _other(draw: st.DrawFn, program: Program, stream: int, ns: int, delay: int) -> None:
    """Launch a kernel on another thread, or from an unknown call."""
    begin = max(0, program.now - UNIT * draw(LENGTHS))
    call = program.call(LAUNCH, begin, begin + 5000, thread_id=draw(st.sampled_from([2, 3])))
    program.kernel(draw(st.sampled_from([call, None])), begin + delay, begin + delay + ns, stream_id=stream)


def _nest(draw: st.DrawFn, program: Program) -> None:
    """Add a call of the driver within the last call."""
    row = program.tables["api_calls"][-1]
    if draw(st.booleans()) and row["end_ns"] - row["start_ns"] >= 4:
        middle = (row["start_ns"] + row["end_ns"]) // 2
        program.call(draw(st.sampled_from(["cuLaunchKernel", "cuModuleLoadData"])), middle, row["end_ns"] - 1)


@st.composite
def captures(draw: st.DrawFn) -> Program:
    """A program whose times are random, so that many of its events are impossible."""
    times = st.integers(0, 40).map(lambda t: t * draw(st.sampled_from([1, UNIT, 20 * UNIT])))
    program = Program()
    interval = st.tuples(times, times).map(sorted)
    calls: list[int | None] = [None]
    for begin, end in draw(st.lists(interval, max_size=8)):
        name = draw(
            st.sampled_from([LAUNCH, "cudaDeviceSynchronize", "cudaMemcpy_v3020", "cudaStreamWaitEvent", *CALLS])
        )
        calls.append(program.call(name, begin, end, thread_id=draw(st.sampled_from([1, 1, 1, 2, None]))))
    for begin, end in draw(st.lists(interval, min_size=1, max_size=10)):
        call, place = draw(st.sampled_from(calls)), {"stream_id": draw(STREAMS), "device_id": draw(st.integers(0, 1))}
        if draw(st.booleans()):
            program.kernel(call, begin, end, draw(st.sampled_from(KERNELS)), **place)
        elif draw(st.booleans()):
            program.copy(call, begin, end, draw(st.sampled_from(["Host-to-Device", "Device-to-Host"])), **place)
        else:
            program.graph(call, begin, end, **place)
    bounds = sorted(set(draw(st.lists(times, max_size=5))))
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        program.range(f"step {number}", begin, end)
    for begin, end in draw(st.lists(interval, max_size=4)):
        program.range(draw(st.sampled_from(LABELS)), begin, end)
    for call in draw(st.lists(st.sampled_from(calls), max_size=3)):
        if call is not None:
            program.event(call, stream_id=draw(STREAMS), event_sync_id=1)
            program.sync(draw(st.sampled_from(calls[1:])) or 0, 0, 1, stream_id=draw(STREAMS), event_sync_id=1)
    return program
