/* Decode the opcodes of a pickle into cells: readers/common/pickles.py describes the arrays and the results.
   A cell is a tag in its lowest bits and a payload: a number, or the index of a number, a string or a container. Nothing
   is called or imported: opcodes that would do so end the program. */
#include "layout.h"
#include "memory.h"
#include "strings.h"

enum { PROBES = 8, MIN_EXACT = 1 << 20, LARGEST_SPAN = 1 << 10 };

typedef read_arrays arrays;

/* The state during a call, in the array `machine`, because a program has no local variables in memory. `from`, `size`,
   `number` and `negative` are results of functions. */
typedef struct {
  arrays a;
  uint32_t *state;
  const uint8_t *at, *end;
  uint32_t top, marks, cells, from, size;
  uint64_t number;
  bool negative;
} machine;

INLINE uint64_t make(uint32_t tag, uint64_t payload) { return payload << TAG_BITS | tag; }
INLINE uint32_t tag_of(uint64_t cell) { return (uint32_t)cell & ((1u << TAG_BITS) - 1); }
INLINE uint32_t index_of(uint64_t cell) { return (uint32_t)(cell >> TAG_BITS); }

INLINE int32_t push(machine *m, uint64_t cell) {
  if (m->top >= m->state[STACK_CAPACITY]) return FULL;
  m->a.stack[m->top++] = cell;
  return DONE;
}

INLINE int32_t push_number(machine *m, uint32_t tag, uint64_t bits) {
  uint32_t index = m->state[NUMBERS];
  if (index >= m->state[NUMBER_CAPACITY]) return FULL;
  m->a.numbers[index] = bits;
  m->state[NUMBERS] = index + 1;
  return push(m, make(tag, index));
}

INLINE int32_t push_integer(machine *m, int64_t value) {
  int64_t shifted = (int64_t)((uint64_t)value << TAG_BITS);
  if (shifted >> TAG_BITS == value) return push(m, (uint64_t)shifted | INTEGER);
  return push_number(m, WIDE, (uint64_t)value);
}

/* Store a string unless it is stored already, and return its index plus 1, or 0 if there is no room. */
static uint32_t store_string(machine *m, const uint8_t *bytes, uint32_t size, uint32_t encoding) {
  uint32_t *state = m->state, slots = state[STRING_SLOTS], free_slot = slots;
  uint64_t hash = hash_string((uint32_t)bytes, size) + encoding;
  for (uint32_t probe = 0; probe < PROBES; probe++) {
    uint32_t slot = ((uint32_t)(hash >> 32) + probe) & (slots - 1), entry = m->a.string_table[slot];
    if (!entry) {
      free_slot = slot;
      break;
    }
    const uint32_t *string = m->a.strings + STRING_WORDS * (uint64_t)(entry - 1);
    if (string[1] == size && string[2] == encoding && equal_strings((uint32_t)bytes, (uint32_t)m->a.text + string[0], size))
      return entry;
  }
  uint32_t index = state[STRINGS], offset = state[TEXT_BYTES];
  if (index >= state[STRING_CAPACITY] || size + 8 > state[TEXT_CAPACITY] - offset) return 0;
  __builtin_memcpy(m->a.text + offset, bytes, size);
  uint32_t *string = m->a.strings + STRING_WORDS * (uint64_t)index;
  string[0] = offset;
  string[1] = size;
  string[2] = encoding;
  state[STRINGS] = index + 1;
  state[TEXT_BYTES] = offset + size;
  if (free_slot < slots) m->a.string_table[free_slot] = index + 1;
  return index + 1;
}

INLINE int32_t push_string(machine *m, const uint8_t *bytes, uint32_t size, uint32_t tag, uint32_t encoding) {
  uint32_t number = store_string(m, bytes, size, encoding);
  if (!number) return FULL;
  return push(m, make(tag, number - 1));
}

/* Move cells to the end of the stored ones, unless the same cells are stored already, and return their first index plus
   1, or 0 if there is no room. Cells are never changed after they were stored. */
