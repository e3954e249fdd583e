/* Run the libraries of Subgraph Tuner without Python: libraries for CPUs, from C or any language
 * that calls C.
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
  const void *data;
  size_t n_bytes; /* size of the data */
} tuner_tensor;

/* Open the folder of a library: manifest.json, lib.so and weights.bin.
 *
 * The version of the manifest, the checksum of every file and the instruction sets of this CPU are
 * checked before code is loaded. The code is read by /proc/self/fd, so that it is what was checked.
 *
 * n_threads: threads that run it, at least 1; 0 for the value that TVM_NUM_THREADS had at first,
 *   or else as many as it was tuned with, at most the cores that this process may use. Ignored
 *   while the same lib.so is open in this process: it keeps the number of its first opening.
 * Returns NULL if it cannot be run here. Libraries for GPUs, and libraries whose last operators
 *   run in ONNX Runtime, are refused.
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
 * Programs differ in the shapes of their inputs alone. It is valid until tuner_close().
 */
const tuner_tensor *tuner_input(const tuner_library *library, size_t program, size_t number);

/* An output of the last run; NULL if the number is too large.
 *
 * Its data and shape are valid until the next tuner_run() or tuner_close(). Before the first run, and
 * after one that failed, it has a name alone: data, shape and dtype are NULL.
 */
const tuner_tensor *tuner_output(const tuner_library *library, size_t number);

/* Run the program for the shapes of the inputs.
 *
 * inputs: n_inputs tensors in the order of tuner_input(). Their data is copied, and needs no
 *   alignment; it may be that of an output. A name may be NULL; otherwise it is compared.
 * Returns 0; 1 if an input cannot be used; 2 if the run failed.
 */
int tuner_run(tuner_library *library, const tuner_tensor *inputs, size_t n_inputs);

/* Message of the last failure in this thread; valid until its next. */
const char *tuner_error(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* TUNER_H_ */
