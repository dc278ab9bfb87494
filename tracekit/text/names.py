"""The names of tables, reports, rules, recipes, formats and commands for type checkers and hints.

``make generate`` writes this module.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

TableName: TypeAlias = Literal[
    "allocator_events",
    "api_calls",
    "capture_info",
    "communication_calls",
    "contexts",
    "counters",
    "cpu_page_faults",
    "cpu_samples",
    "cpu_scheduling",
    "cuda_events",
    "cuda_graph_events",
    "cuda_graph_node_events",
    "cuda_overheads",
    "devices",
    "diagnostics",
    "dx12_memory_operations",
    "findings",
    "gpu_context_switches",
    "gpu_metrics",
    "gpu_page_faults",
    "graph_edges",
    "graph_launches",
    "graph_nodes",
    "graphics_calls",
    "graphics_workloads",
    "group_nodes",
    "hlo_instructions",
    "iterations",
    "jit_operations",
    "kernels",
    "khr_debug_events",
    "library_calls",
    "memcpys",
    "memory_blocks",
    "memory_events",
    "memory_pool_events",
    "memory_segments",
    "memsets",
    "mpi_calls",
    "mpi_communicators",
    "mpi_ranks",
    "ncu_launches",
    "ncu_metric_instances",
    "ncu_metrics",
    "ncu_nvtx_ranges",
    "ncu_rules",
    "ncu_sources",
    "network_card_devices",
    "network_cards",
    "network_congestion_events",
    "network_metric_names",
    "network_metrics",
    "nvtx_marks",
    "nvtx_projections",
    "nvtx_ranges",
    "op_instances",
    "openacc_events",
    "openmp_events",
    "ops",
    "osrt_calls",
    "overheads",
    "performance_counters",
    "processes",
    "profiler_metrics",
    "python_samples",
    "scalars",
    "stacks",
    "step_stats",
    "streams",
    "syncs",
    "syscalls",
    "texts",
    "threads",
    "ucx_calls",
    "video_engine_workloads",
    "wddm_contexts",
    "wddm_packets",
    "wddm_paging_packets",
    "wddm_queue_events",
]
"""Name of a declared table."""

ReportName: TypeAlias = Literal[
    "cuda_gpu_kern_sum",
    "cuda_gpu_kern_sum:base",
    "cuda_gpu_kern_sum:mangled",
    "cuda_gpu_kern_sum:nvtx-name",
    "cuda_gpu_kern_gb_sum",
    "cuda_gpu_kern_gb_sum:base",
    "cuda_gpu_kern_gb_sum:mangled",
    "cuda_gpu_kern_gb_sum:nvtx-name",
    "cuda_gpu_trace",
    "cuda_gpu_trace:base",
    "cuda_gpu_trace:mangled",
    "cuda_gpu_trace:nvtx-name",
    "cuda_gpu_sum",
    "cuda_gpu_sum:base",
    "cuda_gpu_sum:mangled",
    "cuda_gpu_sum:nvtx-name",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_api_sum",
    "cuda_api_trace",
    "cuda_api_gpu_sum",
    "cuda_api_gpu_sum:base",
    "cuda_api_gpu_sum:mangled",
    "cuda_api_gpu_sum:nvtx-name",
    "cuda_kern_exec_sum",
    "cuda_kern_exec_sum:base",
    "cuda_kern_exec_sum:mangled",
    "cuda_kern_exec_sum:nvtx-name",
    "cuda_kern_exec_trace",
    "cuda_kern_exec_trace:base",
    "cuda_kern_exec_trace:mangled",
    "cuda_kern_exec_trace:nvtx-name",
    "nvtx_sum",
    "nvtx_pushpop_sum",
    "nvtx_pushpop_trace",
    "nvtx_startend_sum",
    "nvtx_kern_sum",
    "nvtx_kern_sum:base",
    "nvtx_kern_sum:mangled",
    "nvtx_gpu_proj_sum",
    "nvtx_gpu_proj_trace",
    "osrt_sum",
    "openmp_sum",
    "mpi_event_sum",
    "mpi_event_trace",
    "mpi_msg_size_sum",
    "syscall_sum",
    "um_sum",
    "um_total_sum",
    "um_cpu_page_faults_sum",
    "openacc_sum",
    "vulkan_api_sum",
    "vulkan_api_trace",
    "vulkan_marker_sum",
    "vulkan_gpu_marker_sum",
    "opengl_khr_range_sum",
    "opengl_khr_gpu_range_sum",
    "dx11_pix_sum",
    "dx12_pix_sum",
    "dx12_gpu_marker_sum",
    "nvvideo_api_sum",
    "wddm_queue_sum",
    "network_congestion",
    "ncu_roofline",
    "ncu_roofline:launch",
    "ncu_roofline:range",
    "ncu_limiter",
    "ncu_limiter:launch",
    "ncu_limiter:range",
    "advise",
    "steps",
    "graph_summary",
    "gpu_memory_peak",
    "gpu_memory_alive",
    "gpu_memory_usage",
    "gpu_memory_owners",
    "allocator_peak",
    "allocator_owners",
    "allocator_unfreed",
    "allocator_segments",
    "allocator_failures",
    "step_parts",
    "step_ledger",
    "communication_overlap",
    "graph_alignment",
    "kernel_categories",
    "kernel_categories:layer",
    "layer_gpu_sum",
    "serving_phases",
    "serving_phases:batch",
    "serving_steps",
    "queue_length",
    "recorded_findings",
    "op_roofline",
    "step_mfu",
    "summary",
    "detailed",
    "iteration",
    "kernel",
    "tensor-core",
    "op-type",
    "group-op",
    "expert-systems",
]
"""Name of a report of nsys, DLProf or tracekit, with or without an option that has no value."""

RuleName: TypeAlias = Literal[
    "cuda_memcpy_async",
    "cuda_memcpy_sync",
    "cuda_memset_sync",
    "cuda_api_sync",
    "gpu_gaps",
    "gpu_time_util",
    "dx12_mem_ops",
    "gpu_idle_causes",
    "gpu_idle_gaps",
]
"""Name of a rule."""

RecipeName: TypeAlias = Literal[
    "comm_log_sum",
    "comm_pending",
    "comm_skew",
    "comm_sum",
    "comm_trace",
    "cuda_api_sum",
    "cuda_api_sync",
    "cuda_gpu_kern_hist",
    "cuda_gpu_kern_pace",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_time_util_map",
    "cuda_memcpy_async",
    "cuda_memcpy_sync",
    "cuda_memset_sync",
    "gpu_gaps",
    "gpu_metric_util_map",
    "gpu_metric_util_sum",
    "gpu_time_breakdown",
    "gpu_time_sum",
    "gpu_time_util",
    "iteration_spread",
    "mpi_gpu_time_util_map",
    "mpi_sum",
    "nccl_gpu_overlap_trace",
    "nccl_gpu_proj_sum",
    "nccl_gpu_time_util_map",
    "nccl_sum",
    "network_sum",
    "nvlink_sum",
    "nvtx_gpu_proj_pace",
    "nvtx_gpu_proj_sum",
    "nvtx_gpu_proj_trace",
    "nvtx_pace",
    "nvtx_sum",
    "osrt_sum",
    "ucx_gpu_time_util_map",
]
"""Name of a recipe."""

ReaderName: TypeAlias = Literal[
    "arrow",
    "chrome-trace",
    "dlprof-db",
    "graphdef",
    "kineto",
    "memory-snapshot",
    "nccl",
    "ncu-csv",
    "ncu-rep",
    "nsys-arrowdir",
    "nsys-jsonlines",
    "nsys-parquetdir",
    "nsys-rep",
    "nsys-sqlite",
    "nvprof",
    "parquet",
    "perfetto",
    "rocpd",
    "rocprof-csv",
    "rocprofv3-json",
    "rpd",
    "tfevents",
    "xplane",
]
"""Name of a format that tracekit reads. Plug-ins add others."""

ExporterName: TypeAlias = Literal[
    "arrow",
    "chrome-trace",
    "collapsed",
    "csv",
    "dlprof-db",
    "dlprof-reports",
    "html",
    "parquet",
    "perfetto",
    "pprof",
    "speedscope",
    "sqlite",
    "tfevents",
]
"""Name of a format that tracekit writes. Plug-ins add others."""

CommandName: TypeAlias = Literal[
    "analyze",
    "cache",
    "convert",
    "correlate",
    "diff",
    "formats",
    "info",
    "recipe",
    "redact",
    "rows",
    "schema",
    "stats",
    "tables",
    "view",
    "what-if",
    "why",
]
"""Name of a command of the command line."""


class RecipeOptions(TypedDict, total=False):
    """Options of recipes. Each recipe has some of them.

    Attributes:
        rows: Number of rows to list for each rank; -1 lists all rows.
        kernel_name: Names of kernels: short, full (with template arguments) or mangled.
        name: Name of the kernel or range, as in the tables of cuda_gpu_kern_sum or nvtx_sum.
        align: Whether times count from the start of the first capture (yes) or from that of each capture (no).
        bins: Number of bins into which the time is divided.
        gap: Gaps that are longer than this time in ms are listed.
        delay: Idle times of a stream that are shorter than this time in µs are attributed to the delay between
            kernels.
        steps: Activities to include: all activities (all), those launched before the end of the last step of the
            PyTorch profiler (recorded), or those launched before the start of that step (complete).
        threshold: Periods with a utilization below this percentage are listed.
        chunks: Number of equal chunks of time for which the utilization is computed.
        key_op: Id or name of the op that delimits iterations, or the name of a range.
        include_warm_up: Whether the first iterations are compared even if they are much slower than the others.
    """

    rows: int | None
    kernel_name: Literal["short", "full", "mangled"] | None
    name: str | None
    align: bool | Literal["yes", "no"] | None
    bins: int | None
    gap: int | None
    delay: int | None
    steps: Literal["all", "recorded", "complete"] | None
    threshold: int | None
    chunks: int | None
    key_op: str | None
    include_warm_up: bool | Literal["yes", "no"] | None
