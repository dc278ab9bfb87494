/* Sum numbers, and measure unions of intervals, over a tree of cells. A cell precedes the cell in which it is contained,
   and `up` is the number of the latter. It is the number of cells for a cell that no other one contains. */
#include "layout.h"
#include "memory.h"

/* Add the number of each cell to those of all cells that contain it. */
EXPORT(sum) {
  const sum_parameters p = *(const sum_parameters *)PARAMETERS;
  const sum_arrays a = *(const sum_arrays *)ARRAYS;
  for (uint32_t cell = 0; cell < p.cells; cell++) {
    uint32_t up = a.up[cell];
    if (cell < up && up < p.cells) a.total[up] += a.total[cell];
  }
  return 0;
}

/* Add intervals to their cells and to all cells that contain them. The intervals are sorted by track and start. `total` is
   the time that at least one interval of a track covers, and `end` the end of that time on `track` so far. */
EXPORT(cover) {
  const cover_parameters p = *(const cover_parameters *)PARAMETERS;
  const cover_arrays a = *(const cover_arrays *)ARRAYS;
  for (uint32_t row = 0; row < p.rows; row++) {
    int64_t start = a.row_start[row], end = a.row_end[row];
    uint32_t track = a.row_track[row];
    for (uint32_t cell = a.row_cell[row], previous = 0; start < end && previous <= cell && cell < p.cells;
         previous = cell + 1, cell = a.up[cell]) {
      if (a.track[cell] != track) {
        a.track[cell] = track;
        a.end[cell] = INT64_MIN;
      }
      if (end <= a.end[cell]) break; /* the cells that contain this one cover the interval, too */
      a.total[cell] += (uint64_t)end - (uint64_t)(start > a.end[cell] ? start : a.end[cell]);
      a.end[cell] = end;
    }
  }
  return 0;
}
