/* Decode Protocol Buffers. readers/common/protobuf/decoder.py defines the memory layout, the parameters and the results. */
#include "layout.h"
#include "strings.h"

/* A number, and the offset behind it. */
typedef struct {
  uint64_t value;
  uint32_t end;
} number;

/* One field of a message. The value of a length-delimited field is the start offset of its bytes in the buffer. */
typedef struct {
  uint32_t wire_type, slot, end;
  uint64_t value;
} field;

/* Join eight groups of seven bits, one in each byte, into one number. */
INLINE uint64_t fold(uint64_t groups) {
  groups = (groups & 0x007f007f007f007f) | (groups & 0x7f007f007f007f00) >> 1;
  groups = (groups & 0x00003fff00003fff) | (groups & 0x3fff00003fff0000) >> 2;
  return (groups & 0x0fffffff) | (groups & 0x0fffffff00000000) >> 4;
}

/* Decode a varint. Its end is UINT32_MAX if it has more than ten bytes. */
INLINE number decode_varint(uint32_t offset) {
  uint64_t word = load64(offset);
  if (!(word & 0x80)) return (number){word & 0x7f, offset + 1};
  uint64_t ends = ~word & 0x8080808080808080;
  if (ends) {
    uint32_t last_bit = (uint32_t)__builtin_ctzll(ends);
    return (number){fold(word & (ends ^ (ends - 1))), offset + last_bit / 8 + 1};
  }
  uint64_t ninth = load8(offset + 8), tenth = load8(offset + 9);
  uint64_t value = fold(word) | (ninth & 0x7f) << 56;
  if (ninth < 0x80) return (number){value, offset + 9};
  if (tenth >= 0x80) return (number){0, UINT32_MAX};
  return (number){value | tenth << 63, offset + 10};
}

/* Decode the size of bytes and return the offset behind it. Return 0 if they extend beyond the end. */
INLINE number decode_size(uint32_t offset, uint32_t end) {
  number size = decode_varint(offset);
  return size.end > end || size.value > end - size.end ? (number){0, 0} : size;
}

/* Decode the field at an offset in a message that ends at `end`. The slot of field number i is the byte `slots + i`. Fields
   with larger numbers than those in the table have no slot. */
INLINE int32_t decode_field(uint32_t offset, uint32_t end, uint32_t slots, field *result) {
  uint32_t key = load8(offset++), is_large = 0;
  if (key >= 0x80) {
    uint32_t second = load8(offset++);
    key = (key & 0x7f) | (second & 0x7f) << 7;
    if (second >= 0x80) {
      number whole = decode_varint(offset - 2);
      if (whole.value >> 32) return FIELD_NUMBER;
      offset = whole.end;
      key = (uint32_t)whole.value;
      is_large = key >> 3 >= FIELDS;
    }
  }
  result->wire_type = key & 7;
  result->slot = is_large ? 0 : load8(slots + (key >> 3));
  if (result->wire_type == VARINT) {
    number decoded = decode_varint(offset);
    result->value = decoded.value;
    result->end = decoded.end;
  } else if (result->wire_type == DELIMITED) {
    number size = decode_size(offset, end);
    if (!size.end) return OVERRUN;
    result->value = size.end - BUFFER;
    result->end = size.end + (uint32_t)size.value;
  } else if (result->wire_type == FIXED64) {
    result->value = load64(offset);
    result->end = offset + 8;
  } else if (result->wire_type == FIXED32) {
    result->value = load32(offset);
    result->end = offset + 4;
  } else {
    return WIRE_TYPE;
  }
  return result->end > end ? OVERRUN : 0;
}

/* Decode some fields of messages into matrices (field, message) of values, end offsets and presence flags. The value of the
   field whose slot plus 1 is `repeated` begins at the key of its first occurrence and ends with its last one. */
