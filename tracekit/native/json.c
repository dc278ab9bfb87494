/* Parse JSON objects. readers/common/json/scanner.py defines the memory layout, the keys, the types of cells and the results.
   The value of each registered key of an object is stored in the cell of the key's slot and the object's row. Bytes 1 to 32
   count as white space; 0 ends the input. */
#include "layout.h"
#include "strings.h"

typedef uint8_t bytes16 __attribute__((vector_size(16), aligned(1), may_alias));

/* An entry of the hash table of keys: the hash and size of the key, and the slot plus 1 with its flags (0: free). */
typedef struct {
  uint64_t hash;
  uint32_t size, slot;
} key;

/* The open brackets before an offset, and whether the offset is inside a string. */
typedef struct {
  int32_t depth;
  bool in_string;
} nesting;

INLINE bytes16 load_bytes(uint32_t offset) { return *(const bytes16 *)offset; }
INLINE uint32_t bit_mask(bytes16 is_match) { return (uint32_t)__builtin_wasm_bitmask_i8x16((signed char __attribute__((vector_size(16))))is_match); }
INLINE bool is_bracket(uint32_t byte, char curly) { return (byte | 0x20) == (uint32_t)curly; }

INLINE uint32_t skip_space(uint32_t offset) {
  while (load8(offset) - 1 < 32) offset++;
  return offset;
}

/* Return the offset of the quote that ends a string. If the input ends before it, return an offset at or beyond the end. */
static uint32_t find_quote(uint32_t offset, uint32_t end) {
  while (offset < end) {
    bytes16 bytes = load_bytes(offset);
    uint32_t matches = bit_mask((bytes16)(bytes == '"') | (bytes16)(bytes == '\\'));
    if (!matches) {
      offset += 16;
      if (offset > end) return end;
      continue;
    }
    offset += (uint32_t)__builtin_ctz(matches);
    if (load8(offset) == '"') return offset;
    offset += 2;
  }
  return offset;
}

/* Skip the rest of an array or object. Return the offset of its end. If the input ends before it, return an offset at or
   beyond the end of the input. All brackets in 16 bytes are counted at once, up to the next string. */
INLINE uint32_t skip_nested(uint32_t offset, uint32_t end, nesting *n) {
  bool in_string = n->in_string;
  int32_t depth = n->depth;
  while (offset < end) {
    if (in_string) {
      offset = find_quote(offset, end);
      if (offset >= end) break;
      in_string = false;
      offset++;
      if (depth <= 0) break;
    }
    bytes16 bytes = load_bytes(offset), curly = bytes | 0x20;
    uint32_t matches = bit_mask((bytes16)(bytes == '"') | (bytes16)(curly == '{') | (bytes16)(curly == '}'));
    uint32_t next = offset + 16 > end ? end : offset + 16;
    for (; matches; matches &= matches - 1) {
      uint32_t place = offset + (uint32_t)__builtin_ctz(matches), byte = load8(place);
      if (byte == '"') {
        in_string = true;
        next = place + 1;
        break;
      }
      depth += is_bracket(byte, '{') ? 1 : -1;
      if (depth <= 0) {
        n->depth = depth;
        n->in_string = false;
        return place + 1;
      }
    }
    offset = next;
  }
  n->depth = depth;
  n->in_string = in_string;
  return offset;
}

/* Return whether a byte can follow a value: a comma, a closing bracket, white space, or the end of the input. */
INLINE bool can_follow_value(uint32_t byte) { return byte <= 32 || byte == ',' || is_bracket(byte, '}'); }

/* Skip a value. Return the offset of its end, or the end of the input if the value is incomplete. */
static uint32_t skip_value(uint32_t offset, uint32_t end) {
  uint32_t byte = load8(offset);
  if (byte == '"') {
    offset = find_quote(offset + 1, end);
    return offset >= end ? end : offset + 1;
  }
  if (is_bracket(byte, '{')) {
    nesting n = {0, false};
    offset = skip_nested(offset, end, &n);
    return n.depth > 0 || n.in_string ? end : offset;
  }
  while (!can_follow_value(load8(offset))) offset++;
  return offset;
}

/* Return the dictionary code of a string, or -1 if there are too many strings. Equal strings have the same code, unless
   MAX_PROBES entries of the hash table are occupied by other strings. */
