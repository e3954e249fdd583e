// The programs of a library, as its manifest describes them, and the contract of what runs them.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "files.h"
#include "tensors.h"

namespace {

// A weight: a place in the file of weights.
struct Weight {
  Weight(const Value& weight, const std::shared_ptr<MappedFile>& file)
      : described("", weight["dtype"].Text(), weight["shape"].Ints()), file(file), offset(weight["offset"].Int()) {
    if (!file) throw std::out_of_range("weights.bin is not one of its files");
    const int64_t n_bytes = weight["n_bytes"].Int(), size = file->size();
    if (n_bytes != SizeOf(described.shape, described.type()))
      throw std::out_of_range("a weight has another size than its shape");
    if (offset < 0 || offset % kAlignment)
      throw std::out_of_range("a weight has the offset " + std::to_string(offset));
    if (offset > size || n_bytes > size - offset)
      throw std::out_of_range("a weight lies beyond the end of weights.bin");
    described.Describe();
  }

  const void* data() const { return file->data() + offset; }

  Described described;
  std::shared_ptr<MappedFile> file;
  int64_t offset;
};

// A network for one set of input shapes. Its inputs own memory, to which those of a call are copied.
struct Program {
  std::string entry, tail;
  std::vector<Described> inputs, returned, outputs;
  std::vector<Weight> weights;
  std::vector<Limit> limits;
};

class Programs {
 public:
  virtual ~Programs() = default;

  // Run a program on what the memory of its inputs holds; describe what it returns.
  virtual void Run(size_t number, std::vector<Described>& returned) = 0;

  // Run a program on memory of the GPU, in a stream, without waiting.
  virtual void RunOnGpu(size_t, const std::vector<uint64_t>&, const std::vector<uint64_t>&, void*) {
    Fail("the library runs on a CPU: use tuner_run");
  }
};

}  // namespace
