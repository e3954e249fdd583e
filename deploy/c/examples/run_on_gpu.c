/* Run a library for a GPU in a stream, on memory of this program: run_on_gpu FOLDER [FILE...]
 *
 *   cc run_on_gpu.c -I RUNTIME/include -I /usr/local/cuda/include -L RUNTIME/lib -ltuner -lcuda \
 *      -Wl,-rpath,RUNTIME/lib -o run_on_gpu
 *
 * The files are those of run_library.c. cuda.h is all that the program needs of CUDA's toolkit.
 */
#include <cuda.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuner.h>

static void check(int failed, const char *what, const char *why) {
  if (!failed) return;
  fprintf(stderr, "run_on_gpu: %s: %s\n", what, why);
  exit(1);
}

static void cuda(CUresult result, const char *what) {
  const char *why = "error";
  if (result) cuGetErrorString(result, &why);
  check(result, what, why);
}

/* Memory of the GPU for a tensor, with the content of a file or zeros. */
static void place(tuner_tensor *tensor, const char *path, CUstream stream) {
  size_t n_bytes = tensor->n_bytes;
  void *data = calloc(1, n_bytes + 1);
  FILE *file = path ? fopen(path, "rb") : NULL;
  check(path && (!file || fread(data, 1, n_bytes + 1, file) != n_bytes), path,
        "does not hold the bytes of the input");
  if (file) fclose(file);
  CUdeviceptr address;
  cuda(cuMemAlloc(&address, n_bytes ? n_bytes : 1), "allocating memory");
  cuda(cuMemcpyHtoDAsync(address, data, n_bytes, stream), "copying an input");
  cuda(cuStreamSynchronize(stream), "copying an input");
  tensor->data = (void *)address;
  free(data);
}

static void print_tensor(const tuner_tensor *tensor, CUstream stream) {
  float *numbers = malloc(tensor->n_bytes + 1);
  cuda(cuMemcpyDtoHAsync(numbers, (CUdeviceptr)tensor->data, tensor->n_bytes, stream), "copying");
  cuda(cuStreamSynchronize(stream), "running the library");
  printf("%s %s", tensor->name, tensor->dtype);
  for (size_t axis = 0; axis < tensor->rank; ++axis)
    printf("%s%" PRId64, axis ? "x" : " ", tensor->shape[axis]);
  size_t n = strcmp(tensor->dtype, "float32") ? 0 : tensor->n_bytes / sizeof(float);
  for (size_t i = 0; i < n && i < 8; ++i) printf("%s%.9g", i ? " " : ": ", numbers[i]);
  printf("\n");
  free(numbers);
}

int main(int n_arguments, char **arguments) {
  check(n_arguments < 2, "usage", "run_on_gpu FOLDER [FILE...]");
  CUdevice device;
  CUcontext context;
  CUstream stream;
  cuda(cuInit(0), "starting CUDA");
  cuda(cuDeviceGet(&device, 0), "finding a GPU");
  cuda(cuDevicePrimaryCtxRetain(&context, device), "opening the GPU");
  cuda(cuCtxPushCurrent(context), "opening the GPU");
  cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "creating a stream");

  /* In the context that is current. */
  tuner_library *library = tuner_open(arguments[1], 0);
  check(!library, arguments[1], tuner_error());
  size_t n_inputs = tuner_n_inputs(library), n_outputs = tuner_n_outputs(library);
  tuner_tensor *inputs = calloc(n_inputs + 1, sizeof *inputs);
  tuner_tensor *outputs = calloc(n_outputs + 1, sizeof *outputs);
  for (size_t i = 0; i < n_inputs; ++i) {
    inputs[i] = *tuner_input(library, 0, i);
    place(&inputs[i], (int)i + 2 < n_arguments ? arguments[i + 2] : NULL, stream);
  }
  for (size_t i = 0; i < n_outputs; ++i) {
    outputs[i] = *tuner_output(library, i);
    place(&outputs[i], NULL, stream);
  }
  /* Both return as soon as their kernels are queued; the second is one launch of a graph. */
  for (int run = 0; run < 2; ++run) {
    int failed = tuner_run_on_gpu(library, inputs, n_inputs, outputs, n_outputs, stream);
    check(failed, "tuner_run_on_gpu", tuner_error());
  }
  for (size_t i = 0; i < n_outputs; ++i) print_tensor(&outputs[i], stream);

  tuner_close(library);
  for (size_t i = 0; i < n_inputs; ++i) cuMemFree((CUdeviceptr)inputs[i].data);
  for (size_t i = 0; i < n_outputs; ++i) cuMemFree((CUdeviceptr)outputs[i].data);
  free(inputs);
  free(outputs);
  cuStreamDestroy(stream);
  return 0;
}
