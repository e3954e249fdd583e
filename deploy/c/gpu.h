// Programs for a GPU, launched through the CUDA driver as the manifest plans them. TVM is not used.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "files.h"
#include "programs.h"
#include "tensors.h"

namespace {

using Address = uint64_t;

// The functions of the driver by name; names and numbers are those of the CUDA Driver API.
class Cuda {
 public:
  // Returns the error of the driver.
  template <typename... Args>
  static int Status(const char* name, Args... args) {
    static thread_local std::map<const char*, void*> functions;
    void*& function = functions[name];
    if (!function) function = dlsym(Library(), name);
    if (!function) Fail(std::string(name) + ": the driver is too old");
    return reinterpret_cast<int (*)(Args...)>(function)(args...);
  }

  template <typename... Args>
  static void Call(const char* name, Args... args) {
    const int status = Status(name, args...);
    const char* text = nullptr;
    if (!status) return;
    Status("cuGetErrorName", status, &text);
    Fail(std::string(name) + ": " + (text ? text : "error") + " (" + std::to_string(status) + ")");
  }

  template <typename Handle = void*, typename... Args>
  static Handle Made(const char* name, Args... args) {
    Handle made{};
    Call(name, &made, args...);
    return made;
  }

 private:
  static void* Library() {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) Fail("this machine has no NVIDIA driver: " + std::string(dlerror()));
    return library;
  }
};