INLINE uint32_t store_span(machine *m, const uint64_t *from, uint32_t count, uint32_t stride) {
  uint32_t slots = m->state[SPAN_SLOTS], free_slot = slots, first = m->cells;
  if (count > m->state[CELL_CAPACITY] - first) return 0;
  uint64_t *to = m->a.cells + first;
  uint64_t hash = count;
  for (uint32_t n = 0; n < count; n++) {
    to[n] = from[(uint64_t)n * stride];
    hash = mix(hash, to[n]);
  }
  if (count < LARGEST_SPAN) {
    for (uint32_t probe = 0; probe < PROBES; probe++) {
      uint32_t slot = ((uint32_t)(hash >> 32) + probe) & (slots - 1);
      const uint32_t *entry = m->a.span_table + 2 * slot;
      if (!entry[1]) {
        free_slot = slot;
        break;
      }
      if (entry[1] != count) continue;
      const uint64_t *stored = m->a.cells + entry[0];
      uint64_t difference = 0;
      for (uint32_t n = 0; n < count; n++) difference |= stored[n] ^ to[n];
      if (!difference) return entry[0] + 1;
    }
    if (free_slot < slots) {
      m->a.span_table[2 * free_slot] = first;
      m->a.span_table[2 * free_slot + 1] = count;
    }
  }
  m->cells = first + count;
  return first + 1;
}

/* Add a record of a container, which is empty, and return its index, or 0 if there is no room. */
INLINE uint32_t add_record(machine *m) {
  uint32_t index = m->state[RECORDS];
  if (index >= m->state[RECORD_CAPACITY]) return 0;
  uint32_t *record = m->a.records + RECORD_WORDS * (uint64_t)index;
  record[SPAN] = record[KEYS] = record[COUNT] = record[NEXT] = record[LAST] = 0;
  m->state[RECORDS] = index + 1;
  return index;
}

/* Add cells of the stack to a container: items, or keys and values in turn. */
INLINE int32_t add_items(machine *m, uint32_t container, uint32_t from, uint32_t count, bool pairs) {
  uint32_t *record = m->a.records + RECORD_WORDS * (uint64_t)container, keys = 0, span;
  const uint64_t *items = m->a.stack + from;
  if (!count) return DONE;
  if (pairs) {
    for (uint32_t n = 0; n < count; n++) {
      uint32_t tag = tag_of(items[2 * (uint64_t)n]);
      if (tag == LIST || tag == DICT || tag == SET) return WRONG_TYPE;
    }
    keys = store_span(m, items, count, 2);
    if (!keys) return FULL;
    if (count > m->state[CELL_CAPACITY] - m->cells) return FULL;
    span = m->cells;
    for (uint32_t n = 0; n < count; n++) m->a.cells[span + n] = items[2 * (uint64_t)n + 1];
    m->cells = span++ + count;
  } else {
    span = store_span(m, items, count, 1);
    if (!span) return FULL;
  }
  if (record[COUNT]) {
    uint32_t last = record[LAST] ? record[LAST] : container, added = add_record(m);
    if (!added) return FULL;
    m->a.records[RECORD_WORDS * (uint64_t)last + NEXT] = added;
    record[LAST] = added;
    record = m->a.records + RECORD_WORDS * (uint64_t)added;
  }
  record[SPAN] = span - 1;
  record[KEYS] = keys;
  record[COUNT] = count;
  return DONE;
}

/* Replace the cells of the stack from `from` by a new container with them. */
INLINE int32_t build(machine *m, uint32_t tag, uint32_t from) {
  uint32_t container = add_record(m), count = m->top - from;
  bool pairs = tag == DICT;
  if (!container) return FULL;
  if (pairs && count % 2) return WRONG_TYPE;
  int32_t result = add_items(m, container, from, pairs ? count / 2 : count, pairs);
  if (result) return result;
  m->top = from;
  return push(m, make(tag, container));
}

/* Add the cells of the stack from `from` to the container below them. */
INLINE int32_t extend(machine *m, uint32_t tag, uint32_t from) {
  uint32_t count = m->top - from;
  bool pairs = tag == DICT;
  if (!from || from > m->top) return EMPTY;
  uint64_t container = m->a.stack[from - 1];
  if (tag_of(container) != tag || (pairs && count % 2)) return WRONG_TYPE;
  int32_t result = add_items(m, index_of(container), from, pairs ? count / 2 : count, pairs);
  m->top = from;
  return result;
}

