/* Align two sequences with a pair hidden Markov model: alignment.py describes the model, its arrays and the results.
   Row i of the model has the states after i items of the first sequence, column j those after j of the second. */
#include "layout.h"
#include "memory.h"

typedef struct {
  double *match, *insert, *skip;
} row;

INLINE row get_row(double *rows, uint32_t number, uint32_t width) {
  double *first = rows + (uint64_t)number * STATES * width;
  return (row){first, first + width, first + width + width};
}

/* Keep numbers away from those that processors handle slowly, or not at all. */
INLINE double clamp(double value, const double *t) {
  if (value < t[TINY]) return 0;
  return value > t[HUGE] ? t[HUGE] : value;
}

/* Compute how much likelier each of the others makes the item before row i, for the columns of row i. */
INLINE void weigh(const alignment_parameters *p, const alignment_arrays *a, uint32_t i, double *weights) {
  uint32_t first = (uint32_t)a->first_columns[i], others = p->others, items = p->items, width = p->width;
  uint32_t begin = first == 0, end = first + width > others + 1 ? others + 1 - first : width;
  for (uint32_t k = 0; k < width; k++) weights[k] = 0;
  uint32_t shift = first - 1;
  for (uint32_t k = begin; k < end; k++) weights[k] = a->gains[LEVELS * others + shift + k];
  for (uint32_t level = 0; level < LEVELS; level++) {
    int32_t code = a->item_codes[level * items + i - 1];
    const int32_t *codes = a->other_codes + level * others;
    const double *gains = a->gains + level * others;
    for (uint32_t k = begin; k < end; k++) weights[k] += codes[shift + k] == code ? gains[shift + k] : 0;
  }
}

/* Compute row i > 0 of the forward probabilities from the previous row. Return their sum, by which they are divided. */
INLINE double step_forward(const alignment_parameters *p, const alignment_arrays *a, uint32_t i, const double *weights,
                           row previous, row current) {
  const double *t = a->transitions;
  uint32_t width = p->width, columns = p->others + 1, first = (uint32_t)a->first_columns[i];
  uint32_t shift = first - (uint32_t)a->first_columns[i - 1];
  uint32_t end = first + width > columns ? columns - first : width;
  for (uint32_t k = 0; k < STATES * width; k++) current.match[k] = 0;
  uint32_t begin = shift == 0, stop = width + 1 > shift ? width + 1 - shift : 0;
  for (uint32_t k = begin; k < end && k < stop; k++) {
    uint32_t above = k + shift - 1;
    current.match[k] = weights[k] * (previous.match[above] * t[0] + previous.insert[above] * t[3] +
                                     previous.skip[above] * t[6]);
  }
  for (uint32_t k = 0; k < end && k + shift < width; k++) {
    uint32_t above = k + shift;
    current.insert[k] = previous.match[above] * t[1] + previous.insert[above] * t[4] + previous.skip[above] * t[7];
  }
  double sum = 0, skip = 0;
  for (uint32_t k = 0; k < end; k++) {
    current.skip[k] = skip;
    sum += current.match[k] + current.insert[k] + skip;
    skip = clamp(current.match[k] * t[2] + current.insert[k] * t[5] + skip * t[8], t);
  }
  if (sum == 0) return 1;
  double factor = 1 / sum;
  for (uint32_t k = 0; k < STATES * width; k++) current.match[k] = clamp(current.match[k] * factor, t);
  return sum;
}

/* Compute row i of the backward probabilities from the next row, divided by the scale of that row. */
INLINE void step_backward(const alignment_parameters *p, const alignment_arrays *a, uint32_t i, const double *weights, row next,
                          row current) {
  const double *t = a->transitions;
  uint32_t width = p->width, columns = p->others + 1, first = (uint32_t)a->first_columns[i];
  uint32_t shift = (uint32_t)a->first_columns[i + 1] - first;
  double factor = 1 / a->scales[i], skip = 0;
  for (uint32_t k = width; k-- > 0;) {
    double match = 0, insert = 0;
    if (first + k < columns) {
      uint32_t below = k + 1 - shift;
      if (k + 1 >= shift && below < width) match = weights[below] * next.match[below] * factor;
      if (k >= shift) insert = next.insert[k - shift] * factor;
    }
    current.match[k] = clamp(match * t[0] + insert * t[1] + skip * t[2], t);
    current.insert[k] = clamp(match * t[3] + insert * t[4] + skip * t[5], t);
    skip = current.skip[k] = clamp(match * t[6] + insert * t[7] + skip * t[8], t);
  }
}

/* Add the probability of one column to its group. */
INLINE void add_mass(const alignment_arrays *a, uint32_t *count, int32_t group, int32_t column, double mass) {
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
INLINE void choose_groups(const alignment_parameters *p, const alignment_arrays *a, uint32_t i, row forward, row backward) {
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
  const alignment_arrays *a = ARRAYS;
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
    weigh(p, a, i, a->weights);
    a->scales[i - 1] = step_forward(p, a, i, a->weights, previous, current);
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
      double *weights = a->weights + (uint64_t)(i - base - 1) * width;
      weigh(p, a, i, weights);
      step_forward(p, a, i, weights, previous, current);
      previous = current;
    }
    for (uint32_t i = last; i > base; i--) {
      choose_groups(p, a, i, get_row(a->block, i - base - 1, width), next);
      step_backward(p, a, i - 1, a->weights + (uint64_t)(i - base - 1) * width, next, other);
      row done = next;
      next = other;
      other = done;
    }
    last = base;
  }
  *a->likelihood = total;
  return 0;
}
