/* manifest.json, read with the parser of TVM's own library. Functions go on after a failure, and give nothing then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

/* What was found first is what is said. */
#define damaged(...) (has_failed() ? -1 : failed(__VA_ARGS__))

static TVMFFIByteArray characters(const TVMFFIAny* value) {
  TVMFFIByteArray found = {"", 0};
  if (value->type_index == kTVMFFISmallStr) {
    found.data = value->v_bytes;
    found.size = value->small_str_len;
  } else if (value->type_index == kTVMFFIStr) {
    found = *(const TVMFFIByteArray*)((const char*)value->v_obj + sizeof(TVMFFIObject));
  }
  return found;
}

static char* own_text(const TVMFFIAny* value) {
  TVMFFIByteArray found = characters(value);
  if (value->type_index == kTVMFFIInt) { /* a dimension that is a number */
    char* number = malloc(24);
    if (number) snprintf(number, 24, "%lld", (long long)value->v_int64);
    return number;
  }
  if (value->type_index != kTVMFFISmallStr && value->type_index != kTVMFFIStr) damaged("manifest.json lacks a text");
  return strndup(found.data, found.size);
}

static int is_text(const TVMFFIAny* value, const char* expected) {
  TVMFFIByteArray found = characters(value);
  return found.size == strlen(expected) && memcmp(found.data, expected, found.size) == 0;
}

static int64_t whole(const TVMFFIAny* value) {
  if (value->type_index != kTVMFFIInt && value->type_index != kTVMFFIBool) damaged("manifest.json lacks a number");
  return value->v_int64;
}

/* What the map has under `key`; it stays valid as long as the map. */
static TVMFFIAny field(TVMFFIAny map, const char* key) {
  TVMFFIAny arguments[2] = {map, text(key)}, found = {0};
  if (has_failed()) return found;
  if (map.type_index != kTVMFFIMap) {
    damaged("manifest.json is damaged: there is no object for %s", key);
  } else if (call_global("ffi.MapGetItem", arguments, 2, &found) != 0) {
    failed("manifest.json has no %s", key);
  }
  TVMFFIAny borrowed = found;
  release(&found); /* the map keeps it */
  return has_failed() ? text("") : borrowed;
}

static int length(TVMFFIAny array) {
  if (array.type_index != kTVMFFIArray) {
    damaged("manifest.json is damaged: there is no list");
    return 0;
  }
  return (int)((const TVMFFISeqCell*)((const char*)array.v_obj + sizeof(TVMFFIObject)))->size;
}

static TVMFFIAny item(TVMFFIAny array, int index) {
  if (index >= length(array)) return text("");
  return ((const TVMFFIAny*)((const TVMFFISeqCell*)((const char*)array.v_obj + sizeof(TVMFFIObject)))->data)[index];
}

static void* many(int count, size_t nbytes) {
  void* found = calloc(count > 0 ? (size_t)count : 1, nbytes);
  if (found == NULL) damaged("there is no memory");
  return found;
}

/* Bytes of an element: float32 has 32 bits, bfloat16 has 16, int4 takes a byte. */
static size_t item_nbytes(const char* dtype) {
  size_t digits = strcspn(dtype, "0123456789");
  int bits = dtype[digits] ? atoi(dtype + digits) : 8;
  return bits >= 8 ? (size_t)bits / 8 : 1;
}

static void read_tensors(subtune_model* model, subtune_side side, TVMFFIAny specs) {
  int count = length(specs);
  model->tensors[side] = many(count, sizeof(tensor));
  for (int i = 0; i < count && !has_failed(); ++i) {
    tensor* one = &model->tensors[side][i];
    TVMFFIAny spec = item(specs, i);
    TVMFFIAny name = field(spec, "name"), dtype = field(spec, "dtype"), shape = field(spec, "shape");
    one->name = own_text(&name);
    one->dtype = own_text(&dtype);
    one->item_nbytes = item_nbytes(one->dtype);
    int rank = length(shape);
    one->dims = many(rank, sizeof(char*));
    for (int axis = 0; axis < rank; ++axis) {
      TVMFFIAny dim = item(shape, axis);
      one->dims[axis] = own_text(&dim);
      one->rank = axis + 1;
    }
    model->counts[side] = i + 1;
  }
}

/* A symbol as `seq=1..512` or `seq=16,32,64`. */
static void read_symbol(symbol* one, const char* written) {
  const char *values = strchr(written, '='), *dots = strstr(written, "..");
  if (values == NULL) {
    damaged("manifest.json is damaged: %s is no symbol", written);
    return;
  }
  one->name = strndup(written, (size_t)(values++ - written));
  if (dots) {
    int64_t first = strtoll(values, NULL, 10), last = strtoll(dots + 2, NULL, 10);
    one->count = (int)(last - first + 1);
    one->values = many(one->count, sizeof(int64_t));
    for (int i = 0; i < one->count && one->values; ++i) one->values[i] = first + i;
    return;
  }
  one->values = many((int)strlen(values), sizeof(int64_t));
  while (one->values && *values) {
    one->values[one->count++] = strtoll(values, (char**)&values, 10);
    if (*values != ',') break;
    ++values;
  }
}

