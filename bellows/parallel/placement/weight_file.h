#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/io/tensors/safetensors_header.h"

namespace bellows::parallel {

/// A safetensors file whose tensors are read with pread(). Unlike a mapping, this reports a disk error or a truncated
/// file as an exception.
/// Threads: thread-safe
class WeightFile {
 public:
  /// Throws: c10::ValueError if the file is missing, damaged or not a safetensors file
  explicit WeightFile(std::string path);
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<io::SafetensorsEntry>& entries() const { return entries_; }

  /// Reads a tensor. Its dtype and strides are converted in small parts.
  /// Params: target – on the CPU, with the shape of the entry
  /// Throws: c10::ValueError if the file was changed after it was opened, or cannot be read. The message names the tensor
  void read(const io::SafetensorsEntry& entry, const at::Tensor& target) const;

 private:
  void check_unchanged(const io::SafetensorsEntry& entry) const;
  void read_bytes(const io::SafetensorsEntry& entry, uint64_t position, void* memory, size_t bytes) const;
  void read_converted(const io::SafetensorsEntry& entry, const at::Tensor& target) const;

  std::string path_;
  std::vector<io::SafetensorsEntry> entries_;
  int fd_ = -1;
  int64_t size_ = 0, changed_s_ = 0, changed_ns_ = 0;  ///< size and time of the last change when the file was opened
};

}  // namespace bellows::parallel
