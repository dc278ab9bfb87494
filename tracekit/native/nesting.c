/* Find the parents of intervals in nesting order. nesting.py describes this order, and what a parent is. */
#include "layout.h"
#include "memory.h"

/* Set the parents and depths of the next intervals. The stack contains the previous interval and its ancestors. Stop
   if it is full. `height` is its height, `intervals` the number of intervals, and both are updated. `first` is the
   number of all previous intervals. */
EXPORT(nest) {
  nest_parameters *shared = PARAMETERS;
  const nest_parameters p = *shared;
  const nest_arrays a = *(const nest_arrays *)ARRAYS;
  uint32_t interval = 0, height = p.height;
  for (; interval < p.intervals && height < p.capacity; interval++) {
    int64_t start = a.start[interval], end = a.end[interval];
    a.crosses[interval] = 0;
    for (; height && a.open_end[height - 1] < end; height--) a.crosses[interval] |= a.open_end[height - 1] > start;
    a.parent[interval] = height ? a.open_interval[height - 1] : -1;
    a.open_end[height] = end;
    a.open_interval[height++] = (int64_t)p.first + interval;
    a.depth[interval] = (int32_t)height;
  }
  shared->intervals = interval;
  shared->height = height;
  return 0;
}
