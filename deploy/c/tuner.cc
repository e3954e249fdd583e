// The functions of tuner.h.
#include "tuner.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "buckets.h"
#include "cpu.h"
#include "files.h"
#include "gpu.h"
#include "machine.h"
#include "programs.h"
#include "tail.h"
#include "tensors.h"

namespace {

constexpr int kManifestVersion = 6;
constexpr size_t kMaxManifestBytes = 256 << 20;

using Files = std::map<std::string, std::shared_ptr<MappedFile>>;

Value ReadManifest(const std::string& path) {
  MappedFile file(path);
  if (file.size() > kMaxManifestBytes) throw std::out_of_range("it is too large");
  return Value::Parsed({reinterpret_cast<const char*>(file.data()), file.size()});
}

std::string KindOf(const Value& manifest) {
  return Value::Parsed(manifest["target"].Text())["kind"].Text();
}

// Check all that can be checked before code is loaded; return the files.
Files Checked(const Value& manifest, const std::string& folder) {
  int64_t version = manifest["version"].Int();
  if (version != kManifestVersion)
    Fail(folder + " has manifest version " + std::to_string(version) +
         ", and this program reads version " + std::to_string(kManifestVersion) +
         ": build the library again");
  if (const std::string kind = KindOf(manifest); kind != "llvm" && kind != "cuda")
    Fail(folder + " is neither for a CPU nor for an NVIDIA GPU: its target is " + manifest["target"].Text());
  const std::string engine = manifest["engine"].Text();
  if (engine.rfind("tuner.engines.relax.", 0))
    Fail(folder + " was built by " + engine + ", which alone can load it");
  CheckMachine(manifest, folder);
  Files files;
  for (const auto& [name, sha256] : manifest["files"].Fields()) {
    if (name.find('/') != std::string::npos)
      throw std::out_of_range("the file '" + name + "' is outside of the folder");
    std::string path = folder + "/" + name;
    if (access(path.c_str(), F_OK)) Fail(folder + " is incomplete: " + name + " is missing");
    files[name] = std::make_shared<MappedFile>(path);
    if (Sha256::Of(files[name]->data(), files[name]->size()) != sha256.Text())
      Fail(path + " was altered after it was built; build it again");
    if (name != "lib.so") files[name]->Close();
  }
  if (!files.count("lib.so")) throw std::out_of_range("lib.so is not one of its files");
  return files;
}

// A program, and the sizes of the dynamic dimensions of a call.
struct Choice {
  size_t program = 0;
  Sizes sizes;
};

}  // namespace

struct tuner_library {
 public:
  tuner_library(const std::string& folder, int n_threads, bool has_tail) {
    static std::mutex opening;
    std::lock_guard<std::mutex> lock(opening);
    if (n_threads < 0) Fail("threads must be at least 1, got " + std::to_string(n_threads));
    const std::string path = folder + "/manifest.json";
    Files files;
    Value manifest;
    bool is_for_gpu = false;
    try {
      manifest = ReadManifest(path);
      files = Checked(manifest, folder);
      is_for_gpu = KindOf(manifest) == "cuda";
      Describe(manifest, files, has_tail && !manifest["tail"].IsNull());
      n_threads = SetThreads(manifest["device"], n_threads);
    } catch (const ffi::Error& error) {
      Fail(path + " is damaged: " + error.message());
    } catch (const std::logic_error& error) {
      Fail(path + " is damaged: " + error.what());
    }
    for (const Program& program : programs_)
      if (!program.tail.empty() && !tails_.count(program.tail))
        tails_.emplace(program.tail, Tail(*files.at(program.tail), n_threads));
    try {
      if (is_for_gpu)
        runner_ = std::make_unique<GpuPrograms>(*files.at("lib.so"), manifest, programs_);
      else
        runner_ = std::make_unique<CpuPrograms>(*files.at("lib.so"), programs_);
    } catch (const std::out_of_range& error) {
      Fail(path + " is damaged: " + error.what());
    }
  }

  // A call: first its inputs, then its run.
  class Call {
   public:
    Call(tuner_library& library, const tuner_tensor* inputs, size_t n_inputs)
        : library_(library), lock_(library.running_, std::try_to_lock) {
      if (!lock_) Fail("the library runs in another thread: open it once for each thread");
      // After the inputs are copied, which may be outputs of the run before.
      const std::unique_ptr<tuner_library, void (*)(tuner_library*)> cleared(&library, ClearOutputs);
      choice_ = library.ChoiceFor(inputs, n_inputs);
      for (size_t i = 0; i < n_inputs; ++i) library.CheckData(inputs[i], i, choice_.program);
      library.CheckLimits(inputs, choice_);
      for (size_t i = 0; i < n_inputs; ++i) library.CopyInput(inputs[i], i, choice_.program);
    }