INLINE int32_t put_memo(machine *m, uint32_t index) {
  if (!m->top) return EMPTY;
  if (index >= m->state[MEMO_CAPACITY]) return FULL_MEMO;
  if (m->a.memo[index] == MISSING) m->state[MEMOIZED]++;
  m->a.memo[index] = m->a.stack[m->top - 1];
  return DONE;
}

INLINE int32_t get_memo(machine *m, uint32_t index) {
  if (index >= m->state[MEMO_CAPACITY] || m->a.memo[index] == MISSING) return NO_MEMO;
  return push(m, m->a.memo[index]);
}

/* Remove the last mark and set `from` to its place in the stack. */
INLINE int32_t pop_mark(machine *m) {
  if (!m->marks) return EMPTY;
  m->from = m->a.marks[--m->marks];
  return m->from > m->top ? EMPTY : DONE;
}

/* Return the end of a line, or null if the input ends before. */
INLINE const uint8_t *find_line_end(const machine *m) {
  for (const uint8_t *at = m->at; at < m->end; at++)
    if (*at == '\n') return at;
  return 0;
}

/* Set `number` and `negative` to a decimal number with an optional sign, and return whether it is one. */
static bool parse_decimal(machine *m, const uint8_t *end) {
  const uint8_t *at = m->at;
  uint64_t value = 0;
  m->negative = at < end && *at == '-';
  if (at < end && (*at == '-' || *at == '+')) at++;
  if (at == end || end - at > 20) return false;
  for (; at < end; at++) {
    uint32_t digit = (uint32_t)*at - '0';
    if (digit > 9 || value > (UINT64_MAX - digit) / 10) return false;
    value = value * 10 + digit;
  }
  m->number = value;
  return !m->negative || value <= UINT64_C(1) << 63;
}

INLINE int32_t push_decimal(machine *m, const uint8_t *end) {
  if (!parse_decimal(m, end)) return BAD_NUMBER;
  if (m->negative) return push_integer(m, (int64_t)(0 - m->number));
  return m->number >> 63 ? push_number(m, UNSIGNED, m->number) : push_integer(m, (int64_t)m->number);
}

/* Push an integer of little-endian bytes. Integers of more than 64 bits are stored as bytes. */
INLINE int32_t push_bytes_of_integer(machine *m, uint32_t size) {
  uint64_t value = 0;
  if (size > 9 || (size == 9 && m->at[8])) return push_string(m, m->at, size, HUGE, BINARY);
  for (uint32_t n = 0; n < size && n < 8; n++) value |= (uint64_t)m->at[n] << (8 * n);
  if (size && size < 8 && m->at[size - 1] & 0x80) value |= ~UINT64_C(0) << (8 * size);
  return size == 9 && value >> 63 ? push_number(m, UNSIGNED, value) : push_integer(m, (int64_t)value);
}

/* Push the string on a line: of protocol 0, or in quotes. */
INLINE int32_t push_line(machine *m, const uint8_t *end, bool quoted) {
  const uint8_t *at = m->at;
  uint32_t encoding = UTF8;
  if (quoted) {
    if (end - at < 2 || *at != end[-1] || (*at != '\'' && *at != '"')) return BAD_NUMBER;
    at++;
    end--;
  }
  for (const uint8_t *c = at; c < end; c++) {
    if (*c == '\\') {
      if (quoted) return BAD_NUMBER;
      encoding = ESCAPED;
    } else if (*c >= 0x80 && encoding == UTF8) encoding = quoted ? LATIN1 : ESCAPED;
  }
  return push_string(m, at, (uint32_t)(end - at), STRING, encoding);
}

#define NEED(count) do { if ((uint32_t)(m->end - m->at) < (uint32_t)(count)) return MORE; } while (0)
#define TRY(call) do { int32_t result_ = (call); if (result_) return result_; } while (0)

/* Set `size` to a length that is stored in `width` bytes and followed by as many bytes, and skip the length. */
INLINE int32_t read_size(machine *m, uint32_t width) {
  NEED(width);
  uint64_t value = width == 1 ? load8((uint32_t)m->at) : width == 4 ? load32((uint32_t)m->at) : load64((uint32_t)m->at);
  if (value > m->state[LARGEST_STRING]) return LONG_STRING;
  m->at += width;
  NEED(value);
  m->size = (uint32_t)value;
  return DONE;
}

