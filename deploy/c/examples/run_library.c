/* Run a library once: run_library FOLDER [FILE...]
 *
 * The files hold the data of the inputs, in their order, as numpy.ndarray.tofile() writes it; an
 * input without a file is zero. Prints the name, the dtype and the shape of every output, and its
 * first numbers if they are float32.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuner.h>

static int fail(const char *message) {
  fprintf(stderr, "run_library: %s\n", message);
  return 1;
}

static void *read_input(const tuner_tensor *input, const char *path) {
  void *data = calloc(1, input->n_bytes + 1);
  FILE *file = path ? fopen(path, "rb") : NULL;
  if (path && (!file || fread(data, 1, input->n_bytes + 1, file) != input->n_bytes)) {
    fprintf(stderr, "run_library: %s does not hold the %zu bytes of input %s\n", path,
            input->n_bytes, input->name);
    exit(1);
  }
  if (file) fclose(file);
  return data;
}

static void print_tensor(const tuner_tensor *tensor) {
  printf("%s %s", tensor->name, tensor->dtype);
  for (size_t axis = 0; axis < tensor->rank; ++axis)
    printf("%s%" PRId64, axis ? "x" : " ", tensor->shape[axis]);
  const float *numbers = tensor->data;
  for (size_t i = 0; !strcmp(tensor->dtype, "float32") && i < tensor->n_bytes / sizeof(float) && i < 8; ++i)
    printf("%s%.9g", i ? " " : ": ", numbers[i]);
  printf("\n");
}

int main(int n_arguments, char **arguments) {
  if (n_arguments < 2) return fail("usage: run_library FOLDER [FILE...]");
  tuner_library *library = tuner_open(arguments[1], 0);
  if (!library) return fail(tuner_error());

  size_t n_inputs = tuner_n_inputs(library);
  tuner_tensor *inputs = calloc(n_inputs + 1, sizeof *inputs);
  for (size_t i = 0; i < n_inputs; ++i) {
    inputs[i] = *tuner_input(library, 0, i);
    inputs[i].data = read_input(&inputs[i], (int)i + 2 < n_arguments ? arguments[i + 2] : NULL);
  }
  if (tuner_run(library, inputs, n_inputs)) return fail(tuner_error());
  for (size_t i = 0; i < tuner_n_outputs(library); ++i) print_tensor(tuner_output(library, i));

  for (size_t i = 0; i < n_inputs; ++i) free((void *)inputs[i].data);
  free(inputs);
  tuner_close(library);
  return 0;
}
