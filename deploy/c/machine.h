// The machine that runs a library: its instruction sets and threads.
#pragma once

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "files.h"

namespace {

constexpr char kThreadsVariable[] = "TVM_NUM_THREADS";

// Names of features of CPUs by LLVM and by Linux differ in dots and underscores, and in these.
std::string LinuxName(const std::string& feature) {
  static const std::map<std::string, std::string> others = {
      {"avx10.1", "avx512fp16"}, {"avx10.2", "apx"},        {"bmi", "bmi1"},
      {"egpr", "apx"},           {"lzcnt", "abm"},          {"sse3", "pni"},
      {"dotprod", "asimddp"},    {"fp16fml", "asimdfhm"},   {"fullfp16", "asimdhp"},
      {"lse", "atomics"},
  };
  auto found = others.find(feature);
  std::string name = found == others.end() ? feature : found->second;
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return c == '.' || c == '_'; }),
             name.end());
  return name;
}

// Features that the kernel reports for the first core; empty if it reports none.
std::set<std::string> ReportedFeatures() {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> reported;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    if (line.rfind("flags", 0) && line.rfind("Features", 0)) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) {
      word.erase(std::remove(word.begin(), word.end(), '_'), word.end());
      reported.insert(word);
    }
  }
  return reported;
}

void CheckMachine(const Value& manifest, const std::string& folder) {
  utsname here;
  uname(&here);
  std::string machine = manifest["machine"].Text(), missing;
  if (!machine.empty() && machine != here.machine)
    Fail("this machine cannot run " + folder + ": it is code for " + machine +
         ", this machine is " + here.machine);
  std::set<std::string> reported = ReportedFeatures();
  for (const Value& feature : manifest["features"].Items()) {
    std::string name = feature.Text();
    if (!reported.empty() && !reported.count(LinuxName(name)))
      missing += (missing.empty() ? "" : ", ") + name;
  }
  if (!missing.empty())
    Fail("this machine cannot run " + folder + ": it needs " + missing + ", which this CPU lacks");
}

// Set the number of threads of a library and return it. The variable is changed for each.
int SetThreads(const Value& device, int n_threads) {
  static const std::string of_user = getenv(kThreadsVariable) ? getenv(kThreadsVariable) : "";
  std::vector<cpu_set_t> cores(64);  // of 1024 each
  const size_t n_bytes = cores.size() * sizeof(cpu_set_t);
  int64_t n_default = 1;
  if (!sched_getaffinity(0, n_bytes, cores.data())) n_default = CPU_COUNT_S(n_bytes, cores.data());
  if (device.Has("n_cores") && device["n_cores"].Int() > 0)
    n_default = std::min(n_default, device["n_cores"].Int());
  std::string value = n_threads ? std::to_string(n_threads)
                                : of_user.empty() ? std::to_string(n_default) : of_user;
  setenv(kThreadsVariable, value.c_str(), 1);
  return std::max(atoi(value.c_str()), 1);
}

}  // namespace