EXPORT(messages) {
  const messages_parameters p = *(messages_parameters *)PARAMETERS;
  const uint64_t *starts = (uint64_t *)p.starts, *stops = (uint64_t *)p.stops;
  uint64_t *values = (uint64_t *)p.values, *ends = (uint64_t *)p.ends;
  uint8_t *present = (uint8_t *)p.present;
  uint32_t *counts = (uint32_t *)COUNTS, *wire_types = (uint32_t *)WIRE_TYPES;
  for (uint32_t row = 0; row < p.rows; row++) {
    if (stops[row] > p.limit || starts[row] > p.limit) return OVERRUN;
    uint32_t end = (uint32_t)stops[row] + BUFFER;
    field f;
    for (uint32_t offset = (uint32_t)starts[row] + BUFFER; offset < end; offset = f.end) {
      int32_t result = decode_field(offset, end, SLOTS, &f);
      if (result) return result;
      if (!f.slot) continue;
      uint32_t slot = f.slot - 1, cell = slot * p.rows + row;
      if (f.slot == p.repeated) {
        if (f.wire_type != DELIMITED) continue;
        if (present[cell]) {
          ends[cell] = f.end - BUFFER;
          continue;
        }
        f.value = offset - BUFFER;
      }
      values[cell] = f.value;
      counts[slot] += !present[cell];
      present[cell] = 1;
      if (f.wire_type == DELIMITED) ends[cell] = f.end - BUFFER;
      wire_types[slot] |= 1u << f.wire_type;
    }
  }
  return 0;
}

/* Decode varints into arrays of their values and lengths in bytes. */
EXPORT(varints) {
  const varints_parameters p = *(varints_parameters *)PARAMETERS;
  const uint64_t *offsets = (uint64_t *)p.offsets;
  uint64_t *values = (uint64_t *)p.values, *lengths = (uint64_t *)p.lengths;
  for (uint32_t i = 0; i < p.rows; i++) {
    if (offsets[i] > p.limit) return OVERRUN;
    number decoded = decode_varint((uint32_t)offsets[i] + BUFFER);
    if (decoded.end == UINT32_MAX) return OVERRUN;
    values[i] = decoded.value;
    lengths[i] = decoded.end - BUFFER - offsets[i];
  }
  return 0;
}

/* Find all occurrences of some length-delimited fields: the number of the message, start and end offsets (32 bits each) and
   slot (8 bits). The progress is the message, the offset of its next field (0: its first) and the number of occurrences. */
EXPORT(occurrences) {
  occurrences_parameters *progress = PARAMETERS;
  const occurrences_parameters p = *progress;
  const uint64_t *starts = (uint64_t *)p.starts, *stops = (uint64_t *)p.stops;
  uint32_t *rows = (uint32_t *)p.rows, *begins = (uint32_t *)p.begins, *ends = (uint32_t *)p.ends;
  uint8_t *slots = (uint8_t *)p.slots;
  uint32_t count = 0, offset = p.offset;
  for (uint32_t row = p.message; row < p.messages; row++, offset = 0) {
    if (stops[row] > p.limit) return OVERRUN;
    uint32_t end = (uint32_t)stops[row] + BUFFER;
    if (!offset) {
      if (starts[row] > p.limit) return OVERRUN;
      offset = (uint32_t)starts[row] + BUFFER;
    }
    field f;
    for (; offset < end; offset = f.end) {
      progress->message = row;
      progress->offset = offset;
      progress->count = count;
      if (count == p.capacity) return FULL;
      int32_t result = decode_field(offset, end, SLOTS, &f);
      if (result) return result;
      if (!f.slot || f.wire_type != DELIMITED) continue;
      rows[count] = row;
      begins[count] = (uint32_t)f.value;
      ends[count] = f.end - BUFFER;
      slots[count] = (uint8_t)(f.slot - 1);
      count++;
    }
  }
  progress->count = count;
  return 0;
}

/* An event, or its payload: its offsets, and its kind. */
typedef struct {
  uint32_t start, stop, kind;
} event;

/* Find the payload of an event. Without one, or if its field or type is out of range, the payload is the whole event, or
   all that could be decoded of it, and its kind is UNKNOWN. */
INLINE int32_t find_payload(event *e) {
  if (load8(e->start) != TYPE_TAG) return 0;
  uint32_t type = load8(e->start + 1), key = e->start + 2;
  if (type >= 0x80) type = (type & 0x7f) | load8(key++) << 7;
  uint32_t tag = load16(key);
  const uint32_t two_bytes = 0x80, second_byte_continues = 0x8000;
  if ((tag & (second_byte_continues | two_bytes | 7)) != (two_bytes | DELIMITED) || key + 3 > e->stop) return 0;
  number size = decode_size(key + 2, e->stop);
  if (!size.end) return EVENT_OVERRUN;
  e->start = size.end;
  e->stop = size.end + (uint32_t)size.value;
  uint32_t payload = (((tag & 0x7f) | (tag >> 1 & 0x3f80)) >> 3) - FIRST_PAYLOAD;
  if (payload < PAYLOADS && type < TYPES) e->kind = payload * TYPES + type;
  return 0;
}

