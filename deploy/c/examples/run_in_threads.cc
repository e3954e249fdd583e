// Run a library in several threads: run_in_threads FOLDER N_THREADS N_RUNS
//
// Every thread opens the library for itself, as a library serves one call at a time, and runs it on
// zeros. Prints the sum of the first output of each thread and the runs per second of all together.
#include <tuner.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// A library whose inputs and first output are float32.
class Library {
 public:
  Library(const std::string& folder, int n_threads)
      : library_(tuner_open(folder.c_str(), n_threads), tuner_close) {
    if (!library_) throw std::runtime_error(tuner_error());
  }

  std::vector<float> operator()(const std::vector<std::vector<float>>& values) const {
    std::vector<tuner_tensor> inputs;
    for (size_t i = 0; i < values.size(); ++i) {
      inputs.push_back(Input(i));
      inputs[i].data = values[i].data();
      inputs[i].n_bytes = values[i].size() * sizeof(float);
    }
    if (tuner_run(library_.get(), inputs.data(), inputs.size()))
      throw std::runtime_error(tuner_error());
    const tuner_tensor& output = *tuner_output(library_.get(), 0);
    const float* numbers = static_cast<const float*>(output.data);
    return {numbers, numbers + output.n_bytes / sizeof(float)};
  }

  size_t n_inputs() const { return tuner_n_inputs(library_.get()); }
  const tuner_tensor& Input(size_t number) const { return *tuner_input(library_.get(), 0, number); }

 private:
  std::unique_ptr<tuner_library, void (*)(tuner_library*)> library_;
};

static double SumOfRuns(const Library& library, int n_runs) {
  std::vector<std::vector<float>> inputs;
  for (size_t i = 0; i < library.n_inputs(); ++i)
    inputs.emplace_back(library.Input(i).n_bytes / sizeof(float));
  std::vector<float> output;
  for (int i = 0; i < n_runs; ++i) output = library(inputs);
  return std::accumulate(output.begin(), output.end(), 0.0);
}

int main(int n_arguments, char** arguments) try {
  if (n_arguments < 4) throw std::runtime_error("usage: run_in_threads FOLDER N_THREADS N_RUNS");
  const int n_threads = std::atoi(arguments[2]), n_runs = std::atoi(arguments[3]);
  std::vector<Library> libraries;  // opened by one thread, before others use the environment
  for (int i = 0; i < n_threads; ++i) libraries.emplace_back(arguments[1], 1);
  std::vector<double> sums(n_threads);
  auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < n_threads; ++i)
    threads.emplace_back([&, i] { sums[i] = SumOfRuns(libraries[i], n_runs); });
  for (std::thread& thread : threads) thread.join();
  std::chrono::duration<double> secs = std::chrono::steady_clock::now() - start;
  for (double sum : sums) std::printf("sum %.9g\n", sum);
  std::printf("%.1f runs a second\n", n_threads * n_runs / secs.count());
} catch (const std::exception& error) {
  std::fprintf(stderr, "run_in_threads: %s\n", error.what());
  return 1;
}
