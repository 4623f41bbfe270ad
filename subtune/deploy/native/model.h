/* What the files of this library share; a program includes subtune.h only. */
#ifndef SUBTUNE_MODEL_H_
#define SUBTUNE_MODEL_H_

#include <pthread.h>
#include <tvm/ffi/c_api.h>

#include "subtune.h"

#define SUBTUNE_FORMAT 7 /* of manifest.json */

typedef struct {
  char *name, *dtype;
  int rank;
  char** dims; /* numbers, and sums of products of symbols, as text */
  size_t item_nbytes;
  size_t slack; /* of an output: bytes behind it that kernels may write to */
  void* staging; /* where such an output is computed */
} tensor;

typedef struct {
  char* name;
  int count;
  int64_t* values; /* increasing */
} symbol;

typedef enum { BASE_INPUT, BASE_OUTPUT, BASE_WEIGHT, BASE_ARENA } base;

typedef struct {
  int output; /* that no kernel writes: a copy of what lies at `place` */
  base from;
  int64_t place;
} copy;

struct subtune_model {
  tensor* tensors[2];
  int counts[2];
  symbol* symbols;
  int symbol_count;
  int copy_count;
  copy* copies;
  int threads;
  size_t arena_nbytes;
  int64_t* weight_offsets;
  int weight_count;
  void *weights, *arena;
  size_t weights_nbytes, weights_mapped, arena_mapped;
  TVMFFIObjectHandle library, main;
  TVMFFIAny* arguments;
  void** places; /* what inputs and outputs are in this run */
  pthread_mutex_t lock;
};

/* Remember why a call failed, for `subtune_error`; -1. */
int failed(const char* format, ...) __attribute__((format(printf, 1, 2)));
void forget_failure(void);
int has_failed(void);

/* Call TVM's global function `name`. The caller owns the result. 0, or -1. */
int call_global(const char* name, TVMFFIAny* arguments, int count, TVMFFIAny* result);
int call_function(TVMFFIObjectHandle function, const char* what, TVMFFIAny* arguments, int count, TVMFFIAny* result);
TVMFFIAny integer(int64_t value);
TVMFFIAny text(const char* value);
void release(TVMFFIAny* value);

/* Fill the model from `folder`/manifest.json. 0, or -1. */
int read_manifest(subtune_model* model, const char* folder);

/* 0 if this processor has LLVM's `feature`, or nobody can say, else -1. */
int check_feature(const char* feature);

/* The value of a dimension. */
int64_t dim_value(const subtune_model* model, const char* dim, const int64_t* symbols);
/* 0 if the model was compiled for these values, else -1. */
int check_symbols(const subtune_model* model, const int64_t* symbols);

#endif
