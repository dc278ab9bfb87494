/* Write lines of text, such as events in JSON: lines.py describes the fields of a line, the arrays and the results. */
#include <wasm_simd128.h>

#include "layout.h"
#include "memory.h"

/* Return the decimal digits of a number below 10^8, including leading zeros. The first digit is in the lowest byte. */
INLINE uint64_t eight_digits(uint32_t number) {
  uint64_t fours = number / 10000 | (uint64_t)(number % 10000) << 32;
  uint64_t hundreds = (fours * 10486 >> 20) & UINT64_C(0x7f0000007f);
  uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;
  uint64_t tens = (twos * 103 >> 10) & UINT64_C(0x000f000f000f000f);
  return (tens | (twos - 10 * tens) << 8) | UINT64_C(0x3030303030303030);
}

INLINE uint8_t *write_eight(uint8_t *out, uint32_t number) {
  *(any_uint64 *)out = eight_digits(number);
  return out + 8;
}

INLINE uint8_t *write_below_100_million(uint8_t *out, uint32_t number) {
  if (number < 10) {
    *out = (uint8_t)('0' + number);
    return out + 1;
  }
  uint64_t digits = eight_digits(number);
  uint32_t zeros = (uint32_t)__builtin_ctzll(digits & UINT64_C(0x0f0f0f0f0f0f0f0f)) & ~7u;
  *(any_uint64 *)out = digits >> zeros;
  return out + 8 - zeros / 8;
}

/* Write a number of at most 20 digits. Seven bytes after it may be overwritten, as by all functions that write. */
INLINE uint8_t *write_unsigned(uint8_t *out, uint64_t number) {
  const uint64_t part = 100000000;
  if (number < part) return write_below_100_million(out, (uint32_t)number);
  uint64_t high = number / part;
  if (high < part) {
    out = write_below_100_million(out, (uint32_t)high);
  } else {
    out = write_below_100_million(out, (uint32_t)(high / part));
    out = write_eight(out, (uint32_t)(high % part));
  }
  return write_eight(out, (uint32_t)(number % part));
}

INLINE uint8_t *write_signed(uint8_t *out, int64_t number) {
  if (number >= 0) return write_unsigned(out, (uint64_t)number);
  *out++ = '-';
  return write_unsigned(out, -(uint64_t)number);
}

INLINE uint8_t *write_decimals(uint8_t *out, uint32_t thousandths) {
  *out++ = '.';
  *out++ = (uint8_t)('0' + thousandths / 100);
  *out++ = (uint8_t)('0' + thousandths / 10 % 10);
  *out++ = (uint8_t)('0' + thousandths % 10);
  return out;
}

/* Write a number divided by 1000. The result is exact. */
INLINE uint8_t *write_thousandths(uint8_t *out, int64_t number) {
  uint64_t size = number < 0 ? -(uint64_t)number : (uint64_t)number;
  if (number < 0) *out++ = '-';
  return write_decimals(write_unsigned(out, size / 1000), (uint32_t)(size % 1000));
}

/* Copy text. Fifteen bytes after the text are read, and as many after the copy are overwritten. */
INLINE uint8_t *copy_text(uint8_t *out, const uint8_t *text, uint32_t size) {
  for (uint32_t at = 0; at < size; at += 16) wasm_v128_store(out + at, wasm_v128_load(text + at));
  return out + size;
}

INLINE uint8_t *write_hex(uint8_t *out, uint32_t code) {
  *out++ = '\\';
  *out++ = 'u';
  for (int32_t shift = 12; shift >= 0; shift -= 4) {
    uint32_t digit = code >> shift & 15;
    *out++ = (uint8_t)(digit + (digit < 10 ? '0' : 'a' - 10));
  }
  return out;
}

/* Return whether any of 16 bytes is to be escaped, or begins a character that may be. */
INLINE bool may_need_escape(v128_t bytes) {
  v128_t control = wasm_u8x16_lt(bytes, wasm_i8x16_const_splat(0x20));
  v128_t quote = wasm_i8x16_eq(bytes, wasm_i8x16_const_splat('"'));
  v128_t backslash = wasm_i8x16_eq(bytes, wasm_i8x16_const_splat('\\'));
  v128_t delete = wasm_i8x16_eq(bytes, wasm_i8x16_const_splat(0x7f));
  v128_t separator = wasm_i8x16_eq(bytes, wasm_i8x16_const_splat((int8_t)0xe2));
  v128_t either = wasm_v128_or(wasm_v128_or(control, quote), wasm_v128_or(backslash, delete));
  return wasm_v128_any_true(wasm_v128_or(either, separator));
}

