/* Run the libraries of Subgraph Tuner without Python, from C or any language that calls C.
 *
 *   tuner_library *library = tuner_open("network.lib", 0);
 *   tuner_tensor input = *tuner_input(library, 0, 0);
 *   input.data = pixels;
 *   tuner_run(library, &input, 1);
 *   const float *scores = tuner_output(library, 0)->data;
 *
 * A function that fails returns NULL or a number other than 0, and tuner_error() says why.
 *
 * Threads. A library serves one call at a time: a second thread that calls tuner_run() meanwhile
 * gets an error. To serve several calls at once, open the folder once for each thread; they share
 * the memory of the weights. tuner_open() sets the environment variable TVM_NUM_THREADS: no other
 * thread may read or change the environment meanwhile. All other functions of this header may be
 * called from any thread, on different libraries at the same time.
 */
#ifndef TUNER_H_
#define TUNER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* An opened library. */
typedef struct tuner_library tuner_library;

/* An array in C order. */
typedef struct tuner_tensor {
  const char *name;
  const char *dtype;    /* as NumPy names it: float32, int64, bool */
  size_t rank;          /* number of dimensions; 0 for a scalar */
  const int64_t *shape; /* rank sizes */
  const void *data; /* of an output that tuner_run_into() is given: memory that it writes */
  size_t n_bytes;   /* size of the data */
} tuner_tensor;

/* Open the folder of a library: manifest.json, lib.so and weights.bin.
 *
 * The version of the manifest, the checksum of every file and the instruction sets of this CPU are
 * checked before code is loaded. The code is read by /proc/self/fd, so that it is what was checked.
 *
 * n_threads: threads that run it, at least 1; 0 for the value that TVM_NUM_THREADS had at first,
 *   or else as many as it was tuned with, at most the cores that this process may use. Ignored
 *   while the same lib.so is open in this process: it keeps the number of its first opening.
 * Returns NULL if it cannot be run here. A library whose last operators run in ONNX Runtime needs
 *   libonnxruntime.so.1 on the library path. A library for a GPU runs in the CUDA context that is
 *   current in this thread, or else on the first GPU.
 */
tuner_library *tuner_open(const char *folder, int n_threads);

/* Open a library without the operators that run in ONNX Runtime, its tail, if it has one.
 *
 * A call then has the outputs of the program. The caller runs tail.onnx, whose inputs are some of
 * these and some of the inputs of the model.
 */
tuner_library *tuner_open_without_tail(const char *folder, int n_threads);

/* Free a library and its outputs; NULL is ignored. */
void tuner_close(tuner_library *library);

/* Number of input shapes that it has a program for, at least 1. */
size_t tuner_n_programs(const tuner_library *library);

/* Number of inputs of a call. Inputs of the model that are constants of the library do not count. */
size_t tuner_n_inputs(const tuner_library *library);

/* Number of outputs of a call. */
size_t tuner_n_outputs(const tuner_library *library);

/* Description of an input of a program, without data; NULL if a number is too large.
 *
 * Programs differ in shapes alone. It is valid until tuner_close(). A library for buckets takes
 * smaller inputs as well.
 */
const tuner_tensor *tuner_input(const tuner_library *library, size_t program, size_t number);

/* An output of the last run; NULL if the number is too large.
 *
 * Its data and shape are valid until the next run or tuner_close(). Before the first run, and after
 * one that failed, it describes an output of the first program, without data. A size that the data
 * decide is -1, and n_bytes is 0 then.
 */
const tuner_tensor *tuner_output(const tuner_library *library, size_t number);

/* Describe the outputs of a run, without data, as tuner_output() does before the first run.
 *
 * inputs: as those of tuner_run(); their data is not read, and n_bytes is ignored.
 * outputs: n_outputs tensors that are written. Their shapes are valid until the next call for the
 *   library, or tuner_close().
 * Returns 0; 1 if an input cannot be used.
 */
int tuner_describe_outputs(tuner_library *library, const tuner_tensor *inputs, size_t n_inputs,
                           tuner_tensor *outputs, size_t n_outputs);

/* Run the program for the shapes of the inputs.
 *
 * A library for buckets pads inputs to the next of its sizes, and cuts the outputs.
 *
 * inputs: n_inputs tensors in the order of tuner_input(). Their data is copied, and needs no
 *   alignment; it may be that of an output. A name may be NULL; otherwise it is compared.
 * Returns 0; 1 if an input cannot be used; 2 if the run failed.
 */
int tuner_run(tuner_library *library, const tuner_tensor *inputs, size_t n_inputs);

/* Run, and copy the outputs to memory of the caller.
 *
 * outputs: n_outputs tensors in the order of tuner_output(). At least the bytes of the output are
 *   needed, of which n_bytes says how many there are; dtype and shape are ignored.
 * Returns what tuner_run() does; 1 if an output is too small, 2 if the data made it too large.
 */
int tuner_run_into(tuner_library *library, const tuner_tensor *inputs, size_t n_inputs,
                   const tuner_tensor *outputs, size_t n_outputs);

/* Run a library for a GPU on memory of the GPU, in a stream, without waiting for it.
 *
 * The data of the tensors are addresses on the GPU of the library, aligned to 64 bytes, and must
 * stay until the run ends. Inputs have the shapes of a program: nothing is padded, and values are
 * not checked. The first run launches the kernels one by one; later ones are one graph launch. A
 * stream that the caller captures gets the kernels, after a first run without a capture.
 *
 * inputs, outputs: as those of tuner_run_into().
 * stream: a CUstream or cudaStream_t of the context of the library; NULL for the default stream.
 * Returns 0; 1 if a tensor cannot be used or CUDA fails.
 */
int tuner_run_on_gpu(tuner_library *library, const tuner_tensor *inputs, size_t n_inputs,
                     const tuner_tensor *outputs, size_t n_outputs, void *stream);

/* Message of the last failure in this thread; valid until its next. */
const char *tuner_error(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* TUNER_H_ */
