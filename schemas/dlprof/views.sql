-- The views that DLProf's viewer asks. Their names and columns are the contract; most have a row an aggregation and
-- domain, which the viewer selects by.

CREATE VIEW view_gpu_names AS
SELECT gpu_name FROM read_only_gpu_infos;

CREATE VIEW view_system_config AS
SELECT is_valid, num_gpus, cpu_model, driver_version, framework, cuda_version, cudnn_version, nsys_version,
       dlprof_version, dlprof_build, profile_name, mode_string, original_command
FROM read_only_system_config;

CREATE VIEW view_db_version AS
SELECT current_version, original_version FROM db_version;

CREATE VIEW view_domains AS
SELECT text.string AS domain_name
FROM read_only_domains AS domain
JOIN dictionary AS text ON text.id = domain.domain_name_id;

CREATE VIEW view_aggregations AS
SELECT aggr.id AS aggr_id, model.iter_start, model.iter_stop, model.iter_aggregated, key.string AS key_node_name,
       aggr.server_user_name AS user_name, aggr.server_host_name AS host_name,
       aggr.start_timestamp AS aggr_start, aggr.end_timestamp AS aggr_end
FROM aggregations AS aggr
JOIN model_summary AS model ON model.aggr_id = aggr.id
JOIN dictionary AS key ON key.id = model.key_node_id;

CREATE VIEW view_expert_systems AS
SELECT aggr_id, problem, recommendation, javascript_function, javascript_args
FROM expert_systems_feedback;

CREATE VIEW view_iterations_all AS
SELECT aggr_id, iter_value, start_time, stop_time, stop_time - start_time AS duration
FROM iteration_list;

CREATE VIEW view_iterations_profiled AS
SELECT part.aggr_id, name.string AS domain_name, part.iter_value, iter.start_time,
       iter.stop_time - iter.start_time AS duration,
       ran.total_count AS total_kernel_count, ran.uses_tc_count AS using_tc_kernel_count,
       part.tc_duration, part.non_tc_duration, part.memory_duration, part.dataloader_duration, part.io_duration,
       part.cpu_duration, part.other_duration
FROM iteration_aggregation_list AS part
JOIN iteration_list AS iter ON iter.aggr_id = part.aggr_id AND iter.iter_value = part.iter_value
JOIN kernel_iteration_stats AS ran ON ran.aggr_id = part.aggr_id AND ran.iter_value = part.iter_value
JOIN read_only_domains AS domain ON domain.id = ran.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id;

CREATE VIEW view_iteration_kernels AS
SELECT node.aggr_id, name.string AS domain_name, node.iter_value, op.op_name AS op_node_name,
       short.string AS kernel_name, kernel.device_id, kernel.api_start AS kernel_timestamp,
       kernel.gpu_stop - kernel.gpu_start AS kernel_duration, kernel.uses_tc,
       grid.x || ', ' || grid.y || ', ' || grid.z AS grid, block.x || ', ' || block.y || ', ' || block.z AS block
FROM kernel_iteration_node AS node
JOIN read_only_domains AS domain ON domain.id = node.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN read_only_ops AS op ON op.id = node.read_only_ops_id
JOIN read_only_kernels AS kernel ON kernel.id = node.read_only_kernel_id
JOIN dictionary AS short ON short.id = kernel.name_id
JOIN read_only_grid_block AS grid ON grid.id = kernel.grid_id
JOIN read_only_grid_block AS block ON block.id = kernel.block_id;

CREATE VIEW view_iteration_op_kernels AS
SELECT node.aggr_id, name.string AS domain_name, node.iter_value, op_text.string AS op_node_id,
       short.string AS kernel_name, kernel.device_id, kernel.api_start AS kernel_timestamp,
       kernel.gpu_stop - kernel.gpu_start AS kernel_duration, kernel.uses_tc,
       grid.x || ', ' || grid.y || ', ' || grid.z AS grid, block.x || ', ' || block.y || ', ' || block.z AS block
FROM kernel_iteration_node AS node
JOIN read_only_domains AS domain ON domain.id = node.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN read_only_ops AS op ON op.id = node.read_only_ops_id
JOIN dictionary AS op_text ON op_text.id = op.op_id_id
JOIN read_only_kernels AS kernel ON kernel.id = node.read_only_kernel_id
JOIN dictionary AS short ON short.id = kernel.name_id
JOIN read_only_grid_block AS grid ON grid.id = kernel.grid_id
JOIN read_only_grid_block AS block ON block.id = kernel.block_id;

CREATE VIEW view_iteration_ops AS
SELECT DISTINCT node.aggr_id, name.string AS domain_name, node.iter_value, op.op_name AS op_node_name,
       way.string AS direction, kind.string AS op_node_type, node.total_count, node.uses_tc_count AS tc_count,
       node.total_gpu_time, node.tc_gpu_time, data.string AS data_type, op.stack_trace,
       op_text.string AS op_node_id
