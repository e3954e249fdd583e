// Run a library in several threads: run_in_threads N_THREADS N_RUNS FOLDER [FILE...]
//
// Every thread opens the library for itself, as a library serves one call at a time. Files and
// lines are those of run_library.c; the runs per second of all threads follow on standard error.
#include <tuner.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

class Library {
 public:
  explicit Library(const std::string& folder) : library_(tuner_open(folder.c_str(), 1), tuner_close) {
    if (!library_) throw std::runtime_error(tuner_error());
    for (size_t i = 0; i < tuner_n_inputs(library_.get()); ++i)
      inputs_.push_back(*tuner_input(library_.get(), 0, i));
  }

  // Run it on files, or zeros where there are none; describe the outputs of the last run.
  std::string operator()(const std::vector<std::string>& files, int n_runs) {
    std::vector<std::string> contents;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      contents.push_back(i < files.size() ? files[i] : std::string(inputs_[i].n_bytes, '\0'));
      inputs_[i].data = contents[i].data();
      inputs_[i].n_bytes = contents[i].size();  // which the library checks
    }
    for (int i = 0; i < n_runs; ++i)
      if (tuner_run(library_.get(), inputs_.data(), inputs_.size()))
        throw std::runtime_error(tuner_error());
    std::ostringstream lines;
    lines.precision(9);
    for (size_t i = 0; i < tuner_n_outputs(library_.get()); ++i)
      Describe(*tuner_output(library_.get(), i), lines);
    return lines.str();
  }

 private:
  static void Describe(const tuner_tensor& output, std::ostream& lines) {
    lines << output.name << " " << output.dtype;
    for (size_t axis = 0; axis < output.rank; ++axis)
      lines << (axis ? "x" : " ") << output.shape[axis];
    const float* numbers = static_cast<const float*>(output.data);
    if (output.dtype == std::string("float32"))
      for (size_t i = 0; i < std::min<size_t>(output.n_bytes / sizeof(float), 8); ++i)
        lines << (i ? " " : ": ") << numbers[i];
    lines << "\n";
  }

  std::unique_ptr<tuner_library, void (*)(tuner_library*)> library_;
  std::vector<tuner_tensor> inputs_;
};

static std::string ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int main(int n_arguments, char** arguments) try {
  if (n_arguments < 4 || std::atoi(arguments[1]) < 1)
    throw std::runtime_error("usage: run_in_threads N_THREADS N_RUNS FOLDER [FILE...]");
  const int n_threads = std::atoi(arguments[1]), n_runs = std::atoi(arguments[2]);
  std::vector<Library> libraries;  // opened by one thread, before others use the environment
  for (int i = 0; i < n_threads; ++i) libraries.emplace_back(arguments[3]);
  std::vector<std::string> files, lines;
  for (int i = 4; i < n_arguments; ++i) files.push_back(ReadFile(arguments[i]));
  auto start = std::chrono::steady_clock::now();
  std::vector<std::future<std::string>> threads;
  for (Library& library : libraries)
    threads.push_back(std::async(std::launch::async, [&] { return library(files, n_runs); }));
  for (std::future<std::string>& thread : threads) lines.push_back(thread.get());
  std::chrono::duration<double> secs = std::chrono::steady_clock::now() - start;
  if (std::count(lines.begin(), lines.end(), lines.at(0)) != n_threads)
    throw std::runtime_error("the outputs of the threads differ");
  std::printf("%s", lines[0].c_str());
  std::fprintf(stderr, "%.1f runs a second\n", n_threads * n_runs / secs.count());
} catch (const std::exception& error) {
  std::fprintf(stderr, "run_in_threads: %s\n", error.what());
  return 1;
}
