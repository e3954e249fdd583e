// Programs for a CPU, run by TVM's runtime.
#pragma once

#include <dlfcn.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "files.h"
#include "programs.h"
#include "tensors.h"

namespace {

constexpr int kPooledAllocator = 2;

// Memory of a tensor of TVM.
struct Borrowed {
  std::shared_ptr<const void> owner;
  const void* data;

  void AllocData(DLTensor* tensor) { tensor->data = const_cast<void*>(data); }
  void FreeData(DLTensor*) { owner.reset(); }
};

ffi::Tensor TensorOn(const Described& described, std::shared_ptr<const void> owner, const void* data) {
  const ffi::ShapeView shape(described.shape.data(), described.shape.size());
  return ffi::Tensor::FromNDAlloc(Borrowed{std::move(owner), data}, shape, described.type(),
                                  DLDevice{kDLCPU, 0});
}

class CpuPrograms : public Programs {
 public:
  CpuPrograms(const MappedFile& code, const std::vector<Program>& programs) {
    CheckRuntime();
    const ffi::Function loader = ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so");
    module_ = loader(code.OwnName(), "so").cast<ffi::Module>();
    machine_ = module_->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
    machine_->GetFunction("vm_initialization").value()(int{kDLCPU}, 0, kPooledAllocator);
    for (const Program& program : programs) {
      const auto function = machine_->GetFunction(program.entry);
      if (!function) throw std::out_of_range("lib.so has no program " + program.entry);
      functions_.push_back(*function);
      auto& arguments = arguments_.emplace_back();
      for (const Described& each : program.inputs) arguments.push_back(TensorOn(each, each.memory, each.memory.get()));
      for (const Weight& weight : program.weights)
        arguments.push_back(TensorOn(weight.described, weight.file, weight.data()));
    }
  }

  void Run(size_t number, std::vector<Described>& returned) override {
    const std::vector<ffi::AnyView> values(arguments_[number].begin(), arguments_[number].end());
    ffi::Any result;
    functions_[number].CallPacked(values.data(), static_cast<int>(values.size()), &result);
    std::vector<ffi::Any> results;
    if (result.try_cast<ffi::Tensor>() || result.try_cast<ffi::Shape>())
      results = {result};
    else
      for (const ffi::Any& each : result.cast<ffi::Array<ffi::Any>>()) results.push_back(each);
    if (results.size() != returned.size()) Fail("the program returned other outputs than named");
    for (size_t i = 0; i < results.size(); ++i) {
      Described& output = returned[i];
      output.memory = std::make_shared<ffi::Any>(results[i]);
      if (auto tensor = results[i].try_cast<ffi::Tensor>()) {
        output.dtype = ffi::DLDataTypeToString(tensor->dtype());
        output.shape.assign(tensor->shape().begin(), tensor->shape().end());
        const char* data = static_cast<const char*>(tensor->data_ptr());
        output.Point(data + tensor->byte_offset(), ffi::GetDataSize(*tensor));
      } else {  // the program computes a shape
        ffi::Shape shape = results[i].cast<ffi::Shape>();
        output.dtype = "int64";
        output.shape = {static_cast<int64_t>(shape.size())};
        output.Point(shape.data(), shape.size() * sizeof(int64_t));
      }
    }
  }

 private:
  static void CheckRuntime() {
    TVMFFIVersion version;
    TVMFFIGetVersion(&version);
    if (version.major != TVM_FFI_VERSION_MAJOR || version.minor != TVM_FFI_VERSION_MINOR ||
        version.patch != TVM_FFI_VERSION_PATCH)
      Fail("libtvm_ffi.so is of another version than the headers that this was compiled with");
    // A library takes symbols of both from the global scope, to which they do not belong in a
    // process that loaded this code by dlopen().
    for (const char* name : {"libtvm_ffi.so", "libtvm_runtime.so"})
      if (!dlopen(name, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL))
        Fail(std::string(name) + " is not loaded: link to it");
  }

  ffi::Module module_{ffi::UnsafeInit()}, machine_{ffi::UnsafeInit()};
  std::vector<ffi::Function> functions_;
  std::vector<std::vector<ffi::Tensor>> arguments_;  // inputs, then weights
};

}  // namespace
