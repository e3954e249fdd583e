// Dynamic dimensions of a library with a program for each of some sizes, see
// tuner/library/buckets.py: inputs are padded to the next size, and outputs are cut.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "files.h"
#include "tensors.h"

namespace {

// Sizes of the dimensions, in their order; -1 where no input has them.
using Sizes = std::vector<int64_t>;

class Buckets {
 public:
  Buckets() = default;

  Buckets(const Value& buckets, const std::vector<Described>& inputs,
          const std::vector<Described>& outputs)
      : padding(inputs.size()) {
    for (const Value& each : buckets["dimensions"].Items()) {
      dimensions_.push_back({each["name"].Text(), each["sizes"].Ints(), Axes(each["inputs"], inputs),
                             Axes(each["outputs"], outputs), each["min_size"].Int(),
                             each["problem"].Text()});
      if (dimensions_.back().sizes.empty()) throw std::out_of_range("a dimension has no sizes");
    }
    for (const auto& [name, value] : buckets["padding"].Fields())
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].name == name) padding[i] = value.Number();
    for (const Value& each : buckets["sums"].Items()) {
      Sum& sum = sums_.emplace_back();
      sum.offset = each["offset"].Int();
      for (const Value& part : each["parts"].Items()) sum.parts.push_back(NumberOf(part.Text()));
      sum.inputs = Axes(each["inputs"], inputs);
    }
  }

  bool empty() const { return dimensions_.empty(); }

  Sizes SizesOf(const std::vector<Shape>& shapes, const std::vector<Described>& inputs) const {
    Sizes sizes;
    for (const Dimension& dimension : dimensions_) {
      int64_t size = -1;
      size_t first = 0;
      for (const Axis& axis : dimension.inputs) {
        const Shape& shape = shapes[axis.tensor];
        if (axis.number >= shape.size())
          Fail("input '" + inputs[axis.tensor].name + "' has too few dimensions: " + Shown(shape));
        if (size < 0) size = shape[axis.number], first = axis.tensor;
        if (shape[axis.number] != size)
          Fail("inputs '" + inputs[first].name + "' and '" + inputs[axis.tensor].name +
               "' share the dimension '" + dimension.name + "', but have " + std::to_string(size) +
               " and " + std::to_string(shape[axis.number]));
      }
      sizes.push_back(size);
    }
    for (const Sum& sum : sums_) {
      const int64_t size = sum.SizeOf(sizes);
      for (const Axis& axis : sum.inputs) {
        const Shape& shape = shapes[axis.tensor];
        if (size >= 0 && (axis.number >= shape.size() || shape[axis.number] != size))
          Fail("dimension " + std::to_string(axis.number) + " of input '" +
               inputs[axis.tensor].name + "' must be " + std::to_string(size) +
               ", the sum of others, but the input has the shape " + Shown(shape));
      }
    }
    return sizes;
  }

  // The smallest buckets for some sizes.
  Sizes Fit(const Sizes& sizes) const {
    Sizes fitting = sizes;
    for (size_t i = 0; i < dimensions_.size(); ++i)
      if (sizes[i] >= 0) fitting[i] = dimensions_[i].BucketOf(sizes[i]);
    return fitting;
  }

  void Resize(std::vector<Shape>& shapes, const Sizes& sizes) const {
    for (size_t i = 0; i < dimensions_.size(); ++i)
      for (const Axis& axis : dimensions_[i].inputs)
        if (sizes[i] >= 0) shapes[axis.tensor][axis.number] = sizes[i];
    for (const Sum& sum : sums_)
      for (const Axis& axis : sum.inputs)
        if (sum.SizeOf(sizes) >= 0) shapes[axis.tensor][axis.number] = sum.SizeOf(sizes);
  }

  // The shape of an output that is cut to some sizes.
  Shape Cut(Shape shape, size_t output, const Sizes& sizes) const {
    for (size_t i = 0; i < dimensions_.size(); ++i)
      for (const Axis& axis : dimensions_[i].outputs)
        if (axis.tensor == output && axis.number < shape.size() && sizes[i] >= 0)
          shape[axis.number] = std::min(shape[axis.number], sizes[i]);
    return shape;
  }

  // Limits of inputs of some sizes, from those of the programs; see tuner/library/limits.py.
  using Known = std::vector<std::pair<Sizes, std::vector<Limit>>>;
  static std::vector<Limit> LimitsAt(const Sizes& sizes, const Known& known, size_t i = 0) {
    while (i < sizes.size() && sizes[i] < 0) ++i;
    if (i == sizes.size()) return known.at(0).second;
    const int64_t size = sizes[i];
    std::set<std::pair<bool, int64_t>> ends;  // those that are not smaller first, then the nearest
    for (const auto& each : known) ends.emplace(each.first[i] < size, std::abs(each.first[i] - size));
    auto end_of = [&](auto end) { return end->first ? size - end->second : size + end->second; };
    auto limits_of = [&](int64_t end) {
      Known same;
      for (const auto& each : known)
        if (each.first[i] == end) same.push_back(each);
      return LimitsAt(sizes, same, i + 1);
    };
    const int64_t bucket = end_of(ends.begin());
    std::vector<Limit> limits = limits_of(bucket);
    if (size == bucket || ends.size() < 2) return limits;
    const int64_t other = end_of(std::next(ends.begin()));
    const std::vector<Limit> others = limits_of(other);
    if (others.size() != limits.size()) return limits;
    const double share = double(bucket - size) / (bucket - other);
    auto length = [&](double one, double end) {
      return int64_t(std::ceil(std::max(one + share * (end - one), one * size / bucket)));
    };
    for (size_t n = 0; n < limits.size(); ++n) {
      if (limits[n].is_divisor || others[n].is_divisor) continue;
      limits[n].low = -length(-limits[n].low, -others[n].low);
      limits[n].high = length(limits[n].high + 1, others[n].high + 1) - 1;
    }
    return limits;
  }

  std::vector<double> padding;  // value in each input

 private:
  struct Axis {
    size_t tensor, number;
  };

  struct Dimension {
    std::string name;
    Shape sizes;
    std::vector<Axis> inputs, outputs;
    int64_t min_size;
    std::string problem;

    int64_t BucketOf(int64_t size) const {
      for (int64_t each : sizes)
        if (each == size) return size;
      const std::string is = "dimension '" + name + "' is " + std::to_string(size) + ", ";
      std::string names;
      for (int64_t each : sizes) names += (names.empty() ? "" : ", ") + std::to_string(each);
      if (size > sizes.back()) Fail(is + "beyond the largest bucket; the buckets are " + names);
      if (!problem.empty())
        Fail(is + "and must be one of " + names + ": inputs are not padded, because " + problem);
      if (size < min_size)
        Fail(is + "and the model takes " + std::to_string(min_size) + " or more");
      return *std::find_if(sizes.begin(), sizes.end(), [&](int64_t each) { return each > size; });
    }
  };

  // A dimension whose size is the sum of others.
  struct Sum {
    std::vector<size_t> parts;
    std::vector<Axis> inputs;
    int64_t offset;

    // The sum; -1 if no input has a part.
    int64_t SizeOf(const Sizes& sizes) const {
      int64_t size = offset;
      for (size_t part : parts) {
        if (sizes[part] < 0) return -1;
        if (__builtin_add_overflow(size, sizes[part], &size)) Fail("a sum of dimensions is too large");
      }
      if (size < 0) Fail("a sum of dimensions is " + std::to_string(size));
      return size;
    }
  };

  // Axes by name of a tensor; inputs that are constants of the library are none of its inputs.
  static std::vector<Axis> Axes(const Value& axes, const std::vector<Described>& tensors) {
    std::vector<Axis> found;
    for (const auto& [name, numbers] : axes.Fields())
      for (size_t i = 0; i < tensors.size(); ++i)
        for (int64_t number : numbers.Ints())
          if (tensors[i].name == name) found.push_back({i, static_cast<size_t>(number)});
    return found;
  }

  size_t NumberOf(const std::string& name) const {
    for (size_t i = 0; i < dimensions_.size(); ++i)
      if (dimensions_[i].name == name) return i;
    throw std::out_of_range("its dimension '" + name + "' is unknown");
  }

  std::vector<Dimension> dimensions_;
  std::vector<Sum> sums_;
};

}  // namespace
