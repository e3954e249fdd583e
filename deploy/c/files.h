// Files of libraries: JSON, files in memory, checksums.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/tvm_ffi.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace ffi = tvm::ffi;
using List = ffi::json::Array;
using Shape = std::vector<int64_t>;

constexpr int kMaxDepth = 64;  // of JSON: the parser recurses

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
  double Number() const { return any.cast<double>(); }
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

}  // namespace
