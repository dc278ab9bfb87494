/* Encode messages of Perfetto traces. exporters/perfetto/wire.py describes the arrays.
   A field is a prefix, which is chosen by number, and a value. Strings of bytes are copied in words of sixteen bytes, so
   up to fifteen bytes after a string are overwritten. Sizes are padded varints, which have the same width in all
   messages of a batch. */
#include "layout.h"
#include "memory.h"

enum { CONTINUES = 128, DIGIT_BITS = 7, MAX_DIGITS = 10, NUMBER_BYTES = 8 };

/* What the functions `fragments` and `events` share. The prefixes of a field begin with `first_prefixes`. Each message
   chooses one of them, counted from 1, or 0 if the message does not have the field. */
typedef struct {
  const uint8_t *prefixes, *prefix_sizes, *length_positions, *is_fixed, *choices;
  const uint32_t *first_prefixes;
  const uint64_t *values;
  uint32_t prefix_count, fields, rows;
} fields;

INLINE void copy16(uint8_t *to, const uint8_t *from) { __builtin_memcpy(to, from, 16); }

INLINE uint8_t *put_bytes(uint8_t *out, const uint8_t *from, uint32_t size) {
  for (uint32_t at = 0; at < size; at += 16) copy16(out + at, from + at);
  return out + size;
}

INLINE uint8_t *put_varint(uint8_t *out, uint64_t value) {
  for (; value >= CONTINUES; value >>= DIGIT_BITS) *out++ = (uint8_t)(value | CONTINUES);
  *out++ = (uint8_t)value;
  return out;
}

INLINE uint8_t *put_padded(uint8_t *out, uint64_t value, uint32_t width) {
  for (; width > 1; width--, value >>= DIGIT_BITS) *out++ = (uint8_t)(value | CONTINUES);
  *out++ = (uint8_t)value & (CONTINUES - 1);
  return out;
}

INLINE uint32_t count_digits(uint64_t value) {
  uint32_t digits = 1;
  while (value >>= DIGIT_BITS) digits++;
  return digits;
}

INLINE uint8_t *put_prefix(uint8_t *out, const uint8_t *prefixes, const uint8_t *sizes, uint32_t number) {
  copy16(out, prefixes + number * PREFIX_BYTES);
  return out + sizes[number];
}

/* Return whether the lengths of prefixes are valid, and all fields of all messages have values. */
INLINE bool are_valid(const fields *f, uint32_t places) {
  for (uint32_t number = 0; number < f->prefix_count; number++)
    if (f->prefix_sizes[number] > PREFIX_BYTES || f->length_positions[number] >= PREFIX_BYTES) return false;
  return (uint64_t)f->fields * f->rows <= places;
}

/* Return the number of bytes that a message may need for its fields. */
INLINE uint64_t bound_fields(const fields *f) { return (uint64_t)f->fields * (PREFIX_BYTES + MAX_DIGITS) + PREFIX_BYTES; }

/* Write the fields of a message, and return the end of the message, or null if the number of a prefix is invalid. */
INLINE uint8_t *put_fields(uint8_t *out, const fields *f, uint32_t row) {
  for (uint32_t field = 0; field < f->fields; field++) {
    uint32_t place = field * f->rows + row;
    if (!f->choices[place]) continue;
    uint32_t number = f->first_prefixes[field] + f->choices[place] - 1;
    if (number >= f->prefix_count) return 0;
    uint64_t value = f->values[place];
    uint8_t *begin = out;
    out = put_prefix(out, f->prefixes, f->prefix_sizes, number);
    if (f->is_fixed[number]) {
      *(any_uint64 *)out = value;
      out += NUMBER_BYTES;
    } else {
      uint8_t *digits = out;
      out = put_varint(out, value);
      if (f->length_positions[number]) begin[f->length_positions[number]] += (uint8_t)(out - digits);
    }
  }
  return out;
}

/* Write the messages one after the other, without their sizes, and the end of each message. */
EXPORT(fragments) {
  const fragments_parameters p = *(const fragments_parameters *)PARAMETERS;
  const fragments_arrays a = *(const fragments_arrays *)ARRAYS;
  const fields f = {a.prefixes, a.prefix_sizes, a.length_positions, a.is_fixed, a.choices,
                    a.first_prefixes, a.values, p.prefix_count, p.fields, p.rows};
  uint8_t *out = a.output, *const end = a.output + p.capacity;
  if (!are_valid(&f, p.places)) return INVALID_PREFIX;
  for (uint32_t row = 0; row < p.rows; row++) {
    if ((uint64_t)(end - out) < bound_fields(&f)) return FULL;
    out = put_fields(out, &f, row);
    if (!out) return INVALID_PREFIX;
    a.ends[row] = (uint32_t)(out - a.output);
  }
  return DONE;
}