    // Check memory for the outputs.
    void TakeOutputs(const tuner_tensor* outputs, size_t n_outputs) {
      library_.CheckOutputs(outputs, n_outputs, library_.OutputsAt(choice_));
    }

    void Run() {
      try {
        library_.Run(choice_);
      } catch (...) {
        ClearOutputs(&library_);
        throw;
      }
    }

    // Copy the outputs to memory that was checked.
    void CopyOutputs(const tuner_tensor* outputs) const {
      for (size_t i = 0; i < library_.outputs_.size(); ++i) {
        const tuner_tensor& from = library_.outputs_[i].tensor;
        if (outputs[i].n_bytes < from.n_bytes)
          Fail("output '" + library_.outputs_[i].name + "' has " + std::to_string(from.n_bytes) +
               " bytes, but memory of " + std::to_string(outputs[i].n_bytes));
        if (from.n_bytes) memcpy(const_cast<void*>(outputs[i].data), from.data, from.n_bytes);
      }
    }

   private:
    static void ClearOutputs(tuner_library* library) {
      for (size_t i = 0; i < library->outputs_.size(); ++i)
        library->outputs_[i].DescribeAs(library->programs_[0].outputs[i]);
    }

    tuner_library& library_;
    std::unique_lock<std::mutex> lock_;
    Choice choice_;
  };

  // Run on memory of the GPU.
  void RunOnGpu(const tuner_tensor* inputs, size_t n_inputs, const tuner_tensor* outputs,
                size_t n_outputs, void* stream) {
    std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
    if (!lock) Fail("the library runs in another thread: open it once for each thread");
    const Choice choice = ChoiceFor(inputs, n_inputs);
    const Program& program = programs_[choice.program];
    if (!program.tail.empty()) Fail("operators run on the CPU after the program: use tuner_run");
    CheckOutputs(outputs, n_outputs, program.outputs);
    std::vector<uint64_t> given, made;
    for (size_t i = 0; i < n_inputs; ++i) {
      CheckData(inputs[i], i, choice.program);
      if (!HasShape(inputs[i], program.inputs[i].shape))
        Fail("input '" + program.inputs[i].name + "' must have the size of a bucket: nothing is padded on a GPU");
      given.push_back(AddressOf(inputs[i], "input '" + program.inputs[i].name + "' "));
    }
    for (size_t i = 0; i < n_outputs; ++i)
      made.push_back(AddressOf(outputs[i], "output '" + program.outputs[i].name + "' "));
    runner_->RunOnGpu(choice.program, given, made, stream);
  }

  // Describe the outputs of a call.
  void DescribeOutputs(const tuner_tensor* inputs, size_t n_inputs, tuner_tensor* outputs, size_t n_outputs) {
    std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
    if (!lock) Fail("the library runs in another thread: open it once for each thread");
    CheckNumber(n_outputs);
    described_ = OutputsAt(ChoiceFor(inputs, n_inputs));
    for (size_t i = 0; i < n_outputs; ++i) outputs[i] = described_[i].tensor;
  }

  const std::vector<Program>& programs() const { return programs_; }
  const std::vector<Described>& outputs() const { return outputs_; }

 private:
  void Describe(const Value& manifest, const Files& files, bool has_tail) {
    std::vector<Weight> weights;
    const auto file = files.find("weights.bin");
    for (const Value& weight : manifest["weights"].Items())
      weights.emplace_back(weight, file == files.end() ? nullptr : file->second);
    const Value returned = manifest["tail"].IsNull() ? manifest["outputs"] : manifest["tail"]["returned"];
    for (const Value& program : manifest["programs"].Items()) {
      Program& added = Add(program, returned, weights);
      added.outputs = added.returned;
      if (!has_tail) continue;
      added.tail = program["tail"].Text();
      if (!files.count(added.tail)) throw std::out_of_range("the tail '" + added.tail + "' is not one of its files");
      added.outputs = Named(manifest["outputs"], program["tail_outputs"]);
    }
    if (programs_.empty()) throw std::out_of_range("it names no program");
    outputs_ = programs_[0].outputs;
    const Value buckets = manifest["buckets"];
    if (buckets.IsNull()) return;
    buckets_ = Buckets(buckets, programs_[0].inputs, outputs_);
    for (const Program& program : programs_) {
      std::vector<Shape> shapes;
      for (const Described& input : program.inputs) shapes.push_back(input.shape);
      limits_.emplace_back(buckets_.SizesOf(shapes, program.inputs), program.limits);
    }
  }

