/* Load a model, run it, let it go. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model.h"

#define HUGE_PAGE ((size_t)1 << 21)

/* TVM has a pool of threads for every thread that calls it: this one's size. */
static _Thread_local int pool_threads;

/* Zeroed memory; large memory in huge pages, where the system has some, and on the boundary of one. */
static void* pages(size_t nbytes, size_t* mapped) {
  size_t spare = nbytes >= HUGE_PAGE ? HUGE_PAGE : 0;
  *mapped = (nbytes ? nbytes : 1) + spare;
  char* whole = mmap(NULL, *mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) {
    *mapped = 0;
    failed("there is no memory: %s", strerror(errno));
    return NULL;
  }
  if (!spare) return whole;
  size_t before = (HUGE_PAGE - (uintptr_t)whole % HUGE_PAGE) % HUGE_PAGE;
  if (before) munmap(whole, before);
  *mapped -= before;
#ifdef MADV_HUGEPAGE
  madvise(whole + before, *mapped, MADV_HUGEPAGE);
#endif
  return whole + before;
}

static char* path_in(const char* folder, const char* name) {
  size_t room = strlen(folder) + strlen(name) + 2;
  char* path = malloc(room);
  if (path) snprintf(path, room, "%s/%s", folder, name);
  return path;
}

static int load_weights(subtune_model* model, const char* folder) {
  char* path = path_in(folder, "weights.bin");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  free(path);
  if (file < 0) return failed("%s/weights.bin cannot be read: %s", folder, strerror(errno));
  off_t size = lseek(file, 0, SEEK_END);
  lseek(file, 0, SEEK_SET);
  model->weights_nbytes = size > 0 ? (size_t)size : 0;
  model->weights = pages(model->weights_nbytes, &model->weights_mapped);
  size_t done = 0;
  while (model->weights && done < model->weights_nbytes) {
    ssize_t count = read(file, (char*)model->weights + done, model->weights_nbytes - done);
    if (count <= 0) break;
    done += (size_t)count;
  }
  close(file);
  if (!model->weights) return -1;
  return done == model->weights_nbytes ? 0 : failed("%s/weights.bin ended early", folder);
}

static int load_library(subtune_model* model, const char* folder) {
  char* path = path_in(folder, "model.so");
  if (path == NULL) return failed("there is no memory");
  TVMFFIAny name = text(path), found = {0};
  int status = call_global("ffi.ModuleLoadFromFile", &name, 1, &found);
  free(path);
  if (status != 0) return -1;
  model->library = found.v_obj;
  TVMFFIAny arguments[3] = {found, text("main"), {0}}, function = {0};
  arguments[2].type_index = kTVMFFIBool;
  if (call_global("ffi.ModuleGetFunction", arguments, 3, &function) != 0) return -1;
  if (function.type_index != kTVMFFIFunction) {
    release(&function);
    return failed("%s/model.so has no function main", folder);
  }
  model->main = function.v_obj;
  return 0;
}

/* Memory for what is in between, for outputs that need room behind them, and for the arguments of a run. */
static int make_room(subtune_model* model) {
  int inputs = model->counts[SUBTUNE_INPUT], outputs = model->counts[SUBTUNE_OUTPUT];
  model->arena = pages(model->arena_nbytes, &model->arena_mapped);
  model->places = calloc((size_t)(inputs + outputs) + 1, sizeof(void*));
  model->arguments = calloc((size_t)(3 + inputs + outputs + model->symbol_count), sizeof(TVMFFIAny));
  int64_t* greatest = calloc((size_t)model->symbol_count + 1, sizeof(int64_t));
  int is_made = model->arena && model->places && model->arguments && greatest;
  for (int i = 0; greatest && i < model->symbol_count; ++i) greatest[i] = subtune_greatest(model, i);
  for (int i = 0; is_made && i < outputs; ++i) {
    tensor* one = &model->tensors[SUBTUNE_OUTPUT][i];
    if (!one->slack) continue;
    size_t nbytes = subtune_nbytes(model, SUBTUNE_OUTPUT, i, greatest) + one->slack;
    is_made = posix_memalign(&one->staging, 64, nbytes) == 0;
  }
  free(greatest);
  return is_made ? 0 : failed("there is no memory for the model: it takes %zu bytes beside its weights",
                              model->arena_nbytes);
}

