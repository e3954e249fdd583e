// A CUDA driver and runtime without a GPU: memory is the host's, kernels are named and not run.
// Enough of both for TVM to load a library and call it, and for this project to capture and replay
// it; see test_cuda_libraries.py and test_graphs.py. Rules and codes of errors are those of the
// CUDA Runtime API (stream management, graph management) and of driver_types.h.
//
// TUNER_TEST_CUDA_LOG names a file that gets a line for each call: name, status, details.
// TUNER_TEST_CUDA_FAIL makes a call fail: "cudaGraphInstantiate=2", or "cudaGraphLaunch@3=700" for
// the third one alone, counted from the change of the variable.
#define _GNU_SOURCE
#include <elf.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int status;
enum {
  INVALID_VALUE = 1, MEMORY = 2, NOT_INITIALIZED = 3, INVALID_HANDLE = 400, ILLEGAL_STATE = 401,
  ILLEGAL_ADDRESS = 700, UNSUPPORTED = 900, INVALIDATED = 901, ISOLATION = 905, IMPLICIT = 906,
  CAPTURED_EVENT = 907, WRONG_THREAD = 908
};
enum { GLOBAL, THREAD_LOCAL, RELAXED };
enum { MAX_PARAMETERS = 512, MAX_NODES = 4096, MAX_STREAMS = 256, MAX_NEEDED = 64, MAX_MEMORIES = 1 << 16 };
enum { KERNEL_NODE, MEMCPY_NODE };

typedef struct {
  char name[256];
  int n_parameters;
  uint16_t offsets[MAX_PARAMETERS], sizes[MAX_PARAMETERS];
} kernel;

typedef struct node {
  int type;
  const struct node *origin;  // of a node of an executable graph
  kernel *function;
  unsigned grid[3], block[3], shared;
  char values[4096];
  void *parameters[MAX_PARAMETERS];
  int n_needed;
  struct node *needed[MAX_NEEDED];
  int depth;  // of its kernels and those before it, on the longest way
} node;

typedef struct {
  int is_exec, n_nodes;
  node *nodes[MAX_NODES];
} graph;

typedef struct {
  graph *captured;  // 0 unless the stream captures
  int is_blocking, mode, is_invalid, is_destroyed, n_last;
  node *last[MAX_NEEDED];  // what the next node of a capture waits for
  pthread_t thread;
} stream;

typedef struct {
  stream *captured_by;
  int launched, launched_before;
} event;

typedef struct {
  unsigned grid[3], block[3], shared;
  stream *stream;
} launch;

typedef struct {
  void *func;
  unsigned grid[3], block[3], shared;
  void **parameters, **extra;
  void *kern, *context;
} node_parameters;

typedef struct {
  char *start;
  size_t n_bytes;
  int is_live;
} memory;

// The runtime is a library of its own, which uses the state of the driver.
typedef struct {
  pthread_mutex_t lock;
  int pid, launched, launched_now, launched_before, n_streams, n_memories, n_failing;
  status failed;  // after a launch that writes to an address that is not there, for ever
  char failing[128];
  stream *streams[MAX_STREAMS];
  memory memories[MAX_MEMORIES];
} state;
#ifdef RUNTIME
extern state tuner_test_gpu;
#else
state tuner_test_gpu = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};
#endif
static state *const gpu = &tuner_test_gpu;
static __thread int thread_mode = GLOBAL;
// What the next check of another library finds, unless whoever caused it clears it.
static __thread status last_error;

static void leave(int *entered) { pthread_mutex_unlock(&gpu->lock); }

static status done(const char *name, status code, const char *format, ...) {
  if (code && name[2] == 'd') last_error = code;
  const char *path = getenv("TUNER_TEST_CUDA_LOG");
  FILE *file = path ? fopen(path, "a") : 0;
  if (!file) return code;
  fprintf(file, "%s %d ", name, code);
  va_list values;
  va_start(values, format);
  vfprintf(file, format, values);
  va_end(values);
  fputc('\n', file);
  fclose(file);
  return code;
}

