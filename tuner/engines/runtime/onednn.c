/* Calls of oneDNN by kernels: each computes a part of a product or convolution on its own thread.

   The kernel divides the work, and its own threads share it, because threads of OpenMP would
   compete with them for the cores. A part that oneDNN refuses becomes NaN. Weights are in panels of
   output channels: [channels / panel][...][panel]. */

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What is used of oneDNN 3; names and numbers are those of its headers. */
enum {
  CPU = 1, IN_ORDER = 1, INFERENCE = 96, DIRECT = 1, FLOAT32 = 3, UNDEFINED = 0, ANY = 1, MATRIX = 3, NHWC = 22,
  NAME_OF = 8, WEIGHTS_OF = 131, SCRATCH_OF = 136, CALLERS_SCRATCH = 1,
  DATA = 1, RESULT = 17, WEIGHTS = 33, SCRATCH = 80, MAX_DIMS = 12
};
typedef void *handle;
typedef struct {
  int what;
  handle memory;
} argument;
typedef const int64_t *dims;

int omp_get_max_threads(void);
void omp_set_num_threads(int);
int dnnl_engine_create(handle *, int, size_t);
int dnnl_stream_create(handle *, handle, unsigned);
int dnnl_stream_destroy(handle);
int dnnl_memory_desc_create_with_tag(handle *, int, dims, int, int);
int dnnl_memory_desc_equal(handle, handle);
int dnnl_memory_desc_destroy(handle);
size_t dnnl_memory_desc_get_size(handle);
int dnnl_memory_create(handle *, handle, handle, void *);
int dnnl_memory_destroy(handle);
int dnnl_primitive_attr_create(handle *);
int dnnl_primitive_attr_set_scratchpad_mode(handle, int);
int dnnl_matmul_primitive_desc_create(handle *, handle, handle, handle, handle, handle, handle);
int dnnl_convolution_forward_primitive_desc_create(
    handle *, handle, int, int, handle, handle, handle, handle, dims, dims, dims, dims, handle);
handle dnnl_primitive_desc_query_md(handle, int, int);
int dnnl_primitive_desc_destroy(handle);
int dnnl_primitive_desc_query(handle, int, int, void *);
int dnnl_primitive_create(handle *, handle);
int dnnl_primitive_execute(handle, handle, int, const argument *);

/* Only what Python asks for is seen outside of the library that this is linked into. */
#pragma GCC visibility push(hidden)

static handle engine, attributes;
static int is_ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void) {
  is_ready = !dnnl_engine_create(&engine, CPU, 0) && !dnnl_primitive_attr_create(&attributes) &&
             !dnnl_primitive_attr_set_scratchpad_mode(attributes, CALLERS_SCRATCH);
}

enum { PANELS = 5 };
static const int64_t panels[PANELS] = {64, 48, 32, 24, 16};
static const int matrix_tags[PANELS] = {506, 505, 504, UNDEFINED, 503}; /* BA16a64b and so on */
static const int window_tags[PANELS] = {305, 302, 214, 661, 211};       /* Acdb64a and so on */

/* A part of a product or convolution, and what oneDNN made of it. */
typedef struct {
  int64_t batch, height, width, c_in, rows, columns, c_out; /* of a product: batch, c_in, c_out */
  int64_t window[2], strides[2], dilation[2], before[2], after[2];
  int64_t panel, is_product;
} part;
typedef struct call {
  part of;
  struct call *next;
  handle primitive, data, weights, result, scratch;
  size_t n_scratch;
} call;

static int tag_of(const part *of) {
  for (int i = 0; i < PANELS; i++)
    if (panels[i] == of->panel) return of->is_product ? matrix_tags[i] : window_tags[i];
  return ANY;
}

static int describe(handle *into, int n_dims, const int64_t *shape, int tag) {
  int64_t padded[MAX_DIMS] = {0};
  memcpy(padded, shape, n_dims * sizeof(*shape));
  return !dnnl_memory_desc_create_with_tag(into, n_dims, padded, FLOAT32, tag);
}

static handle plan_product(const part *of, call *into) {
  handle planned = 0;
  int is_planned =
      describe(&into->data, 2, (int64_t[]){of->batch, of->c_in}, MATRIX) &&
      describe(&into->weights, 2, (int64_t[]){of->c_in, of->c_out}, tag_of(of)) &&
      describe(&into->result, 2, (int64_t[]){of->batch, of->c_out}, MATRIX) &&
      !dnnl_matmul_primitive_desc_create(
          &planned, engine, into->data, into->weights, 0, into->result, attributes);
  return is_planned ? planned : 0;
}

