/* Threads for the parallel loops of kernels, in place of those of TVM's runtime.

   A launch divides a loop into one task for each thread. The calling thread runs the first task,
   then those that no other thread has begun: a thread that has no core at the moment delays
   nothing. What another thread has begun is awaited, by spinning at first, then asleep. Waiting
   threads of the pool spin between the kernels of a network, and sleep after it.

   Launches at the same time, by several threads of the caller, get pools of their own, and so does
   a child of fork, which has none of its parent's threads. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A loop as TVM compiles it: a function that runs one task of several. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} group;
typedef int (*loop)(int task, group *of, void *data);

enum { MAX_THREADS = 1024, FIRST_SPINS = 64, SPINS = 32 };
/* Longer than the code between two kernels; about as long as waking a thread takes. */
static const int64_t IDLE_NS = 200000, WAIT_NS = 100000;

typedef struct {
  _Alignas(64) atomic_int has_task;
  atomic_int sleeps;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  pthread_t thread;
  struct pool *pool;
} worker;

typedef struct pool {
  _Alignas(64) pthread_mutex_t in_use;
  struct pool *next;
  pid_t process;
  int n_threads; /* the caller's included */
  loop body;
  void *data;
  group tasks;
  _Alignas(64) atomic_int n_unfinished;
  atomic_int caller_sleeps, failed;
  atomic_int ends;
  pthread_mutex_t mutex;
  pthread_cond_t finished;
  worker workers[]; /* worker i runs task i + 1 */
} pool;

static _Atomic(pool *) pools; /* grows only */
static int n_threads = 1;

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int spin(atomic_int *value, int awaited, int n) {
  for (int i = 0; i < n; i++) {
    if (atomic_load_explicit(value, memory_order_acquire) == awaited) return 1;
    relax();
  }
  return 0;
}

/* Return whether the value became the awaited one. A thread that yields gives its core to another
   process for a whole slice of time: good for a thread without a task, bad for one with a result
   to await. */
static int spin_for(atomic_int *value, int awaited, int64_t nanoseconds, int yields) {
  if (spin(value, awaited, FIRST_SPINS)) return 1;
  int64_t end = now() + nanoseconds;
  do {
    if (spin(value, awaited, SPINS)) return 1;
    if (yields) sched_yield();
  } while (now() < end);
  return 0;
}

static int take(worker *w) {
  int expected = 1;
  return atomic_compare_exchange_strong(&w->has_task, &expected, 0);
}

static int run(pool *p, int task) {
  return p->body(task, &p->tasks, p->data);
}

static void sleep_until_task(worker *w) {
  pthread_mutex_lock(&w->mutex);
  atomic_store(&w->sleeps, 1);
  while (!atomic_load(&w->has_task) && !atomic_load(&w->pool->ends))
    pthread_cond_wait(&w->wake, &w->mutex);
  atomic_store(&w->sleeps, 0);
  pthread_mutex_unlock(&w->mutex);
}

static void *work(void *argument) {
  worker *w = argument;
  pool *p = w->pool;
  int task = (int)(w - p->workers) + 1;
  while (!atomic_load(&p->ends)) {
    if (!spin_for(&w->has_task, 1, IDLE_NS, 1)) sleep_until_task(w);
    if (!take(w)) continue;
    if (run(p, task)) atomic_store(&p->failed, 1);
    if (atomic_fetch_sub(&p->n_unfinished, 1) == 1 && atomic_load(&p->caller_sleeps)) {
      pthread_mutex_lock(&p->mutex);
      pthread_cond_signal(&p->finished);
      pthread_mutex_unlock(&p->mutex);
    }
  }
  return NULL;
}

static void wait_for_workers(pool *p) {
  if (spin_for(&p->n_unfinished, 0, WAIT_NS, 0)) return;
  pthread_mutex_lock(&p->mutex);
  atomic_store(&p->caller_sleeps, 1);
  while (atomic_load(&p->n_unfinished)) pthread_cond_wait(&p->finished, &p->mutex);
  atomic_store(&p->caller_sleeps, 0);
  pthread_mutex_unlock(&p->mutex);
}