/* Record where a string begins, or where a frame begins if the width of its length is 0. */
INLINE int32_t record_place(machine *m, const uint8_t *at, uint32_t width, uint32_t size) {
  uint32_t count = m->state[OCCURRENCES];
  if (!m->state[RECORD_STRINGS]) return DONE;
  if (count >= m->state[OCCURRENCE_CAPACITY]) return FULL;
  m->a.occurrences[2 * count] = (uint32_t)(at - m->a.input) + width * WIDTH_UNIT;
  m->a.occurrences[2 * count + 1] = size;
  m->state[OCCURRENCES] = count + 1;
  return DONE;
}

INLINE int32_t read_string(machine *m, uint32_t width, uint32_t tag, uint32_t encoding) {
  TRY(read_size(m, width));
  uint32_t size = m->size;
  if (tag == HUGE) TRY(push_bytes_of_integer(m, size));
  else TRY(push_string(m, m->at, size, tag, encoding));
  if (tag != HUGE && encoding != UTF8 && m->state[RECORD_STRINGS]) return OLD_STRING;
  if (tag == STRING) TRY(record_place(m, m->at, width, size));
  m->at += size;
  return DONE;
}

/* Run one opcode, whose code has been read. */
INLINE int32_t run(machine *m, uint32_t opcode) {
  uint32_t size;
  const uint8_t *line;
  switch (opcode) {
    case 'h': NEED(1); return m->at++, get_memo(m, m->at[-1]);
    case 'j': NEED(4); return m->at += 4, get_memo(m, load32((uint32_t)m->at - 4));
    case 'K': NEED(1); return m->at++, push_integer(m, m->at[-1]);
    case 'M': NEED(2); return m->at += 2, push_integer(m, load16((uint32_t)m->at - 2));
    case 'J': NEED(4); return m->at += 4, push_integer(m, (int32_t)load32((uint32_t)m->at - 4));
    case 0x8a: return read_string(m, 1, HUGE, BINARY);
    case 0x8b: return read_string(m, 4, HUGE, BINARY);
    case '(':
      if (m->marks >= m->state[MARK_CAPACITY]) return FULL;
      m->a.marks[m->marks++] = m->top;
      return DONE;
    case 'u': TRY(pop_mark(m)); return extend(m, DICT, m->from);
    case 'e': TRY(pop_mark(m)); return extend(m, LIST, m->from);
    case 0x90: TRY(pop_mark(m)); return extend(m, SET, m->from);
    case 's': return m->top < 2 ? EMPTY : extend(m, DICT, m->top - 2);
    case 'a': return m->top < 1 ? EMPTY : extend(m, LIST, m->top - 1);
    case '}': return build(m, DICT, m->top);
    case ']': return build(m, LIST, m->top);
    case ')': return build(m, TUPLE, m->top);
    case 0x8f: return build(m, SET, m->top);
    case 'd': TRY(pop_mark(m)); return build(m, DICT, m->from);
    case 'l': TRY(pop_mark(m)); return build(m, LIST, m->from);
    case 't': TRY(pop_mark(m)); return build(m, TUPLE, m->from);
    case 0x91: TRY(pop_mark(m)); return build(m, FROZEN_SET, m->from);
    case 0x85: case 0x86: case 0x87:
      size = opcode - 0x84;
      return m->top < size ? EMPTY : build(m, TUPLE, m->top - size);
    case 0x94: return put_memo(m, m->state[MEMOIZED]);
    case 'q': NEED(1); return m->at++, put_memo(m, m->at[-1]);
    case 'r': NEED(4); return m->at += 4, put_memo(m, load32((uint32_t)m->at - 4));
    case 'N': return push(m, NONE);
    case 0x88: return push(m, TRUE);
    case 0x89: return push(m, FALSE);
    case 0x8c: return read_string(m, 1, STRING, UTF8);
    case 'X': return read_string(m, 4, STRING, UTF8);
    case 0x8d: return read_string(m, 8, STRING, UTF8);
    case 'C': return read_string(m, 1, BYTES, BINARY);
    case 'B': return read_string(m, 4, BYTES, BINARY);
    case 0x8e: case 0x96: return read_string(m, 8, BYTES, BINARY);
    case 'U': return read_string(m, 1, STRING, LATIN1);
    case 'T': return read_string(m, 4, STRING, LATIN1);
    case 'G': NEED(8); return m->at += 8, push_number(m, REAL, __builtin_bswap64(load64((uint32_t)m->at - 8)));
    case 0x95:
      NEED(8);
      if (load64((uint32_t)m->at) > *(const any_uint64 *)(m->state + FILE_BYTES)) return LONG_FRAME;
      return m->at += 8, record_place(m, m->at, 0, 0);
    case 0x80:
      NEED(1);
      return *m->at > LATEST_PROTOCOL ? PROTOCOL : (m->at++, DONE);
    case '0':
      if (m->marks && m->a.marks[m->marks - 1] == m->top) return m->marks--, DONE;
      return m->top ? (m->top--, DONE) : EMPTY;
    case '1': TRY(pop_mark(m)); return m->top = m->from, DONE;
    case '2': return m->top ? push(m, m->a.stack[m->top - 1]) : EMPTY;
    case 'I': case 'L': case 'F': case 'V': case 'S': case 'p': case 'g': break;
    case 'c': case 'i': case 'o': case 'R': case 'b': case 'P': case 'Q': case 0x81: case 0x92: case 0x93: case 0x82:
    case 0x83: case 0x84: case 0x97: case 0x98: return CALL;
    default: return BAD_OPCODE;
  }
  line = find_line_end(m);
  if (!line) return m->end - m->at > LONGEST_LINE ? LONG_STRING : MORE;
  const uint8_t *stop = line;
  if ((opcode == 'V' || opcode == 'S' || opcode == 'F') && m->state[RECORD_STRINGS]) return OLD_STRING;
  switch (opcode) {
    case 'I':
      if (stop - m->at == 2 && m->at[0] == '0' && (m->at[1] | 1) == '1') TRY(push(m, m->at[1] & 1 ? TRUE : FALSE));
      else TRY(push_decimal(m, stop));
      break;
    case 'L': TRY(push_decimal(m, stop > m->at && stop[-1] == 'L' ? stop - 1 : stop)); break;
    case 'F': TRY(push_string(m, m->at, (uint32_t)(stop - m->at), REAL_TEXT, UTF8)); break;
    case 'V': TRY(push_line(m, stop, false)); break;
    case 'S': TRY(push_line(m, stop, true)); break;
    default:
      if (!parse_decimal(m, stop) || m->negative || m->number > UINT32_MAX) return BAD_NUMBER;
      TRY(opcode == 'p' ? put_memo(m, (uint32_t)m->number) : get_memo(m, (uint32_t)m->number));
  }
  m->at = line + 1;
  return DONE;
}

