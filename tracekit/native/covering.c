/* Find the slices that cover the rows of a column. covering.py describes the arrays and the result. */
#include "layout.h"
#include "memory.h"

/* Return the first row from `row` on that no slice covers. On the way, shorten the path for later searches. */
INLINE uint32_t find_free(uint32_t *next, uint32_t row) {
  while (next[row] != row) row = next[row] = next[next[row]];
  return row;
}

/* Write the number of a slice to each row of the slice that no earlier slice covers. */
EXPORT(cover) {
  const cover_parameters p = *(const cover_parameters *)PARAMETERS;
  const cover_arrays a = *(const cover_arrays *)ARRAYS;
  for (uint32_t slice = 0; slice < p.slices; slice++) {
    for (uint32_t row = find_free(a.next, a.first[slice]); row < a.stop[slice]; row = find_free(a.next, row + 1)) {
      a.cover[row] = a.number[slice];
      a.next[row] = row + 1;
    }
  }
  return 0;
}