static void give_task(worker *w) {
  atomic_store(&w->has_task, 1);
  if (!atomic_load(&w->sleeps)) return;
  pthread_mutex_lock(&w->mutex);
  pthread_cond_signal(&w->wake);
  pthread_mutex_unlock(&w->mutex);
}

/* Create a pool that the caller uses; NULL without memory. Fewer threads than wanted are no error:
   the system may limit them. */
static pool *create(void) {
  size_t size = sizeof(pool) + sizeof(worker) * (size_t)(n_threads - 1);
  pool *p = aligned_alloc(64, (size + 63) / 64 * 64);
  if (!p) return NULL;
  *p = (pool){.n_threads = 1, .process = getpid()};
  pthread_mutex_init(&p->in_use, NULL);
  pthread_mutex_lock(&p->in_use);
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->finished, NULL);
  for (; p->n_threads < n_threads; p->n_threads++) {
    worker *w = &p->workers[p->n_threads - 1];
    *w = (worker){.pool = p};
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wake, NULL);
    if (pthread_create(&w->thread, NULL, work, w)) break;
  }
  return p;
}

static pool *acquire(void) {
  pid_t process = getpid();
  for (pool *p = atomic_load(&pools); p; p = p->next)
    if (p->process == process && !pthread_mutex_trylock(&p->in_use)) return p;
  pool *p = create();
  if (!p) return NULL;
  p->next = atomic_load(&pools);
  while (!atomic_compare_exchange_weak(&pools, &p->next, p)) continue;
  return p;
}

/* TVM sets the pointer when it loads the library. */
__attribute__((weak)) void (*__TVMFFIErrorSetRaisedFromCStr)(const char *kind, const char *message);

/* A task that fails in the calling thread has left its message there. */
static int fail(const char *message) {
  if (__TVMFFIErrorSetRaisedFromCStr) __TVMFFIErrorSetRaisedFromCStr("RuntimeError", message);
  return -1;
}

/* The replacement of TVMBackendParallelLaunch; kernels leave the number of tasks to the pool. */
static int launch(loop body, void *data, int n_tasks) {
  (void)n_tasks;
  pool *p = acquire();
  if (!p) return fail("no memory for the threads of a parallel loop");
  int n = p->n_threads;
  p->body = body;
  p->data = data;
  p->tasks.num_task = n;
  atomic_store_explicit(&p->n_unfinished, n - 1, memory_order_relaxed);
  for (int task = 1; task < n; task++) give_task(&p->workers[task - 1]);
  int status = run(p, 0);
  for (int task = n - 1; task > 0; task--) {
    if (!take(&p->workers[task - 1])) continue;
    status |= run(p, task);
    atomic_fetch_sub(&p->n_unfinished, 1);
  }
  wait_for_workers(p);
  int failed = atomic_exchange(&p->failed, 0);
  pthread_mutex_unlock(&p->in_use);
  if (status) return -1;
  return failed ? fail("a task of a parallel loop failed") : 0;
}

static int usable_cores(void) {
  cpu_set_t cores;
  if (!sched_getaffinity(0, sizeof cores, &cores)) return CPU_COUNT(&cores);
  return (int)sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t counts */
}

__attribute__((constructor)) static void start(void) {
  const char *variable = getenv("TVM_NUM_THREADS");
  int wanted = variable ? atoi(variable) : 0;
  n_threads = wanted > 0 ? wanted : usable_cores();
  if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
}

/* Unloading the library takes away the code that its threads run. At the exit of a process another
   thread may still call: it finds pools without threads, and runs all tasks itself. */
__attribute__((destructor)) static void stop(void) {
  pid_t process = getpid();
  for (pool *p = atomic_load(&pools); p; p = p->next) {
    if (p->process != process) continue;
    atomic_store(&p->ends, 1);
    for (int i = 1; i < p->n_threads; i++) {
      worker *w = &p->workers[i - 1];
      pthread_mutex_lock(&w->mutex);
      pthread_cond_signal(&w->wake);
      pthread_mutex_unlock(&w->mutex);
      pthread_join(w->thread, NULL);
    }
  }
}

/* Kernels call through this pointer. It is hidden, so that TVM finds none to set. */
__attribute__((visibility("hidden"))) int (*__TVMBackendParallelLaunch)(loop, void *, int) = launch;
