// A CUDA driver without a GPU, as far as the runner of a pack calls it: memory is the host's, and
// instead of running, kernels write what a plan says; see plans.py. Every launch takes 10 us, if the
// plan does not tell another time.
//
// TUNER_TEST_PLAN names the plan, a text file with a line for each fact:
//   inputs HEX SET: memory that begins with these 16 bytes is an input of a set
//   takes KERNEL N: the kernel takes N pointers
//   writes KERNEL PARAMETER SET FILE: the kernel copies a file to the address of that parameter
//   does KERNEL crash|hang|fault|nothing
//   takes-us KERNEL ALONE NETWORK: its time in a graph of its own, and among other kernels
//   graphs crash|hang: what the launch of a graph of a network does
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int status;
typedef unsigned long long address;
typedef struct { char name[256]; } kernel;

enum { LINE = 4096 };
static status failed;
static int captures, set = -1;
static double secs, secs_before;
// The end of a kernel in a graph, alone and among others, us.
typedef struct { double alone, in_network; } node;
// The last end in a graph, and the first different kernels: a candidate has two at most.
typedef struct { node end; int n_names; char names[3][256]; } graph;
static graph captured;
// What the next captured kernel waits for.
static node *waited[64];
static size_t n_waited;

static char *plan_line(FILE *plan, char *line) { return fgets(line, LINE, plan); }

static void find_set(FILE *plan, void **parameters, int n_parameters) {
  char line[LINE], hex[64], begin[64];
  int number;
  rewind(plan);
  while (plan_line(plan, line)) {
    if (sscanf(line, "inputs %63s %d", hex, &number) != 2) continue;
    for (int i = 0; i < n_parameters; ++i) {
      const unsigned char *at = *(unsigned char **)parameters[i];
      if (!at) continue;
      for (int k = 0; k < 16; ++k) sprintf(begin + 2 * k, "%02x", at[k]);
      if (!strcmp(begin, hex)) set = number;
    }
  }
}

static void write_output(void *to, const char *path) {
  FILE *file = fopen(path, "rb");
  char block[1 << 16];
  size_t n_bytes;
  while (file && (n_bytes = fread(block, 1, sizeof block, file))) {
    memcpy(to, block, n_bytes);
    to = (char *)to + n_bytes;
  }
  if (file) fclose(file);
}

static void run(const kernel *launched, void **parameters) {
  char line[LINE], name[256], path[LINE], does[16] = "";
  int parameter, of_set, n_parameters = 0;
  FILE *plan = fopen(getenv("TUNER_TEST_PLAN"), "r");
  while (plan_line(plan, line)) {
    if (sscanf(line, "takes %255s %d", name, &parameter) == 2 && !strcmp(name, launched->name))
      n_parameters = parameter;
    char word[16];
    if (sscanf(line, "does %255s %15s", name, word) == 2 && !strcmp(name, launched->name))
      strcpy(does, word);
  }
  if (!strcmp(does, "crash")) raise(SIGSEGV);
  if (!strcmp(does, "hang")) pause();
  if (!strcmp(does, "fault")) failed = 700;
  find_set(plan, parameters, n_parameters);
  rewind(plan);
  while (strcmp(does, "nothing") && plan_line(plan, line)) {
    if (sscanf(line, "writes %255s %d %d %4095s", name, &parameter, &of_set, path) == 4 &&
        !strcmp(name, launched->name) && of_set == set)
      write_output(*(void **)parameters[parameter], path);
  }
  fclose(plan);
}

static void capture(const kernel *launched) {
  char line[LINE], name[256];
  double alone = 10, in_network = 10, times[2];
  FILE *plan = fopen(getenv("TUNER_TEST_PLAN"), "r");
  while (plan_line(plan, line))
    if (sscanf(line, "takes-us %255s %lf %lf", name, &times[0], &times[1]) == 3 &&
        !strcmp(name, launched->name)) {
      alone = times[0];
      in_network = times[1];
    }
  fclose(plan);
  int at = 0;
  while (at < captured.n_names && strcmp(captured.names[at], launched->name)) ++at;
  if (at == captured.n_names && at < 3) strcpy(captured.names[captured.n_names++], launched->name);
  node *ended = calloc(1, sizeof(node));
  for (size_t i = 0; i < n_waited; ++i) {
    if (waited[i]->alone > ended->alone) ended->alone = waited[i]->alone;
    if (waited[i]->in_network > ended->in_network) ended->in_network = waited[i]->in_network;
  }
  ended->alone += alone;
  ended->in_network += in_network;
  if (ended->alone > captured.end.alone) captured.end.alone = ended->alone;
  if (ended->in_network > captured.end.in_network) captured.end.in_network = ended->in_network;
  waited[0] = ended;
  n_waited = 1;
}

static status made(void **handle) {
  *handle = calloc(1, sizeof(kernel));
  return failed;
}

