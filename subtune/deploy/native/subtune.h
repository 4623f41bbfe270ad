/* Runs an artifact of subtune with TVM's runtime alone: libtvm_ffi and libtvm_runtime. C11, POSIX, usable from C++.
 *
 * Tensors are contiguous and lie where the caller says. A model's dimensions may be symbols: `symbols` are then their
 * values, in the order of `subtune_symbol`; of a model without symbols it may be NULL. What fails gives NULL or -1, and
 * `subtune_error` says why in one sentence.
 *
 * Any function may be called from any thread. Runs of one model take turns; runs of several models do not.
 */
#ifndef SUBTUNE_H_
#define SUBTUNE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct subtune_model subtune_model;
typedef enum { SUBTUNE_INPUT = 0, SUBTUNE_OUTPUT = 1 } subtune_side;

/* The artifact directory `folder`, run by `threads` threads; 0: by as many as it was tuned for. */
subtune_model* subtune_load(const char* folder, int threads);

/* Nobody may be running the model. NULL is allowed. */
void subtune_free(subtune_model* model);

/* What the last call of this thread that failed says; it stays until the next one fails. */
const char* subtune_error(void);

/* Compute all outputs, in the manifest's order, from all inputs. Outputs overlap nothing. 0, or -1. */
int subtune_run(subtune_model* model, const void* const* inputs, void* const* outputs, const int64_t* symbols);

int subtune_count(const subtune_model* model, subtune_side side);
const char* subtune_name(const subtune_model* model, subtune_side side, int index);
/* numpy's name, or ml_dtypes'; an element of less than a byte takes one. */
const char* subtune_dtype(const subtune_model* model, subtune_side side, int index);
int subtune_rank(const subtune_model* model, subtune_side side, int index);
/* Fill `shape`, of `subtune_rank` numbers. */
void subtune_shape(const subtune_model* model, subtune_side side, int index, const int64_t* symbols, int64_t* shape);
size_t subtune_nbytes(const subtune_model* model, subtune_side side, int index, const int64_t* symbols);

int subtune_symbol_count(const subtune_model* model);
const char* subtune_symbol(const subtune_model* model, int index);
/* The largest value that a symbol may have. */
int64_t subtune_greatest(const subtune_model* model, int index);
/* Fill `symbols` with what the shapes of all inputs say they are. 0, or -1 where the model has no such shapes. */
int subtune_bind(const subtune_model* model, const int64_t* const* shapes, int64_t* symbols);

#ifdef __cplusplus
}
#endif
#endif
