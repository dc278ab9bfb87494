/* Replay an event model: compute when each item of the CPU and each op of the GPUs starts and ends.
   replay.py describes the model, the meaning of its arrays and the results. */
#include "layout.h"
#include "memory.h"

typedef struct {
  const int64_t *cpu_lane_start, *gpu_lane_start;
  const int32_t *item_lane;
  const int64_t *item_duration;
  const int32_t *item_op_count;
  const uint8_t *item_wait_kind;
  const int32_t *item_wait_target;
  const int64_t *item_wait_residue;
  const int32_t *item_after;
  const int64_t *item_earliest;
  const int32_t *op_lane;
  const int64_t *op_duration, *op_delay, *op_gap;
  const int32_t *op_dependency;
  const int64_t *op_dependency_gap;
  int64_t *item_start, *item_end, *op_start, *op_end;
  int32_t *cpu_lane_last, *gpu_lane_last;
} arrays;

/* Set a time to the sum of two numbers if the sum is later. Return false if the sum is not a 64-bit integer. */
static inline bool delay_until(int64_t *time, int64_t start, int64_t offset) {
  int64_t sum;
  if (__builtin_add_overflow(start, offset, &sum)) return false;
  if (sum > *time) *time = sum;
  return true;
}

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static int32_t replay_op(const replay_parameters *p, const arrays *a, uint32_t op, int64_t item_start) {
  uint32_t lane = (uint32_t)a->op_lane[op];
  if (lane >= p->gpu_lanes) return OP_LANE;
  int64_t start;
  if (__builtin_add_overflow(item_start, a->op_delay[op], &start)) return OP_TIME;
  int32_t last = a->gpu_lane_last[lane];
  if (last < 0)
    start = later(start, a->gpu_lane_start[lane]);
  else if (!delay_until(&start, a->op_end[last], a->op_gap[op]))
    return OP_TIME;
  int32_t dependency = a->op_dependency[op];
  if (dependency != -1) {
    if ((uint32_t)dependency >= op) return OP_DEPENDENCY;
    if (!delay_until(&start, a->op_end[dependency], a->op_dependency_gap[op])) return OP_TIME;
  }
  a->op_start[op] = start;
  if (__builtin_add_overflow(start, a->op_duration[op], &a->op_end[op])) return OP_TIME;
  if (last < 0 || a->op_end[op] > a->op_end[last]) a->gpu_lane_last[lane] = (int32_t)op;
  return DONE;
}

static int32_t start_item(const replay_parameters *p, const arrays *a, uint32_t item) {
  uint32_t lane = (uint32_t)a->item_lane[item];
  if (lane >= p->cpu_lanes) return ITEM_LANE;
  int32_t last = a->cpu_lane_last[lane], after = a->item_after[item];
  int64_t start = later(a->item_earliest[item], last < 0 ? a->cpu_lane_start[lane] : a->item_end[last]);
  if (after != -1) {
    if ((uint32_t)after >= item) return ITEM_AFTER;
    start = later(start, a->item_end[after]);
  }
  a->item_start[item] = start;
  a->cpu_lane_last[lane] = (int32_t)item;
  return DONE;
}

/* Compute the end of an item after all of its ops. `ops` is the number of ops that have been launched. */
static int32_t end_item(const arrays *a, uint32_t item, uint32_t ops) {
  int64_t end;
  if (__builtin_add_overflow(a->item_start[item], a->item_duration[item], &end)) return ITEM_TIME;
  uint8_t kind = a->item_wait_kind[item];
  if (kind > WAIT_FOR_START) return ITEM_WAIT_KIND;
  if (kind != NO_WAIT) {
    uint32_t target = (uint32_t)a->item_wait_target[item];
    if (target >= ops) return ITEM_WAIT_TARGET;
    const int64_t *times = kind == WAIT_FOR_END ? a->op_end : a->op_start;
    if (!delay_until(&end, times[target], a->item_wait_residue[item])) return ITEM_TIME;
  }
  a->item_end[item] = end;
  return DONE;
}

/* Return DONE, or what is wrong, and in this case set the parameter `position` to the item or op. */
EXPORT(replay) {
  replay_parameters *shared = PARAMETERS;
  const replay_parameters p = *shared;
  const arrays a = *(const arrays *)p.arrays;
  uint32_t op = 0;
  int32_t result;
  for (uint32_t lane = 0; lane < p.cpu_lanes; lane++) a.cpu_lane_last[lane] = -1;
  for (uint32_t lane = 0; lane < p.gpu_lanes; lane++) a.gpu_lane_last[lane] = -1;
  for (uint32_t item = 0; item < p.items; item++) {
    shared->position = item;
    if ((result = start_item(&p, &a, item))) return result;
    uint32_t count = (uint32_t)a.item_op_count[item];
    if (count > p.ops - op) return ITEM_OP_COUNT;
    for (uint32_t end = op + count; op < end; op++) {
      if ((result = replay_op(&p, &a, op, a.item_start[item]))) {
        shared->position = op;
        return result;
      }
    }
    if ((result = end_item(&a, item, op))) return result;
  }
  shared->position = p.items;
  return op == p.ops ? DONE : ITEM_OP_COUNT;
}
