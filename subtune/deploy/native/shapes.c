/* Symbolic dimensions: sums of products of whole numbers, symbols, and quotients such as ceil(seq/4). */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

typedef struct {
  const subtune_model* model;
  const char* rest;
  const int64_t* symbols;
} parser;

static int64_t sum(parser* at);

static int take(parser* at, char token) {
  while (*at->rest == ' ') at->rest++;
  if (*at->rest != token) return 0;
  at->rest++;
  return 1;
}

static int is_of_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.' || (c & 0x80); }

static int64_t name_value(parser* at) {
  const char* name = at->rest;
  while (is_of_name(*at->rest)) at->rest++;
  size_t length = (size_t)(at->rest - name);
  int is_up = length == 4 && strncmp(name, "ceil", 4) == 0;
  if (*at->rest == '(' && (is_up || (length == 5 && strncmp(name, "floor", 5) == 0))) {
    at->rest++;
    int64_t dividend = sum(at);
    take(at, '/');
    int64_t divisor = strtoll(at->rest, (char**)&at->rest, 10);
    take(at, ')');
    if (divisor <= 0) return 0;
    int64_t rounded = dividend / divisor, remainder = dividend % divisor; /* towards zero */
    return rounded + (is_up ? remainder > 0 : -(remainder < 0));
  }
  for (int i = 0; i < at->model->symbol_count; ++i) {
    const char* known = at->model->symbols[i].name;
    if (strlen(known) == length && strncmp(known, name, length) == 0) return at->symbols[i];
  }
  return 0;
}

static int64_t factor(parser* at) {
  if (take(at, '(')) {
    int64_t inner = sum(at);
    take(at, ')');
    return inner;
  }
  return isdigit((unsigned char)*at->rest) ? strtoll(at->rest, (char**)&at->rest, 10) : name_value(at);
}

static int64_t product(parser* at) {
  int64_t total = factor(at);
  while (take(at, '*')) {
    while (*at->rest == ' ') at->rest++;
    total *= factor(at);
  }
  return total;
}

static int64_t sum(parser* at) {
  int64_t sign = take(at, '-') ? -1 : 1;
  while (*at->rest == ' ') at->rest++;
  int64_t total = sign * product(at);
  for (;;) {
    if (take(at, '+')) {
      sign = 1;
    } else if (take(at, '-')) {
      sign = -1;
    } else {
      return total;
    }
    while (*at->rest == ' ') at->rest++;
    total += sign * product(at);
  }
}

int64_t dim_value(const subtune_model* model, const char* dim, const int64_t* symbols) {
  parser at = {model, dim, symbols};
  return sum(&at);
}

int check_symbols(const subtune_model* model, const int64_t* symbols) {
  if (model->symbol_count && symbols == NULL) return failed("the model has symbols: give the value of each");
  for (int i = 0; i < model->symbol_count; ++i) {
    const symbol* one = &model->symbols[i];
    int found = 0;
    for (int low = 0, high = one->count; low < high && !found;) {
      int middle = low + (high - low) / 2;
      found = one->values[middle] == symbols[i];
      if (one->values[middle] < symbols[i]) low = middle + 1; else high = middle;
    }
    if (!found) {
      return failed("%s is %lld, and the model was not compiled for that", one->name, (long long)symbols[i]);
    }
  }
  return 0;
}

/* Whether `dim` has the symbol `index` as `factor * symbol + rest`, where all that is `known` has its value. */
static int is_linear(const subtune_model* model, const char* dim, int index, int64_t* symbols, int64_t* line) {
  int64_t kept = symbols[index], points[4] = {0, 1, 2, 1001}, values[4];
  for (int i = 0; i < 4; ++i) {
    symbols[index] = points[i];
    values[i] = dim_value(model, dim, symbols);
  }
  symbols[index] = kept;
  line[0] = values[1] - values[0];
  line[1] = values[0];
  return line[0] != 0 && values[2] == 2 * line[0] + line[1] && values[3] == 1001 * line[0] + line[1];
}

/* The only symbol of `dim` that is not known; -1 where there is none, or more than one. */
static int only_unknown(const subtune_model* model, const char* dim, const char* known) {
  int found = -1;
  for (const char* c = dim; *c;) {
    size_t length = 0;
    while (is_of_name(c[length])) ++length;
    for (int i = 0; i < model->symbol_count; ++i) {
      const char* name = model->symbols[i].name;
      if (known[i] || strlen(name) != length || strncmp(name, c, length) != 0 || found == i) continue;
      if (found >= 0) return -1;
      found = i;
    }
    c += length ? length : 1;
  }
  return found;
}

/* Learn one more symbol from a dimension of an input; 0 where none tells one, -1 where a size is impossible. */
static int learn(const subtune_model* model, const int64_t* const* shapes, int64_t* symbols, char* known) {
  for (int i = 0; i < model->counts[SUBTUNE_INPUT]; ++i) {
    const tensor* input = &model->tensors[SUBTUNE_INPUT][i];
    for (int axis = 0; axis < input->rank; ++axis) {
      int64_t line[2];
      int index = only_unknown(model, input->dims[axis], known);
      if (index < 0 || !is_linear(model, input->dims[axis], index, symbols, line)) continue;
      int64_t size = shapes[i][axis] - line[1];
      if (size % line[0] != 0) {
        return failed("axis %d of input %s is %lld, and no %s makes %s that", axis, input->name,
                      (long long)shapes[i][axis], model->symbols[index].name, input->dims[axis]);
      }
      symbols[index] = size / line[0];
      known[index] = 1;
      return 1;
    }
  }
  return 0;
}

int subtune_bind(const subtune_model* model, const int64_t* const* shapes, int64_t* symbols) {
  char* known = calloc((size_t)model->symbol_count + 1, 1);
  if (known == NULL) return failed("there is no memory");
  for (int i = 0; i < model->symbol_count; ++i) symbols[i] = 0;
  int status = 1;
  while (status > 0) status = learn(model, shapes, symbols, known);
  free(known);
  for (int i = 0; i < model->counts[SUBTUNE_INPUT] && status == 0; ++i) {
    const tensor* input = &model->tensors[SUBTUNE_INPUT][i];
    for (int axis = 0; axis < input->rank && status == 0; ++axis) {
      int64_t expected = dim_value(model, input->dims[axis], symbols);
      if (expected != shapes[i][axis]) {
        status = failed("axis %d of input %s is %lld, and should be %lld (%s)", axis, input->name,
                        (long long)shapes[i][axis], (long long)expected, input->dims[axis]);
      }
    }
  }
  return status ? status : check_symbols(model, symbols);
}
