// A CUDA driver and runtime without a GPU: memory is the host's, kernels are named and not run.
// Enough of both for TVM to load a library and call it; see test_cuda_libraries.py.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int status;
typedef struct {
  unsigned grid[3], block[3], shared;
} launch;

#define DOES_NOTHING(name) \
  status name(void) { return 0; }

// After a launch that writes to an address that is not there, a context fails for ever.
static status failed;
static int launched, launched_now, launched_before;
static status context(void) { return failed; }

// Attributes that TVM asks a device for: 75 and 76 are its compute capability.
status cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32 : 1024;
  return 0;
}
status cudaGetDevice(int *device) { return *device = 0; }
status cudaGetDeviceCount(int *count) {
  *count = 1;
  return 0;
}
status cudaMalloc(void **memory, size_t bytes) {
  *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(*memory, 0, bytes);
  return 0;
}
status cudaFree(void *memory) {
  if (!failed) free(memory);
  return failed;
}
status cudaMemcpyAsync(void *to, const void *from, size_t bytes) {
  if (!failed) memcpy(to, from, bytes);
  return failed;
}

// An ELF file has its machine at 18, which is 190 for CUDA, and its architecture at 49.
status cuModuleLoadData(void **module, const unsigned char *image) {
  printf("load %d sm_%d\n", image[18], image[49]);
  *module = (void *)image;
  return 0;
}
status cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = strdup(name);
  return 0;
}
status cuLaunchKernelEx(const launch *given, const char *function, void **arguments) {
  printf("launch %s %u %u\n", function, given->grid[0], given->block[0]);
  fflush(stdout);
  ++launched;
  if (getenv("TUNER_TEST_ILLEGAL_ADDRESS")) failed = 700;
  return 0;
}
status cudaStreamSynchronize(void) { return context(); }
// Every kernel takes half a millisecond.
status cudaEventRecord(void) {
  launched_before = launched_now;
  launched_now = launched;
  return context();
}
status cudaEventElapsedTime(float *milliseconds) {
  *milliseconds = 0.5f * (launched_now - launched_before);
  return context();
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
  *value = attribute == 10 ? 32 : attribute == 38 ? 50 << 20 : attribute == 8 ? 49152 : 1024;
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
const char *cudaGetErrorName(status code) { return "error"; }
const char *cudaGetErrorString(status code) { return "error"; }

DOES_NOTHING(cuDeviceGetName)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuGetErrorString)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuTensorMapEncodeTiled)
DOES_NOTHING(cudaEventCreate)
DOES_NOTHING(cudaEventDestroy)
DOES_NOTHING(cudaEventSynchronize)
DOES_NOTHING(cudaFreeHost)
DOES_NOTHING(cudaGetDeviceProperties)
DOES_NOTHING(cudaGetLastError)
DOES_NOTHING(cudaGraphDestroy)
DOES_NOTHING(cudaGraphExecDestroy)
DOES_NOTHING(cudaGraphInstantiate)
DOES_NOTHING(cudaGraphLaunch)
DOES_NOTHING(cudaMallocHost)
DOES_NOTHING(cudaMemGetInfo)
DOES_NOTHING(cudaMemcpyPeerAsync)
DOES_NOTHING(cudaPeekAtLastError)
DOES_NOTHING(cudaSetDevice)
DOES_NOTHING(cudaStreamBeginCapture)
DOES_NOTHING(cudaStreamCreate)
DOES_NOTHING(cudaStreamCreateWithFlags)
DOES_NOTHING(cudaStreamDestroy)
DOES_NOTHING(cudaStreamEndCapture)
DOES_NOTHING(cudaStreamWaitEvent)
