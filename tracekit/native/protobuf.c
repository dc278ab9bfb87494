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

/* Decode the field at an offset in a message that ends at `end`. */
INLINE int32_t decode_field(uint32_t offset, uint32_t end, field *result) {
  uint32_t key = load8(offset++);
  if (key >= 0x80) {
    uint32_t second = load8(offset++);
    if (second >= 0x80) return FIELD_NUMBER;
    key = (key & 0x7f) | second << 7;
  }
  result->wire_type = key & 7;
  result->slot = load8(SLOTS + (key >> 3));
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
      int32_t result = decode_field(offset, end, &f);
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
      int32_t result = decode_field(offset, end, &f);
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
   more slowly. The progress is the next code, and the number of strings in the hash table. */
EXPORT(distinct) {
  distinct_parameters *progress = PARAMETERS;
  const distinct_parameters p = *progress;
  const uint64_t *starts = (uint64_t *)p.starts, *stops = (uint64_t *)p.stops;
  uint32_t *codes = (uint32_t *)p.codes, *first_rows = (uint32_t *)p.first_rows;
  uint32_t next_code = p.next_code, used = p.entries;
  for (uint32_t row = 0; row < p.rows; row++) {
    if (stops[row] > p.limit || starts[row] > stops[row]) return OVERRUN;
    uint32_t offset = (uint32_t)starts[row] + BUFFER, size = (uint32_t)(stops[row] - starts[row]);
    uint64_t hash = hash_string(offset, size);
    entry *e = find_entry((entry *)p.table, p.mask, hash, offset, size);
    if (e && e->number) {
      codes[row] = e->number - 1;
      continue;
    }
    codes[row] = next_code++;
    *first_rows++ = row;
    if (e && used < p.max_entries) {
      used++;
      *e = (entry){next_code, offset, size, (uint32_t)(hash >> 32)};
    }
  }
  progress->next_code = next_code;
  progress->entries = used;
  return 0;
}
