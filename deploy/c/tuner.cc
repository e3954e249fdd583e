// The functions of tuner.h, on TVM's runtime and its foreign function interface.
#include "tuner.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace ffi = tvm::ffi;
using List = ffi::json::Array;
using Shape = std::vector<int64_t>;

constexpr int kManifestVersion = 5;
constexpr int kPooledAllocator = 2;
constexpr int64_t kAlignment = 64;  // of the widest vector load, bytes
constexpr size_t kMaxManifestBytes = 256 << 20;
constexpr int kMaxDepth = 64;  // of JSON: the parser recurses
constexpr char kThreadsVariable[] = "TVM_NUM_THREADS";

[[noreturn]] void Fail(const std::string& message) { throw std::runtime_error(message); }

std::string Shown(const Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

// A value of a manifest; a missing key or another type is an exception.
struct Value {
  ffi::Any any;

  Value operator[](const char* key) const {
    if (!Has(key)) throw std::out_of_range(std::string("it has no ") + key);
    return {any.cast<ffi::json::Object>().at(ffi::Any(ffi::String(key)))};
  }
  bool Has(const char* key) const {
    return any.cast<ffi::json::Object>().count(ffi::Any(ffi::String(key))) > 0;
  }
  bool IsNull() const { return any == nullptr; }

  static Value Parsed(const std::string& json) {
    int depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < json.size() && depth <= kMaxDepth; ++i) {
      if (json[i] == '"') in_text = !in_text;
      else if (in_text) i += json[i] == '\\';
      else depth += (json[i] == '[' || json[i] == '{') - (json[i] == ']' || json[i] == '}');
    }
    if (depth > kMaxDepth) throw std::out_of_range("it is nested too deeply");
    ffi::String problem;
    Value value{ffi::json::Parse(json, &problem)};
    if (!problem.empty()) throw std::out_of_range(problem);
    return value;
  }
  int64_t Int() const { return any.cast<int64_t>(); }
  std::string Text() const { return any.cast<ffi::String>(); }
  std::vector<Value> Items() const {
    std::vector<Value> items;
    for (const ffi::Any& each : any.cast<List>()) items.push_back({each});
    return items;
  }
  std::vector<std::pair<std::string, Value>> Fields() const {
    std::vector<std::pair<std::string, Value>> fields;
    for (const auto& [key, value] : any.cast<ffi::json::Object>())
      fields.emplace_back(key.cast<ffi::String>(), Value{value});
    return fields;
  }
  Shape Ints() const {
    Shape ints;
    for (const Value& each : Items()) ints.push_back(each.Int());
    return ints;
  }
};

// A file in memory, and open: its name may be that of another file by now.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path)
      : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status;
    if (descriptor_ < 0 || fstat(descriptor_, &status)) CloseAndFail(path, strerror(errno));
    if (!S_ISREG(status.st_mode)) CloseAndFail(path, "it is not a file");
    id_ = {status.st_dev, status.st_ino};
    size_ = status.st_size;
    void* start = size_ ? mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0) : nullptr;
    if (start == MAP_FAILED) CloseAndFail(path, strerror(errno));
    data_ = static_cast<uint8_t*>(start);
  }
  ~MappedFile() {
    if (data_) munmap(data_, size_);
    Close();
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  // Close the file, which stays in memory.
  void Close() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

  // A path that names this file alone while its code is loaded: the dynamic linker compares names
  // first, and would return the code of another file that it loaded by the same name.
  std::string OwnName() const {
    static std::map<std::pair<dev_t, ino_t>, size_t> numbers;
    std::string name;
    for (size_t n = numbers.emplace(id_, numbers.size() + 1).first->second; n; n /= 2)
      name += n % 2 ? "/." : "/";
    return name + "/proc/self/fd/" + std::to_string(descriptor_);
  }

 private:
  [[noreturn]] void CloseAndFail(const std::string& path, const std::string& reason) {
    Close();
    Fail("cannot read " + path + ": " + reason);
  }

  int descriptor_;
  std::pair<dev_t, ino_t> id_;
  uint8_t* data_;
  size_t size_;
};

