/* Tell combinations of numbers apart: combinations.py describes the arrays and the results. */
#include "layout.h"
#include "memory.h"
#include "strings.h"

/* Return whether two rows have the same numbers. The numbers of a row follow one another. */
INLINE bool equal_rows(const uint64_t *one, const uint64_t *other, uint32_t columns) {
  uint64_t difference = 0;
  for (uint32_t c = 0; c < columns; c++) difference |= one[c] ^ other[c];
  return difference == 0;
}

/* Assign a code to the combination of numbers in each row, in the order of the first rows. Return the number of codes.
   The table has more slots than there are rows, by a power of two, and contains codes plus 1. */
EXPORT(combinations) {
  const combinations_parameters *p = PARAMETERS;
  const combinations_arrays a = *(const combinations_arrays *)ARRAYS;
  uint32_t count = 0, last = 0;
  for (uint32_t slot = 0; slot < p->slots; slot++) a.table[slot] = 0;
  for (uint32_t row = 0; row < p->rows; row++) {
    const uint64_t *numbers = a.numbers + (uint64_t)row * p->columns;
    if (row && equal_rows(numbers, numbers - p->columns, p->columns)) {
      a.codes[row] = last;
      continue;
    }
    uint64_t hash = 0;
    for (uint32_t c = 0; c < p->columns; c++) hash = mix(hash, numbers[c]);
    uint32_t slot = (uint32_t)(hash >> 32) & (p->slots - 1), entry;
    while ((entry = a.table[slot]) != 0) {
      if (entry > count) return INVALID;
      if (equal_rows(numbers, a.numbers + (uint64_t)a.first_rows[entry - 1] * p->columns, p->columns)) break;
      slot = (slot + 1) & (p->slots - 1);
    }
    if (entry == 0) {
      a.first_rows[count] = row;
      a.table[slot] = entry = ++count;
    }
    a.codes[row] = last = entry - 1;
  }
  return (int32_t)count;
}