/* Write a JSON string: escape quotes, backslashes, control characters, and U+2028 and U+2029, which end lines. */
INLINE uint8_t *write_string(uint8_t *out, const uint8_t *text, uint32_t size) {
  *out++ = '"';
  uint32_t at = 0;
  while (at < size) {
    v128_t bytes = wasm_v128_load(text + at);
    uint32_t stop = size - at < 16 ? size : at + 16;
    if (!may_need_escape(bytes)) {
      wasm_v128_store(out, bytes);
      out += stop - at;
      at = stop;
    }
    for (; at < stop; at++) {
      uint8_t byte = text[at];
      if (byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7f && byte != 0xe2) {
        *out++ = byte;
      } else if (byte == '"' || byte == '\\') {
        *out++ = '\\';
        *out++ = byte;
      } else if (byte == '\n' || byte == '\r' || byte == '\t') {
        *out++ = '\\';
        *out++ = byte == '\n' ? 'n' : byte == '\r' ? 'r' : 't';
      } else if (byte != 0xe2) {
        out = write_hex(out, byte);
      } else if (at + 2 < size && text[at + 1] == 0x80 && (text[at + 2] | 1) == 0xa9) {
        out = write_hex(out, 0x2000u | (text[at + 2] & 0x3fu));
        at += 2;
      } else {
        *out++ = byte;
      }
    }
  }
  *out++ = '"';
  return out;
}

/* Write rows until the output is full. Return the number of rows, or INVALID if a number, a code or a string lies
   outside of its array. */
EXPORT(lines) {
  lines_parameters *p = PARAMETERS;
  const lines_arrays a = *(const lines_arrays *)ARRAYS;
  uint8_t *out = a.output, *end = a.output + p->output_bytes;
  for (uint32_t row = 0; row < p->rows; row++) {
    uint8_t *line = out;
    uint32_t next;
    for (uint32_t f = 0; f < p->fields; f = next) {
      uint32_t form = a.forms[f], lead = a.leads[f], lead_size = a.leads[f + 1] - lead, size = 0, text = 0;
      uint64_t place = (uint64_t)a.columns[f] * p->rows + row, mask = (uint64_t)a.masks[f] * p->rows + row;
      next = f + 1;
      if (a.masks[f] != NONE) {
        if (mask >= p->flag_count) return INVALID;
        if (!a.flags[mask]) continue;
      }
      if (form == STRING || form == TEXT) {
        if (place >= p->code_count) return INVALID;
        uint32_t code = a.codes[place];
        if (code == NONE) continue;
        if (code >= a.counts[f] || (uint64_t)a.tables[f] + code + 1 >= p->offset_count) return INVALID;
        text = a.offsets[a.tables[f] + code];
        size = a.offsets[a.tables[f] + code + 1] - text;
        if (text > p->text_bytes || size > p->text_bytes - text) return INVALID;
      } else if (form != CONSTANT && place >= p->number_count) {
        return INVALID;
      }
      if ((uint64_t)(end - out) < lead_size + (form == STRING ? 6 : 1) * (uint64_t)size + SLACK) {
        p->size = (uint32_t)(line - a.output);
        return (int32_t)row;
      }
      out = copy_text(out, a.text + lead, lead_size);
      if (form == INTEGER) {
        out = write_signed(out, a.numbers[place]);
      } else if (form == THOUSANDTHS) {
        out = write_thousandths(out, a.numbers[place]);
      } else if (form == STRING) {
        out = write_string(out, a.text + text, size);
      } else if (form == TEXT) {
        out = copy_text(out, a.text + text, size);
      } else if (form == UNSIGNED) {
        out = write_unsigned(out, (uint64_t)a.numbers[place]);
      }
      next = a.nexts[f];
      if (next <= f) return INVALID;
    }
  }
  p->size = (uint32_t)(out - a.output);
  return (int32_t)p->rows;
}