FROM kernel_iteration_node AS node
JOIN read_only_domains AS domain ON domain.id = node.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN read_only_ops AS op ON op.id = node.read_only_ops_id
JOIN dictionary AS op_text ON op_text.id = op.op_id_id
JOIN dictionary AS kind ON kind.id = op.op_type_id
JOIN dictionary AS way ON way.id = op.direction_id
JOIN dictionary AS data ON data.id = op.data_type_id;

CREATE VIEW view_key_op_name AS
SELECT key.aggr_id, text.string AS key_op
FROM iteration_key AS key
JOIN dictionary AS text ON text.id = key.key_node_id;

CREATE VIEW view_domain_model_gpu_utilization AS
SELECT model.aggr_id, name.string AS domain_name, model.gpu_utilization
FROM model_summary AS model
JOIN read_only_domains AS domain ON domain.id = model.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id;

CREATE VIEW view_tc_utilization AS
SELECT model.aggr_id, name.string AS domain_name, model.tc_utilization
FROM model_summary AS model
JOIN read_only_domains AS domain ON domain.id = model.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id;

CREATE VIEW view_performance_summary AS
SELECT model.aggr_id, name.string AS domain_name, model.wall_time AS wall_clock_time, model.tc_utilization,
       model.gpu_utilization, model.iter_total AS total_iterations, model.iter_aggregated AS profiled_iterations,
       model.iter_start, model.iter_stop, model.avg_iteration_time AS iter_avg, key.string AS key_node
FROM model_summary AS model
JOIN read_only_domains AS domain ON domain.id = model.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN dictionary AS key ON key.id = model.key_node_id;

CREATE VIEW view_op_summary AS
SELECT model.aggr_id, name.string AS domain_name,
       every.gpu_time AS nodes_total_gpu_time, every.count AS nodes_total_count,
       used.gpu_time AS nodes_using_tc_gpu_time, used.count AS nodes_using_tc_count,
       could.gpu_time AS nodes_tc_eligible_gpu_time, could.count AS nodes_tc_eligible_count,
       other.gpu_time AS nodes_other_gpu_time, other.count AS nodes_other_count
FROM model_summary AS model
JOIN read_only_domains AS domain ON domain.id = model.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN category_summary AS every ON every.id = model.nodes_total_id
JOIN category_summary AS used ON used.id = model.nodes_using_tc_id
JOIN category_summary AS could ON could.id = model.nodes_tc_eligible_id
JOIN category_summary AS other ON other.id = model.nodes_other_id;

CREATE VIEW view_kernel_summary AS
SELECT kernels.aggr_id, name.string AS domain_name,
       every.gpu_time + memory.gpu_time AS total_gpu_time, every.count + memory.count AS total_count,
       used.gpu_time AS using_tc_gpu_time, used.count AS using_tc_count,
       memory.gpu_time AS memory_gpu_time, memory.count AS memory_count,
       other.gpu_time AS other_gpu_time, other.count AS other_count
FROM kernel_summary_metrics AS kernels
JOIN memory_summary_metrics AS copies
  ON copies.aggr_id = kernels.aggr_id AND copies.domain_id = kernels.domain_id
JOIN read_only_domains AS domain ON domain.id = kernels.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN category_summary AS every ON every.id = kernels.kernels_total_id
JOIN category_summary AS used ON used.id = kernels.kernels_using_tc_id
JOIN category_summary AS other ON other.id = kernels.kernels_non_tc_id
JOIN category_summary AS memory ON memory.id = copies.memory_time_id;

CREATE VIEW view_resource_usage_breakdown AS
SELECT model.aggr_id, name.string AS domain_name, model.tc_duration_pct, model.non_tc_duration_pct,
       model.memory_duration_pct, model.dataloader_duration_pct, model.io_duration_pct, model.cpu_duration_pct,
       model.other_duration_pct
FROM model_summary AS model
JOIN read_only_domains AS domain ON domain.id = model.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id;

CREATE VIEW view_gpu_devices AS
SELECT used.aggr_id, name.string AS domain_name, gpu.device_id, gpu.gpu_name,
       gpu.compute_capability_major AS cuda_major, gpu.compute_capability_minor AS cuda_minor, gpu.sm_count,
       used.gpu_utilization AS device_gpu_utilization
FROM device_gpu_utilizations AS used
JOIN read_only_domains AS domain ON domain.id = used.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN read_only_gpu_infos AS gpu ON gpu.id = used.gpu_info_id;