// SHA-256 as FIPS 180-4 defines it.
class Sha256 {
 public:
  static std::string Of(const uint8_t* data, size_t n_bytes) {
    Sha256 hash;
    size_t whole = n_bytes / 64 * 64, rest = n_bytes - whole;
    for (size_t i = 0; i < whole; i += 64) hash.Add(data + i);
    std::array<uint8_t, 128> end{};
    if (rest) memcpy(end.data(), data + whole, rest);
    end[rest] = 0x80;
    size_t n_end = rest < 56 ? 64 : 128;
    for (int i = 0; i < 8; ++i) end[n_end - 1 - i] = uint64_t{n_bytes} * 8 >> 8 * i;
    for (size_t i = 0; i < n_end; i += 64) hash.Add(end.data() + i);
    char text[65];
    for (int i = 0; i < 8; ++i) snprintf(text + 8 * i, 9, "%08x", hash.state_[i]);
    return text;
  }

 private:
  static uint32_t Rotated(uint32_t word, int n) { return word >> n | word << (32 - n); }

  // The first 32 bits of the fractions of the cube roots of the first primes.
  static std::array<uint32_t, 64> Constants() {
    std::array<uint32_t, 64> constants;
    int n = 0;
    for (int number = 2; n < 64; ++number) {
      bool is_prime = true;
      for (int i = 2; i * i <= number; ++i) is_prime = is_prime && number % i;
      if (is_prime) constants[n++] = static_cast<uint64_t>(std::cbrt(static_cast<long double>(number)) * 0x1p32L);
    }
    return constants;
  }

