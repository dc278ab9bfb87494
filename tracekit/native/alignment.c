/* Align two sequences with a pair hidden Markov model: alignment.py describes the model, its arrays and the results.
   Row i of the model has the states after i items of the first sequence, column j those after j of the second. */
#include "layout.h"
#include "memory.h"

typedef struct {
  const int32_t *item_codes, *other_codes;
  const double *gains;
  const int32_t *groups, *first_columns;
  const double *transitions, *starts, *ends;
  int32_t *group_choices, *column_choices;
  double *mass_choices, *match_mass, *scales, *likelihood;
  double *kept, *block, *behind, *ahead, *weights, *masses, *peaks;
  int32_t *peak_columns, *touched;
} arrays;

typedef struct {
  double *match, *insert, *skip;
} row;

INLINE row get_row(double *rows, uint32_t number, uint32_t width) {
  double *first = rows + (uint64_t)number * STATES * width;
  return (row){first, first + width, first + width + width};
}

/* Compute how much likelier each item of the second sequence makes the item `i` of the first one. */
static void weigh(const alignment_parameters *p, const arrays *a, uint32_t i) {
  uint32_t first = (uint32_t)a->first_columns[i + 1], others = p->others, items = p->items;
  for (uint32_t k = 0; k < p->width; k++) {
    if (first + k == 0 || first + k > others) {
      a->weights[k] = 0;
      continue;
    }
    uint32_t j = first + k - 1;
    double weight = a->gains[LEVELS * others + j];
    for (uint32_t level = 0; level < LEVELS; level++)
      if (a->item_codes[level * items + i] == a->other_codes[level * others + j])
        weight += a->gains[level * others + j];
    a->weights[k] = weight;
  }
}

/* Compute row i > 0 of the forward probabilities from the previous row. Return their sum, by which they are divided. */
INLINE double step_forward(const alignment_parameters *p, const arrays *a, uint32_t i, row previous, row current) {
  const double *t = a->transitions;
  uint32_t width = p->width, columns = p->others + 1, first = (uint32_t)a->first_columns[i];
  uint32_t shift = first - (uint32_t)a->first_columns[i - 1];
  double sum = 0;
  weigh(p, a, i - 1);
  for (uint32_t k = 0; k < width; k++) {
    uint32_t above = k + shift;
    double match = 0, insert = 0, skip = 0;
    if (first + k < columns) {
      if (above >= 1 && above - 1 < width)
        match = a->weights[k] * (previous.match[above - 1] * t[0] + previous.insert[above - 1] * t[3] +
                                 previous.skip[above - 1] * t[6]);
      if (above < width) insert = previous.match[above] * t[1] + previous.insert[above] * t[4] + previous.skip[above] * t[7];
      if (k) skip = current.match[k - 1] * t[2] + current.insert[k - 1] * t[5] + current.skip[k - 1] * t[8];
    }
    current.match[k] = match;
    current.insert[k] = insert;
    current.skip[k] = skip;
    sum += match + insert + skip;
  }
  if (sum == 0) return 1;
  for (uint32_t k = 0; k < STATES * width; k++) current.match[k] /= sum;
  return sum;
}

/* Compute row i of the backward probabilities from the next row, divided by the scale of that row. */
INLINE void step_backward(const alignment_parameters *p, const arrays *a, uint32_t i, row next, row current) {
  const double *t = a->transitions;
  uint32_t width = p->width, columns = p->others + 1, first = (uint32_t)a->first_columns[i];
  uint32_t shift = (uint32_t)a->first_columns[i + 1] - first;
  double scale = a->scales[i];
  weigh(p, a, i);
  for (uint32_t k = width; k-- > 0;) {
    double match = 0, insert = 0, skip = 0;
    if (first + k < columns) {
      if (k + 1 >= shift && k + 1 - shift < width)
        match = a->weights[k + 1 - shift] * next.match[k + 1 - shift] / scale;
      if (k >= shift) insert = next.insert[k - shift] / scale;
      if (k + 1 < width) skip = current.skip[k + 1];
    }
    current.match[k] = match * t[0] + insert * t[1] + skip * t[2];
    current.insert[k] = match * t[3] + insert * t[4] + skip * t[5];
    current.skip[k] = match * t[6] + insert * t[7] + skip * t[8];
  }
}