static void read_symbols(subtune_model* model, TVMFFIAny forms) {
  int count = length(forms);
  model->symbols = many(count, sizeof(symbol));
  for (int i = 0; i < count && !has_failed(); ++i) {
    TVMFFIAny form = field(item(forms, i), "text");
    char* written = own_text(&form);
    read_symbol(&model->symbols[i], written);
    free(written);
    model->symbol_count = i + 1;
  }
}

static void read_memory(subtune_model* model, TVMFFIAny memory, TVMFFIAny weights) {
  TVMFFIAny nbytes = field(memory, "arena_nbytes"), takes = field(memory, "takes_addresses");
  model->arena_nbytes = (size_t)whole(&nbytes);
  if (!has_failed() && !whole(&takes)) {
    damaged("the model's program runs in TVM's virtual machine, which this library does not: run it from Python");
    return;
  }
  model->weight_count = length(weights);
  model->weight_offsets = many(model->weight_count, sizeof(int64_t));
  for (int i = 0; i < model->weight_count && !has_failed(); ++i) {
    TVMFFIAny offset = field(item(weights, i), "offset");
    model->weight_offsets[i] = whole(&offset);
  }
  TVMFFIAny slack = field(memory, "slack"), copies = field(memory, "copies");
  for (int i = 0; i < length(slack) && !has_failed(); ++i) {
    TVMFFIAny output = item(item(slack, i), 0), behind = item(item(slack, i), 1);
    int64_t place = whole(&output);
    if (place >= 0 && place < model->counts[SUBTUNE_OUTPUT]) {
      model->tensors[SUBTUNE_OUTPUT][place].slack = (size_t)whole(&behind);
    }
  }
  int count = length(copies);
  model->copies = many(count, sizeof(copy));
  for (int i = 0; i < count && !has_failed(); ++i) {
    static const char* const names[] = {"input", "output", "weight", "arena"};
    TVMFFIAny output = item(item(copies, i), 0), view = item(item(copies, i), 1);
    TVMFFIAny from = field(view, "base"), place = field(view, "place");
    copy* one = &model->copies[model->copy_count++];
    one->output = (int)whole(&output);
    one->place = whole(&place);
    while (one->from < BASE_ARENA && !is_text(&from, names[one->from])) one->from++;
  }
}

static void read_fields(subtune_model* model, const char* folder, TVMFFIAny manifest) {
  TVMFFIAny format = field(manifest, "format"), kind = field(manifest, "kind");
  if (!has_failed() && whole(&format) != SUBTUNE_FORMAT) {
    damaged("%s has artifact format %d, this library reads %d: export it again", folder, (int)whole(&format),
           SUBTUNE_FORMAT);
  } else if (!has_failed() && !is_text(&kind, "cpu")) {
    damaged("%s is for a GPU: load it from Python", folder);
  }
  TVMFFIAny caches = field(manifest, "caches");
  if (!has_failed() && length(caches)) damaged("%s keeps caches in place: load it from Python", folder);
  TVMFFIAny features = field(manifest, "features");
  for (int i = 0; !has_failed() && i < length(features); ++i) {
    TVMFFIAny feature = item(features, i);
    char* name = own_text(&feature);
    if (name) check_feature(name);
    free(name);
  }
  if (has_failed()) return;
  TVMFFIAny threads = field(manifest, "threads");
  if (!model->threads) model->threads = (int)whole(&threads);
  read_tensors(model, SUBTUNE_INPUT, field(manifest, "inputs"));
  read_tensors(model, SUBTUNE_OUTPUT, field(manifest, "outputs"));
  if (!has_failed()) read_symbols(model, field(field(manifest, "domain"), "symbols"));
  if (!has_failed()) read_memory(model, field(manifest, "memory"), field(manifest, "weights"));
}

int read_manifest(subtune_model* model, const char* folder) {
  size_t room = strlen(folder) + sizeof("/manifest.json");
  char* path = many((int)room, 1);
  if (path == NULL) return -1;
  snprintf(path, room, "%s/manifest.json", folder);
  FILE* file = fopen(path, "rb");
  free(path);
  if (file == NULL) return failed("%s is no artifact: there is no manifest.json to read", folder);
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  char* json = many((int)size + 1, 1);
  size_t done = json ? fread(json, 1, (size_t)size, file) : 0;
  fclose(file);
  TVMFFIAny argument = text(json), manifest = {0};
  int status = done == (size_t)size ? call_global("ffi.json.Parse", &argument, 1, &manifest) : -1;
  free(json);
  if (status != 0) return failed("%s/manifest.json is damaged: it is no JSON", folder);
  read_fields(model, folder, manifest);
  release(&manifest);
  return has_failed() ? -1 : 0;
}