  void Add(const uint8_t* block) {
    static const std::array<uint32_t, 64> constants = Constants();
    uint32_t words[64];
    for (int i = 0; i < 16; ++i) {
      memcpy(&words[i], block + 4 * i, 4);
      words[i] = __builtin_bswap32(words[i]);
    }
    for (int i = 16; i < 64; ++i) {
      uint32_t a = words[i - 15], b = words[i - 2];
      words[i] = words[i - 16] + words[i - 7] + (Rotated(a, 7) ^ Rotated(a, 18) ^ a >> 3) +
                 (Rotated(b, 17) ^ Rotated(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (int i = 0; i < 64; ++i) {
      uint32_t first = h + (Rotated(e, 6) ^ Rotated(e, 11) ^ Rotated(e, 25)) + ((e & f) ^ (~e & g)) +
                       constants[i] + words[i];
      uint32_t second =
          (Rotated(a, 2) ^ Rotated(a, 13) ^ Rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const uint32_t added[] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state_[i] += added[i];
  }

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

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

// What a process was started with; the variable is changed for each library.
void SetThreads(const Value& device, int n_threads) {
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
}

// Memory of a tensor: a place in a file, or its own.
struct Memory {
  std::shared_ptr<MappedFile> file;
  int64_t offset = 0;

  void AllocData(DLTensor* tensor) {
    const size_t n_bytes = (ffi::GetDataSize(*tensor) / kAlignment + 1) * kAlignment;
    tensor->data = file ? file->data() + offset : aligned_alloc(kAlignment, n_bytes);
    if (!tensor->data) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) {
    if (!file) free(tensor->data);
  }
};

int64_t SizeOf(const Shape& shape, DLDataType dtype) {
  int64_t n_bits = dtype.bits * dtype.lanes;
  for (int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(n_bits, size, &n_bits))
      throw std::out_of_range("the shape " + Shown(shape) + " is impossible");
  return n_bits / 8 + (n_bits % 8 > 0);
}

ffi::Tensor NewTensor(const Shape& shape, DLDataType dtype, Memory memory = {}) {
  return ffi::Tensor::FromNDAlloc(memory, ffi::ShapeView(shape.data(), shape.size()), dtype,
                                  DLDevice{kDLCPU, 0});
}

// A tensor as callers see it, with the strings and sizes that it points to.
struct Described {
  explicit Described(std::string name) : name(std::move(name)) {}
  Described(std::string name, std::string dtype, Shape shape)
      : name(std::move(name)), dtype(std::move(dtype)), shape(std::move(shape)) {}

  std::string name, dtype;
  Shape shape;
  tuner_tensor tensor{};

  void Point(const void* data, size_t n_bytes) {
    tensor = {name.c_str(), dtype.c_str(), shape.size(), shape.data(), data, n_bytes};
  }
  void Clear() { tensor = {name.c_str(), nullptr, 0, nullptr, nullptr, 0}; }
};

// A limit of the whole numbers of an input, see tuner/library/limits.py.
class Limit {
 public:
  Limit(const Value& limit, const std::vector<Described>& inputs)
      : name_(limit["input"].Text()), reader_(limit["reader"].Text()) {
    is_divisor_ = limit["low"].IsNull() || limit["high"].IsNull();
    if (!is_divisor_) low_ = limit["low"].Int(), high_ = limit["high"].Int();
    for (const Value& axis : limit["part"].Items()) part_.push_back(axis.Ints());
    while (number < inputs.size() && inputs[number].name != name_) ++number;
    if (number == inputs.size() || !Fits(inputs[number]))
      throw std::out_of_range("the limit of the input '" + name_ + "' does not fit it");
  }

  void Check(const ffi::Tensor& tensor) const { Visit(tensor, 0, 0); }

  size_t number = 0;  // of the input

 private:
  bool Fits(const Described& input) const {
    const DLDataType dtype = ffi::StringToDLDataType(input.dtype);
    bool fits = (dtype.code == kDLInt || dtype.code == kDLUInt) && dtype.lanes == 1 &&
                (dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64) &&
                part_.size() <= input.shape.size();
    for (const Shape& axis : part_)
      fits = fits && axis.size() == 3 && axis[0] >= 0 && axis[2] > 0 && axis[2] <= INT64_MAX / 2;
    return fits;
  }

  void Visit(const ffi::Tensor& tensor, size_t axis, int64_t index) const {
    if (axis == tensor.shape().size()) return CheckOne(Element(tensor, index));
    int64_t size = tensor.shape()[axis], start = 0, stop = size, step = 1;
    if (axis < part_.size())
      start = part_[axis][0], stop = std::min(size, part_[axis][1]), step = part_[axis][2];
    for (int64_t i = start; i < stop; i += step) Visit(tensor, axis + 1, index * size + i);
  }

  void CheckOne(int64_t value) const {
    const std::string name = "input '" + name_ + "' has ";
    if (is_divisor_ && !value) Fail(name + "a 0, by which " + reader_ + " divides");
    if (!is_divisor_ && (value < low_ || value > high_))
      Fail(name + "the index " + std::to_string(value) + ", but " + reader_ +
           " takes indices from " + std::to_string(low_) + " to " + std::to_string(high_));
  }

  static int64_t Element(const ffi::Tensor& tensor, int64_t index) {
    const void* data = tensor.data_ptr();
    bool is_signed = tensor.dtype().code == kDLInt;
    switch (tensor.dtype().bits) {
      case 8:
        return is_signed ? static_cast<const int8_t*>(data)[index]
                         : static_cast<const uint8_t*>(data)[index];
      case 16:
        return is_signed ? static_cast<const int16_t*>(data)[index]
                         : static_cast<const uint16_t*>(data)[index];
      case 32:
        return is_signed ? static_cast<const int32_t*>(data)[index]
                         : static_cast<const uint32_t*>(data)[index];
      default:  // larger numbers without a sign are negative here, and beyond all limits as well
        return static_cast<const int64_t*>(data)[index];
    }
  }

  std::string name_, reader_;
  bool is_divisor_;
  int64_t low_ = 0, high_ = 0;
  std::vector<Shape> part_;
};

struct Program {
  std::string entry;
  ffi::Function function{ffi::UnsafeInit()};
  std::vector<Described> inputs;
  std::vector<ffi::Tensor> copies;  // of the inputs
  std::vector<ffi::Tensor> weights;
  std::vector<Limit> limits;
};

}  // namespace

struct tuner_library {
 public:
  tuner_library(const std::string& folder, int n_threads, bool takes_tail) {
    static std::mutex opening;
    std::lock_guard<std::mutex> lock(opening);
    CheckRuntime();
    if (n_threads < 0) Fail("threads must be at least 1, got " + std::to_string(n_threads));
    const std::string path = folder + "/manifest.json";
    Files files;
    try {
      const Value manifest = Manifest(path);
      files = Checked(manifest, folder);
      if (!takes_tail) RefuseTail(manifest, folder);
      Describe(manifest, files);
      SetThreads(manifest["device"], n_threads);
    } catch (const ffi::Error& error) {
      Fail(path + " is damaged: " + error.message());
    } catch (const std::logic_error& error) {
      Fail(path + " is damaged: " + error.what());
    }
    const ffi::Function loader = ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so");
    module_ = loader(files["lib.so"]->OwnName(), "so").cast<ffi::Module>();
    machine_ = module_->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
    machine_->GetFunction("vm_initialization").value()(int{kDLCPU}, 0, kPooledAllocator);
    for (Program& program : programs_) {
      const auto function = machine_->GetFunction(program.entry);
      if (!function) Fail(path + " is damaged: lib.so has no program " + program.entry);
      program.function = *function;
    }
  }

  // A call: first its inputs, then its run.
  class Call {
   public:
    Call(tuner_library& library, const tuner_tensor* inputs, size_t n_inputs)
        : library_(library), lock_(library.running_, std::try_to_lock) {
      if (!lock_) Fail("the library runs in another thread: open it once for each thread");
      const std::unique_ptr<tuner_library, void (*)(tuner_library*)> cleared(&library, ClearOutputs);
      program_ = &library.ProgramFor(inputs, n_inputs);
      for (size_t i = 0; i < n_inputs; ++i)
        if (inputs[i].n_bytes)
          memcpy(program_->copies[i].data_ptr(), inputs[i].data, inputs[i].n_bytes);
      for (const Limit& limit : program_->limits) limit.Check(program_->copies[limit.number]);
    }

    void Run() {
      std::vector<ffi::AnyView> values(program_->copies.begin(), program_->copies.end());
      values.insert(values.end(), program_->weights.begin(), program_->weights.end());
      ffi::Any result;
      program_->function.CallPacked(values.data(), static_cast<int>(values.size()), &result);
      library_.Return(result);
    }

   private:
    // After the inputs are copied, which may be outputs of the run before.
    static void ClearOutputs(tuner_library* library) {
      for (Described& output : library->outputs_) output.Clear();
      library->returned_.clear();
    }

    tuner_library& library_;
    std::unique_lock<std::mutex> lock_;
    Program* program_;
  };

  const std::vector<Program>& programs() const { return programs_; }
  const std::vector<Described>& outputs() const { return outputs_; }

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

  static Value Manifest(const std::string& path) {
    MappedFile file(path);
    if (file.size() > kMaxManifestBytes) throw std::out_of_range("it is too large");
    return Value::Parsed({reinterpret_cast<const char*>(file.data()), file.size()});
  }

  using Files = std::map<std::string, std::shared_ptr<MappedFile>>;

  // Check all that can be checked before code is loaded; return the files that are loaded.
  static Files Checked(const Value& manifest, const std::string& folder) {
    int64_t version = manifest["version"].Int();
    if (version != kManifestVersion)
      Fail(folder + " has manifest version " + std::to_string(version) +
           ", and this program reads version " + std::to_string(kManifestVersion) +
           ": build the library again");
    if (Value::Parsed(manifest["target"].Text())["kind"].Text() != "llvm")
      Fail(folder + " is not a library for a CPU: its target is " + manifest["target"].Text());
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
      auto file = std::make_shared<MappedFile>(path);
      if (Sha256::Of(file->data(), file->size()) != sha256.Text())
        Fail(path + " was altered after it was built; build it again");
      if (name == "lib.so" || name == "weights.bin") files[name] = file;
    }
    if (!files.count("lib.so")) throw std::out_of_range("lib.so is not one of its files");
    return files;
  }

  static void RefuseTail(const Value& manifest, const std::string& folder) {
    const Value tail = manifest["tail"];
    if (!tail.IsNull())
      Fail(folder + " is not the whole model: its last " +
           std::to_string(tail["n_operators"].Int()) + " operators, from " + tail["first"].Text() +
           " on, are not compiled");
  }

  void Describe(const Value& manifest, Files& files) {
    std::vector<ffi::Tensor> weights;
    for (const Value& weight : manifest["weights"].Items())
      weights.push_back(Weight(weight, files["weights.bin"]));
    for (const Value& program : manifest["programs"].Items()) Add(program, weights);
    if (programs_.empty()) throw std::out_of_range("it names no program");
    const Value tail = manifest["tail"];
    const Value outputs = tail.IsNull() ? manifest["outputs"] : tail["returned"];
    for (const Value& output : outputs.Items()) outputs_.emplace_back(output.Text());
    for (Described& output : outputs_) output.Clear();
  }

  static ffi::Tensor Weight(const Value& weight, const std::shared_ptr<MappedFile>& file) {
    if (!file) throw std::out_of_range("weights.bin is not one of its files");
    file->Close();
    const int64_t offset = weight["offset"].Int(), n_bytes = weight["n_bytes"].Int();
    const Shape shape = weight["shape"].Ints();
    const DLDataType dtype = ffi::StringToDLDataType(weight["dtype"].Text());
    if (n_bytes != SizeOf(shape, dtype))
      throw std::out_of_range("a weight has another size than its shape");
    if (offset < 0 || offset % kAlignment)
      throw std::out_of_range("a weight has the offset " + std::to_string(offset));
    const int64_t size = file->size();
    if (offset > size || n_bytes > size - offset)
      throw std::out_of_range("a weight lies beyond the end of weights.bin");
    return NewTensor(shape, dtype, {file, offset});
  }

  void Add(const Value& program, const std::vector<ffi::Tensor>& weights) {
    Program& added = programs_.emplace_back();
    added.entry = program["entry"].Text();
    for (const auto& [name, spec] : program["inputs"].Fields()) {
      added.inputs.emplace_back(name, spec.Items().at(1).Text(), spec.Items().at(0).Ints());
      const Described& input = added.inputs.back();
      const DLDataType dtype = ffi::StringToDLDataType(input.dtype);
      SizeOf(input.shape, dtype);
      added.copies.push_back(NewTensor(input.shape, dtype));
    }
    const std::vector<Described>& first = programs_[0].inputs;
    bool is_same = added.inputs.size() == first.size();
    for (size_t i = 0; is_same && i < first.size(); ++i) {
      Described& input = added.inputs[i];
      is_same = input.name == first[i].name && input.dtype == first[i].dtype;
      input.Point(nullptr, ffi::GetDataSize(added.copies[i]));
    }
    if (!is_same) throw std::out_of_range("its programs take different inputs");
    for (int64_t number : program["weights"].Ints()) added.weights.push_back(weights.at(number));
    for (const Value& limit : program["limits"].Items()) added.limits.emplace_back(limit, added.inputs);
  }

  Program& ProgramFor(const tuner_tensor* inputs, size_t n_inputs) {
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
      shapes.emplace_back(inputs[i].shape, inputs[i].shape + inputs[i].rank);
    }
    for (Program& program : programs_) {
      size_t n_same = 0;
      while (n_same < n_inputs && program.inputs[n_same].shape == shapes[n_same]) ++n_same;
      if (n_same < n_inputs) continue;
      for (size_t i = 0; i < n_inputs; ++i) CheckData(inputs[i], program.inputs[i]);
      return program;
    }
    std::string given, accepted;
    for (size_t i = 0; i < n_inputs; ++i)
      given += (i ? ", " : "") + expected[i].name + " " + Shown(shapes[i]);
    for (const Program& program : programs_) {
      accepted += accepted.empty() ? "" : "; ";
      for (size_t i = 0; i < n_inputs; ++i)
        accepted += (i ? ", " : "") + expected[i].name + " " + Shown(program.inputs[i].shape);
    }
    Fail("no program has the shapes " + given + "; the library has " + accepted);
  }

  static void CheckData(const tuner_tensor& input, const Described& expected) {
    const std::string name = "input '" + expected.name + "' ";
    if (input.n_bytes != expected.tensor.n_bytes)
      Fail(name + "must have " + std::to_string(expected.tensor.n_bytes) + " bytes, got " +
           std::to_string(input.n_bytes));
    if (!input.data && input.n_bytes) Fail(name + "has no data");
  }

  void Return(const ffi::Any& result) {
    if (result.try_cast<ffi::Tensor>() || result.try_cast<ffi::Shape>())
      returned_ = {result};
    else
      for (const ffi::Any& each : result.cast<ffi::Array<ffi::Any>>()) returned_.push_back(each);
    if (returned_.size() != outputs_.size()) Fail("the program returned other outputs than named");
    for (size_t i = 0; i < outputs_.size(); ++i) {
      Described& output = outputs_[i];
      if (auto tensor = returned_[i].try_cast<ffi::Tensor>()) {
        output.dtype = ffi::DLDataTypeToString(tensor->dtype());
        output.shape.assign(tensor->shape().begin(), tensor->shape().end());
        const char* data = static_cast<const char*>(tensor->data_ptr());
        output.Point(data + tensor->byte_offset(), ffi::GetDataSize(*tensor));
      } else {  // the program computes a shape
        ffi::Shape shape = returned_[i].cast<ffi::Shape>();
        output.dtype = "int64";
        output.shape = {static_cast<int64_t>(shape.size())};
        output.Point(shape.data(), shape.size() * sizeof(int64_t));
      }
    }
  }

  ffi::Module module_{ffi::UnsafeInit()}, machine_{ffi::UnsafeInit()};
  std::vector<Program> programs_;
  std::vector<Described> outputs_;
  std::vector<ffi::Any> returned_;  // hold the memory of the outputs
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

}  // namespace

tuner_library* tuner_open(const char* folder, int n_threads) {
  tuner_library* library = nullptr;
  Succeeds([&] { library = new tuner_library(folder, n_threads, false); });
  return library;
}

tuner_library* tuner_open_without_tail(const char* folder, int n_threads) {
  tuner_library* library = nullptr;
  Succeeds([&] { library = new tuner_library(folder, n_threads, true); });
  return library;
}

void tuner_close(tuner_library* library) { delete library; }

size_t tuner_n_programs(const tuner_library* library) { return library->programs().size(); }

size_t tuner_n_inputs(const tuner_library* library) {
  return library->programs()[0].inputs.size();
}

size_t tuner_n_outputs(const tuner_library* library) { return library->outputs().size(); }

const tuner_tensor* tuner_input(const tuner_library* library, size_t program, size_t number) {
  if (program >= tuner_n_programs(library) || number >= tuner_n_inputs(library)) return nullptr;
  return &library->programs()[program].inputs[number].tensor;
}

const tuner_tensor* tuner_output(const tuner_library* library, size_t number) {
  return number < tuner_n_outputs(library) ? &library->outputs()[number].tensor : nullptr;
}

int tuner_run(tuner_library* library, const tuner_tensor* inputs, size_t n_inputs) {
  std::optional<tuner_library::Call> call;
  if (!Succeeds([&] { call.emplace(*library, inputs, n_inputs); })) return 1;
  return Succeeds([&] { call->Run(); }) ? 0 : 2;
}

const char* tuner_error(void) { return last_error.c_str(); }