/* Find the entries of blocks of events of an nsys report: the offset and size of the payload (32 bits each) and its kind (16
   bits), and the number of entries of each block. Each entry begins where the one before it ends. The progress is the block,
   the offset in it, the number of entries, and the number of entries of the block. */
EXPORT(entries) {
  entries_parameters *progress = PARAMETERS;
  const entries_parameters p = *progress;
  const uint64_t *edges = (uint64_t *)p.edges;
  uint32_t *starts = (uint32_t *)p.starts, *sizes = (uint32_t *)p.sizes, *bounds = (uint32_t *)p.bounds;
  uint16_t *kinds = (uint16_t *)p.kinds;
  uint32_t count = 0, in_block = p.in_block, skipped = p.offset, block;
  for (block = p.block; block < p.blocks; block++, skipped = in_block = 0) {
    uint32_t begin = (uint32_t)edges[block] + BUFFER, end = (uint32_t)edges[block + 1] + BUFFER;
    for (uint32_t offset = begin + skipped; offset < end;) {
      progress->block = block;
      progress->offset = offset - begin;
      progress->count = count;
      progress->in_block = in_block;
      if (count == p.capacity) return FULL;
      uint32_t tag = load8(offset);
      if ((tag & 0x87) != DELIMITED) return BROKEN_CHAIN;
      number size = decode_size(offset + 1, end);
      if (!size.end) return BROKEN_CHAIN;
      event e = {size.end, size.end + (uint32_t)size.value, UNKNOWN};
      offset = e.stop;
      if (tag == GENERIC_TAG) {
        e.kind = GENERIC;
      } else if (tag == EVENT_TAG) {
        int32_t result = find_payload(&e);
        if (result) return result;
      } else {
        continue;
      }
      if (in_block == p.max_entries) return TOO_MANY;
      starts[count] = e.start - begin;
      sizes[count] = e.stop - e.start;
      kinds[count] = (uint16_t)e.kind;
      count++;
      in_block++;
    }
    bounds[block] = in_block;
  }
  progress->block = block;
  progress->count = count;
  return 0;
}

/* An entry of a hash table of strings: the code plus 1 (0: free), the offset, the size, and the upper half of the hash. */
typedef struct {
  uint32_t number, offset, size, mark;
} entry;

/* Return the entry of a string, or a free one. Return a null pointer if none of TRIES entries is free. */
INLINE entry *find_entry(entry *table, uint32_t mask, uint64_t hash, uint32_t offset, uint32_t size) {
  uint32_t mark = (uint32_t)(hash >> 32), slot = (uint32_t)hash;
  for (uint32_t tries = 0; tries < TRIES; tries++, slot++) {
    entry *e = &table[slot & mask];
    if (!e->number || (e->mark == mark && e->size == size && equal_strings(offset, e->offset, size))) return e;
  }
  return 0;
}

/* Dictionary-encode strings: the code of each string, and the row of the first string with each code (32 bits each). A string
   without a free entry in the hash table gets a new code, even if it has one, so that a file of colliding strings is not read
   more slowly. The progress is the next code, and the number of strings in the hash table. All hashes are computed first,
   because the processor then looks up several strings at a time. */
EXPORT(distinct) {
  distinct_parameters *progress = PARAMETERS;
  const distinct_parameters p = *progress;
  const uint64_t *starts = (uint64_t *)p.starts, *stops = (uint64_t *)p.stops;
  uint64_t *hashes = (uint64_t *)p.hashes;
  uint32_t *codes = (uint32_t *)p.codes, *first_rows = (uint32_t *)p.first_rows;
  uint32_t next_code = p.next_code, used = p.entries;
  for (uint32_t row = 0; row < p.rows; row++) {
    if (stops[row] > p.limit || starts[row] > stops[row]) return OVERRUN;
    hashes[row] = hash_string((uint32_t)starts[row] + BUFFER, (uint32_t)(stops[row] - starts[row]));
  }
  for (uint32_t row = 0; row < p.rows; row++) {
    uint32_t offset = (uint32_t)starts[row] + BUFFER, size = (uint32_t)(stops[row] - starts[row]);
    uint64_t hash = hashes[row];
    entry *e = find_entry((entry *)p.table, p.mask, hash, offset, size);
    if (e && e->number) {
      codes[row] = e->number - 1;
      continue;
    }
    codes[row] = next_code++;
    *first_rows++ = row;
    if (e && used <= p.mask / 2) {
      used++;
      *e = (entry){next_code, offset, size, (uint32_t)(hash >> 32)};
    }
  }
  progress->next_code = next_code;
  progress->entries = used;
  return 0;
}

