"""What the viewer of DLProf 1.8 relies on: the views, their columns and the types that these are declared with."""

VIEWS = {
    "view_aggregations": (
        "aggr_id INTEGER, iter_start INTEGER, iter_stop INTEGER, iter_aggregated INTEGER, "
        "key_node_name TEXT, user_name TEXT, host_name TEXT, aggr_start INTEGER, aggr_end INTEGER"
    ),
    "view_db_version": "current_version TEXT, original_version TEXT",
    "view_domain_model_gpu_utilization": "aggr_id INTEGER, domain_name TEXT, gpu_utilization REAL",
    "view_domains": "domain_name TEXT",
    "view_expert_systems": (
        "aggr_id INTEGER, problem TEXT, recommendation TEXT, javascript_function TEXT, javascript_args TEXT"
    ),
    "view_gpu_devices": (
        "aggr_id INTEGER, domain_name TEXT, device_id INTEGER, gpu_name TEXT, cuda_major INTEGER, "
        "cuda_minor INTEGER, sm_count INTEGER, device_gpu_utilization REAL"
    ),
    "view_gpu_names": "gpu_name TEXT",
    "view_group_ops": (
        "aggr_id INTEGER, domain_name TEXT, row_type INTEGER, row_full_id TEXT, row_full_name TEXT, "
        "row_trimmed_name, level INTEGER, num_op_instances INTEGER, num_supported_leaf_ops INTEGER, "
        "num_tc_leaf_ops INTEGER, cpu_time_sum INTEGER, gpu_time_sum INTEGER, cpu_overhead_sum INTEGER, "
        "gpu_idle_sum INTEGER"
    ),
    "view_iteration_kernels": (
        "aggr_id INTEGER, domain_name TEXT, iter_value INTEGER, op_node_name STRING, kernel_name TEXT, "
        "device_id INTEGER, kernel_timestamp INTEGER, kernel_duration, uses_tc BOOLEAN, grid, block"
    ),
    "view_iteration_op_kernels": (
        "aggr_id INTEGER, domain_name TEXT, iter_value INTEGER, op_node_id TEXT, kernel_name TEXT, "
        "device_id INTEGER, kernel_timestamp INTEGER, kernel_duration, uses_tc BOOLEAN, grid, block"
    ),
    "view_iteration_ops": (
        "aggr_id INTEGER, domain_name TEXT, iter_value INTEGER, op_node_name STRING, direction TEXT, "
        "op_node_type TEXT, total_count INTEGER, tc_count INTEGER, total_gpu_time INTEGER, "
        "tc_gpu_time INTEGER, data_type TEXT, stack_trace STRING, op_node_id TEXT"
    ),
    "view_iterations_all": "aggr_id INTEGER, iter_value INTEGER, start_time INTEGER, stop_time INTEGER, duration",
    "view_iterations_profiled": (
        "aggr_id INTEGER, domain_name TEXT, iter_value INTEGER, start_time INTEGER, duration, "
        "total_kernel_count INTEGER, using_tc_kernel_count INTEGER, tc_duration INTEGER, "
        "non_tc_duration INTEGER, memory_duration INTEGER, dataloader_duration INTEGER, "
        "io_duration INTEGER, cpu_duration INTEGER, other_duration INTEGER"
    ),
    "view_kernel_summaries": (
        "aggr_id INTEGER, domain_name TEXT, op_node_id TEXT, kernel_name TEXT, uses_tc BOOLEAN, "
        "calls INTEGER, gpu_time INTEGER, avg REAL, min INTEGER, max INTEGER"
    ),
    "view_kernel_summary": (
        "aggr_id INTEGER, domain_name TEXT, total_gpu_time, total_count, using_tc_gpu_time INTEGER, "
        "using_tc_count INTEGER, memory_gpu_time INTEGER, memory_count INTEGER, other_gpu_time INTEGER, "
        "other_count INTEGER"
    ),
    "view_key_op_name": "aggr_id INTEGER, key_op TEXT",
    "view_op_nodes": (
        "aggr_id INTEGER, domain_name TEXT, gpu_time INTEGER, cpu_time INTEGER, op_node_name STRING, "
        "direction TEXT, op_node_type TEXT, num_calls INTEGER, tc_eligible BOOLEAN, using_tc BOOLEAN, "
        "kernel_calls INTEGER, is_bad_data_type BOOLEAN, data_type TEXT, stack_trace STRING, "
        "op_node_id STRING"
    ),
    "view_op_summary": (
        "aggr_id INTEGER, domain_name TEXT, nodes_total_gpu_time INTEGER, nodes_total_count INTEGER, "
        "nodes_using_tc_gpu_time INTEGER, nodes_using_tc_count INTEGER, "
        "nodes_tc_eligible_gpu_time INTEGER, nodes_tc_eligible_count INTEGER, "
        "nodes_other_gpu_time INTEGER, nodes_other_count INTEGER"
    ),
    "view_op_type_summary": (
        "aggr_id INTEGER, domain_name TEXT, op_node_type TEXT, num_nodes INTEGER, num_calls INTEGER, "
        "cpu_time_sum INTEGER, cpu_time_avg REAL, cpu_time_min INTEGER, cpu_time_max INTEGER, "
        "gpu_time_sum INTEGER, gpu_time_avg REAL, gpu_time_min INTEGER, gpu_time_max INTEGER, "
        "cpu_overhead_sum INTEGER, cpu_overhead_avg REAL, cpu_overhead_min INTEGER, "
        "cpu_overhead_max INTEGER, gpu_idle_sum INTEGER, gpu_idle_avg REAL, gpu_idle_min INTEGER, "
        "gpu_idle_max INTEGER"
    ),
    "view_performance_summary": (
        "aggr_id INTEGER, domain_name TEXT, wall_clock_time INTEGER, tc_utilization REAL, "
        "gpu_utilization REAL, total_iterations INTEGER, profiled_iterations INTEGER, "
        "iter_start INTEGER, iter_stop INTEGER, iter_avg REAL, key_node TEXT"
    ),
    "view_resource_usage_breakdown": (
        "aggr_id INTEGER, domain_name TEXT, tc_duration_pct REAL, non_tc_duration_pct REAL, "
        "memory_duration_pct REAL, dataloader_duration_pct REAL, io_duration_pct REAL, "
        "cpu_duration_pct REAL, other_duration_pct REAL"
    ),
    "view_system_config": (
        "is_valid BOOLEAN, num_gpus TEXT, cpu_model TEXT, driver_version TEXT, framework TEXT, "
        "cuda_version TEXT, cudnn_version TEXT, nsys_version TEXT, dlprof_version TEXT, "
        "dlprof_build TEXT, profile_name TEXT, mode_string TEXT, original_command TEXT"
    ),
    "view_tc_utilization": "aggr_id INTEGER, domain_name TEXT, tc_utilization REAL",
}