// What a call returns before it does anything: it was made to fail, or the process was forked.
static status refusal(const char *name) {
  if (!gpu->pid) gpu->pid = getpid();
  if (gpu->pid != getpid()) return done(name, NOT_INITIALIZED, "forked");
  const char *failing = getenv("TUNER_TEST_CUDA_FAIL");
  size_t length = strlen(name);
  if (!failing || strncmp(failing, name, length)) return 0;
  if (strcmp(failing, gpu->failing)) {
    snprintf(gpu->failing, sizeof gpu->failing, "%s", failing);
    gpu->n_failing = 0;
  }
  int number = 0, code = 0;
  if (sscanf(failing + length, "@%d=%d", &number, &code) < 2) {
    if (sscanf(failing + length, "=%d", &code) < 1) return 0;
  }
  if (++gpu->n_failing != number && number) return 0;
  if (code == ILLEGAL_ADDRESS) gpu->failed = code;
  return done(name, code, "made to fail");
}

#define LOCK() __attribute__((cleanup(leave))) int entered = pthread_mutex_lock(&gpu->lock)
#define ENTER(name)               \
  LOCK();                         \
  status refused = refusal(name); \
  if (refused) return refused

#define DOES_NOTHING(name) \
  status name(void) {      \
    ENTER(#name);          \
    return done(#name, 0, ""); \
  }

// A call that capture does not see, or that waits, is refused and ends captures that it may harm.
static status unsafe(const char *name) {
  int harmed = 0;
  for (int i = 0; i < gpu->n_streams; ++i) {
    stream *each = gpu->streams[i];
    if (!each->captured || each->mode == RELAXED || thread_mode == RELAXED) continue;
    int is_own = pthread_equal(each->thread, pthread_self());
    if (is_own || (each->mode == GLOBAL && thread_mode == GLOBAL)) harmed = each->is_invalid = 1;
  }
  return harmed ? done(name, UNSUPPORTED, "while a stream captures") : 0;
}

static int is_legacy(stream *given) { return (uintptr_t)given <= 2; }

// The legacy stream waits for all blocking streams, one that captures cannot be waited for.
static status implicit(const char *name, stream *given) {
  if (!is_legacy(given)) return given->is_destroyed ? INVALID_HANDLE : 0;
  for (int i = 0; i < gpu->n_streams; ++i) {
    stream *each = gpu->streams[i];
    if (each->captured && each->is_blocking) {
      each->is_invalid = 1;
      return done(name, IMPLICIT, "on the legacy stream");
    }
  }
  return 0;
}

static graph *capture_of(stream *given) { return is_legacy(given) ? 0 : given->captured; }

static memory *memory_at(uintptr_t address) {
  memory *dead = 0;
  for (int i = 0; i < gpu->n_memories; ++i) {
    memory *each = &gpu->memories[i];
    uintptr_t start = (uintptr_t)each->start;
    if (address < start || address >= start + each->n_bytes) continue;
    if (each->is_live) return each;
    dead = each;
  }
  return dead;
}

// Freed memory stays mapped at its address, so that a later use of it is seen.
static status allocate(const char *name, void **result, size_t n_bytes) {
  status code = unsafe(name);
  if (code) return code;
  if (gpu->n_memories == MAX_MEMORIES) return done(name, MEMORY, "%zu", n_bytes);
  size_t mapped = n_bytes ? n_bytes : 1;
  char *start = mmap(0, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return done(name, MEMORY, "%zu", n_bytes);
  gpu->memories[gpu->n_memories++] = (memory){start, mapped, 1};
  *result = start;
  return done(name, 0, "%p %zu", start, n_bytes);
}

static status release(const char *name, void *start) {
  if (gpu->failed) return gpu->failed;
  if (!start) return done(name, 0, "nothing");
  status code = unsafe(name);
  if (code) return code;
  memory *freed = memory_at((uintptr_t)start);
  if (!freed || !freed->is_live || freed->start != start)
    return done(name, INVALID_VALUE, "%p", start);
  freed->is_live = 0;
  madvise(start, freed->n_bytes, MADV_DONTNEED);
  return done(name, 0, "%p", start);
}

status cudaMalloc(void **result, size_t n_bytes) {
  ENTER("cudaMalloc");
  return allocate("cudaMalloc", result, n_bytes);
}
status cudaMallocHost(void **result, size_t n_bytes) {
  ENTER("cudaMallocHost");
  return allocate("cudaMallocHost", result, n_bytes);
}
status cudaFree(void *start) {
  ENTER("cudaFree");
  return release("cudaFree", start);
}
status cudaFreeHost(void *start) {
  ENTER("cudaFreeHost");
  return release("cudaFreeHost", start);
}

static node *append(stream *capturing, int type) {
  node *made = calloc(1, sizeof(node));
  made->type = type;
  made->n_needed = capturing->n_last;
  memcpy(made->needed, capturing->last, sizeof made->needed);
  for (int i = 0; i < made->n_needed; ++i)
    if (made->needed[i]->depth > made->depth) made->depth = made->needed[i]->depth;
  ++made->depth;
  capturing->last[0] = made;
  capturing->n_last = 1;
  graph *into = capturing->captured;
  into->nodes[into->n_nodes++] = made;
  return made;
}

static status copy(void *to, const void *from, size_t n_bytes, stream *given) {
  status code = implicit("cudaMemcpyAsync", given);
  if (code) return code;
  memory *ends[] = {memory_at((uintptr_t)to), memory_at((uintptr_t)from)};
  for (int i = 0; i < 2; ++i)
    if (ends[i] && !ends[i]->is_live) return done("cudaMemcpyAsync", INVALID_VALUE, "freed");
  if (capture_of(given)) {
    append(given, MEMCPY_NODE);
  } else {
    memcpy(to, from, n_bytes);
  }
  return done("cudaMemcpyAsync", 0, "%p %p %p %zu", given, to, from, n_bytes);
}
status cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, int kind, stream *given) {
  ENTER("cudaMemcpyAsync");
  return gpu->failed ? gpu->failed : copy(to, from, n_bytes, given);
}

status cudaStreamCreateWithFlags(stream **result, unsigned flags) {
  ENTER("cudaStreamCreateWithFlags");
  if (gpu->n_streams == MAX_STREAMS) return MEMORY;
  stream *made = calloc(1, sizeof(stream));
  made->is_blocking = !flags;
  gpu->streams[gpu->n_streams++] = *result = made;
  return done("cudaStreamCreateWithFlags", 0, "%p", made);
}
status cudaStreamCreate(stream **result) { return cudaStreamCreateWithFlags(result, 0); }
status cudaStreamDestroy(stream *given) {
  ENTER("cudaStreamDestroy");
  if (is_legacy(given) || given->is_destroyed) return INVALID_HANDLE;
  given->is_destroyed = 1;
  return done("cudaStreamDestroy", 0, "%p", given);
}
static status synchronize(const char *name, stream *given) {
  if (gpu->failed) return gpu->failed;
  status code = implicit(name, given);
  if (code) return code;
  if (capture_of(given)) {
    given->is_invalid = 1;
    return done(name, UNSUPPORTED, "%p captures", given);
  }
  return done(name, 0, "%p", given);
}
status cudaStreamSynchronize(stream *given) {
  ENTER("cudaStreamSynchronize");
  return synchronize("cudaStreamSynchronize", given);
}
status cudaDeviceSynchronize(void) {
  ENTER("cudaDeviceSynchronize");
  status code = unsafe("cudaDeviceSynchronize");
  return code ? code : synchronize("cudaDeviceSynchronize", 0);
}

status cudaLaunchHostFunc(stream *given, void (*function)(void *), void *argument) {
  ENTER("cudaLaunchHostFunc");
  function(argument);
  return done("cudaLaunchHostFunc", 0, "%p", given);
}

status cudaThreadExchangeStreamCaptureMode(int *mode) {
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return 0;
}
status cudaStreamIsCapturing(stream *given, int *result) {
  ENTER("cudaStreamIsCapturing");
  status code = implicit("cudaStreamIsCapturing", given);
  if (code) return code;
  *result = !capture_of(given) ? 0 : given->is_invalid ? 2 : 1;
  return 0;
}
status cudaStreamBeginCapture(stream *given, int mode) {
  ENTER("cudaStreamBeginCapture");
  if (is_legacy(given)) return done("cudaStreamBeginCapture", UNSUPPORTED, "legacy stream");
  if (given->is_destroyed) return done("cudaStreamBeginCapture", INVALID_HANDLE, "destroyed");
  if (given->captured) return done("cudaStreamBeginCapture", ILLEGAL_STATE, "captures already");
  given->captured = calloc(1, sizeof(graph));
  given->n_last = 0;
  given->is_invalid = 0;
  given->mode = mode;
  given->thread = pthread_self();
  return done("cudaStreamBeginCapture", 0, "%p", given);
}
status cudaStreamEndCapture(stream *given, graph **result) {
  LOCK();
  *result = 0;
  status refused = refusal("cudaStreamEndCapture");
  // A capture that was invalidated ends all the same.
  if (refused && capture_of(given)) given->captured = 0;
  if (refused) return refused;
  if (!capture_of(given)) return done("cudaStreamEndCapture", ILLEGAL_STATE, "does not capture");
  if (given->mode != RELAXED && !pthread_equal(given->thread, pthread_self()))
    return done("cudaStreamEndCapture", WRONG_THREAD, "%p", given);
  graph *captured = given->captured;
  given->captured = 0;
  if (given->is_invalid) return done("cudaStreamEndCapture", INVALIDATED, "%p", given);
  *result = captured;
  return done("cudaStreamEndCapture", 0, "%p %d nodes", captured, captured->n_nodes);
}

status cuStreamGetCaptureInfo_v3(stream *given, int *state, uint64_t *id, graph **captured,
                                 node ***nodes, const void **edges, size_t *count) {
  ENTER("cuStreamGetCaptureInfo_v3");
  *state = capture_of(given) ? 1 : 0;
  *captured = capture_of(given);
  *nodes = given->last;
  *edges = 0;
  *count = given->n_last;
  return 0;
}
status cuStreamUpdateCaptureDependencies_v2(stream *given, node **nodes, const void *edges,
                                            size_t count, unsigned flags) {
  ENTER("cuStreamUpdateCaptureDependencies_v2");
  if (!capture_of(given)) return done("cuStreamUpdateCaptureDependencies_v2", ILLEGAL_STATE, "");
  if (count > MAX_NEEDED || flags != 1)
    return done("cuStreamUpdateCaptureDependencies_v2", INVALID_VALUE, "%zu", count);
  memcpy(given->last, nodes, count * sizeof(node *));
  given->n_last = count;
  return done("cuStreamUpdateCaptureDependencies_v2", 0, "%zu", count);
}

// A kernel runs: every address among its parameters must be in memory that was not freed.
static void run(const char *how, const node *each, stream *given) {
  ++gpu->launched;
  if (!getenv("TUNER_TEST_CUDA_LOG")) return;
  char text[32 * MAX_PARAMETERS];
  size_t length = 0;
  const char *problem = "";
  for (int i = 0; i < each->function->n_parameters; ++i) {
    uint64_t value = 0;
    memcpy(&value, each->parameters[i], each->function->sizes[i] < 8 ? each->function->sizes[i] : 8);
    length += snprintf(text + length, sizeof text - length, " %#lx", (unsigned long)value);
    memory *used = memory_at(value);
    if (used && !used->is_live) problem = " freed-memory";
  }
  text[length] = 0;
  done(how, 0, "%s %u %u %p%s%s", each->function->name, each->grid[0], each->block[0], given, text,
       problem);
}

static void fill(node *into, const launch *given, kernel *function, void **parameters) {
  into->function = function;
  memcpy(into->grid, given->grid, sizeof given->grid + sizeof given->block);
  into->shared = given->shared;
  for (int i = 0; i < function->n_parameters; ++i) {
    into->parameters[i] = into->values + function->offsets[i];
    memcpy(into->parameters[i], parameters[i], function->sizes[i]);
  }
}

status cuLaunchKernelEx(const launch *given, kernel *function, void **parameters) {
  ENTER("cuLaunchKernelEx");
  status code = implicit("cuLaunchKernelEx", given->stream);
  if (code) return code;
  graph *captured = capture_of(given->stream);
  if (captured) {
    if (given->stream->is_invalid) return done("cuLaunchKernelEx", INVALIDATED, "");
    fill(append(given->stream, KERNEL_NODE), given, function, parameters);
    return done("capture", 0, "%s", function->name);
  }
  printf("launch %s %u %u\n", function->name, given->grid[0], given->block[0]);
  fflush(stdout);
  node *once = calloc(1, sizeof(node));
  fill(once, given, function, parameters);
  run("launch", once, given->stream);
  free(once);
  if (getenv("TUNER_TEST_ILLEGAL_ADDRESS")) gpu->failed = ILLEGAL_ADDRESS;
  return 0;
}

static graph *copied(const graph *from) {
  graph *made = calloc(1, sizeof(graph));
  made->n_nodes = from->n_nodes;
  for (int i = 0; i < from->n_nodes; ++i) {
    made->nodes[i] = malloc(sizeof(node));
    *made->nodes[i] = *from->nodes[i];
    made->nodes[i]->origin = from->nodes[i];
    for (int k = 0; from->nodes[i]->function && k < from->nodes[i]->function->n_parameters; ++k)
      made->nodes[i]->parameters[k] =
          made->nodes[i]->values + from->nodes[i]->function->offsets[k];
  }
  return made;
}
status cudaGraphInstantiate(graph **result, const graph *from, unsigned long long flags) {
  ENTER("cudaGraphInstantiate");
  status code = unsafe("cudaGraphInstantiate");
  if (code) return code;
  *result = copied(from);
  (*result)->is_exec = 1;
  return done("cudaGraphInstantiate", 0, "%p %d nodes", *result, from->n_nodes);
}
status cudaGraphGetNodes(graph *given, node **nodes, size_t *count) {
  ENTER("cudaGraphGetNodes");
  if (nodes) memcpy(nodes, given->nodes, *count * sizeof(node *));
  *count = given->n_nodes;
  return 0;
}
status cudaGraphNodeGetType(node *given, int *type) {
  ENTER("cudaGraphNodeGetType");
  *type = given->type;
  return 0;
}
status cuGraphKernelNodeGetParams_v2(node *given, node_parameters *result) {
  ENTER("cuGraphKernelNodeGetParams_v2");
  memset(result, 0, sizeof *result);
  result->func = given->function;
  memcpy(result->grid, given->grid, sizeof given->grid + sizeof given->block);
  result->shared = given->shared;
  result->parameters = given->parameters;
  return 0;
}
status cuFuncGetParamInfo(kernel *function, size_t number, size_t *offset, size_t *size) {
  ENTER("cuFuncGetParamInfo");
  if (number >= (size_t)function->n_parameters) return INVALID_VALUE;
  *offset = function->offsets[number];
  *size = function->sizes[number];
  return 0;
}
status cuGraphExecKernelNodeSetParams_v2(graph *exec, node *given, const node_parameters *changed) {
  ENTER("cuGraphExecKernelNodeSetParams_v2");
  if (!exec->is_exec) return done("cuGraphExecKernelNodeSetParams_v2", INVALID_VALUE, "");
  for (int i = 0; i < exec->n_nodes; ++i) {
    node *own = exec->nodes[i];
    if (own->origin != given) continue;
    launch same;
    memcpy(same.grid, changed->grid, sizeof changed->grid + sizeof changed->block);
    same.shared = changed->shared;
    fill(own, &same, changed->func, changed->parameters);
    return done("cuGraphExecKernelNodeSetParams_v2", 0, "%s", own->function->name);
  }
  return done("cuGraphExecKernelNodeSetParams_v2", INVALID_VALUE, "unknown node");
}
status cudaGraphLaunch(graph *exec, stream *given) {
  ENTER("cudaGraphLaunch");
  if (gpu->failed) return done("cudaGraphLaunch", gpu->failed, "");
  if (!exec->is_exec) return done("cudaGraphLaunch", INVALID_HANDLE, "destroyed");
  status code = implicit("cudaGraphLaunch", given);
  if (code) return code;
  if (capture_of(given)) {
    given->is_invalid = 1;
    return done("cudaGraphLaunch", UNSUPPORTED, "%p captures", given);
  }
  printf("graph %d\n", exec->n_nodes);
  fflush(stdout);
  done("cudaGraphLaunch", 0, "%p %p", exec, given);
  int launched = gpu->launched, depth = 0;
  for (int i = 0; i < exec->n_nodes; ++i) {
    if (exec->nodes[i]->type == KERNEL_NODE) run("replay", exec->nodes[i], given);
    if (exec->nodes[i]->depth > depth) depth = exec->nodes[i]->depth;
  }
  gpu->launched = launched + depth;
  return 0;
}
status cudaGraphExecDestroy(graph *exec) {
  ENTER("cudaGraphExecDestroy");
  exec->is_exec = 0;
  return done("cudaGraphExecDestroy", 0, "%p", exec);
}
DOES_NOTHING(cudaGraphDestroy)

status cudaEventCreateWithFlags(event **result, unsigned flags) {
  ENTER("cudaEventCreateWithFlags");
  *result = calloc(1, sizeof(event));
  return 0;
}
status cudaEventCreate(event **result) { return cudaEventCreateWithFlags(result, 0); }
// Every kernel takes half a millisecond; those of a graph run beside each other where they may.
status cudaEventRecord(event *given, stream *into) {
  ENTER("cudaEventRecord");
  if (gpu->failed) return gpu->failed;
  status code = implicit("cudaEventRecord", into);
  if (code) return code;
  given->captured_by = capture_of(into) ? into : 0;
  gpu->launched_before = gpu->launched_now;
  gpu->launched_now = gpu->launched;
  return done("cudaEventRecord", 0, "%p %p", given, into);
}
status cudaEventSynchronize(event *given) {
  ENTER("cudaEventSynchronize");
  if (given->captured_by) {
    given->captured_by->is_invalid = 1;
    return done("cudaEventSynchronize", CAPTURED_EVENT, "");
  }
  return done("cudaEventSynchronize", gpu->failed, "%p", given);
}
status cudaEventElapsedTime(float *milliseconds) {
  ENTER("cudaEventElapsedTime");
  *milliseconds = 0.5f * (gpu->launched_now - gpu->launched_before);
  return gpu->failed;
}
status cudaStreamWaitEvent(stream *given, event *awaited, unsigned flags) {
  ENTER("cudaStreamWaitEvent");
  status code = implicit("cudaStreamWaitEvent", given);
  if (code) return code;
  if (capture_of(given) != (awaited->captured_by ? awaited->captured_by->captured : 0)) {
    stream *harmed = capture_of(given) ? given : awaited->captured_by;
    harmed->is_invalid = 1;
    return done("cudaStreamWaitEvent", ISOLATION, "");
  }
  return done("cudaStreamWaitEvent", 0, "%p %p", given, awaited);
}

// An ELF file has its machine at 18, which is 190 for CUDA, and its architecture at 49.
status cuModuleLoadData(void **module, const unsigned char *image) {
  ENTER("cuModuleLoadData");
  status code = unsafe("cuModuleLoadData");
  if (code) return code;
  printf("load %d sm_%d\n", image[18], image[49]);
  *module = (void *)image;
  return done("cuModuleLoadData", 0, "");
}
// The section .nv.info of a kernel has an attribute 0x17 for each parameter: its ordinal at 8, its
// offset at 10, and its size from bit 18 of the word at 12 on.
status cuModuleGetFunction(kernel **result, const char *image, const char *name) {
  ENTER("cuModuleGetFunction");
  kernel *made = calloc(1, sizeof(kernel));
  char section[300];
  snprintf(made->name, sizeof made->name, "%s", name);
  snprintf(section, sizeof section, ".nv.info.%s", name);
  const Elf64_Ehdr *header = (const void *)image;
  const Elf64_Shdr *sections = (const void *)(image + header->e_shoff);
  const char *names = image + sections[header->e_shstrndx].sh_offset;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (strcmp(names + sections[i].sh_name, section)) continue;
    const unsigned char *at = (const void *)(image + sections[i].sh_offset);
    const unsigned char *end = at + sections[i].sh_size;
    while (at < end) {
      uint16_t length, ordinal;
      memcpy(&length, at + 2, 2);
      if (at[0] == 4 && at[1] == 0x17) {
        uint32_t packed;
        memcpy(&ordinal, at + 8, 2);
        memcpy(&packed, at + 12, 4);
        memcpy(&made->offsets[ordinal], at + 10, 2);
        made->sizes[ordinal] = packed >> 18;
        if (ordinal >= made->n_parameters) made->n_parameters = ordinal + 1;
      }
      at += 4 + (at[0] == 4 ? length : 0);
    }
  }
  *result = made;
  return done("cuModuleGetFunction", 0, "%s", name);
}

// Attributes that TVM asks a device for: 75 and 76 are its compute capability.
status cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32
           : attribute == 38 ? 50 << 20 : 1024;
  return 0;
}
status cudaGetDevice(int *device) { return *device = 0; }
status cudaGetDeviceCount(int *count) {
  *count = 1;
  return 0;
}