/* The value of a field of a message. Slot 0 is the type of the message. */
typedef struct {
  uint64_t value;
  uint32_t end, wire_type, stamp, unused;
} cell;

/* A kind of message: its first slot, and the end of the slots with messages in them, which come first. */
typedef struct {
  uint32_t first_slot, end_slot;
} message_kind;

/* A test of a slot by a table of 256 truth values. One test of each clause must hold, the last of which is marked. If
   `needs_bytes` is set, a number counts as absent. */
typedef struct {
  uint32_t slot, truth, needs_bytes, is_last;
} test;

/* A table. A message for which the tests before `filters` hold has a rank. It is a row if the others hold as well. The
   number of the column into which a slot is copied, plus 1, is at `columns_of_slots`. All other columns come first. */
typedef struct {
  uint32_t tests, filters, tests_end, columns, columns_end, columns_of_slots, rows, rank;
} table;

/* A column: the slots of its field and of up to two alternatives, and its arrays. */
typedef struct {
  int64_t default_value;
  uint32_t kind, slots[3], has_default, values, present, count, next, overflow;
} column;

/* The tables, and all that determines how messages are decoded: offsets of arrays of the structs above. */
typedef struct {
  uint32_t kinds, slots, kinds_of_slots, cells, filled_slots, tests, tables, tables_end, columns, repeated, capacity;
  uint32_t filled;
} row_layout;

/* Decode a message, and then the last message in each slot with messages, into cells that get a stamp. A number in such a
   slot is an error in the outermost message, and an unknown field in the others. */
static int32_t decode_cells(row_layout *layout, uint32_t kind, uint32_t offset, uint32_t end, uint32_t stamp) {
  const message_kind *k = (message_kind *)layout->kinds + kind;
  uint32_t slots = layout->slots + kind * FIELDS, repeated = layout->repeated, filled = layout->filled;
  cell *cells = (cell *)layout->cells;
  uint8_t *filled_slots = (uint8_t *)layout->filled_slots;
  field f;
  for (; offset < end; offset = f.end) {
    int32_t result = decode_field(offset, end, slots, &f);
    if (result) return result;
    if (!f.slot) continue;
    cell *c = &cells[f.slot];
    bool is_filled = c->stamp == stamp;
    if (f.slot == repeated) {
      if (f.wire_type != DELIMITED) continue;
      if (is_filled) {
        c->end = f.end - BUFFER;
        continue;
      }
      f.value = offset - BUFFER;
    }
    if (!is_filled) filled_slots[filled++] = (uint8_t)f.slot;
    *c = (cell){f.value, f.end - BUFFER, f.wire_type, stamp, 0};
  }
  layout->filled = filled;
  for (uint32_t slot = k->first_slot; slot < k->end_slot; slot++) {
    const cell *c = &cells[slot];
    if (c->stamp != stamp || (kind && c->wire_type != DELIMITED)) continue;
    if (c->wire_type != DELIMITED) return NUMBER_INSTEAD_OF_BYTES;
    uint32_t inner = load8(layout->kinds_of_slots + slot), start = (uint32_t)c->value + BUFFER;
    int32_t result = decode_cells(layout, inner, start, c->end + BUFFER, stamp);
    if (result) return result;
  }
  return 0;
}

/* Return whether each clause has a test that holds. */
INLINE bool hold_tests(const row_layout *layout, uint32_t first, uint32_t end, uint32_t stamp) {
  const cell *cells = (cell *)layout->cells;
  const test *tests = (test *)layout->tests;
  bool holds = false;
  for (uint32_t i = first; i < end; i++) {
    const cell *c = &cells[tests[i].slot];
    uint32_t value = c->value < OTHER_VALUE ? (uint32_t)c->value : OTHER_VALUE;
    if (c->stamp != stamp || (tests[i].needs_bytes && c->wire_type != DELIMITED)) value = ABSENT;
    holds |= load8(tests[i].truth + value) != 0;
    if (!tests[i].is_last) continue;
    if (!holds) return false;
    holds = false;
  }
  return true;
}