subtune_model* subtune_load(const char* folder, int threads) {
  forget_failure();
  subtune_model* model = calloc(1, sizeof(subtune_model));
  if (model == NULL) {
    failed("there is no memory");
    return NULL;
  }
  model->threads = threads > 0 ? threads : 0;
  pthread_mutex_init(&model->lock, NULL);
  setenv("TVM_BIND_THREADS", "0", 0); /* else the caller may sit on the core that a worker is bound to */
  int status = read_manifest(model, folder);
  if (status == 0) status = load_weights(model, folder);
  if (status == 0) status = load_library(model, folder);
  if (status == 0) status = make_room(model);
  if (status == 0) return model;
  subtune_free(model);
  return NULL;
}

static void free_tensors(subtune_model* model, subtune_side side) {
  for (int i = 0; i < model->counts[side]; ++i) {
    tensor* one = &model->tensors[side][i];
    for (int axis = 0; axis < one->rank; ++axis) free(one->dims[axis]);
    free(one->dims);
    free(one->name);
    free(one->dtype);
    free(one->staging);
  }
  free(model->tensors[side]);
}

void subtune_free(subtune_model* model) {
  if (model == NULL) return;
  if (model->main) TVMFFIObjectDecRef(model->main);
  if (model->library) TVMFFIObjectDecRef(model->library);
  free_tensors(model, SUBTUNE_INPUT);
  free_tensors(model, SUBTUNE_OUTPUT);
  for (int i = 0; i < model->symbol_count; ++i) {
    free(model->symbols[i].name);
    free(model->symbols[i].values);
  }
  free(model->symbols);
  free(model->copies);
  free(model->weight_offsets);
  free(model->arguments);
  free(model->places);
  if (model->weights_mapped) munmap(model->weights, model->weights_mapped);
  if (model->arena_mapped) munmap(model->arena, model->arena_mapped);
  pthread_mutex_destroy(&model->lock);
  free(model);
}

/* Make the calling thread's pool as large as the model wants it: only a list of cores tells TVM. */
static int use_threads(int threads) {
  if (pool_threads == threads) return 0;
  if (threads > sysconf(_SC_NPROCESSORS_ONLN)) setenv("TVM_THREAD_POOL_SPIN_COUNT", "0", 0);
  TVMFFIAny* names = calloc((size_t)threads, sizeof(TVMFFIAny));
  char* room = calloc((size_t)threads, 12);
  if (names == NULL || room == NULL) {
    free(names);
    free(room);
    return failed("there is no memory");
  }
  for (int i = 0; i < threads; ++i) {
    snprintf(room + 12 * i, 12, "%d", i);
    names[i] = text(room + 12 * i);
  }
  TVMFFIAny cores = {0}, nothing = {0};
  int status = call_global("ffi.Array", names, threads, &cores);
  if (status == 0) {
    TVMFFIAny arguments[3] = {integer(-3), integer(threads), cores}; /* -3: the threads share these cores */
    status = call_global("runtime.config_threadpool", arguments, 3, &nothing);
    release(&nothing);
    release(&cores);
  }
  free(names);
  free(room);
  if (status == 0) pool_threads = threads;
  return status;
}

static const void* copied_from(const subtune_model* model, const copy* one) {
  switch (one->from) {
    case BASE_INPUT: return model->places[one->place];
    case BASE_OUTPUT: return model->places[model->counts[SUBTUNE_INPUT] + one->place];
    case BASE_WEIGHT: return (char*)model->weights + model->weight_offsets[one->place];
    default: return (char*)model->arena + one->place;
  }
}