/* Write one packet per event, with sizes of the given widths, and set the parameters to the widths that are needed. */
INLINE int32_t put_packets(events_parameters *shared, uint32_t event_width, uint32_t packet_width) {
  const events_parameters p = *shared;
  const events_arrays a = *(const events_arrays *)ARRAYS;
  const fields f = {a.prefixes, a.prefix_sizes, a.length_positions, a.is_fixed, a.choices,
                    a.first_prefixes, a.values, p.prefix_count, p.fields, p.rows};
  uint8_t *out = a.output, *const end = a.output + p.capacity;
  uint32_t flow = 0, largest_event = 0, largest_rest = 0;
  if (!are_valid(&f, p.places) || p.prefix_count < FIELD_PREFIXES) return INVALID_PREFIX;
  const uint64_t bound = bound_fields(&f) + 4 * (PREFIX_BYTES + MAX_DIGITS);
  for (uint32_t row = 0; row < p.rows; row++) {
    uint32_t code = a.codes[row];
    if (code >= p.fragments) return INVALID_CODE;
    uint32_t first = a.offsets[code], stop = a.offsets[code + 1];
    if (first > stop || stop > p.fragment_bytes) return INVALID_CODE;
    if ((uint64_t)(end - out) < bound + (stop - first)) return FULL;
    uint8_t *packet_size = put_prefix(out, a.prefixes, a.prefix_sizes, PACKET);
    uint8_t *packet = packet_size + packet_width;
    uint8_t *event_size = put_bytes(packet, a.lead, p.lead_size);
    uint8_t *event = event_size + event_width;
    out = put_fields(event, &f, row);
    if (!out) return INVALID_PREFIX;
    out = put_bytes(out, a.fragments + first, stop - first);
    for (; flow < p.flows && a.flow_rows[flow] == row; flow++) {
      if ((uint64_t)(end - out) < 4 * (PREFIX_BYTES + MAX_DIGITS)) return FULL;
      out = put_prefix(out, a.prefixes, a.prefix_sizes, FLOW);
      *(any_uint64 *)out = a.flow_ids[flow];
      out += NUMBER_BYTES;
    }
    uint32_t size = (uint32_t)(out - event);
    put_padded(event_size, size, event_width);
    out = put_prefix(out, a.prefixes, a.prefix_sizes, TIMESTAMP);
    out = put_varint(out, (uint64_t)a.times[row + 1] - (uint64_t)a.times[row]);
    uint32_t rest = (uint32_t)(out - event);
    put_padded(packet_size, (uint32_t)(out - packet), packet_width);
    if (size > largest_event) largest_event = size;
    if (rest > largest_rest) largest_rest = rest;
  }
  if (flow < p.flows) return INVALID_FLOW;
  shared->size = (uint32_t)(out - a.output);
  shared->event_width = count_digits(largest_event);
  shared->packet_width = count_digits((uint64_t)p.lead_size + shared->event_width + largest_rest);
  return DONE;
}

/* Write the packets again unless the widths, which the caller guesses, are those that are needed. */
EXPORT(events) {
  events_parameters *p = PARAMETERS;
  for (;;) {
    uint32_t event_width = p->event_width, packet_width = p->packet_width;
    if (event_width - 1 >= MAX_DIGITS || packet_width - 1 >= MAX_DIGITS || p->lead_size > PREFIX_BYTES) return FULL;
    int32_t result = put_packets(p, event_width, packet_width);
    if (result || (p->event_width == event_width && p->packet_width == packet_width)) return result;
  }
}

/* Write the entries of a string table with consecutive ids. All sizes and ids have the given widths. */
EXPORT(strings) {
  strings_parameters *p = PARAMETERS;
  const strings_arrays a = *(const strings_arrays *)ARRAYS;
  const uint32_t id_width = p->id_width, size_width = p->size_width, entry_width = p->entry_width;
  if (id_width - 1 >= MAX_DIGITS || size_width - 1 >= MAX_DIGITS || entry_width - 1 >= MAX_DIGITS) return FULL;
  uint8_t *out = a.output, *const end = a.output + p->capacity;
  for (uint32_t row = 0; row < p->rows; row++) {
    uint32_t first = a.offsets[row], stop = a.offsets[row + 1], size = stop - first;
    if (first > stop || stop > p->text_bytes) return INVALID_CODE;
    if ((uint64_t)(end - out) < 4 * (PREFIX_BYTES + MAX_DIGITS) + (uint64_t)size) return FULL;
    uint64_t heads = a.prefix_sizes[ID] + id_width + a.prefix_sizes[TEXT] + size_width;
    out = put_prefix(out, a.prefixes, a.prefix_sizes, ENTRY);
    out = put_padded(out, heads + size, entry_width);
    out = put_prefix(out, a.prefixes, a.prefix_sizes, ID);
    out = put_padded(out, p->first_id + (uint64_t)row, id_width);
    out = put_prefix(out, a.prefixes, a.prefix_sizes, TEXT);
    out = put_padded(out, size, size_width);
    out = put_bytes(out, a.text + first, size);
  }
  p->size = (uint32_t)(out - a.output);
  return DONE;
}