status cuInit(unsigned flags) { return getenv("TUNER_TEST_NO_GPU") ? 100 : 0; }
status cuDeviceGet(int *device, int number) { return *device = 0; }
status cuDevicePrimaryCtxRetain(void **context, int device) { return made(context); }
status cuCtxSetCurrent(void *context) { return 0; }
status cuStreamCreate(void **stream, unsigned flags) { return made(stream); }
status cuEventCreate(void **event, unsigned flags) { return made(event); }
status cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}
status cuDeviceGetName(char *name, int length, int device) {
  strcpy(name, "NVIDIA Test");
  return 0;
}
status cuDeviceGetUuid(unsigned char *uuid, int device) {
  const char *other = getenv("TUNER_TEST_OTHER_GPU");
  memset(uuid, other ? 0xcc + atoi(other) : 0xab, 16);
  return 0;
}
// 38 is the size of the second-level cache, 75 and 76 are the compute capability.
status cuDeviceGetAttribute(int *value, int attribute, int device) {
  const char *major = getenv("TUNER_TEST_CAPABILITY");
  *value = attribute == 75 ? atoi(major ? major : "9") : attribute == 76 ? 0
           : attribute == 38 ? 1 << 12 : 1024;
  return 0;
}
status cuGetErrorName(status code, const char **name) {
  *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
  return 0;
}
status cuMemAlloc_v2(address *result, size_t n_bytes) {
  *result = (address)malloc(n_bytes);
  return failed;
}
status cuMemFree_v2(address pointer) {
  free((void *)pointer);
  return failed;
}
status cuMemcpyHtoDAsync_v2(address to, void *from, size_t n_bytes, void *stream) {
  memcpy((void *)to, from, n_bytes);
  return failed;
}
status cuMemcpyDtoHAsync_v2(void *to, address from, size_t n_bytes, void *stream) {
  memcpy(to, (void *)from, n_bytes);
  return failed;
}
status cuMemsetD8Async(address to, unsigned char value, size_t n_bytes, void *stream) {
  memset((void *)to, value, n_bytes);
  return failed;
}
status cuStreamSynchronize(void *stream) { return failed; }
status cuModuleLoadData(void **module, const char *image) {
  return memcmp(image, "\x7f" "ELF", 4) ? 200 : made(module);
}
status cuModuleGetFunction(kernel **function, void *module, const char *name) {
  status code = made((void **)function);
  strncpy((*function)->name, name, 255);
  return code;
}
status cuModuleUnload(void *module) { return failed; }
status cuFuncSetAttribute(void *function, int attribute, int value) { return failed; }
typedef struct {
  unsigned sizes[7];
  void *stream;
  const unsigned *attributes;
  unsigned n_attributes;
} launch;
status cuLaunchKernelEx(const launch *given, kernel *function, void **parameters, void **extra) {
  if (!given->sizes[0] || !given->sizes[3] || !given->stream) return 1;
  // The only attribute is programmatic dependent launch, switched on.
  if (given->n_attributes && (given->attributes[0] != 6 || given->attributes[2] != 1)) return 1;
  if (captures) {
    capture(function);
  } else {
    secs += 1e-5;
    run(function, parameters);
  }
  return 0;
}
status cuStreamBeginCapture_v2(void *stream, int mode) {
  memset(&captured, 0, sizeof captured);
  n_waited = 0;
  captures = 1;
  return failed;
}
status cuStreamEndCapture(void *stream, void **graph) {
  captures = 0;
  return made(graph);
}
status cuStreamGetCaptureInfo_v3(void *stream, int *state, address *id, void **graph, node ***nodes,
                                 void **edges, size_t *count) {
  *nodes = waited;
  *count = n_waited;
  return failed;
}
status cuStreamUpdateCaptureDependencies_v2(void *stream, node **nodes, void *edges, size_t count,
                                            unsigned flags) {
  if (flags != 1 || count > 64) return 1;
  memcpy(waited, nodes, count * sizeof *nodes);
  n_waited = count;
  return failed;
}
status cuGraphInstantiateWithFlags(graph **executable, void *from, address flags) {
  *executable = malloc(sizeof captured);
  **executable = captured;
  return failed;
}
status cuGraphLaunch(graph *executable, void *stream) {
  char line[LINE], does[16] = "";
  FILE *plan = fopen(getenv("TUNER_TEST_PLAN"), "r");
  while (executable->n_names > 2 && plan_line(plan, line)) sscanf(line, "graphs %15s", does);
  fclose(plan);
  if (!strcmp(does, "crash")) raise(SIGSEGV);
  if (!strcmp(does, "hang")) pause();
  secs += 1e-6 * (executable->n_names > 2 ? executable->end.in_network : executable->end.alone);
  return failed;
}
status cuGraphExecDestroy(void *executable) { return failed; }
status cuGraphDestroy(void *graph) { return failed; }
status cuEventRecord(void *event, void *stream) {
  static double now;
  secs_before = now;
  now = secs;
  return failed;
}
status cuEventElapsedTime(float *milliseconds, void *start, void *end) {
  *milliseconds = 1e3 * (secs - secs_before);
  return failed;
}