/* `main` takes the bytes before the first field of an object, addresses of objects whose first field is a pointer to
 * the data, and the symbols; what a pointer variable holds is such a field. */
static int run_alone(subtune_model* model, const void* const* inputs, void* const* outputs, const int64_t* symbols) {
  int input_count = model->counts[SUBTUNE_INPUT], output_count = model->counts[SUBTUNE_OUTPUT], count = 0;
  TVMFFIAny* arguments = model->arguments;
  arguments[count++] = integer(0);
  arguments[count++] = integer((intptr_t)&model->weights);
  arguments[count++] = integer((intptr_t)&model->arena);
  for (int i = 0; i < input_count + output_count; ++i) {
    if (i < input_count) {
      model->places[i] = (void*)inputs[i];
    } else {
      void* staging = model->tensors[SUBTUNE_OUTPUT][i - input_count].staging;
      model->places[i] = staging ? staging : outputs[i - input_count];
    }
    arguments[count++] = integer((intptr_t)&model->places[i]);
  }
  for (int i = 0; i < model->symbol_count; ++i) arguments[count++] = integer(symbols[i]);
  TVMFFIAny nothing;
  if (use_threads(model->threads) != 0) return -1;
  if (call_function(model->main, "the model", arguments, count, &nothing) != 0) return -1;
  release(&nothing);
  for (int i = 0; i < model->copy_count; ++i) {
    const copy* one = &model->copies[i];
    size_t nbytes = subtune_nbytes(model, SUBTUNE_OUTPUT, one->output, symbols);
    memmove(model->places[input_count + one->output], copied_from(model, one), nbytes);
  }
  for (int i = 0; i < output_count; ++i) {
    void* staging = model->tensors[SUBTUNE_OUTPUT][i].staging;
    if (staging) memcpy(outputs[i], staging, subtune_nbytes(model, SUBTUNE_OUTPUT, i, symbols));
  }
  return 0;
}

int subtune_run(subtune_model* model, const void* const* inputs, void* const* outputs, const int64_t* symbols) {
  forget_failure();
  if (check_symbols(model, symbols) != 0) return -1;
  pthread_mutex_lock(&model->lock);
  int status = run_alone(model, inputs, outputs, symbols);
  pthread_mutex_unlock(&model->lock);
  return status;
}

int subtune_count(const subtune_model* model, subtune_side side) { return model->counts[side]; }

const char* subtune_name(const subtune_model* model, subtune_side side, int index) {
  return model->tensors[side][index].name;
}

const char* subtune_dtype(const subtune_model* model, subtune_side side, int index) {
  return model->tensors[side][index].dtype;
}

int subtune_rank(const subtune_model* model, subtune_side side, int index) { return model->tensors[side][index].rank; }

void subtune_shape(const subtune_model* model, subtune_side side, int index, const int64_t* symbols, int64_t* shape) {
  const tensor* one = &model->tensors[side][index];
  for (int axis = 0; axis < one->rank; ++axis) shape[axis] = dim_value(model, one->dims[axis], symbols);
}

size_t subtune_nbytes(const subtune_model* model, subtune_side side, int index, const int64_t* symbols) {
  const tensor* one = &model->tensors[side][index];
  size_t nbytes = one->item_nbytes;
  for (int axis = 0; axis < one->rank; ++axis) nbytes *= (size_t)dim_value(model, one->dims[axis], symbols);
  return nbytes;
}

int subtune_symbol_count(const subtune_model* model) { return model->symbol_count; }
const char* subtune_symbol(const subtune_model* model, int index) { return model->symbols[index].name; }

int64_t subtune_greatest(const subtune_model* model, int index) {
  const symbol* one = &model->symbols[index];
  return one->values[one->count - 1];
}
