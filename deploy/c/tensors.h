// Tensors of the host: what callers see of them, their memory, copies, and limits of their values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "files.h"
#include "tuner.h"

namespace {

constexpr int64_t kAlignment = 64;  // of the widest vector load, bytes

// The bytes of a tensor; 0 if a size is -1, which the data decide.
int64_t SizeOf(const Shape& shape, DLDataType dtype) {
  if (std::count(shape.begin(), shape.end(), -1)) return 0;
  int64_t n_bits = dtype.bits * dtype.lanes;
  for (int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(n_bits, size, &n_bits))
      throw std::out_of_range("the shape " + Shown(shape) + " is impossible");
  return n_bits / 8 + (n_bits % 8 > 0);
}

// A tensor as callers see it, with the strings, sizes and memory that it points to.
struct Described {
  Described(std::string name, std::string dtype, Shape shape)
      : name(std::move(name)), dtype(std::move(dtype)), shape(std::move(shape)) {}

  Described(const Described& other) { *this = other; }
  Described& operator=(const Described& other) {
    name = other.name, dtype = other.dtype, shape = other.shape, memory = other.memory;
    Point(other.tensor.data, other.tensor.n_bytes);
    return *this;
  }

  // Describe the same as another tensor, without data.
  void DescribeAs(const Described& other) {
    dtype = other.dtype, shape = other.shape, memory = nullptr;
    Point(nullptr, other.tensor.n_bytes);
  }

  // A tensor of a manifest, which is a shape and a dtype.
  Described(std::string name, const Value& spec)
      : Described(std::move(name), spec.Items().at(1).Text(), spec.Items().at(0).Ints()) {}

  std::string name, dtype;
  Shape shape;
  tuner_tensor tensor{};
  std::shared_ptr<const void> memory;  // of the data, if they are not the caller's

  DLDataType type() const { return ffi::StringToDLDataType(dtype); }
  void Point(const void* data, size_t n_bytes) {
    tensor = {name.c_str(), dtype.c_str(), shape.size(), shape.data(), data, n_bytes};
  }
  void Describe() { Point(nullptr, SizeOf(shape, type())); }
  size_t ItemBytes() const {
    const size_t n_bits = type().bits * type().lanes;
    if (n_bits % 8) Fail("tensors of " + dtype + " cannot be padded or cut");
    return n_bits / 8;
  }
};

std::shared_ptr<char> NewMemory(size_t n_bytes) {
  void* data = aligned_alloc(kAlignment, (n_bytes / kAlignment + 1) * kAlignment);
  if (!data) throw std::bad_alloc();
  return {static_cast<char*>(data), free};
}

// Copy a region from the start of an array to the start of another one, whose shapes differ.
void CopyRegion(const Shape& region, const char* from, const Shape& from_shape, char* to,
                const Shape& to_shape, size_t item_bytes, size_t axis = 0) {
  if (axis == region.size()) {
    memcpy(to, from, item_bytes);
    return;
  }
  size_t from_bytes = item_bytes, to_bytes = item_bytes;
  for (size_t i = axis + 1; i < region.size(); ++i)
    from_bytes *= from_shape[i], to_bytes *= to_shape[i];
  const bool is_whole = std::equal(region.begin() + axis + 1, region.end(), from_shape.begin() + axis + 1) &&
                        std::equal(region.begin() + axis + 1, region.end(), to_shape.begin() + axis + 1);
  if (is_whole) {
    if (from_bytes && region[axis]) memcpy(to, from, from_bytes * region[axis]);
    return;
  }
  for (int64_t i = 0; i < region[axis]; ++i)
    CopyRegion(region, from + i * from_bytes, from_shape, to + i * to_bytes, to_shape, item_bytes, axis + 1);
}

// A float with fewer bits: those of its exponent, at most 8, and of its mantissa, rounded to even.
uint16_t Narrowed(float value, int n_exponent, int n_mantissa) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const int64_t largest = (1 << n_exponent) - 1, lost = 23 - n_mantissa;
  const uint32_t sign = bits >> 31 << (n_exponent + n_mantissa), magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | largest << n_mantissa | 1;  // NaN
  const int64_t rebased = int64_t{magnitude} - ((127 - (largest >> 1)) << 23);
  if (rebased < 1 << 23) return sign;  // smaller than all normal numbers
  const int64_t rounded = (rebased + (int64_t{1} << (lost - 1)) - 1 + (rebased >> lost & 1)) >> lost;
  return sign | std::min(rounded, largest << n_mantissa);
}