// What the driver itself tells of its device.
status cuInit(void) { return 0; }
status cuDeviceGet(int *device) { return *device = 0; }
status cuDeviceGetUuid(unsigned char *uuid) {
  memset(uuid, 0xab, 16);
  return 0;
}
status cuDeviceGetUuid_v2(unsigned char *uuid) { return cuDeviceGetUuid(uuid); }
status cuDeviceGetAttribute(int *value, int attribute) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32
           : attribute == 38 ? 50 << 20 : attribute == 8 ? 49152 : 1024;
  return 0;
}
// NVRTC asks for the driver's own tables of functions; 500 is CUDA_ERROR_NOT_FOUND.
status cuGetExportTable(const void **table) {
  *table = 0;
  return 500;
}
status cuGetErrorName(status code, const char **name) {
  *name = "error";
  return 0;
}
status cudaPeekAtLastError(void) { return gpu->failed ? gpu->failed : last_error; }
status cudaGetLastError(void) {
  status last = cudaPeekAtLastError();
  last_error = 0;
  return last;
}
const char *cudaGetErrorName(status code) { return "error"; }
const char *cudaGetErrorString(status code) { return "error"; }

DOES_NOTHING(cuDeviceGetName)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuGetErrorString)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuTensorMapEncodeTiled)
DOES_NOTHING(cudaEventDestroy)
DOES_NOTHING(cudaGetDeviceProperties)
DOES_NOTHING(cudaMemGetInfo)
DOES_NOTHING(cudaMemcpyPeerAsync)
DOES_NOTHING(cudaSetDevice)

