#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/comm/shard_spec.h"
#include "bellows/io/tensors/safetensors_header.h"

namespace bellows::parallel {

/// A safetensors file whose tensors are read with pread(). Unlike a mapping, this reports a disk error or a truncated
/// file as an exception.
/// Threads: thread-safe
class WeightFile {
 public:
  /// Opens the file once, so the header and the weights are those of the same file even if another one replaces it.
  /// Throws: c10::ValueError if the file is missing, damaged or not a safetensors file
  explicit WeightFile(std::string path);
  ~WeightFile() = default;
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<io::SafetensorsEntry>& entries() const { return entries_; }

  /// Reads a tensor. Its dtype and strides are converted in small parts.
  /// Params: target – on the CPU, with the shape of the entry
  /// Throws: c10::ValueError if the file was changed after it was opened, or cannot be read. The message names the tensor
  void read(const io::SafetensorsEntry& entry, const at::Tensor& target) const;
  /// Reads a part of a tensor.
  /// Params: target – with the elements that `part` describes, on any device
  /// Cost:   one system call per run of elements. Memory for the part if `target` is not row-major on the CPU
  /// Throws: as above
  void read(const io::SafetensorsEntry& entry, const comm::ShardSpec& part, const at::Tensor& target) const;

 private:
  /// A member, so that the file is also closed if the constructor throws.
  struct Descriptor {
    int fd = -1;
    ~Descriptor();
  };

  std::vector<io::SafetensorsEntry> read_header() const;
  void check_unchanged(const io::SafetensorsEntry& entry) const;
  void read_bytes(const std::string& what, uint64_t position, void* memory, size_t bytes) const;
  void read_from(const io::SafetensorsEntry& entry, int64_t first, const at::Tensor& target) const;
  void read_converted(const io::SafetensorsEntry& entry, uint64_t position, const at::Tensor& target) const;

  std::string path_;
  Descriptor file_;
  int64_t size_ = 0, changed_s_ = 0, changed_ns_ = 0;  ///< size and time of the last change when the file was opened
  std::vector<io::SafetensorsEntry> entries_;
};

}  // namespace bellows::parallel