static handle plan_window(const part *of, call *into) {
  handle planned = 0;
  int64_t data[] = {of->batch, of->c_in, of->height, of->width};
  int64_t weights[] = {of->c_out, of->c_in, of->window[0], of->window[1]};
  int64_t result[] = {of->batch, of->c_out, of->rows, of->columns};
  int64_t skipped[] = {of->dilation[0] - 1, of->dilation[1] - 1};
  int is_planned =
      describe(&into->data, 4, data, NHWC) &&
      describe(&into->weights, 4, weights, tag_of(of)) &&
      describe(&into->result, 4, result, NHWC) &&
      !dnnl_convolution_forward_primitive_desc_create(
          &planned, engine, INFERENCE, DIRECT, into->data, into->weights, 0, into->result,
          of->strides, skipped, of->before, of->after, attributes);
  return is_planned ? planned : 0;
}

/* Describe the primitive of a part; returns 0 if oneDNN has none but its reference. */
static handle plan(const part *of, call *into) {
  handle planned = of->is_product ? plan_product(of, into) : plan_window(of, into);
  const char *name = "";
  if (planned && !dnnl_primitive_desc_query(planned, NAME_OF, 0, &name) && !strstr(name, "ref"))
    return planned;
  if (planned) dnnl_primitive_desc_destroy(planned);
  return 0;
}

static void forget(call *made) {
  handle kinds[] = {made->data, made->weights, made->result};
  for (int i = 0; i < 3; i++)
    if (kinds[i]) dnnl_memory_desc_destroy(kinds[i]);
  free(made);
}

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(call *) calls; /* grows only, by one for each kind of part */

static call *find_call(const part *of) {
  for (call *each = atomic_load(&calls); each; each = each->next)
    if (!memcmp(&each->of, of, sizeof(*of))) return each;
  return 0;
}

static call *make_call(const part *of) {
  pthread_mutex_lock(&making);
  call *made = find_call(of);
  if (!made && (made = calloc(1, sizeof(*made)))) {
    made->of = *of;
    handle planned = plan(of, made);
    if (planned && !dnnl_primitive_create(&made->primitive, planned)) {
      made->scratch = dnnl_primitive_desc_query_md(planned, SCRATCH_OF, 0);
      made->n_scratch = dnnl_memory_desc_get_size(made->scratch);
      made->next = atomic_load(&calls);
      atomic_store(&calls, made);
    } else {
      /* Memory may be free again at the next call. */
      if (planned) dnnl_primitive_desc_destroy(planned);
      forget(made);
      made = 0;
    }
  }
  pthread_mutex_unlock(&making);
  return made;
}

static int execute(const call *made, const float *data, const float *weights, float *result) {
  if (!made) return 0;
  /* Kept for a thread, they would outlive the library that is linked with this. */
  handle stream = 0;
  void *scratch = made->n_scratch ? aligned_alloc(64, (made->n_scratch + 63) / 64 * 64) : 0;
  int failed = dnnl_stream_create(&stream, engine, IN_ORDER) || (made->n_scratch && !scratch);
  argument arguments[] = {{DATA, 0}, {WEIGHTS, 0}, {RESULT, 0}, {SCRATCH, 0}};
  handle kinds[] = {made->data, made->weights, made->result, made->scratch};
  void *at[] = {(void *)data, (void *)weights, result, scratch};
  int n = scratch ? 4 : 3;
  for (int i = 0; i < n && !failed; i++)
    failed = dnnl_memory_create(&arguments[i].memory, kinds[i], engine, at[i]);
  if (!failed) failed = dnnl_primitive_execute(made->primitive, stream, n, arguments);
  for (int i = 0; i < n; i++)
    if (arguments[i].memory) dnnl_memory_destroy(arguments[i].memory);
  if (stream) dnnl_stream_destroy(stream);
  free(scratch);
  return !failed;
}

static void run(const part *of, const float *data, const float *weights, float *result) {
  int is_done = 0;
  pthread_once(&once, prepare);
  if (is_ready) {
    /* Of this thread alone; the program may use OpenMP, too. */
    int n_threads = omp_get_max_threads();
    omp_set_num_threads(1);
    call *made = find_call(of);
    is_done = execute(made ? made : make_call(of), data, weights, result);
    omp_set_num_threads(n_threads);
  }
  if (is_done) return;
  int64_t n = of->batch * of->rows * of->columns * of->c_out;
  for (int64_t i = 0; i < n; i++) result[i] = NAN;
}

/* Window of a convolution, and the rows of the output that are computed. */
#define WINDOW \
  int32_t batch, int32_t height, int32_t width, int32_t c_in, int32_t columns, int32_t c_out, \
      int32_t window_rows, int32_t window_columns, int32_t row_stride, int32_t column_stride, \
      int32_t row_dilation, int32_t column_dilation, int32_t rows_before, \
      int32_t columns_before, int32_t first, int32_t n_rows
