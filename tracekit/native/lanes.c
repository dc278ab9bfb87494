/* Find overlapping slices of tracks, and assign them to lanes: lanes.py describes the arrays, the rules and the results.
   The open slices of a track form a heap of nodes, ordered by end. Of equal ends, the slice that began last is first. */
#include "layout.h"
#include "memory.h"

/* Return whether a slice ends before another one. Nodes are numbered from 1, and 0 is no node. */
INLINE bool ends_before(const lanes_arrays *a, uint32_t one, uint32_t other) {
  if (a->node_ends[one] != a->node_ends[other]) return a->node_ends[one] < a->node_ends[other];
  return a->node_rows[one] > a->node_rows[other];
}

/* Merge two heaps, and return the root. The siblings of roots are ignored. */
INLINE uint32_t merge(const lanes_arrays *a, uint32_t one, uint32_t other) {
  if (one == 0 || other == 0) return one | other;
  uint32_t root = ends_before(a, one, other) ? one : other, child = one ^ other ^ root;
  a->siblings[child] = a->children[root];
  a->children[root] = child;
  return root;
}

/* Remove the root of a heap, and return the new root: merge its children in pairs, and then the pairs. */
INLINE uint32_t remove_root(const lanes_arrays *a, uint32_t root) {
  uint32_t child = a->children[root], pairs = 0, rest = 0;
  while (child) {
    uint32_t second = a->siblings[child], next = second ? a->siblings[second] : 0;
    uint32_t pair = merge(a, child, second);
    a->siblings[pair] = pairs;
    pairs = pair;
    child = next;
  }
  while (pairs) {
    uint32_t next = a->siblings[pairs];
    rest = merge(a, rest, pairs);
    pairs = next;
  }
  a->siblings[root] = a->state[FREE];
  a->state[FREE] = root;
  return rest;
}

/* Add a slice to a heap, and return the root, or 0 if no node is free. */
INLINE uint32_t add_slice(const lanes_arrays *a, uint32_t root, int64_t end, uint32_t row, uint32_t lane) {
  uint32_t node = a->state[FREE];
  if (node == 0) return 0;
  a->state[FREE] = a->siblings[node];
  a->siblings[node] = 0;
  a->node_ends[node] = end;
  a->node_rows[node] = row;
  a->node_lanes[node] = lane;
  a->children[node] = 0;
  return merge(a, root, node);
}

/* Report the overlap group of a track that has ended, if it needs several lanes. */
INLINE void finish_group(const overlaps_parameters *p, const lanes_arrays *a, uint32_t track) {
  uint32_t lanes = a->peaks[track];
  if (lanes < 2 || (p->nests && !a->crosses[track])) return;
  a->group_rows[a->state[GROUPS]] = a->first_rows[track];
  a->group_lanes[a->state[GROUPS]++] = lanes;
  if (lanes > a->lane_counts[track]) a->lane_counts[track] = lanes;
}

/* Count the open slices at each start, and find the overlap groups that need several lanes. The rows are ordered by
   start, and then by descending end. Return 0, or INVALID if a track is unknown or no node is free. */
EXPORT(overlaps) {
  const overlaps_parameters *p = PARAMETERS;
  const lanes_arrays a = *(const lanes_arrays *)ARRAYS;
  a.state[GROUPS] = 0;
  for (uint32_t row = 0; row < p->rows; row++) {
    uint32_t track = a.tracks[row];
    if (track >= p->track_count) return INVALID;
    uint32_t root = a.roots[track], open = a.open[track];
    for (; root && a.node_ends[root] <= a.starts[row]; open--) root = remove_root(&a, root);
    if (root == 0) {
      finish_group(p, &a, track);
      a.first_rows[track] = p->base + row;
      a.peaks[track] = a.crosses[track] = 0;
    } else if (a.ends[row] > a.node_ends[root]) {
      a.crosses[track] = a.state[CROSSES] = 1;
    }
    a.lanes[row] = open;
    a.roots[track] = add_slice(&a, root, a.ends[row], p->base + row, 0);
    if (a.roots[track] == 0) return INVALID;
    a.open[track] = ++open;
    if (open > a.peaks[track]) a.peaks[track] = open;
  }
  if (p->is_last)
    for (uint32_t track = 0; track < p->track_count; track++) finish_group(p, &a, track);
  return 0;
}

/* Assign lanes. In the first row of an overlap group that needs several lanes, `lanes` contains their number, and in all
   other rows 0. The i-th slice of a group with n lanes gets lane i if i < n, and otherwise the lane of the slice that
   ended as the (i - n)-th. Return 0, or INVALID as above. */
EXPORT(lanes) {
  const lanes_parameters *p = PARAMETERS;
  const lanes_arrays a = *(const lanes_arrays *)ARRAYS;
  for (uint32_t row = 0; row < p->rows; row++) {
    uint32_t track = a.tracks[row], lane, group = a.lanes[row];
    if (track >= p->track_count) return INVALID;
    if (group || (a.peaks[track] && a.starts[row] >= a.latest_ends[track])) {
      while (a.roots[track]) a.roots[track] = remove_root(&a, a.roots[track]);
      a.peaks[track] = group;
      a.open[track] = 0;
      a.latest_ends[track] = a.ends[row];
    }
    a.lanes[row] = 0;
    if (a.peaks[track] == 0) continue;
    if (a.ends[row] > a.latest_ends[track]) a.latest_ends[track] = a.ends[row];
    uint32_t root = a.roots[track];
    if (a.open[track] < a.peaks[track]) {
      lane = a.open[track]++;
    } else {
      lane = a.node_lanes[root];
      root = remove_root(&a, root);
    }
    a.roots[track] = add_slice(&a, root, a.ends[row], p->base + row, lane);
    if (a.roots[track] == 0) return INVALID;
    a.lanes[row] = lane;
  }
  return 0;
}