// The context of a library, current in this thread while the object lives.
class InContext {
 public:
  explicit InContext(void* context) { Cuda::Call("cuCtxPushCurrent_v2", context); }
  ~InContext() {
    void* popped;
    Cuda::Status("cuCtxPopCurrent_v2", &popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
};

// A launch of a kernel, see KernelLaunch in tuner/library/manifest.py.
class Launch {
 public:
  Launch(const Value& launch, void* module, size_t n_blocks, size_t number) {
    const std::string name = launch["name"].Text();
    function_ = Cuda::Made("cuModuleGetFunction", module, name.c_str());
    const Shape grid = launch["grid"].Ints(), block = launch["block"].Ints();
    for (int i = 0; i < 3; ++i) config_.grid[i] = grid.at(i), config_.block[i] = block.at(i);
    config_.shared_bytes = launch["shared_bytes"].Int();
    if (config_.shared_bytes > 48 << 10)
      Cuda::Call("cuFuncSetAttribute", function_, kMaxDynamicSharedBytes, int(config_.shared_bytes));
    attribute_.value[0] = config_.n_attributes = launch["overlaps"].any.cast<bool>();
    if (launch["n_parameters"].Int() != CountParameters())
      throw std::out_of_range(name + " takes another number of parameters");
    values_.resize(launch["n_parameters"].Int());
    for (const Value& pointer : launch["pointers"].Items()) {
      const Shape place = pointer.Ints();
      if (size_t(place.at(0)) >= n_blocks || place.at(1) < 0 || pointers_.size() >= values_.size())
        throw std::out_of_range("a pointer of " + name + " is in no memory");
      pointers_.emplace_back(place[0], place[1]);
    }
    for (Address& value : values_) parameters_.push_back(&value);
    for (int64_t each : launch["after"].Ints()) {
      if (each < 0 || size_t(each) >= number) throw std::out_of_range(name + " waits for a later launch");
      after.push_back(each);
    }
  }
  Launch(const Launch&) = delete;

  // Set the parameters for memory at some addresses; return true if they were others.
  bool Point(const std::vector<Address>& addresses) {
    bool is_changed = false;
    for (size_t i = 0; i < pointers_.size(); ++i) {
      const Address value = addresses[pointers_[i].first] + pointers_[i].second;
      is_changed = is_changed || value != values_[i];
      values_[i] = value;
    }
    return is_changed;
  }

  void Run(void* stream) {
    config_.stream = stream;
    config_.attributes = &attribute_;
    Cuda::Call("cuLaunchKernelEx", &config_, function_, parameters_.data(), static_cast<void**>(nullptr));
  }

  // Give the node of an executable graph the parameters.
  void Update(void* executable) {
    NodeParameters changed{};
    changed.function = function_;
    memcpy(changed.sizes, &config_, sizeof changed.sizes);
    changed.parameters = parameters_.data();
    Cuda::Call("cuGraphExecKernelNodeSetParams_v2", executable, node, &changed);
  }

  void* node = nullptr;  // in the graph that was captured
  std::vector<size_t> after;

 private:
  static constexpr int kMaxDynamicSharedBytes = 8;
  static constexpr int kOverlaps = 6;  // programmatic stream serialisation

  // Returns the number of parameters that the driver reads, each at most an address.
  int64_t CountParameters() const {
    int64_t n = 0;
    size_t place = 0, size = 0;
    while (!Cuda::Status("cuFuncGetParamInfo", function_, size_t(n), &place, &size) && size <= sizeof(Address)) ++n;
    return n;
  }

  struct Attribute {  // CUlaunchAttribute
    int id = kOverlaps, pad = 0;
    uint32_t value[16] = {};
  };
  struct Config {  // CUlaunchConfig
    uint32_t grid[3], block[3], shared_bytes;
    void* stream;
    Attribute* attributes;
    uint32_t n_attributes;
  };
  struct NodeParameters {  // CUDA_KERNEL_NODE_PARAMS
    void* function;
    uint32_t sizes[7];
    void** parameters;
    void **extra, *kernel, *context;
  };

  void* function_;
  Config config_{};
  Attribute attribute_;
  std::vector<std::pair<size_t, int64_t>> pointers_;  // memory of each, and the place there
  std::vector<Address> values_;
  std::vector<void*> parameters_;
};

class GpuPrograms : public Programs {
 public:
  // Reads the plans of the programs and loads their kernels into the current context, or else into
  // that of the first GPU.
  GpuPrograms(const MappedFile& code, const Value& manifest, const std::vector<Program>& programs)
      : GpuPrograms(programs) {  // whose end frees what there is when this fails
    Cuda::Call("cuInit", 0u);
    Cuda::Call("cuCtxGetCurrent", &context_);
    int device = 0;
    if (context_) {
      Cuda::Call("cuCtxGetDevice", &device);
    } else {
      Cuda::Call("cuDeviceGet", &device, 0);
      Cuda::Call("cuDevicePrimaryCtxRetain", &context_, device);
    }
    CheckDevice(device, Value::Parsed(manifest["target"].Text())["arch"].Text());
    has_context_ = true;
    InContext current(context_);
    stream_ = last_ = Cuda::Made("cuStreamCreate", kNonBlocking);
    event_ = Cuda::Made("cuEventCreate", kNoTiming);
    const std::vector<Value> described = manifest["programs"].Items();
    std::map<int64_t, Module> modules;
    for (size_t i = 0; i < programs.size(); ++i) Load(described[i], programs[i], code, modules);
    Cuda::Call("cuStreamSynchronize", stream_);
  }

  ~GpuPrograms() override {
    if (!has_context_ || Cuda::Status("cuCtxPushCurrent_v2", context_)) return;  // the process ends
    if (event_) Cuda::Status("cuEventSynchronize", event_);
    for (Plan& plan : plans_) {
      if (plan.executable) Cuda::Status("cuGraphExecDestroy", plan.executable);
      if (plan.graph) Cuda::Status("cuGraphDestroy", plan.graph);
    }
    for (const auto& [place, address] : weights_) Cuda::Status("cuMemFree_v2", address);
    for (const auto& [size, address] : blocks_) Cuda::Status("cuMemFree_v2", address);
    for (Address address : staging_) Cuda::Status("cuMemFree_v2", address);
    for (void* module : modules_) Cuda::Status("cuModuleUnload", module);
    if (event_) Cuda::Status("cuEventDestroy_v2", event_);
    if (stream_) Cuda::Status("cuStreamDestroy_v2", stream_);
    void* popped;
    Cuda::Status("cuCtxPopCurrent_v2", &popped);
  }

  void Run(size_t number, std::vector<Described>& returned) override {
    InContext current(context_);
    Plan& plan = plans_[number];
    const std::vector<Described>& inputs = programs_[number].inputs;
    if (plan.staging.empty())
      for (const auto* tensors : {&inputs, &programs_[number].returned})
        for (const Described& each : *tensors) {
          staging_.push_back(Allocated(each.tensor.n_bytes));
          plan.staging.push_back(staging_.back());
        }
    const std::vector<Address> given(plan.staging.begin(), plan.staging.begin() + inputs.size());
    const std::vector<Address> made(plan.staging.begin() + inputs.size(), plan.staging.end());
    WaitOn(stream_);
    for (size_t i = 0; i < inputs.size(); ++i)
      Cuda::Call("cuMemcpyHtoDAsync_v2", given[i], inputs[i].memory.get(), inputs[i].tensor.n_bytes, stream_);
    RunOnGpu(number, given, made, stream_);
    for (size_t i = 0; i < returned.size(); ++i) {
      returned[i].DescribeAs(programs_[number].returned[i]);
      const size_t n_bytes = returned[i].tensor.n_bytes;
      const std::shared_ptr<char> memory = NewMemory(n_bytes);
      Cuda::Call("cuMemcpyDtoHAsync_v2", static_cast<void*>(memory.get()), made[i], n_bytes, stream_);
      returned[i].memory = memory;
      returned[i].Point(memory.get(), n_bytes);
    }
    Cuda::Call("cuStreamSynchronize", stream_);
  }

  void RunOnGpu(size_t number, const std::vector<Address>& inputs, const std::vector<Address>& outputs,
                void* stream) override {
    InContext current(context_);
    Plan& plan = plans_[number];
    std::vector<Address> addresses = inputs;
    addresses.insert(addresses.end(), plan.weights.begin(), plan.weights.end());
    for (size_t output : plan.written) addresses.push_back(outputs[output]);
    for (size_t i = 0; i < plan.n_blocks; ++i) addresses.push_back(blocks_[i].second);
    int is_capturing = 0;
    Cuda::Call("cuStreamIsCapturing", stream, &is_capturing);
    // An event of another stream would end the capture of a caller.
    if (!is_capturing) WaitOn(stream);
    if (plan.executable && !is_capturing) {
      for (auto& launch : plan.launches)
        if (launch->Point(addresses)) launch->Update(plan.executable);
      Cuda::Call("cuGraphLaunch", plan.executable, stream);
    } else {
      for (auto& launch : plan.launches) {
        launch->Point(addresses);
        launch->Run(stream);
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i)  // outputs that no kernel writes
      if (const Address from = addresses[plan.outputs[i]]; from != outputs[i])
        Cuda::Call("cuMemcpyDtoDAsync_v2", outputs[i], from, programs_[number].returned[i].tensor.n_bytes, stream);
    if (is_capturing) return;
    Cuda::Call("cuEventRecord", event_, stream);
    last_ = stream;
    // The first run has loaded the kernels, which a capture cannot.
    if (!plan.is_tried) plan.is_tried = true, Capture(plan);
  }

 private:
  static constexpr unsigned kNonBlocking = 1, kNoTiming = 2;
  static constexpr int kThreadLocal = 1, kMajor = 75, kMinor = 76;

  struct Module {
    void* handle = nullptr;
    std::shared_ptr<char> image;
  };

  struct Plan {
    std::vector<std::unique_ptr<Launch>> launches;
    std::vector<Address> weights, staging;
    std::vector<size_t> written, outputs;  // outputs that kernels write; memory of each output
    size_t n_blocks;
    bool is_chain, is_tried = false;
    void *graph = nullptr, *executable = nullptr;
  };

  explicit GpuPrograms(const std::vector<Program>& programs) : programs_(programs) {}

  static void CheckDevice(int device, const std::string& arch) {
    int major = 0, minor = 0;
    Cuda::Call("cuDeviceGetAttribute", &major, kMajor, device);
    Cuda::Call("cuDeviceGetAttribute", &minor, kMinor, device);
    const int wanted = atoi(arch.substr(arch.find('_') + 1).c_str());
    const bool is_exact = arch.back() == 'a';
    if (major != wanted / 10 || minor < wanted % 10 || (is_exact && minor != wanted % 10))
      Fail("this machine cannot run code for " + arch + ": its GPU has compute capability " +
           std::to_string(major) + "." + std::to_string(minor));
  }

  static Address Allocated(size_t n_bytes) {
    return Cuda::Made<Address>("cuMemAlloc_v2", std::max<size_t>(n_bytes, 1));
  }

  void Load(const Value& described, const Program& program, const MappedFile& code,
            std::map<int64_t, Module>& modules) {
    Plan& plan = plans_.emplace_back();
    const Value planned = described["plan"];
    if (planned.IsNull())
      Fail("the program " + program.entry + " does more than launching kernels: run it by tuner.load");
    const Shape sizes = planned["sizes"].Ints();
    plan.is_chain = planned["is_chain"].any.cast<bool>();
    plan.n_blocks = sizes.size();
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i == blocks_.size()) blocks_.emplace_back(0, 0);
      if (sizes[i] <= blocks_[i].first && blocks_[i].second) continue;
      if (const Address old = std::exchange(blocks_[i].second, 0)) Cuda::Call("cuMemFree_v2", old);
      blocks_[i] = {sizes[i], Allocated(sizes[i])};
    }
    for (const Weight& weight : program.weights) plan.weights.push_back(Uploaded(weight));
    for (int64_t number : described["memory"]["written"].Ints()) plan.written.push_back(number);
    for (int64_t number : planned["outputs"].Ints()) plan.outputs.push_back(number);
    const size_t n_memories =
        program.inputs.size() + plan.weights.size() + plan.written.size() + sizes.size();
    bool fits = plan.outputs.size() == program.returned.size();
    for (size_t number : plan.outputs) fits = fits && number < n_memories;
    for (size_t number : plan.written) fits = fits && number < program.returned.size();
    if (!fits) throw std::out_of_range("the outputs of a plan do not fit");
    for (const Value& launch : planned["launches"].Items()) {
      Module& module = modules[launch["at"].Int()];
      if (!module.handle) module = LoadModule(code, launch["at"].Int(), launch["n_bytes"].Int());
      plan.launches.push_back(
          std::make_unique<Launch>(launch, module.handle, n_memories, plan.launches.size()));
    }
  }

  Module LoadModule(const MappedFile& code, int64_t at, int64_t n_bytes) {
    const int64_t size = code.size();
    if (at < 0 || n_bytes < 0 || at > size || n_bytes > size - at)
      throw std::out_of_range("a kernel lies beyond the end of lib.so");
    const std::shared_ptr<char> aligned = NewMemory(n_bytes);
    memcpy(aligned.get(), code.data() + at, n_bytes);
    modules_.push_back(Cuda::Made("cuModuleLoadData", static_cast<const void*>(aligned.get())));
    return {modules_.back(), aligned};
  }

  Address Uploaded(const Weight& weight) {
    const size_t n_bytes = weight.described.tensor.n_bytes;
    const auto [found, is_new] = weights_.emplace(std::make_pair(weight.offset, n_bytes), 0);
    if (is_new) {
      found->second = Allocated(n_bytes);
      Cuda::Call("cuMemcpyHtoDAsync_v2", found->second, weight.data(), n_bytes, stream_);
    }
    return found->second;
  }

  // Make a stream wait for the runs so far.
  void WaitOn(void* stream) {
    if (stream != last_) Cuda::Call("cuStreamWaitEvent", stream, event_, 0u);
  }

  // Capture the launches, with the parameters that they have; without a graph they run one by one.
  void Capture(Plan& plan) {
    void* graph = nullptr;
    try {
      Cuda::Call("cuStreamBeginCapture_v2", stream_, kThreadLocal);
      for (auto& launch : plan.launches) {
        if (!plan.is_chain) {
          std::vector<void*> nodes;
          for (size_t each : launch->after) nodes.push_back(plan.launches[each]->node);
          Cuda::Call("cuStreamUpdateCaptureDependencies_v2", stream_, nodes.data(),
                     static_cast<const void*>(nullptr), nodes.size(), 1u);
        }
        launch->Run(stream_);
        launch->node = LastNode();
      }
      Cuda::Call("cuStreamEndCapture", stream_, &graph);
      plan.executable = Cuda::Made("cuGraphInstantiateWithFlags", graph, uint64_t{0});
    } catch (const std::runtime_error&) {
      if (!graph) Cuda::Status("cuStreamEndCapture", stream_, &graph);
    }
    plan.graph = graph;
  }

  void* LastNode() {
    int status = 0;
    uint64_t id = 0;
    void *graph = nullptr, **nodes = nullptr, *edges = nullptr;
    size_t n_nodes = 0;
    Cuda::Call("cuStreamGetCaptureInfo_v3", stream_, &status, &id, &graph, &nodes, &edges, &n_nodes);
    if (n_nodes != 1) Fail("a launch was not captured");
    return nodes[0];
  }

  const std::vector<Program>& programs_;
  std::vector<Plan> plans_;
  std::map<std::pair<int64_t, size_t>, Address> weights_;  // by their place and size in the file
  std::vector<std::pair<int64_t, Address>> blocks_;  // of all programs, with their sizes
  std::vector<Address> staging_;
  std::vector<void*> modules_;
  bool has_context_ = false;
  void *context_ = nullptr, *stream_ = nullptr, *event_ = nullptr, *last_ = nullptr;
};

}  // namespace
