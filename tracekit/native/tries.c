/* A trie of sequences of 32-bit labels. Nodes are numbered from 1 in order of creation; 0 is the root.
   readers/common/tries.py defines the memory layout. */
#include "layout.h"
#include "strings.h"

/* An entry of the hash table: the parent (upper half) and label of a node, and its number, which is 0 if it is free. */
typedef struct {
  uint64_t key;
  uint32_t node, unused;
} entry;

typedef struct {
  uint32_t count;
  uint32_t *parents, *labels, *depths;
  entry *table;
  uint32_t mask, seed;
} trie;

INLINE uint64_t key_of(uint32_t parent, uint32_t label) { return (uint64_t)parent << 32 | label; }

/* Return the entry with a key, or a free one. */
INLINE entry *find_entry(const trie *t, uint64_t key) {
  uint32_t slot = (uint32_t)(mix(mix(t->seed, key), key) >> 32);
  for (;; slot++) {
    entry *candidate = &t->table[slot & t->mask];
    if (!candidate->node || candidate->key == key) return candidate;
  }
}

/* Return the child of a node with a label, which is created if it does not exist. */
INLINE uint32_t child_of(trie *t, uint32_t parent, uint32_t label) {
  uint64_t key = key_of(parent, label);
  entry *place = find_entry(t, key);
  if (place->node) return place->node;
  uint32_t node = ++t->count;
  place->key = key;
  place->node = node;
  t->parents[node] = parent;
  t->labels[node] = label;
  t->depths[node] = t->depths[parent] + 1;
  return node;
}

/* Add sequences of labels, each from its last label to its first. `edges` are their n + 1 boundaries, and `nodes` receives
   the last node of each sequence. There has to be room for as many nodes as there are labels. */
EXPORT(add) {
  const add_parameters p = *(add_parameters *)PARAMETERS;
  trie *stored = (trie *)STATE, t = *stored;
  const uint32_t *edges = (uint32_t *)p.edges, *labels = (uint32_t *)p.sequence_labels;
  uint32_t *nodes = (uint32_t *)p.nodes;
  for (uint32_t row = 0; row < p.sequences; row++) {
    uint32_t node = 0;
    for (uint32_t i = edges[row + 1]; i > edges[row]; i--) node = child_of(&t, node, labels[i - 1]);
    nodes[row] = node;
  }
  stored->count = t.count;
  return 0;
}

/* Add the nodes of another trie. `nodes` receives the numbers that they have in this one. There has to be room for as many
   nodes. */
EXPORT(merge) {
  const merge_parameters p = *(merge_parameters *)PARAMETERS;
  trie *stored = (trie *)STATE, t = *stored;
  const uint32_t *parents = (uint32_t *)p.other_parents, *labels = (uint32_t *)p.other_labels;
  uint32_t *nodes = (uint32_t *)p.nodes;
  nodes[0] = 0;
  for (uint32_t node = 1; node <= p.others; node++) nodes[node] = child_of(&t, nodes[parents[node]], labels[node]);
  stored->count = t.count;
  return 0;
}

/* Enter all nodes into an empty hash table. */
EXPORT(index) {
  const trie t = *(trie *)STATE;
  for (uint32_t node = 1; node <= t.count; node++) {
    uint64_t key = key_of(t.parents[node], t.labels[node]);
    entry *place = find_entry(&t, key);
    place->key = key;
    place->node = node;
  }
  return 0;
}