static int32_t code_of(uint32_t offset, uint32_t size, objects_parameters *p) {
  uint32_t *table = (uint32_t *)STRING_TABLE, *starts = (uint32_t *)STRING_STARTS, *sizes = (uint32_t *)STRING_SIZES;
  uint64_t *hashes = (uint64_t *)STRING_HASHES;
  uint64_t hash = hash_string(offset, size);
  uint32_t place = (uint32_t)hash & STRING_TABLE_MASK, probes = 0;
  for (; probes < MAX_PROBES && table[place]; probes++, place = (place + 1) & STRING_TABLE_MASK) {
    uint32_t code = table[place] - 1;
    if (hashes[code] == hash && sizes[code] == size && equal_strings(offset, starts[code], size)) return (int32_t)code;
  }
  uint32_t code = p->strings;
  if (code >= MAX_STRINGS) return -1;
  p->strings = code + 1;
  if (probes < MAX_PROBES) table[place] = code + 1;
  hashes[code] = hash;
  starts[code] = offset;
  sizes[code] = size;
  return (int32_t)code;
}

/* Return the slot of a key plus 1, with its flags, or 0 if the key is not registered. */
INLINE uint32_t slot_of(uint32_t offset, uint32_t size, uint32_t level) {
  const key *keys = (key *)KEYS;
  uint64_t hash = hash_string(offset, size) ^ level;
  for (uint32_t i = (uint32_t)hash & KEY_MASK;; i = (i + 1) & KEY_MASK) {
    if (!keys[i].slot) return 0;
    if (keys[i].hash == hash && keys[i].size == size) return keys[i].slot;
  }
}

/* Store a value and its type in the cell of a slot and row. */
INLINE void store(uint32_t slot, uint32_t row, uint64_t value, uint32_t type) {
  uint32_t cell = slot * ROWS + row;
  ((uint64_t *)CELLS)[cell] = value;
  ((uint8_t *)TYPES)[cell] = (uint8_t)type;
}

/* Store the dictionary code of a string in a cell. Return false if there are too many strings. */
INLINE bool store_string(uint32_t slot, uint32_t row, uint32_t offset, uint32_t size, uint32_t type, objects_parameters *p) {
  int32_t code = code_of(offset, size, p);
  if (code < 0) return false;
  store(slot, row, (uint64_t)code, type);
  return true;
}

INLINE uint32_t digit_at(uint32_t offset) { return load8(offset) - '0'; }

/* Store a number in a cell. Return the offset of its end, or 0 if the number cannot be parsed here. The caller then stores
   its JSON text. */
INLINE uint32_t store_number(uint32_t slot, uint32_t row, bool in_thousandths, uint32_t offset) {
  uint64_t value = 0, unit = 1;
  uint32_t digit;
  bool is_negative = load8(offset) == '-';
  offset += is_negative;
  uint32_t first = offset;
  for (; (digit = digit_at(offset)) < 10; offset++) value = 10 * value + digit;
  if (offset - first - 1 >= 18) return 0;
  if (in_thousandths) {
    if (value > UINT64_C(9000000000000000)) return 0;
    value *= 1000;
    unit = 1000;
  }
  if (load8(offset) == '.') {
    bool is_first_left_out = true;
    for (offset++; (digit = digit_at(offset)) < 10; offset++) {
      if (unit > 1) {
        unit /= 10;
        value += unit * digit;
      } else if (!in_thousandths) {
        if (digit) return 0;
      } else if (is_first_left_out) {
        value += digit >= 5;
        is_first_left_out = false;
      }
    }
  }
  if (!can_follow_value(load8(offset))) return 0;
  store(slot, row, is_negative ? -value : value, NUMBER);
  return offset;
}

/* Store a value in a cell. Return the offset of its end, the end of the input if the value is incomplete, or 0 if there are
   too many strings. */
INLINE uint32_t store_value(uint32_t slot, uint32_t flags, uint32_t row, uint32_t offset, uint32_t end, objects_parameters *p) {
  uint32_t byte = load8(offset);
  if (byte == '"') {
    uint32_t stop = find_quote(++offset, end);
    if (stop >= end) return end;
    return store_string(slot, row, offset, stop - offset, STRING, p) ? stop + 1 : 0;
  }
  if (!(flags & AS_STRING) && (byte == '-' || byte - '0' < 10)) {
    uint32_t stop = store_number(slot, row, flags & THOUSANDTHS, offset);
    if (stop) return stop;
  }
  uint32_t stop = skip_value(offset, end);
  if (stop >= end) return end;
  return store_string(slot, row, offset, stop - offset, OTHER, p) ? stop : 0;
}

