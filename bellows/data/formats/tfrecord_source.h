#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

struct TfrecordOptions {
  /// What fields features become: {feature, field}; an empty field leaves the feature out. See open_tfrecord for the
  /// others.
  std::vector<std::pair<std::string, std::string>> fields;
  /// The index of each file, where they do not stand beside the files.
  std::vector<std::string> indexes;
  /// Writes the index of a file that has none, beside it. Not of files from the network, nor of compressed ones.
  bool save_index = false;
  /// A record with more data is refused.
  uint64_t max_record_bytes = uint64_t{1} << 30;
  /// How much of what compressed files hold is kept in memory (see UnpackedFiles).
  uint64_t unpacked_bytes = uint64_t{1} << 30;
};

/// TFRecord files of tf.train.Example messages with random access; a file may be compressed as a whole (gzip, zlib).
///
/// One byte string becomes a field of bytes under the feature's name; several become fields NAME.0, NAME.1, …; one
/// number becomes a scalar array, other lists an array [n] of int64 or float32. Where tfrecord_sink() noted the dtype and
/// shape of an array, they are restored. "image/encoded" becomes "jpg" or "png", whichever it is, or else "image";
/// "image/class/label" becomes "label" (in ImageNet's files it counts from 1, and does so here); neither where a feature
/// has that name already. "__key__" is the sample's key. Features without values of a type are left out.
/// Fields come sorted by their feature's name. Checksums are verified at each read.
/// Params: files – in order
/// Cost:   opening reads the length of each record unless there is an index (see tfrecord_index_path); 8 bytes a record
///         are kept. Files that are compressed are unpacked whole and kept while there is room: reading more of them
///         in random order unpacks them again and again. Bytes and packed floats are not copied.
/// Throws: c10::ValueError – no files, a missing or damaged one (path and byte offset), an index of another file, two
///         features that become one field, a record that is too large; read() – a damaged record, no tf.train.Example
/// Ref:    tensorflow/core/example/feature.proto
SourcePtr open_tfrecord(const std::vector<std::string>& files, const TfrecordOptions& options = {});

/// Where the index of a file stands: X.tfindex for X.tfrecord, as the tfrecord package names it, otherwise FILE.tfindex.
std::string tfrecord_index_path(const std::string& file);

struct TfrecordSinkOptions {
  /// What features fields become: {field, feature}; the others keep their names.
  std::vector<std::pair<std::string, std::string>> features;
};

/// Writes a TFRecord file of tf.train.Example messages, and its index. Equal samples give equal bytes.
///
/// Bytes become a byte string, arrays of float32 a list of floats, arrays of other integers than uint8 and uint64 a list
/// of int64, all other arrays the byte string of their values. Where that alone would not give the same array back, the
/// feature "bellows/arrays" notes its dtype and shape. A key becomes the feature "__key__".
/// Throws: c10::ValueError – write(): two fields under one name, a name that is no UTF-8, 2 GiB and more
std::unique_ptr<Sink> tfrecord_sink(const std::string& path, const TfrecordSinkOptions& options = {});

}  // namespace bellows::data
