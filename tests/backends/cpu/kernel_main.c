/* Runs one TVM kernel without TVM: linked with the kernel's object file and the few symbols of the runtime it calls.

   stdin: int32 number of arguments; per argument int32 type code (DLPack's), bits, rank and int64 extents; then the data
   of all of them.
   stdout: the data of the last argument. Parallel loops run one task after the other. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { int32_t type_index; uint32_t padding; union { void *pointer; int64_t integer; } value; } Any;
typedef struct {
    void *data;
    int32_t device_type, device_id, rank;
    uint8_t dtype_code, dtype_bits;
    uint16_t dtype_lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;
typedef struct { void *sync; int32_t num_task; } Tasks;

enum { TENSOR_POINTER = 7, CPU_DEVICE = 1, MAX_ARGUMENTS = 16, ALIGNMENT = 64, TASKS = 3 };

extern int __tvm_ffi_main(void *self, const Any *args, int32_t count, Any *result);

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
    fprintf(stderr, "%s: ", kind);
    for (int32_t i = 0; i < count; i++) fputs(parts[i], stderr);
}

static int launch(int (*body)(int, Tasks *, void *), void *closure, int wanted) {
    Tasks tasks = {NULL, wanted ? wanted : TASKS};
    for (int task = 0; task < tasks.num_task; task++)
        if (body(task, &tasks, closure)) return -1;
    return 0;
}

static void *allocate(uint64_t bytes) { return aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT); }

static void *take(int device, int id, uint64_t bytes, int code, int bits) {
    return (void)device, (void)id, (void)code, (void)bits, allocate(bytes);
}

static int give_back(int device, int id, void *memory) {
    (void)device, (void)id;
    free(memory);
    return 0;
}

/* A kernel reaches these through pointers of its own, which TVM's loader sets; here both are one and the same. */
__attribute__((weak)) int (*__TVMBackendParallelLaunch)(int (*)(int, Tasks *, void *), void *, int);
__attribute__((weak)) void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
__attribute__((weak)) int (*__TVMBackendFreeWorkspace)(int, int, void *);

static void read_exactly(void *into, size_t bytes) {
    if (fread(into, 1, bytes, stdin) != bytes) { fputs("short input\n", stderr); exit(3); }
}

int main(void) {
    static Tensor tensors[MAX_ARGUMENTS];
    static int64_t shapes[MAX_ARGUMENTS][8];
    Any args[MAX_ARGUMENTS], result = {0};
    uint64_t bytes[MAX_ARGUMENTS];
    int32_t count;
    __TVMBackendParallelLaunch = launch, __TVMBackendAllocWorkspace = take, __TVMBackendFreeWorkspace = give_back;
    read_exactly(&count, sizeof count);
    if (count > MAX_ARGUMENTS) return 3;
    for (int32_t i = 0; i < count; i++) {
        Tensor *t = &tensors[i];
        int32_t about[3];
        read_exactly(about, sizeof about);
        t->dtype_code = (uint8_t)about[0], t->dtype_bits = (uint8_t)about[1], t->rank = about[2];
        if (t->rank < 0 || t->rank > 8) return 3;
        read_exactly(shapes[i], t->rank * sizeof(int64_t));
        bytes[i] = t->dtype_bits / 8;
        for (int32_t d = 0; d < t->rank; d++) bytes[i] *= (uint64_t)shapes[i][d];
        t->shape = shapes[i];
        t->device_type = CPU_DEVICE, t->dtype_lanes = 1;
        t->data = allocate(bytes[i]);
        args[i] = (Any){TENSOR_POINTER, 0, {.pointer = t}};
    }
    for (int32_t i = 0; i < count; i++) read_exactly(tensors[i].data, bytes[i]);
    if (__tvm_ffi_main(NULL, args, count, &result)) return 4;
    return fwrite(tensors[count - 1].data, 1, bytes[count - 1], stdout) == bytes[count - 1] ? 0 : 5;
}