/* Run opcodes until the pickle stops, or the input ends within an opcode. */
EXPORT(read) {
  read_parameters *p = PARAMETERS;
  machine *m = (machine *)((const arrays *)ARRAYS)->machine;
  m->a = *(const arrays *)ARRAYS;
  m->state = m->a.state;
  m->at = m->a.input;
  m->end = m->at + p->size;
  m->top = m->state[TOP];
  m->marks = m->state[MARKS];
  m->cells = m->state[CELLS];
  int32_t result = DONE;
  const uint8_t *opcode = m->at;
  while (!result) {
    opcode = m->at;
    if (opcode == m->end) {
      result = MORE;
      break;
    }
    uint32_t code = *m->at++;
    if (code == '.') {
      result = m->top ? STOPPED : EMPTY;
      if (m->top) opcode = m->at;
      break;
    }
    result = run(m, code);
  }
  p->position = (uint32_t)(opcode - m->a.input);
  m->state[TOP] = m->top;
  m->state[MARKS] = m->marks;
  m->state[CELLS] = m->cells;
  return result;
}

/* Copy the items of a container, from one of its records on, to the stack, which must not be used any more. Set the
   parameters to the number of items, and to the next record, or 0 at the end. */
EXPORT(items) {
  items_parameters *p = PARAMETERS;
  const read_arrays a = *(const read_arrays *)ARRAYS;
  uint32_t count = 0, record = p->record;
  while (record) {
    const uint32_t *r = a.records + RECORD_WORDS * (uint64_t)record;
    if (r[COUNT] > p->capacity - count) break;
    __builtin_memcpy(a.stack + count, a.cells + r[SPAN], 8 * (uint64_t)r[COUNT]);
    count += r[COUNT];
    record = r[NEXT];
  }
  p->count = count;
  p->record = record;
  return DONE;
}