/* Append a value that is present to a column of integers. */
INLINE int32_t append_cell(column *out, const cell *c, uint32_t row) {
  if (c->wire_type == DELIMITED) return BYTES_INSTEAD_OF_NUMBER;
  if (out->kind == INT64) {
    ((uint64_t *)out->values)[row] = c->value;
  } else {
    ((int32_t *)out->values)[row] = (int32_t)c->value;
    out->overflow |= (int64_t)c->value != (int32_t)c->value;
  }
  ((uint8_t *)out->present)[row] = true;
  out->count++;
  return 0;
}

/* Append a value to a column. Bytes are appended as their bounds. Those of absent bytes are empty. */
INLINE int32_t append_value(column *out, const cell *cells, uint32_t row, uint32_t rank, uint32_t stamp) {
  const cell *c = &cells[out->slots[0]];
  for (uint32_t i = 1; c->stamp != stamp && i < 3 && out->slots[i]; i++) c = &cells[out->slots[i]];
  bool present = c->stamp == stamp || out->kind == RANK;
  uint64_t value = rank;
  if (out->kind == BYTES) {
    if (present && c->wire_type != DELIMITED) return NUMBER_INSTEAD_OF_BYTES;
    uint32_t start = present ? (uint32_t)c->value : out->next;
    if (present) out->next = c->end;
    value = start | (uint64_t)out->next << 32;
  } else if (out->kind == CHAIN) {
    value = present ? ++out->next : 0;
  } else if (out->kind != RANK) {
    if (present) return append_cell(out, c, row);
    if (!out->has_default) return 0;
    value = (uint64_t)out->default_value;
    present = true;
  }
  if (out->kind == INT32) {
    ((int32_t *)out->values)[row] = (int32_t)value;
  } else {
    ((uint64_t *)out->values)[row] = value;
  }
  ((uint8_t *)out->present)[row] = present;
  out->count += present;
  return 0;
}

/* Append a row to the columns of a table. */
INLINE int32_t append_row(const row_layout *layout, table *t, uint32_t rank, uint32_t stamp) {
  const cell *cells = (cell *)layout->cells;
  column *columns = (column *)layout->columns;
  uint32_t row = t->rows++, columns_of_slots = t->columns_of_slots, filled_slots = layout->filled_slots;
  for (uint32_t n = t->columns; n < t->columns_end; n++) {
    int32_t result = append_value(&columns[n], cells, row, rank, stamp);
    if (result) return result;
  }
  for (uint32_t i = 0; i < layout->filled; i++) {
    uint32_t slot = load8(filled_slots + i), number = load16(columns_of_slots + 2 * slot);
    if (!number) continue;
    int32_t result = append_cell(&columns[number - 1], &cells[slot], row);
    if (result) return result;
  }
  return 0;
}

/* Decode messages, and append the rows of several tables to the arrays of their columns. The progress is the index of the
   next message and the number of decoded messages. The function stops before a message if a table has no room for another
   row. */
EXPORT(rows) {
  rows_parameters *progress = PARAMETERS;
  const rows_parameters p = *progress;
  row_layout *layout = (row_layout *)p.layout;
  const uint32_t *starts = (uint32_t *)p.starts, *stops = (uint32_t *)p.stops;
  table *tables = (table *)layout->tables, *tables_end = (table *)layout->tables_end;
  cell *cells = (cell *)layout->cells;
  uint32_t stamp = p.stamp;
  bool is_full = false;
  for (table *t = tables; t < tables_end; t++) is_full |= t->rows >= layout->capacity;
  for (uint32_t i = p.message; i < p.messages; i++) {
    progress->message = i;
    progress->stamp = stamp;
    if (is_full) return FULL;
    stamp++;
    if (stops[i] > p.limit || starts[i] > p.limit) return OVERRUN;
    cells[0] = (cell){load8(p.types + i), 0, VARINT, stamp, 0};
    layout->filled = 0;
    int32_t result = decode_cells(layout, 0, starts[i] + BUFFER, stops[i] + BUFFER, stamp);
    if (result) return result;
    for (table *t = tables; t < tables_end; t++) {
      if (!hold_tests(layout, t->tests, t->filters, stamp)) continue;
      uint32_t rank = t->rank++;
      if (!hold_tests(layout, t->filters, t->tests_end, stamp)) continue;
      result = append_row(layout, t, rank, stamp);
      if (result) return result;
      is_full |= t->rows == layout->capacity;
    }
  }
  progress->stamp = stamp;
  return 0;
}
