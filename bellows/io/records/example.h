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
  size_t count = 0;           ///< number of values
  size_t begin = 0, end = 0;  ///< range of the feature's pieces in the reader (see ExampleReader::pieces)
};

/// Parses tf.train.Example messages (protobuf) in place, with packed or unpacked numbers. The memory of the reader is
/// reused for the next message. As in protobuf, the last of several features with the same name is used, parts of one
/// feature are concatenated, and unknown fields are skipped.
/// Threads: use it on one thread at a time
/// Ref:     tensorflow/core/example/feature.proto; protobuf.dev/programming-guides/encoding
class ExampleReader {
 public:
  /// Params: message – must outlive the views that the reader returns
  /// Cost:   one pass, and up to 16 bytes of memory per individual value (a byte string, or a number that is not
  ///         packed)
  /// Throws: c10::ValueError if the bytes are not a protobuf message, or if a name is not UTF-8 (the message states the
  ///         byte offset)
  void parse(ByteSpan message);

  /// The features, sorted by name. Each name occurs once.
  std::span<const ExampleFeature> features() const { return features_; }
  /// Returns the feature with this name, or null if there is none.
  const ExampleFeature* find(std::string_view name) const;
  /// Returns the values as they are stored in the message: individual byte strings, or runs of packed numbers.
  std::span<const ByteSpan> pieces(const ExampleFeature& feature) const {
    return std::span(pieces_).subspan(feature.begin, feature.end - feature.begin);
  }
  /// Copies the values of a list of floats (4 bytes each) or int64 (8 bytes each).
  /// Params: out – memory for `count` values; may be unaligned
  void copy_floats(const ExampleFeature& feature, std::byte* out) const;
  void copy_int64s(const ExampleFeature& feature, std::byte* out) const;

 private:
  class Parser;

  std::vector<ExampleFeature> features_;
  std::vector<ByteSpan> pieces_;
};

/// Creates tf.train.Example messages. Features are sorted by name, and numbers are packed. Equal content therefore
/// gives equal bytes, which are those of protobuf's deterministic serialization.
class ExampleWriter {
 public:
  void add_bytes(std::string_view name, std::span<const ByteSpan> values);
  void add_floats(std::string_view name, std::span<const float> values);
  void add_int64s(std::string_view name, std::span<const int64_t> values);
  /// Returns the message with all added features and clears the writer.
  /// Throws: c10::ValueError if a name occurs twice or is not UTF-8, or if the message has 2 GiB or more, which
  ///         protobuf cannot read
  std::string take();

 private:
  void add(std::string_view name, int kind, const std::string& list);

  std::vector<std::pair<std::string, std::string>> features_;  // name and encoded value
};

}  // namespace bellows::io