#define NAMES \
  batch, height, width, c_in, columns, c_out, window_rows, window_columns, row_stride, \
      column_stride, row_dilation, column_dilation, rows_before, columns_before, first, n_rows

static part window_part(WINDOW, int32_t panel) {
  part of;
  memset(&of, 0, sizeof(of));
  of.batch = batch, of.height = height, of.width = width, of.c_in = c_in;
  of.rows = n_rows, of.columns = columns, of.c_out = c_out, of.panel = panel;
  of.window[0] = window_rows, of.window[1] = window_columns;
  of.strides[0] = row_stride, of.strides[1] = column_stride;
  of.dilation[0] = row_dilation, of.dilation[1] = column_dilation;
  int64_t top = first * of.strides[0] - rows_before;
  int64_t bottom = top + (n_rows - 1) * of.strides[0] + (window_rows - 1) * of.dilation[0] + 1;
  int64_t right = (columns - 1) * of.strides[1] + (window_columns - 1) * of.dilation[1] + 1 -
                  columns_before;
  of.before[0] = top < 0 ? -top : 0, of.before[1] = columns_before;
  of.after[0] = bottom > height ? bottom - height : 0;
  of.after[1] = right > width ? right - width : 0;
  /* Images follow each other with all of their rows. */
  if (batch == 1) of.height = (bottom < height ? bottom : height) - (top > 0 ? top : 0);
  return of;
}

static part product_part(int32_t n_rows, int32_t c_in, int32_t c_out, int32_t panel) {
  part of;
  memset(&of, 0, sizeof(of));
  of.batch = n_rows, of.c_in = c_in, of.rows = of.columns = 1, of.c_out = c_out;
  of.panel = panel, of.is_product = 1;
  return of;
}

/* Compute rows of a product: [n_rows, c_in] by [c_in, c_out]. */
void tuner_onednn_product(
    int32_t n_rows, int32_t c_in, int32_t c_out, int32_t panel, const float *data,
    const float *weights, float *result) {
  part of = product_part(n_rows, c_in, c_out, panel);
  run(&of, data, weights, result);
}

/* Compute rows of the output of a convolution, from the first one on. */
void tuner_onednn_convolve(
    WINDOW, int32_t panel, const float *data, const float *weights, float *result) {
  part of = window_part(NAMES, panel);
  int64_t top = (int64_t)first * row_stride - rows_before;
  run(&of, data + (top > 0 ? top * width * c_in : 0), weights, result);
}

/* Return the panel of weights that oneDNN asks for; 0 if it asks for another layout. */
static int32_t wanted_panel(const part *of) {
  int32_t found = 0;
  call *any = calloc(1, sizeof(*any));
  handle planned = any ? plan(of, any) : 0;
  handle wanted = planned ? dnnl_primitive_desc_query_md(planned, WEIGHTS_OF, 0) : 0;
  int64_t weights[] = {of->c_out, of->c_in, of->window[0], of->window[1]};
  for (int i = 0; wanted && !found && i < PANELS; i++) {
    handle tagged = 0;
    if (!describe(&tagged, 4, weights, window_tags[i])) continue;
    if (dnnl_memory_desc_equal(tagged, wanted)) found = panels[i];
    dnnl_memory_desc_destroy(tagged);
  }
  if (planned) dnnl_primitive_desc_destroy(planned);
  if (any) forget(any);
  return found;
}

/* Return the widest panel of weights that oneDNN has more than its reference for; 0 if none. */
static int32_t widest_panel(part of) {
  int32_t found = 0;
  for (int i = 0; !found && i < PANELS; i++) {
    call *made = of.c_out % panels[i] ? 0 : calloc(1, sizeof(*made));
    if (!made) continue;
    of.panel = panels[i];
    handle planned = plan(&of, made);
    if (planned) {
      found = panels[i];
      dnnl_primitive_desc_destroy(planned);
    }
    forget(made);
  }
  return found;
}

static int32_t panel_of(const part *of) {
  pthread_once(&once, prepare);
  if (!is_ready) return 0;
  int n_threads = omp_get_max_threads();
  omp_set_num_threads(1);
  int32_t found = of->is_product ? 0 : wanted_panel(of);
  if (!found) found = widest_panel(*of);
  omp_set_num_threads(n_threads);
  return found;
}

/* Return the panel for the weights of a convolution; 0 if oneDNN has a kernel for none. */
__attribute__((visibility("default"))) int32_t tuner_onednn_panel(WINDOW) {
  part of = window_part(NAMES, 0);
  return panel_of(&of);
}

/* Return the panel for the weights of a product; 0 if oneDNN has a kernel for none. */
__attribute__((visibility("default"))) int32_t tuner_onednn_product_panel(
    int32_t n_rows, int32_t c_in, int32_t c_out) {
  part of = product_part(n_rows, c_in, c_out, 0);
  return panel_of(&of);
}
