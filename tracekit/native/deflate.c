/* Compress bytes with deflate (RFC 1951). deflate.py describes the arrays.
   The bytes are divided greedily into tokens: a literal byte, or a match, which is a length and the distance to equal
   bytes before. Each block of tokens has its own Huffman codes. */
#include "layout.h"
#include "memory.h"

enum { END_OF_BLOCK = BYTE_VALUES, FIRST_LENGTH = END_OF_BLOCK + 1, CODE_LENGTHS = 19, DYNAMIC = 2 };
enum { MIN_LENGTH = 3, MIN_MATCH = 4, GOOD_MATCH = 16, WORD_BYTES = 8 };

typedef struct {
  uint64_t bits;
  uint32_t count;
  uint8_t *out;
} stream;

INLINE void put_bits(stream *s, uint64_t bits, uint32_t count) {
  s->bits |= bits << s->count;
  s->count += count;
}

/* Write all whole bytes. At most seven bits remain. */
INLINE void flush_bits(stream *s) {
  *(any_uint64 *)s->out = s->bits;
  s->out += s->count / 8;
  s->bits >>= s->count & ~7u;
  s->count &= 7;
}

/* A length or distance is a symbol and extra bits. With the number of extra bits, the symbol grows in steps: four
   symbols (2 bits) for lengths, and two (1 bit) for distances. */
INLINE uint32_t count_extra_bits(uint32_t number, uint32_t step_bits) {
  return number < (2u << step_bits) ? 0 : 31 - (uint32_t)__builtin_clz(number) - step_bits;
}
INLINE uint32_t find_symbol(uint32_t number, uint32_t extra, uint32_t step_bits) {
  return (extra << step_bits) + (number >> extra);
}

/* Sort the symbols that occur by their counts, and return how many there are. */
INLINE int32_t sort_symbols(uint16_t *sorted, const uint32_t *counts, uint32_t symbols) {
  int32_t size = 0;
  for (uint32_t symbol = 0; symbol < symbols; symbol++) {
    if (!counts[symbol]) continue;
    int32_t place = size++;
    for (; place && counts[sorted[place - 1]] > counts[symbol]; place--) sorted[place] = sorted[place - 1];
    sorted[place] = (uint16_t)symbol;
  }
  return size;
}

INLINE void merge(uint32_t *weights, int32_t size, int32_t next, int32_t *root, int32_t *leaf, uint32_t weight) {
  if (*leaf >= size || (*root < next && weights[*root] < weights[*leaf])) {
    weights[next] = weight + weights[*root];
    weights[(*root)++] = (uint32_t)next;
  } else {
    weights[next] = weight + weights[(*leaf)++];
  }
}

/* Replace at least two ascending weights with the lengths of their Huffman codes (Moffat and Katajainen, 1995). */
INLINE void compute_lengths(uint32_t *weights, int32_t size) {
  int32_t root = 0, leaf = 0;
  for (int32_t next = 0; next < size - 1; next++) {
    merge(weights, size, next, &root, &leaf, 0);
    merge(weights, size, next, &root, &leaf, weights[next]);
  }
  weights[size - 2] = 0;
  for (int32_t next = size - 3; next >= 0; next--) weights[next] = weights[weights[next]] + 1;
  int32_t available = 1, inner = size - 2, next = size - 1;
  for (uint32_t depth = 0; available > 0; depth++) {
    int32_t used = 0;
    for (; inner >= 0 && weights[inner] == depth; inner--) used++;
    for (; available > used; available--) weights[next--] = depth;
    available = 2 * used;
  }
}

