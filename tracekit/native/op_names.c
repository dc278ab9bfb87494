/* Find the arguments of ops in names of ranges: "aten::mm, seq = 3, op_id = 9, sizes = [[2, 3], [3, 4]]". */
#include "layout.h"
#include "strings.h"

typedef uint8_t block __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t mask __attribute__((vector_size(16)));

/* The number of a string that begins at a place, and the end of the string there. */
typedef struct {
  uint32_t number, end;
} match;

/* A hash table of strings, and the strings in it. */
typedef struct {
  uint32_t *table, *row, *start, *size;
  uint32_t count;
} dictionary;

INLINE bool is_digit(uint32_t byte) { return byte - '0' < 10; }

/* Return the first offset, at or after a given one, at which a marker may begin: a comma, any byte and a small letter.
   Return the end or an offset behind it if there is none. */
INLINE uint32_t find_marker(uint32_t offset, uint32_t end) {
  for (; offset < end; offset += 16) {
    block commas = (block)(*(const block *)offset == (uint8_t)','), letters = *(const block *)(offset + 2) - (uint8_t)'a';
    uint32_t places = (uint32_t)__builtin_wasm_bitmask_i8x16((mask)(commas & (block)(letters < (uint8_t)26)));
    if (places) return offset + (uint32_t)__builtin_ctz(places);
  }
  return end;
}

/* Return which of the strings begins at an offset, or their count if none of them does, and where the string ends. */
INLINE match match_any(uint32_t offset, uint32_t end, const uint8_t *strings, const uint32_t *edges, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    uint32_t size = edges[i + 1] - edges[i];
    if (size <= end - offset && equal_strings(offset, (uint32_t)strings + edges[i], size)) return (match){i, offset + size};
  }
  return (match){count, offset};
}

/* Return the number of a string in a row. It is added unless the dictionary has it, from a row that is an op as well or
   is none either. A string whose place in the table is crowded is added again, so that no string takes long. */
INLINE uint32_t encode(dictionary *d, const parse_parameters *p, const parse_arrays *a, uint32_t row, uint32_t start,
                       uint32_t size) {
  uint32_t offset = (uint32_t)a->bytes + a->edges[row] + start;
  uint32_t slot = (uint32_t)mix(p->seed + a->is_op[row], hash_string(offset, size));
  for (uint32_t probe = 0; probe < PROBES; probe++) {
    uint32_t *place = &d->table[(slot + probe) & (p->slots - 1)], number = *place - 1;
    if (!*place) {
      *place = d->count + 1;
      break;
    }
    uint32_t other = (uint32_t)a->bytes + a->edges[d->row[number]] + d->start[number];
    bool is_equal = d->size[number] == size && a->is_op[d->row[number]] == a->is_op[row];
    if (is_equal && equal_strings(offset, other, size)) return number;
  }
  d->row[d->count] = row;
  d->start[d->count] = start;
  d->size[d->count] = size;
  return d->count++;
}

/* Parse names. `strings` are the markers, in the order SEQUENCE, OP_ID, SIZES, INPUTS, and then the prefixes. */
EXPORT(parse) {
  parse_parameters *p = PARAMETERS;
  const parse_arrays a = *(const parse_arrays *)ARRAYS;
  dictionary names = {a.name_table, a.name_row, a.name_start, a.name_size, 0};
  dictionary sizes = {a.sizes_table, a.sizes_row, a.sizes_start, a.sizes_size, 0};
  for (uint32_t row = 0; row < p->rows; row++) {
    uint32_t begin = (uint32_t)a.bytes + a.edges[row], end = (uint32_t)a.bytes + a.edges[row + 1];
    uint32_t name_end = end, sizes_begin = end, inputs = end;
    int64_t sequence = -1;
    bool is_op = match_any(begin, end, a.strings, a.string_edges + MARKERS, PREFIXES).number < PREFIXES;
    for (uint32_t i = find_marker(begin, end); i < end; i = find_marker(i + 1, end)) {
      match m = match_any(i, end, a.strings, a.string_edges, MARKERS);
      if (m.number == MARKERS) continue;
      if (name_end == end) name_end = i;
      if (m.number == SIZES && sizes_begin == end) sizes_begin = i;
      if (m.number == INPUTS && inputs == end) inputs = i;
      bool has_digit = m.end < end && is_digit(load8(m.end));
      is_op |= m.number == SIZES || (has_digit && m.number <= OP_ID);
      if (m.number != SEQUENCE || !has_digit || sequence >= 0) continue;
      sequence = 0;
      for (uint32_t n = 0; n < MAX_DIGITS && m.end + n < end && is_digit(load8(m.end + n)); n++)
        sequence = sequence * 10 + load8(m.end + n) - '0';
    }
    a.is_op[row] = is_op;
    a.sequence[row] = sequence;
    a.name[row] = encode(&names, p, &a, row, 0, (is_op ? name_end : end) - begin);
    a.sizes[row] = UINT32_MAX;
    if (sizes_begin == end) continue;
    uint32_t sizes_end = inputs > sizes_begin ? inputs : end;
    a.sizes[row] = encode(&sizes, p, &a, row, sizes_begin - begin, sizes_end - sizes_begin);
  }
  p->names = names.count;
  p->sizes = sizes.count;
  return 0;
}
