#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/system/file.h"

/// The file with a teacher's outputs. It is a safetensors file with two tensors: "rows" (uint8 [n, stride]) has the
/// outputs of one sample per row, and "ids" (int64 [n]) has the ids of these samples. docs/formats.md describes the
/// rows and the metadata.
namespace bellows::train {

/// Describes how outputs were computed: names such as "teacher_weights" with their values, in a fixed order.
using CacheFacts = std::vector<std::pair<std::string, std::string>>;

/// The content of a row.
struct CacheLayout {
  std::vector<int64_t> shape;  ///< of a sample's logits; the last size is `top` if that is not 0
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t top = 0;  ///< number of largest logits; 0: all outputs, without classes and rest

  /// Number of positions of a sample, each with `top` logits. 1 if top is 0.
  int64_t positions() const;
  int64_t numel() const;
  /// Byte offsets in a row. The int32 classes are first, then the fp32 logarithms of the rest, then the logits.
  int64_t rest_begin() const { return top > 0 ? 4 * numel() : 0; }
  int64_t logits_begin() const { return top > 0 ? rest_begin() + 4 * positions() : 0; }
  int64_t logits_bytes() const;
  /// Bytes per row, a multiple of 8.
  int64_t stride() const;

  bool operator==(const CacheLayout&) const = default;
};

/// Outputs of a batch, with one row per sample in each tensor.
struct CacheRows {
  at::Tensor logits{};   ///< [N, shape]
  at::Tensor classes{};  ///< int32, as logits; undefined if all logits are stored
  at::Tensor rest{};     ///< fp32, without the last dim
};

/// Writes a cache. The file appears under its name when it is complete.
/// Threads: not thread-safe
class CacheWriter {
 public:
  /// Throws: c10::Error if the folder is not writable
  CacheWriter(const std::string& path, CacheFacts facts, CacheLayout layout);
  /// Params: ids – one id per row
  /// Throws: c10::ValueError if the shape or dtype differs from the layout. c10::Error if writing fails
  void add(const std::vector<int64_t>& ids, const CacheRows& rows);
  void finish();

 private:
  std::string header(int64_t rows, uint32_t checksum) const;

  CacheFacts facts_;
  CacheLayout layout_;
  AtomicFile file_;
  std::vector<int64_t> ids_;
  uint32_t checksum_ = 0;
};

/// A complete cache, which stays mapped.
/// Threads: thread-safe
class CacheFile {
 public:
  /// Cost:   reads the complete file once, to compute its checksum
  /// Throws: c10::ValueError if the file is not a cache, is damaged or has a different version
  explicit CacheFile(const std::string& path);

  const std::string& path() const { return path_; }
  const CacheFacts& facts() const { return facts_; }
  const CacheLayout& layout() const { return layout_; }
  const std::vector<int64_t>& ids() const { return ids_; }
  /// The bytes of a row. They are valid while this object exists.
  io::ByteSpan row(int64_t index) const;

 private:
  std::string path_;
  io::SafetensorsFile file_;
  CacheFacts facts_;
  CacheLayout layout_;
  std::vector<int64_t> ids_;
  io::ByteSpan rows_;
};

}  // namespace bellows::train