/* Choose codes of at most MAX_BITS bits for the symbols that occur. Codes are stored with their first bit lowest. */
static void build_codes(const uint32_t *counts, uint32_t symbols, uint8_t *bits_of, uint16_t *codes) {
  const deflate_arrays *a = ARRAYS;
  int32_t size = sort_symbols(a->sorted, counts, symbols), place = 0;
  uint32_t total = 0, code = 0;
  for (int32_t n = 0; n < size; n++) a->weights[n] = counts[a->sorted[n]];
  compute_lengths(a->weights, size);
  for (uint32_t bits = 0; bits <= MAX_BITS; bits++) a->lengths[bits] = 0;
  for (int32_t n = 0; n < size; n++) {
    uint32_t bits = a->weights[n] < MAX_BITS ? a->weights[n] : MAX_BITS;
    a->lengths[bits]++;
    total += 1u << (MAX_BITS - bits);
  }
  for (; total > 1u << MAX_BITS; total--) {
    uint32_t bits = MAX_BITS - 1;
    while (!a->lengths[bits]) bits--;
    a->lengths[MAX_BITS]--;
    a->lengths[bits]--;
    a->lengths[bits + 1] += 2;
  }
  for (uint32_t symbol = 0; symbol < symbols; symbol++) bits_of[symbol] = 0;
  for (uint32_t bits = MAX_BITS; bits; bits--)
    for (uint32_t n = a->lengths[bits]; n; n--) bits_of[a->sorted[place++]] = (uint8_t)bits;
  for (uint32_t bits = 1; bits <= MAX_BITS; bits++, code <<= 1) {
    for (uint32_t symbol = 0; symbol < symbols; symbol++) {
      if (bits_of[symbol] != bits) continue;
      codes[symbol] = 0;
      for (uint32_t bit = 0; bit < bits; bit++) codes[symbol] |= (code >> bit & 1) << (bits - 1 - bit);
      code++;
    }
  }
}

/* Write the lengths of codes. The symbols for lengths from 0 to 15 have codes of four bits. */
INLINE void put_lengths(stream *s, const uint8_t *bits_of, uint32_t symbols) {
  for (uint32_t symbol = 0; symbol < symbols; symbol++) {
    uint32_t bits = bits_of[symbol];
    put_bits(s, (bits & 1) << 3 | (bits & 2) << 1 | (bits & 4) >> 1 | bits >> 3, 4);
    flush_bits(s);
  }
}

INLINE void put_number(stream *s, uint32_t number, uint32_t step_bits, const uint8_t *bits_of, const uint16_t *codes) {
  uint32_t extra = count_extra_bits(number, step_bits), symbol = find_symbol(number, extra, step_bits);
  put_bits(s, codes[symbol], bits_of[symbol]);
  put_bits(s, number & ((1u << extra) - 1), extra);
}

INLINE void put_block(stream *s, const deflate_arrays *a, uint32_t tokens) {
  build_codes(a->symbol_counts, SYMBOLS, a->symbol_lengths, a->symbol_codes);
  build_codes(a->distance_counts, DISTANCES, a->distance_lengths, a->distance_codes);
  put_bits(s, DYNAMIC << 1 | (SYMBOLS - FIRST_LENGTH) << 3 | (DISTANCES - 1) << 8 | (CODE_LENGTHS - 4) << 13, 17);
  for (uint32_t n = 0; n < CODE_LENGTHS; n++) {
    put_bits(s, n < 3 ? 0 : 4, 3);
    flush_bits(s);
  }
  put_lengths(s, a->symbol_lengths, SYMBOLS);
  put_lengths(s, a->distance_lengths, DISTANCES);
  for (uint32_t n = 0; n < tokens; n++) {
    uint32_t value = a->tokens[n] & UINT16_MAX;
    if (value < FIRST_LENGTH) {
      put_bits(s, a->symbol_codes[value], a->symbol_lengths[value]);
    } else {
      put_number(s, value - FIRST_LENGTH, 2, a->symbol_lengths + FIRST_LENGTH, a->symbol_codes + FIRST_LENGTH);
      put_number(s, a->tokens[n] >> 16, 1, a->distance_lengths, a->distance_codes);
    }
    flush_bits(s);
  }
  put_bits(s, a->symbol_codes[END_OF_BLOCK], a->symbol_lengths[END_OF_BLOCK]);
  flush_bits(s);
}

INLINE uint32_t load_word(const uint8_t *at) { return *(const any_uint32 *)at; }

