#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// One named list of values in a tf.train.Example.
struct ExampleFeature {
  enum class Kind { none, bytes, floats, int64s };

  std::string_view name;
  Kind kind = Kind::none;
  size_t count = 0;           ///< of values
  size_t begin = 0, end = 0;  ///< its pieces among ExampleReader's
};

/// Reads tf.train.Example messages (protobuf) where they lie, packed or not, and keeps its memory from one to the next.
/// As in protobuf the last of two features of one name counts, parts of one feature add up, and what is unknown is
/// passed over.
/// Threads:  one at a time
/// Ref:      tensorflow/core/example/feature.proto; protobuf.dev/programming-guides/encoding
class ExampleReader {
 public:
  /// Params: message – outlives what is asked of the reader
  /// Cost:   one pass; up to 16 bytes for a value that stands alone (a byte string, a number that is not packed)
  /// Throws: c10::ValueError – no protobuf message, or a name that is no UTF-8: byte offset in the message
  void parse(ByteSpan message);

  /// Sorted by name, each name once.
  std::span<const ExampleFeature> features() const { return features_; }
  /// The feature, or null.
  const ExampleFeature* find(std::string_view name) const;
  /// How the values lie in the message: each byte string, or runs of packed numbers.
  std::span<const ByteSpan> pieces(const ExampleFeature& feature) const {
    return std::span(pieces_).subspan(feature.begin, feature.end - feature.begin);
  }
  /// The values of a list of floats (4 bytes each) or int64 (8 bytes each).
  /// Params: out – for `count` values; need not be aligned
  void copy_floats(const ExampleFeature& feature, std::byte* out) const;
  void copy_int64s(const ExampleFeature& feature, std::byte* out) const;

 private:
  class Parser;

  std::vector<ExampleFeature> features_;
  std::vector<ByteSpan> pieces_;
};

/// Makes tf.train.Example messages: features sorted by name, numbers packed, so equal content has equal bytes (those of
/// protobuf's deterministic serialisation).
class ExampleWriter {
 public:
  void add_bytes(std::string_view name, std::span<const ByteSpan> values);
  void add_floats(std::string_view name, std::span<const float> values);
  void add_int64s(std::string_view name, std::span<const int64_t> values);
  /// The message of what was added; the writer is empty then.
  /// Throws: c10::ValueError – a name twice or no UTF-8; 2 GiB and more, which protobuf does not read
  std::string take();

 private:
  void add(std::string_view name, int kind, const std::string& list);

  std::vector<std::pair<std::string, std::string>> features_;  // name, encoded value
};

}  // namespace bellows::io