/* Parse one object, beginning at its first key. Return the offset of its end, 1 if it is incomplete, or 0 if it is invalid.
   Slot 0 receives the range of the nested object whose members are parsed as well: the start offset, and the end offset in the
   upper 32 bits. */
static uint32_t parse_object(uint32_t offset, uint32_t end, uint32_t row, objects_parameters *p) {
  uint32_t level = 0, nested = 0, byte;
  do {
    p->examined = offset;
    offset = skip_space(offset);
    if (offset >= end) return 1;
    byte = load8(offset);
    if (byte == '}') {
      offset++;
      if (!level) return offset;
      level = 0;
      store(0, row, nested | (uint64_t)offset << 32, NUMBER);
    } else {
      if (byte != '"') return 0;
      uint32_t stop = find_quote(++offset, end);
      if (stop >= end) return 1;
      uint32_t slot = slot_of(offset, stop - offset, level);
      offset = skip_space(stop + 1);
      if (offset >= end) return 1;
      if (load8(offset) != ':') return 0;
      offset = skip_space(offset + 1);
      if (offset >= end) return 1;
      if (slot == 1 && load8(offset) == '{') {
        nested = offset++;
        level = 1;
        byte = ',';
        continue;
      }
      uint32_t start = offset;
      uint32_t number = slot & SLOT_MASK;
      offset = number > 1 ? store_value(number - 1, slot, row, offset, end, p) : skip_value(offset, end);
      if (offset <= start) return 0;
    }
    offset = skip_space(offset);
    if (offset >= end) return 1;
    byte = load8(offset);
    offset += byte == ',';
  } while (byte == ',' || byte == '}');
  return 0;
}

/* Parse objects. The offset of the next object and the numbers of rows and strings are updated. If an object is invalid,
   `examined` is the offset up to which it was examined. */
EXPORT(objects) {
  objects_parameters *p = PARAMETERS;
  const uint32_t end = p->end, max_rows = p->max_rows;
  uint32_t row = p->rows, offset = p->offset, stop;
  for (;; row++, offset = stop) {
    offset = skip_space(offset);
    if (load8(offset) == ',') offset = skip_space(offset + 1);
    p->offset = offset;
    p->rows = row;
    if (offset >= end) return MORE;
    if (load8(offset) == ']') {
      p->offset = offset + 1;
      return ENDED;
    }
    if (load8(offset) != '{') return INVALID;
    if (row >= max_rows || p->strings > ENOUGH_STRINGS) return FULL;
    stop = parse_object(offset + 1, end, row, p);
    if (stop <= offset) break;
  }
  for (uint32_t slot = 0; slot < SLOTS; slot++) ((uint8_t *)TYPES)[slot * ROWS + row] = MISSING;
  return stop ? MORE : INVALID;
}

/* Skip the rest of an array or object. Return 0 if its end was found, or 1 if the input ends before it. */
EXPORT(skip) {
  skip_parameters *p = PARAMETERS;
  nesting n = {(int32_t)p->depth, p->in_string};
  p->offset = skip_nested(p->offset, p->end, &n);
  p->depth = (uint32_t)n.depth;
  p->in_string = n.in_string;
  return n.depth > 0 || n.in_string;
}

/* Compute the hash of a key (64 bits). */
EXPORT(hash) {
  const hash_parameters p = *(hash_parameters *)PARAMETERS;
  *(uint64_t *)p.output = hash_string(p.offset, p.size) ^ p.level;
  return 0;
}

/* Concatenate ranges of bytes, and store the end of each in the output. A range is a start offset, and an end offset in the
   upper 32 bits. Return the size of the output. */
EXPORT(gather) {
  const gather_parameters p = *(gather_parameters *)PARAMETERS;
  const uint64_t *ranges = (uint64_t *)p.ranges;
  uint32_t *ends = (uint32_t *)p.ends, size = 0;
  for (uint32_t i = 0; i < p.count; i++) {
    uint32_t start = (uint32_t)ranges[i], length = (uint32_t)(ranges[i] >> 32) - start;
    __builtin_memcpy((uint8_t *)p.output + size, (const uint8_t *)start, length);
    ends[i] = size += length;
  }
  return (int32_t)size;
}