/* Add the probability of one column to its group. */
INLINE void add_mass(const arrays *a, uint32_t *count, int32_t group, int32_t column, double mass) {
  if (a->masses[group] == 0) {
    a->touched[(*count)++] = group;
    a->peaks[group] = 0;
  }
  a->masses[group] += mass;
  if (mass > a->peaks[group]) {
    a->peaks[group] = mass;
    a->peak_columns[group] = column;
  }
}

/* Find the likeliest groups of the item before row i, and the probability that it is matched at all. */
INLINE void choose_groups(const alignment_parameters *p, const arrays *a, uint32_t i, row forward, row backward) {
  uint32_t width = p->width, others = p->others, first = (uint32_t)a->first_columns[i], count = 0;
  const double *t = a->transitions;
  double sum = 0, matched = 0;
  for (uint32_t k = 0; k < width; k++) {
    matched += forward.match[k] * backward.match[k];
    sum += forward.insert[k] * backward.insert[k];
  }
  sum += matched;
  a->match_mass[i - 1] = sum > 0 ? matched / sum : 0;
  for (uint32_t k = 0; sum > 0 && k < width; k++) {
    uint32_t column = first + k;
    double match = forward.match[k] * backward.match[k] / sum, insert = forward.insert[k] * backward.insert[k] / sum;
    if (match > t[MIN_MASS]) add_mass(a, &count, a->groups[column - 1], (int32_t)column - 1, match);
    if (insert > t[MIN_MASS] && column > 0 && column < others && a->groups[column - 1] == a->groups[column])
      add_mass(a, &count, a->groups[column], (int32_t)column - 1, insert * t[INSERT_SHARE]);
  }
  for (uint32_t choice = 0; choice < CHOICES; choice++) {
    int32_t best = -1;
    for (uint32_t k = 0; k < count; k++) {
      int32_t group = a->touched[k];
      if (a->masses[group] > (best < 0 ? 0 : a->masses[best])) best = group;
    }
    uint32_t place = (i - 1) * CHOICES + choice;
    a->group_choices[place] = best;
    a->column_choices[place] = best < 0 ? -1 : a->peak_columns[best];
    a->mass_choices[place] = best < 0 ? 0 : a->masses[best];
    if (best >= 0) a->masses[best] = -a->masses[best];
  }
  for (uint32_t k = 0; k < count; k++) a->masses[a->touched[k]] = 0;
}

/* Every `spacing`-th row of forward probabilities is kept; the rows between two of them are computed again. */
EXPORT(alignment) {
  alignment_parameters *p = PARAMETERS;
  const arrays *a = (const arrays *)p->arrays;
  uint32_t width = p->width, items = p->items, spacing = p->spacing;
  row current = get_row(a->kept, 0, width);
  for (uint32_t k = 0; k < width; k++) {
    uint32_t column = (uint32_t)a->first_columns[0] + k;
    current.match[k] = column <= p->others ? a->starts[column] : 0;
    current.insert[k] = current.skip[k] = 0;
  }
  row previous = current;
  for (uint32_t i = 1; i <= items; i++) {
    current = i % spacing ? get_row(a->block, i % 2, width) : get_row(a->kept, i / spacing, width);
    a->scales[i - 1] = step_forward(p, a, i, previous, current);
    previous = current;
  }
  double total = 0;
  row next = get_row(a->behind, 0, width), other = get_row(a->ahead, 0, width);
  for (uint32_t k = 0; k < width; k++) {
    uint32_t column = (uint32_t)a->first_columns[items] + k;
    double end = column <= p->others ? a->ends[column] : 0;
    total += (current.match[k] + current.insert[k]) * end;
    next.match[k] = next.insert[k] = end;
    next.skip[k] = 0;
  }
  for (uint32_t last = items; last > 0;) {
    uint32_t kept = (last - 1) / spacing, base = kept * spacing;
    previous = get_row(a->kept, kept, width);
    for (uint32_t i = base + 1; i <= last; i++) {
      current = get_row(a->block, i - base - 1, width);
      step_forward(p, a, i, previous, current);
      previous = current;
    }
    for (uint32_t i = last; i > base; i--) {
      choose_groups(p, a, i, get_row(a->block, i - base - 1, width), next);
      step_backward(p, a, i - 1, next, other);
      row done = next;
      next = other;
      other = done;
    }
    last = base;
  }
  *a->likelihood = total;
  return 0;
}
