/* An addon for Node.js with the functions open(folder), inputs(library) and run(library, buffers).
 *
 *   cc -shared -fPIC -I/usr/include/node -Ideploy/c deploy/c/examples/addon.c -o build/tuner.node \
 *     -Lbuild -ltuner -Wl,-rpath,'$ORIGIN'
 *
 * Tensors are objects with name, dtype, shape and data, an ArrayBuffer. A library is closed when
 * it is collected.
 */
#include <node_api.h>
#include <stdlib.h>
#include <string.h>
#include <tuner.h>

enum { MAX_ARGUMENTS = 2 };

static napi_value fail(napi_env env, const char *message) {
  napi_throw_error(env, NULL, message);
  return NULL;
}

static void close_library(napi_env env, void *library, void *hint) {
  (void)env, (void)hint;
  tuner_close(library);
}

/* Read the arguments of a call; return its library, or NULL. */
static tuner_library *read_arguments(napi_env env, napi_callback_info info, napi_value *arguments) {
  size_t n_arguments = MAX_ARGUMENTS;
  void *library = NULL;
  napi_get_cb_info(env, info, &n_arguments, arguments, NULL, NULL);
  if (napi_get_value_external(env, arguments[0], &library) != napi_ok)
    fail(env, "the first argument must be a library that open() returned");
  return library;
}

static napi_value open_library(napi_env env, napi_callback_info info) {
  napi_value arguments[MAX_ARGUMENTS], made;
  size_t n_arguments = MAX_ARGUMENTS;
  char folder[4096];
  napi_get_cb_info(env, info, &n_arguments, arguments, NULL, NULL);
  if (napi_get_value_string_utf8(env, arguments[0], folder, sizeof folder, NULL) != napi_ok)
    return fail(env, "the path of the library must be a string");
  tuner_library *library = tuner_open(folder, 0);
  if (!library) return fail(env, tuner_error());
  napi_create_external(env, library, close_library, NULL, &made);
  return made;
}

static napi_value described(napi_env env, const tuner_tensor *tensor) {
  napi_value object, name, dtype, shape, size, data;
  void *memory;
  napi_create_object(env, &object);
  napi_create_string_utf8(env, tensor->name, NAPI_AUTO_LENGTH, &name);
  napi_create_string_utf8(env, tensor->dtype, NAPI_AUTO_LENGTH, &dtype);
  napi_create_array_with_length(env, tensor->rank, &shape);
  for (size_t axis = 0; axis < tensor->rank; ++axis) {
    napi_create_int64(env, tensor->shape[axis], &size);
    napi_set_element(env, shape, axis, size);
  }
  napi_create_arraybuffer(env, tensor->n_bytes, &memory, &data);
  if (tensor->data) memcpy(memory, tensor->data, tensor->n_bytes);
  napi_set_named_property(env, object, "name", name);
  napi_set_named_property(env, object, "dtype", dtype);
  napi_set_named_property(env, object, "shape", shape);
  napi_set_named_property(env, object, "data", data);
  return object;
}

static napi_value inputs(napi_env env, napi_callback_info info) {
  napi_value arguments[MAX_ARGUMENTS], list;
  tuner_library *library = read_arguments(env, info, arguments);
  if (!library) return NULL;
  napi_create_array(env, &list);
  for (size_t i = 0; i < tuner_n_inputs(library); ++i)
    napi_set_element(env, list, i, described(env, tuner_input(library, 0, i)));
  return list;
}

/* The buffers are in the order of the inputs, whose shapes are those of the first program. */
static napi_value run(napi_env env, napi_callback_info info) {
  napi_value arguments[MAX_ARGUMENTS], list, buffer;
  tuner_library *library = read_arguments(env, info, arguments);
  if (!library) return NULL;
  size_t n_inputs = tuner_n_inputs(library);
  tuner_tensor *given = calloc(n_inputs + 1, sizeof *given);
  int is_read = 1;
  for (size_t i = 0; is_read && i < n_inputs; ++i) {
    given[i] = *tuner_input(library, 0, i);
    is_read = napi_get_element(env, arguments[1], i, &buffer) == napi_ok &&
              napi_get_arraybuffer_info(env, buffer, (void **)&given[i].data, &given[i].n_bytes) == napi_ok;
  }
  int failed = is_read && tuner_run(library, given, n_inputs);
  free(given);
  if (!is_read) return fail(env, "the second argument must be an array with an ArrayBuffer for each input");
  if (failed) return fail(env, tuner_error());
  napi_create_array(env, &list);
  for (size_t i = 0; i < tuner_n_outputs(library); ++i)
    napi_set_element(env, list, i, described(env, tuner_output(library, i)));
  return list;
}

NAPI_MODULE_INIT() {
  const struct {
    const char *name;
    napi_callback callback;
  } functions[] = {{"open", open_library}, {"inputs", inputs}, {"run", run}};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    napi_value function;
    napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].callback, NULL, &function);
    napi_set_named_property(env, exports, functions[i].name, function);
  }
  return exports;
}
