// The operators after a program, run by ONNX Runtime through its C API.
#pragma once

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "files.h"
#include "tensors.h"

namespace {

// The functions of ONNX Runtime's table of the version below that are called here, by their place:
// places are never given to others, see the policy of versions in onnxruntime_c_api.h.
enum OrtFunction {
  kGetErrorMessage = 2, kCreateEnv = 3, kCreateSessionFromArray = 8, kRun = 9,
  kCreateSessionOptions = 10, kSetSessionLogSeverityLevel = 22, kSetIntraOpNumThreads = 24,
  kSetInterOpNumThreads = 25, kSessionGetInputCount = 30, kSessionGetInputName = 36,
  kCreateTensorWithDataAsOrtValue = 49, kIsTensor = 50, kGetTensorMutableData = 51,
  kGetTensorElementType = 60, kGetDimensionsCount = 61, kGetDimensions = 62,
  kGetTensorTypeAndShape = 65, kCreateCpuMemoryInfo = 69, kAllocatorFree = 76,
  kGetAllocatorWithDefaultOptions = 78, kReleaseStatus = 93, kReleaseMemoryInfo = 94,
  kReleaseSession = 95, kReleaseValue = 96, kReleaseTensorTypeAndShapeInfo = 99,
  kReleaseSessionOptions = 100, kAddSessionConfigEntry = 130
};

class OnnxRuntime {
 public:
  // The runtime of this process; an exception if it is not installed.
  static OnnxRuntime& Loaded() {
    static OnnxRuntime loaded;
    return loaded;
  }

  template <typename... Args>
  void Call(OrtFunction function, Args... args) const {
    void* status = reinterpret_cast<void* (*)(Args...)>(functions_[function])(args...);
    if (!status) return;
    const std::string message =
        reinterpret_cast<const char* (*)(void*)>(functions_[kGetErrorMessage])(status);
    Release(kReleaseStatus, status);
    Fail("ONNX Runtime: " + message);
  }

  // An object that a function makes as its last argument.
  template <typename... Args>
  std::shared_ptr<void> Made(OrtFunction release, OrtFunction function, Args... args) const {
    void* made = nullptr;
    Call(function, args..., &made);
    return Owned(release, made);
  }
  std::shared_ptr<void> Owned(OrtFunction release, void* object) const {
    return {object, [this, release](void* owned) { Release(release, owned); }};
  }

  void* environment = nullptr;  // one for all sessions, until the process ends

  // Types of ONNX by the names of NumPy.
  static const std::map<std::string, int>& Types() {
    static const std::map<std::string, int> types = {
        {"float32", 1}, {"uint8", 2}, {"int8", 3},     {"uint16", 4},   {"int16", 5},   {"int32", 6},
        {"int64", 7},   {"bool", 9},  {"float16", 10}, {"float64", 11}, {"uint32", 12}, {"uint64", 13},
        {"bfloat16", 16}};
    return types;
  }

 private:
  static constexpr uint32_t kVersion = 8;
  static constexpr int kFatal = 4;

  struct Base {
    const void* const* (*functions_of)(uint32_t version);
    const char* (*version)();
  };

  OnnxRuntime() {
    void* library = dlopen("libonnxruntime.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) Fail("ONNX Runtime is needed for the operators after the library: " + std::string(dlerror()));
    auto base = reinterpret_cast<const Base* (*)()>(dlsym(library, "OrtGetApiBase"));
    functions_ = base ? base()->functions_of(kVersion) : nullptr;
    if (!functions_) Fail("ONNX Runtime is too old for the operators after the library");
    Call(kCreateEnv, kFatal, "tuner", &environment);
  }

  void Release(OrtFunction function, void* object) const {
    reinterpret_cast<void (*)(void*)>(functions_[function])(object);
  }

  const void* const* functions_;
};

class Tail {
 public:
  Tail(const MappedFile& file, int n_threads) : runtime_(OnnxRuntime::Loaded()) {
    auto options = runtime_.Made(kReleaseSessionOptions, kCreateSessionOptions);
    runtime_.Call(kSetIntraOpNumThreads, options.get(), n_threads);
    runtime_.Call(kSetInterOpNumThreads, options.get(), 1);
    runtime_.Call(kSetSessionLogSeverityLevel, options.get(), 4);  // errors are returned
    // Its threads would spin on the cores that the next run of the program uses.
    runtime_.Call(kAddSessionConfigEntry, options.get(), "session.intra_op.allow_spinning", "0");
    session_ = runtime_.Made(kReleaseSession, kCreateSessionFromArray, runtime_.environment,
                             static_cast<const void*>(file.data()), file.size(), options.get());
    memory_ = runtime_.Made(kReleaseMemoryInfo, kCreateCpuMemoryInfo, 0, 0);
    size_t n_inputs = 0;
    void* allocator = nullptr;
    runtime_.Call(kSessionGetInputCount, session_.get(), &n_inputs);
    runtime_.Call(kGetAllocatorWithDefaultOptions, &allocator);
    for (size_t i = 0; i < n_inputs; ++i) {
      char* name = nullptr;
      runtime_.Call(kSessionGetInputName, session_.get(), i, allocator, &name);
      inputs_.push_back(name);
      runtime_.Call(kAllocatorFree, allocator, static_cast<void*>(name));
    }
  }

  // Compute some outputs from the inputs of the model and what its program returned.
  void Run(const std::map<std::string, const tuner_tensor*>& values, std::vector<Described*> outputs) const {
    std::vector<std::shared_ptr<void>> given;
    std::vector<const char*> input_names, output_names;
    std::vector<void*> pointers, made(outputs.size());
    for (const std::string& name : inputs_) {
      const tuner_tensor& value = *values.at(name);
      given.push_back(runtime_.Made(kReleaseValue, kCreateTensorWithDataAsOrtValue, memory_.get(),
                                    const_cast<void*>(value.data), value.n_bytes, value.shape,
                                    value.rank, OnnxRuntime::Types().at(value.dtype)));
      input_names.push_back(name.c_str());
      pointers.push_back(given.back().get());
    }
    for (const Described* output : outputs) output_names.push_back(output->name.c_str());
    runtime_.Call(kRun, session_.get(), static_cast<void*>(nullptr), input_names.data(),
                  pointers.data(), pointers.size(), output_names.data(), made.size(), made.data());
    for (size_t i = 0; i < made.size(); ++i) {
      outputs[i]->memory = runtime_.Owned(kReleaseValue, made[i]);
    }
    for (size_t i = 0; i < made.size(); ++i) Describe(made[i], *outputs[i]);
  }

 private:
  void Describe(void* value, Described& output) const {
    int is_tensor = 0, type = 0;
    size_t rank = 0;
    void* data = nullptr;
    runtime_.Call(kIsTensor, value, &is_tensor);
    if (!is_tensor) Fail("output '" + output.name + "' is not a tensor");
    auto info = runtime_.Made(kReleaseTensorTypeAndShapeInfo, kGetTensorTypeAndShape, value);
    runtime_.Call(kGetTensorElementType, info.get(), &type);
    runtime_.Call(kGetDimensionsCount, info.get(), &rank);
    output.shape.resize(rank);
    runtime_.Call(kGetDimensions, info.get(), output.shape.data(), rank);
    runtime_.Call(kGetTensorMutableData, value, &data);
    for (const auto& [dtype, number] : OnnxRuntime::Types())
      if (number == type) output.dtype = dtype;
    output.Point(data, SizeOf(output.shape, output.type()));
  }

  const OnnxRuntime& runtime_;
  std::shared_ptr<void> session_, memory_;
  std::vector<std::string> inputs_;
};

}  // namespace