// Calls of the driver that do what those of the runtime do, and have their names in the log.
#define SAME_AS(name, other) __typeof__(other) name __attribute__((alias(#other)))
SAME_AS(cuMemAlloc_v2, cudaMalloc);
SAME_AS(cuMemFree_v2, cudaFree);
SAME_AS(cuStreamCreate, cudaStreamCreateWithFlags);
SAME_AS(cuStreamDestroy_v2, cudaStreamDestroy);
SAME_AS(cuStreamSynchronize, cudaStreamSynchronize);
SAME_AS(cuStreamIsCapturing, cudaStreamIsCapturing);
SAME_AS(cuStreamBeginCapture_v2, cudaStreamBeginCapture);
SAME_AS(cuStreamEndCapture, cudaStreamEndCapture);
SAME_AS(cuStreamWaitEvent, cudaStreamWaitEvent);
SAME_AS(cuGraphInstantiateWithFlags, cudaGraphInstantiate);
SAME_AS(cuGraphLaunch, cudaGraphLaunch);
SAME_AS(cuGraphExecDestroy, cudaGraphExecDestroy);
SAME_AS(cuGraphDestroy, cudaGraphDestroy);
SAME_AS(cuEventCreate, cudaEventCreateWithFlags);
SAME_AS(cuEventRecord, cudaEventRecord);
SAME_AS(cuEventSynchronize, cudaEventSynchronize);
SAME_AS(cuEventDestroy_v2, cudaEventDestroy);
status cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n_bytes, stream *given) {
  return cudaMemcpyAsync(to, from, n_bytes, 1, given);
}
SAME_AS(cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2);
SAME_AS(cuMemcpyDtoDAsync_v2, cuMemcpyHtoDAsync_v2);
status cuCtxGetCurrent(void **context) {
  *context = 0;
  return 0;
}

DOES_NOTHING(cuCtxPushCurrent_v2)
DOES_NOTHING(cuCtxPopCurrent_v2)
DOES_NOTHING(cuDevicePrimaryCtxRetain)