INLINE uint32_t count_equal_bytes(const uint8_t *one, const uint8_t *other, uint32_t most) {
  uint32_t size = 0;
  for (; size + WORD_BYTES <= most; size += WORD_BYTES) {
    uint64_t differ = *(const any_uint64 *)(one + size) ^ *(const any_uint64 *)(other + size);
    if (differ) return size + (uint32_t)__builtin_ctzll(differ) / 8;
  }
  while (size < most && one[size] == other[size]) size++;
  return size;
}

/* Extend the best match of the bytes at an offset if those at a distance before have more bytes in common. */
INLINE void try_distance(const uint8_t *at, uint32_t candidate, uint32_t most, uint32_t *length, uint32_t *distance) {
  if (*length >= GOOD_MATCH || candidate > WINDOW || load_word(at) != load_word(at - candidate)) return;
  uint32_t size = count_equal_bytes(at, at - candidate, most);
  if (size <= *length) return;
  *length = size;
  *distance = candidate;
}

/* Divide bytes from an offset into the tokens of a block, count their symbols, and return the next offset. Each hash of
   four bytes has two heads: the end of the first byte at its last two occurrences, or 0. */
INLINE uint32_t parse_block(const deflate_arrays *a, const uint32_t begin, const uint32_t size, uint32_t *tokens) {
  const uint8_t *in = a->input;
  uint32_t offset = begin, last = 0, count = 0;
  for (; offset < size && count < BLOCK_TOKENS; count++) {
    uint32_t length = 0, distance = 0, most = size - offset < MAX_MATCH ? size - offset : MAX_MATCH;
    if (most >= MIN_MATCH) {
      uint32_t *head = a->heads + 2 * ((load_word(in + offset) * (uint32_t)HASH_FACTOR) >> (32 - HASH_BITS));
      uint32_t first = head[0], second = head[1];
      head[0] = offset + 1;
      if (last) try_distance(in + offset, last, most, &length, &distance);
      if (first && length < GOOD_MATCH) {
        head[1] = first;
        try_distance(in + offset, offset + 1 - first, most, &length, &distance);
        if (second) try_distance(in + offset, offset + 1 - second, most, &length, &distance);
      }
    }
    if (length < MIN_MATCH) {
      uint32_t literal = in[offset++];
      a->tokens[count] = literal;
      a->symbol_counts[literal]++;
      continue;
    }
    uint32_t extra = count_extra_bits(length - MIN_LENGTH, 2);
    a->symbol_counts[FIRST_LENGTH + find_symbol(length - MIN_LENGTH, extra, 2)]++;
    extra = count_extra_bits(distance - 1, 1);
    a->distance_counts[find_symbol(distance - 1, extra, 1)]++;
    a->tokens[count] = (distance - 1) << 16 | (FIRST_LENGTH + length - MIN_LENGTH);
    offset += length;
    last = distance;
  }
  *tokens = count;
  return offset;
}

/* Compress bytes to blocks that end at a byte boundary, and return their size, or 0 if they exceed the capacity. */
EXPORT(deflate) {
  const deflate_parameters p = *(const deflate_parameters *)PARAMETERS;
  const deflate_arrays a = *(const deflate_arrays *)ARRAYS;
  stream s = {0, 0, a.output};
  for (uint32_t n = 0; n < 2u << HASH_BITS; n++) a.heads[n] = 0;
  for (uint32_t offset = 0, tokens = 0; offset < p.size;) {
    if (p.capacity - (uint32_t)(s.out - a.output) < SLACK) return 0;
    for (uint32_t n = 0; n < SYMBOLS; n++) a.symbol_counts[n] = n == END_OF_BLOCK || !n;
    for (uint32_t n = 0; n < DISTANCES; n++) a.distance_counts[n] = n < 2;
    offset = parse_block(&a, offset, p.size, &tokens);
    put_block(&s, &a, tokens);
  }
  put_bits(&s, 0, 3);
  if (s.count % 8) put_bits(&s, 0, 8 - s.count % 8);
  flush_bits(&s);
  put_bits(&s, (uint64_t)UINT16_MAX << 16, 32);
  flush_bits(&s);
  return (int32_t)(s.out - a.output);
}
