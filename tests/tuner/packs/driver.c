// A CUDA driver without a GPU, as far as the runner of a pack calls it: memory is the host's, and
// instead of running, kernels write what a plan says; see plans.py. Every launch takes 10 us.
//
// TUNER_TEST_PLAN names the plan, a text file with a line for each fact:
//   inputs HEX SET: memory that begins with these 16 bytes is an input of a set
//   takes KERNEL N: the kernel takes N pointers
//   writes KERNEL PARAMETER SET FILE: the kernel copies a file to the address of that parameter
//   does KERNEL crash|hang|fault|nothing
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
static int n_launched, n_launched_before, captures, n_captured, set = -1;

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
  memset(uuid, getenv("TUNER_TEST_OTHER_GPU") ? 0xcd : 0xab, 16);
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
    ++n_captured;
  } else {
    ++n_launched;
    run(function, parameters);
  }
  return 0;
}
status cuStreamBeginCapture_v2(void *stream, int mode) {
  n_captured = 0;
  captures = 1;
  return failed;
}
status cuStreamEndCapture(void *stream, void **graph) {
  captures = 0;
  return made(graph);
}
status cuGraphInstantiateWithFlags(int **executable, void *graph, address flags) {
  *executable = malloc(sizeof(int));
  **executable = n_captured;
  return failed;
}
status cuGraphLaunch(int *executable, void *stream) {
  n_launched += *executable;
  return failed;
}
status cuGraphExecDestroy(void *executable) { return failed; }
status cuGraphDestroy(void *graph) { return failed; }
status cuEventRecord(void *event, void *stream) {
  static int now;
  n_launched_before = now;
  now = n_launched;
  return failed;
}
status cuEventElapsedTime(float *milliseconds, void *start, void *end) {
  *milliseconds = 0.01f * (n_launched - n_launched_before);
  return failed;
}