  static uint64_t AddressOf(const tuner_tensor& tensor, const std::string& name) {
    const uint64_t address = reinterpret_cast<uintptr_t>(tensor.data);
    if (address % kAlignment) Fail(name + "must be aligned to " + std::to_string(kAlignment) + " bytes");
    return address;
  }

  static std::vector<Described> Named(const Value& names, const Value& specs) {
    std::vector<Described> named;
    const std::vector<Value> each = specs.Items();
    for (const Value& name : names.Items()) named.emplace_back(name.Text(), each.at(named.size()));
    for (Described& tensor : named) tensor.Describe();
    return named;
  }

  Program& Add(const Value& program, const Value& returned, const std::vector<Weight>& weights) {
    Program& added = programs_.emplace_back();
    added.entry = program["entry"].Text();
    for (const auto& [name, spec] : program["inputs"].Fields()) {
      Described& input = added.inputs.emplace_back(name, spec);
      if (std::count(input.shape.begin(), input.shape.end(), -1))
        throw std::out_of_range("the shape " + Shown(input.shape) + " is impossible");
      input.Describe();
      input.memory = NewMemory(input.tensor.n_bytes);
    }
    const std::vector<Described>& first = programs_[0].inputs;
    bool is_same = added.inputs.size() == first.size();
    for (size_t i = 0; is_same && i < first.size(); ++i)
      is_same = added.inputs[i].name == first[i].name && added.inputs[i].dtype == first[i].dtype;
    if (!is_same) throw std::out_of_range("its programs take different inputs");
    added.returned = Named(returned, program["outputs"]);
    for (int64_t number : program["weights"].Ints()) added.weights.push_back(weights.at(number));
    for (const Value& limit : program["limits"].Items()) added.limits.emplace_back(limit, added.inputs);
    return added;
  }

  // A program for some inputs, and the sizes of their dimensions.
  Choice ChoiceFor(const tuner_tensor* inputs, size_t n_inputs) const {
    const std::vector<Described>& expected = programs_[0].inputs;
    if (n_inputs != expected.size())
      Fail("the library takes " + std::to_string(expected.size()) + " inputs, got " +
           std::to_string(n_inputs));
    std::vector<Shape> shapes;
    for (size_t i = 0; i < n_inputs; ++i) {
      const std::string name = "input '" + expected[i].name + "' ";
      if (inputs[i].name && inputs[i].name != expected[i].name)
        Fail(name + "is number " + std::to_string(i) + ", got '" + inputs[i].name + "' there");
      if (!inputs[i].dtype || inputs[i].dtype != expected[i].dtype)
        Fail(name + "must have dtype " + expected[i].dtype + ", got " +
             (inputs[i].dtype ? inputs[i].dtype : "NULL"));
      if (!inputs[i].shape && inputs[i].rank) Fail(name + "has no shape");
      const Shape& shape = shapes.emplace_back(inputs[i].shape, inputs[i].shape + inputs[i].rank);
      for (int64_t size : shape)
        if (size < 0) Fail(name + "has the shape " + Shown(shape) + ", which is impossible");
    }
    Choice choice;
    std::vector<Shape> given;
    if (!buckets_.empty()) {
      given = shapes;
      choice.sizes = buckets_.SizesOf(shapes, expected);
      buckets_.Resize(shapes, buckets_.Fit(choice.sizes));
    }
    auto is_same = [](const Shape& shape, const Described& input) { return shape == input.shape; };
    for (; choice.program < programs_.size(); ++choice.program)
      if (std::equal(shapes.begin(), shapes.end(), programs_[choice.program].inputs.begin(), is_same))
        return choice;
    if (given.empty()) given = shapes;
    std::string accepted;
    for (const Program& program : programs_)
      accepted += (accepted.empty() ? "" : "; ") + Listed(ShapesOf(program));
    Fail("no program has the shapes " + Listed(given) + "; the library has " + accepted);
  }

  static std::vector<Shape> ShapesOf(const Program& program) {
    std::vector<Shape> shapes;
    for (const Described& input : program.inputs) shapes.push_back(input.shape);
    return shapes;
  }