// Fill memory with a number.
void Fill(char* data, size_t n_bytes, double value, DLDataType dtype) {
  char item[8];
  const size_t item_bytes = dtype.bits / 8;
  const float single = static_cast<float>(value);
  const bool is_bfloat = dtype.code == kDLBfloat, is_float = dtype.code == kDLFloat || is_bfloat;
  const int64_t whole = is_float ? 0 : dtype.code == kDLBool ? value != 0 : value;
  const uint16_t narrow = is_bfloat ? Narrowed(single, 8, 7) : Narrowed(single, 5, 10);
  if (value && (item_bytes > 8 || dtype.lanes != 1))
    Fail("inputs of " + std::string(ffi::DLDataTypeToString(dtype)) + " cannot be padded");
  if (!is_float) memcpy(item, &whole, 8);
  else if (dtype.bits == 64) memcpy(item, &value, 8);
  else if (dtype.bits == 32) memcpy(item, &single, 4);
  else memcpy(item, &narrow, 2);
  if (!value) memset(data, 0, n_bytes);
  else for (size_t at = 0; at < n_bytes; at += item_bytes) memcpy(data + at, item, item_bytes);
}

// A limit of the whole numbers of an input, see tuner/library/limits.py.
class Limit {
 public:
  Limit(const Value& limit, const std::vector<Described>& inputs)
      : name_(limit["input"].Text()), reader_(limit["reader"].Text()) {
    is_divisor = limit["low"].IsNull() || limit["high"].IsNull();
    if (!is_divisor) low = limit["low"].Int(), high = limit["high"].Int();
    for (const Value& axis : limit["part"].Items()) part_.push_back(axis.Ints());
    while (number_ < inputs.size() && inputs[number_].name != name_) ++number_;
    if (number_ == inputs.size() || !Fits(inputs[number_]))
      throw std::out_of_range("the limit of the input '" + name_ + "' does not fit it");
    dtype_ = inputs[number_].type();
  }

  // Check one of the inputs.
  void Check(const tuner_tensor* inputs) const { Visit(inputs[number_], 0, 0); }

  bool is_divisor;
  int64_t low = 0, high = 0;

 private:
  bool Fits(const Described& input) const {
    const DLDataType dtype = input.type();
    bool fits = (dtype.code == kDLInt || dtype.code == kDLUInt) && dtype.lanes == 1 &&
                (dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64) &&
                part_.size() <= input.shape.size();
    for (const Shape& axis : part_)
      fits = fits && axis.size() == 3 && axis[0] >= 0 && axis[2] > 0 && axis[2] <= INT64_MAX / 2;
    return fits;
  }

  void Visit(const tuner_tensor& tensor, size_t axis, int64_t index) const {
    if (axis == tensor.rank) return CheckOne(Element(static_cast<const char*>(tensor.data), index));
    int64_t size = tensor.shape[axis], start = 0, stop = size, step = 1;
    if (axis < part_.size())
      start = part_[axis][0], stop = std::min(size, part_[axis][1]), step = part_[axis][2];
    for (int64_t i = start; i < stop; i += step) Visit(tensor, axis + 1, index * size + i);
  }

  void CheckOne(int64_t value) const {
    const std::string name = "input '" + name_ + "' has ";
    if (is_divisor && !value) Fail(name + "a 0, by which " + reader_ + " divides");
    if (!is_divisor && (value < low || value > high))
      Fail(name + "the index " + std::to_string(value) + ", but " + reader_ +
           " takes indices from " + std::to_string(low) + " to " + std::to_string(high));
  }

  // Large numbers of 64 bits without a sign are negative here, and beyond all limits as well.
  int64_t Element(const char* data, int64_t index) const {
    const int n_bytes = dtype_.bits / 8, n_unused = 64 - dtype_.bits;
    uint64_t bits = 0;
    memcpy(&bits, data + index * n_bytes, n_bytes);
    return dtype_.code == kDLInt ? static_cast<int64_t>(bits << n_unused) >> n_unused
                                 : static_cast<int64_t>(bits);
  }

  std::string name_, reader_;
  size_t number_ = 0;  // of the input
  DLDataType dtype_;
  std::vector<Shape> part_;
};

}  // namespace
