/* Runs a model once: run FOLDER [SYMBOL=N ...] < inputs > outputs. Tensors are raw bytes, one behind the other.
 *
 * With --threads T --runs N, T threads run it N times each and compare with the first result. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "subtune.h"

typedef struct {
  subtune_model* model;
  const void** inputs;
  void** expected;
  const int64_t* symbols;
  int runs, wrong;
} work;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int complain(const char* what) {
  fprintf(stderr, "run: %s\n", what);
  return 2;
}

/* Memory for all tensors of a side; NULL where there is none. */
static void** made(const subtune_model* model, subtune_side side, const int64_t* symbols) {
  int count = subtune_count(model, side);
  void** places = calloc((size_t)count + 1, sizeof(void*));
  for (int i = 0; places && i < count; ++i) {
    if (posix_memalign(&places[i], 64, subtune_nbytes(model, side, i, symbols) + 1) != 0) return NULL;
  }
  return places;
}

static void discard(void** places, int count) {
  for (int i = 0; i < count; ++i) free(places[i]);
  free(places);
}

static void* repeat(void* given) {
  work* own = given;
  int count = subtune_count(own->model, SUBTUNE_OUTPUT);
  void** outputs = made(own->model, SUBTUNE_OUTPUT, own->symbols);
  for (int run = 0; outputs && run < own->runs; ++run) {
    own->wrong += subtune_run(own->model, own->inputs, outputs, own->symbols) != 0;
    for (int i = 0; i < count; ++i) {
      size_t nbytes = subtune_nbytes(own->model, SUBTUNE_OUTPUT, i, own->symbols);
      own->wrong += memcmp(outputs[i], own->expected[i], nbytes) != 0;
    }
  }
  if (outputs) discard(outputs, count); else own->wrong = -1;
  return NULL;
}

static int repeated(work common, int threads) {
  pthread_t* ids = calloc((size_t)threads, sizeof(pthread_t));
  work* works = calloc((size_t)threads, sizeof(work));
  int wrong = ids && works ? 0 : -1;
  for (int i = 0; !wrong && i < threads; ++i) {
    works[i] = common;
    if (pthread_create(&ids[i], NULL, repeat, &works[i]) != 0) return -1;
  }
  for (int i = 0; !wrong && i < threads; ++i) pthread_join(ids[i], NULL);
  for (int i = 0; works && i < threads; ++i) wrong += works[i].wrong;
  free(ids);
  free(works);
  return wrong;
}

/* The largest value of every symbol, or what the command line says. */
static int read_symbols(const subtune_model* model, char** given, int64_t* symbols) {
  for (int i = 0; i < subtune_symbol_count(model); ++i) symbols[i] = subtune_greatest(model, i);
  for (; *given; ++given) {
    const char* equals = strchr(*given, '=');
    int found = 0;
    for (int i = 0; equals && i < subtune_symbol_count(model); ++i) {
      size_t length = (size_t)(equals - *given);
      if (strlen(subtune_symbol(model, i)) != length || strncmp(subtune_symbol(model, i), *given, length)) continue;
      symbols[i] = strtoll(equals + 1, NULL, 10);
      found = 1;
    }
    if (!found) return -1;
  }
  return 0;
}

static int run(subtune_model* model, char** given, int threads, int runs, double start) {
  int64_t* symbols = calloc((size_t)subtune_symbol_count(model) + 1, sizeof(int64_t));
  if (!symbols || read_symbols(model, given, symbols) != 0) return complain("give the model's symbols as SYMBOL=N");
  int input_count = subtune_count(model, SUBTUNE_INPUT), output_count = subtune_count(model, SUBTUNE_OUTPUT);
  void **inputs = made(model, SUBTUNE_INPUT, symbols), **outputs = made(model, SUBTUNE_OUTPUT, symbols);
  if (!inputs || !outputs) return complain("there is no memory for inputs and outputs");
  double reading = seconds();
  for (int i = 0; i < input_count; ++i) {
    size_t nbytes = subtune_nbytes(model, SUBTUNE_INPUT, i, symbols);
    if (fread(inputs[i], 1, nbytes, stdin) != nbytes) return complain("there are too few bytes for all inputs");
  }
  start += seconds() - reading;
  const void** read_only = (const void**)inputs;
  if (subtune_run(model, read_only, outputs, symbols) != 0) return complain(subtune_error());
  fprintf(stderr, "first result after %.6f s\n", seconds() - start);
  work common = {model, read_only, outputs, symbols, runs, 0};
  if (threads && repeated(common, threads) != 0) return complain("a run failed, or gave another result");
  for (int i = 0; i < output_count; ++i) {
    size_t nbytes = subtune_nbytes(model, SUBTUNE_OUTPUT, i, symbols);
    if (fwrite(outputs[i], 1, nbytes, stdout) != nbytes) return complain("the outputs cannot be written");
  }
  discard(inputs, input_count);
  discard(outputs, output_count);
  free(symbols);
  return 0;
}

int main(int count, char** arguments) {
  double start = seconds();
  int threads = 0, runs = 1, at = 1;
  for (; at + 1 < count && strncmp(arguments[at], "--", 2) == 0; at += 2) {
    if (strcmp(arguments[at], "--threads") == 0) {
      threads = atoi(arguments[at + 1]);
    } else if (strcmp(arguments[at], "--runs") == 0) {
      runs = atoi(arguments[at + 1]);
    } else {
      break;
    }
  }
  if (at >= count) return complain("give an artifact directory, and what its symbols are: run FOLDER SYMBOL=N ...");
  subtune_model* model = subtune_load(arguments[at], 0);
  if (model == NULL) return complain(subtune_error());
  int status = run(model, arguments + at + 1, threads, runs, start);
  subtune_free(model);
  return status;
}