  std::string Listed(const std::vector<Shape>& shapes) const {
    std::string text;
    for (size_t i = 0; i < shapes.size(); ++i)
      text += (i ? ", " : "") + programs_[0].inputs[i].name + " " + Shown(shapes[i]);
    return text;
  }

  static bool HasShape(const tuner_tensor& tensor, const Shape& shape) {
    return std::equal(shape.begin(), shape.end(), tensor.shape, tensor.shape + tensor.rank);
  }

  void CheckData(const tuner_tensor& input, size_t number, size_t program) const {
    const Described& expected = programs_[program].inputs[number];
    const size_t n_bytes = HasShape(input, expected.shape)
                               ? expected.tensor.n_bytes
                               : SizeOf({input.shape, input.shape + input.rank}, expected.type());
    if (input.n_bytes != n_bytes)
      Fail("input '" + expected.name + "' must have " + std::to_string(n_bytes) + " bytes, got " +
           std::to_string(input.n_bytes));
    if (!input.data && n_bytes) Fail("input '" + expected.name + "' has no data");
  }

  void CheckLimits(const tuner_tensor* inputs, const Choice& choice) const {
    if (limits_.empty())
      for (const Limit& limit : programs_[choice.program].limits) limit.Check(inputs);
    else
      for (const Limit& limit : Buckets::LimitsAt(choice.sizes, limits_)) limit.Check(inputs);
  }

  void CopyInput(const tuner_tensor& given, size_t number, size_t program) {
    const Described& input = programs_[program].inputs[number];
    char* copy = static_cast<char*>(const_cast<void*>(input.memory.get()));
    const char* data = static_cast<const char*>(given.data);
    if (!HasShape(given, input.shape)) {
      const Shape shape(given.shape, given.shape + given.rank);
      const size_t item_bytes = input.ItemBytes();
      Fill(copy, input.tensor.n_bytes, buckets_.padding[number], input.type());
      if (given.n_bytes) CopyRegion(shape, data, shape, copy, input.shape, item_bytes);
    } else if (given.n_bytes) {
      memcpy(copy, data, given.n_bytes);
    }
  }

  // The outputs of a call, without data.
  std::vector<Described> OutputsAt(const Choice& choice) const {
    std::vector<Described> outputs = programs_[choice.program].outputs;
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].shape = buckets_.Cut(outputs[i].shape, i, choice.sizes);
      outputs[i].Describe();
    }
    return outputs;
  }

  void CheckNumber(size_t n_outputs) const {
    if (n_outputs != outputs_.size())
      Fail("the library has " + std::to_string(outputs_.size()) + " outputs, got " +
           std::to_string(n_outputs));
  }

  void CheckOutputs(const tuner_tensor* outputs, size_t n_outputs, const std::vector<Described>& expected) const {
    CheckNumber(n_outputs);
    for (size_t i = 0; i < n_outputs; ++i) {
      const std::string name = "output '" + expected[i].name + "' ";
      if (outputs[i].name && outputs[i].name != expected[i].name)
        Fail(name + "is number " + std::to_string(i) + ", got '" + outputs[i].name + "' there");
      if (outputs[i].n_bytes < expected[i].tensor.n_bytes)
        Fail(name + "has " + std::to_string(expected[i].tensor.n_bytes) + " bytes, but memory of " +
             std::to_string(outputs[i].n_bytes));
      if (!outputs[i].data && outputs[i].n_bytes) Fail(name + "has no memory");
    }
  }

  void Run(const Choice& choice) {
    const Program& program = programs_[choice.program];
    if (program.tail.empty()) {
      runner_->Run(choice.program, outputs_);
    } else {
      std::vector<Described> returned = program.returned;
      runner_->Run(choice.program, returned);
      outputs_ = RunTail(program, returned);
    }
    if (buckets_.empty()) return;
    for (size_t i = 0; i < outputs_.size(); ++i) Cut(outputs_[i], buckets_.Cut(outputs_[i].shape, i, choice.sizes));
  }

  std::vector<Described> RunTail(const Program& program, const std::vector<Described>& returned) const {
    std::map<std::string, const tuner_tensor*> values;
    std::vector<tuner_tensor> inputs;
    for (const Described& input : program.inputs) {
      inputs.push_back(input.tensor);
      inputs.back().data = input.memory.get();
    }
    for (size_t i = 0; i < inputs.size(); ++i) values[program.inputs[i].name] = &inputs[i];
    for (const Described& each : returned) values[each.name] = &each.tensor;
    std::vector<Described> outputs = program.outputs;
    std::vector<Described*> computed;
    for (Described& output : outputs) {
      auto same = std::find_if(returned.begin(), returned.end(),
                               [&](const Described& each) { return each.name == output.name; });
      if (same == returned.end()) computed.push_back(&output);
      else output = *same;
    }
    tails_.at(program.tail).Run(values, computed);
    return outputs;
  }

  static void Cut(Described& output, const Shape& shape) {
    if (shape == output.shape) return;
    const size_t n_bytes = SizeOf(shape, output.type());
    const std::shared_ptr<char> memory = NewMemory(n_bytes);
    CopyRegion(shape, static_cast<const char*>(output.tensor.data), output.shape, memory.get(), shape,
               output.ItemBytes());
    output.memory = memory, output.shape = shape;
    output.Point(memory.get(), n_bytes);
  }

  std::vector<Program> programs_;
  std::unique_ptr<Programs> runner_;
  std::map<std::string, Tail> tails_;
  Buckets buckets_;
  Buckets::Known limits_;             // of the programs of a library with buckets
  std::vector<Described> outputs_;    // of the last run, or of the first program without data
  std::vector<Described> described_;  // of the last call of DescribeOutputs()
  std::mutex running_;
};