CREATE VIEW view_op_nodes AS
SELECT node.aggr_id, name.string AS domain_name, gpu.sum AS gpu_time, cpu.sum AS cpu_time,
       op.op_name AS op_node_name, way.string AS direction, kind.string AS op_node_type, node.num_calls,
       node.tc_eligible, node.using_tc, node.kernel_calls, node.is_bad_data_type, data.string AS data_type,
       op.stack_trace, op.op_id AS op_node_id
FROM op_nodes AS node
JOIN read_only_ops AS op ON op.id = node.read_only_ops_id
JOIN read_only_domains AS domain ON domain.id = op.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN node_time_metrics AS times ON times.id = node.node_time_metrics_id
JOIN metric AS gpu ON gpu.id = times.gpu_time_metric_id
JOIN metric AS cpu ON cpu.id = times.cpu_time_metric_id
JOIN dictionary AS way ON way.id = op.direction_id
JOIN dictionary AS kind ON kind.id = op.op_type_id
JOIN dictionary AS data ON data.id = op.data_type_id;

-- The trimmed name is what follows the last "/": of a group without the "/" that it ends in, of an op as it stands, so
-- that an op whose own name ends in "/" has an empty one, as in DLProf.
CREATE VIEW view_group_ops AS
SELECT node.aggr_id, name.string AS domain_name, node.row_type, full_id.string AS row_full_id,
       full_name.string AS row_full_name,
       substr(
           substr(full_name.string, 1, length(full_name.string) - (node.row_type = 1)),
           length(
               rtrim(
                   substr(full_name.string, 1, length(full_name.string) - (node.row_type = 1)),
                   replace(full_name.string, '/', '')
               )
           ) + 1
       ) AS row_trimmed_name,
       node.level, node.num_op_instances, node.num_supported_leaf_ops, node.num_tc_leaf_ops,
       cpu.sum AS cpu_time_sum, gpu.sum AS gpu_time_sum, overhead.sum AS cpu_overhead_sum, idle.sum AS gpu_idle_sum
FROM group_ops AS node
JOIN read_only_domains AS domain ON domain.id = node.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN dictionary AS full_id ON full_id.id = node.group_op_full_id_id
JOIN dictionary AS full_name ON full_name.id = node.group_op_full_name_id
JOIN node_time_metrics AS times ON times.id = node.group_op_time_metrics_id
JOIN metric AS cpu ON cpu.id = times.cpu_time_metric_id
JOIN metric AS gpu ON gpu.id = times.gpu_time_metric_id
JOIN metric AS overhead ON overhead.id = times.cpu_overhead_time_metric_id
JOIN metric AS idle ON idle.id = times.gpu_idle_time_metric_id;

CREATE VIEW view_kernel_summaries AS
SELECT kernel.aggr_id, name.string AS domain_name, op_text.string AS op_node_id, short.string AS kernel_name,
       kernel.uses_tc, gpu.count AS calls, gpu.sum AS gpu_time, gpu.avg, gpu.min, gpu.max
FROM kernel_summaries AS kernel
JOIN read_only_domains AS domain ON domain.id = kernel.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN read_only_ops AS op ON op.id = kernel.read_only_ops_id
JOIN dictionary AS op_text ON op_text.id = op.op_id_id
JOIN dictionary AS short ON short.id = kernel.kernel_name_id
JOIN metric AS gpu ON gpu.id = kernel.gpu_time_metric_id;

CREATE VIEW view_op_type_summary AS
SELECT kind.aggr_id, name.string AS domain_name, text.string AS op_node_type, kind.num_nodes, kind.num_calls,
       cpu.sum AS cpu_time_sum, cpu.avg AS cpu_time_avg, cpu.min AS cpu_time_min, cpu.max AS cpu_time_max,
       gpu.sum AS gpu_time_sum, gpu.avg AS gpu_time_avg, gpu.min AS gpu_time_min, gpu.max AS gpu_time_max,
       overhead.sum AS cpu_overhead_sum, overhead.avg AS cpu_overhead_avg, overhead.min AS cpu_overhead_min,
       overhead.max AS cpu_overhead_max,
       idle.sum AS gpu_idle_sum, idle.avg AS gpu_idle_avg, idle.min AS gpu_idle_min, idle.max AS gpu_idle_max
FROM op_type_metrics AS kind
JOIN read_only_domains AS domain ON domain.id = kind.domain_id
JOIN dictionary AS name ON name.id = domain.domain_name_id
JOIN dictionary AS text ON text.id = kind.op_node_type_id
JOIN node_time_metrics AS times ON times.id = kind.op_type_metrics_id
JOIN metric AS cpu ON cpu.id = times.cpu_time_metric_id
JOIN metric AS gpu ON gpu.id = times.gpu_time_metric_id
JOIN metric AS overhead ON overhead.id = times.cpu_overhead_time_metric_id
JOIN metric AS idle ON idle.id = times.gpu_idle_time_metric_id;