namespace {

thread_local std::string last_error;

// Call a function; keep the message of its exception.
template <typename Function>
bool Succeeds(Function function) {
  try {
    function();
    return true;
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return false;
}

const tuner_tensor* At(const std::vector<Described>& tensors, size_t number) {
  return number < tensors.size() ? &tensors[number].tensor : nullptr;
}

}  // namespace

tuner_library* tuner_open(const char* folder, int n_threads) {
  tuner_library* library = nullptr;
  Succeeds([&] { library = new tuner_library(folder, n_threads, true); });
  return library;
}

tuner_library* tuner_open_without_tail(const char* folder, int n_threads) {
  tuner_library* library = nullptr;
  Succeeds([&] { library = new tuner_library(folder, n_threads, false); });
  return library;
}

void tuner_close(tuner_library* library) { delete library; }

size_t tuner_n_programs(const tuner_library* library) { return library->programs().size(); }

size_t tuner_n_inputs(const tuner_library* library) {
  return library->programs()[0].inputs.size();
}

size_t tuner_n_outputs(const tuner_library* library) { return library->outputs().size(); }

const tuner_tensor* tuner_input(const tuner_library* library, size_t program, size_t number) {
  if (program >= tuner_n_programs(library)) return nullptr;
  return At(library->programs()[program].inputs, number);
}

const tuner_tensor* tuner_output(const tuner_library* library, size_t number) {
  return At(library->outputs(), number);
}

int tuner_describe_outputs(tuner_library* library, const tuner_tensor* inputs, size_t n_inputs,
                           tuner_tensor* outputs, size_t n_outputs) {
  return Succeeds([&] { library->DescribeOutputs(inputs, n_inputs, outputs, n_outputs); }) ? 0 : 1;
}

int tuner_run(tuner_library* library, const tuner_tensor* inputs, size_t n_inputs) {
  std::optional<tuner_library::Call> call;
  if (!Succeeds([&] { call.emplace(*library, inputs, n_inputs); })) return 1;
  return Succeeds([&] { call->Run(); }) ? 0 : 2;
}

int tuner_run_into(tuner_library* library, const tuner_tensor* inputs, size_t n_inputs,
                   const tuner_tensor* outputs, size_t n_outputs) {
  std::optional<tuner_library::Call> call;
  auto prepare = [&] {
    call.emplace(*library, inputs, n_inputs);
    call->TakeOutputs(outputs, n_outputs);
  };
  if (!Succeeds(prepare)) return 1;
  auto run = [&] {
    call->Run();
    call->CopyOutputs(outputs);
  };
  return Succeeds(run) ? 0 : 2;
}

int tuner_run_on_gpu(tuner_library* library, const tuner_tensor* inputs, size_t n_inputs,
                     const tuner_tensor* outputs, size_t n_outputs, void* stream) {
  return Succeeds([&] { library->RunOnGpu(inputs, n_inputs, outputs, n_outputs, stream); }) ? 0 : 1;
}

const char* tuner_error(void) { return last_error.c_str(); }
