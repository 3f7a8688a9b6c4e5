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
  /// Mapping of features to fields: {feature, field}; an empty field omits the feature. See open_tfrecord for other
  /// features.
  std::vector<std::pair<std::string, std::string>> fields;
  /// The index of each file, if the indexes are not beside the files.
  std::vector<std::string> indexes;
  /// Writes a missing index beside its file. Not for files from the network or compressed files.
  bool save_index = false;
  /// Records with more data are rejected.
  uint64_t max_record_bytes = uint64_t{1} << 30;
  /// Memory for the decompressed content of compressed files (see UnpackedFiles).
  uint64_t unpacked_bytes = uint64_t{1} << 30;
};

/// TFRecord files of tf.train.Example messages with random access. A file may be compressed as a whole (gzip, zlib).
///
/// One byte string becomes a field of bytes with the feature's name; several become fields NAME.0, NAME.1, …. One
/// number becomes a scalar array, other lists an array [n] of int64 or float32. If tfrecord_sink() recorded the dtype
/// and shape of an array, they are restored. Fields are sorted by their feature's name.
///
/// "image/encoded" becomes "jpg" or "png", depending on its format, else "image". "image/class/label" becomes "label",
/// with unchanged values (in ImageNet's files they count from 1). Neither is renamed if another feature already has
/// that name. "__key__" is the sample's key. Features without values of a type are omitted. Checksums are verified at
/// each read.
/// Params: files – in order
/// Cost:   opening reads the length of each record unless there is an index (see tfrecord_index_path); 8 bytes per
///         record are kept. Compressed files are decompressed as a whole and cached while there is space; reading more
///         of them in random order decompresses them repeatedly. Bytes and packed floats are not copied
/// Throws: c10::ValueError if there are no files; if a file is missing or damaged (the message names path and byte
///         offset); if an index belongs to another file; if two features become one field; if a record is too large.
///         read() throws c10::ValueError if a record is damaged or is not a tf.train.Example
/// Ref:    tensorflow/core/example/feature.proto
SourcePtr open_tfrecord(const std::vector<std::string>& files, const TfrecordOptions& options = {});

/// The path of a file's index: X.tfindex for X.tfrecord, as in the tfrecord package, otherwise FILE.tfindex.
std::string tfrecord_index_path(const std::string& file);

struct TfrecordSinkOptions {
  /// Mapping of fields to features: {field, feature}; other fields keep their names.
  std::vector<std::pair<std::string, std::string>> features;
};

/// Writes a TFRecord file of tf.train.Example messages, and its index. Equal samples give equal bytes.
///
/// Bytes become a byte string, and float32 arrays a list of floats. Integer arrays other than uint8 and uint64 become a
/// list of int64. All other arrays become the byte string of their values. If that alone would not restore the array,
/// the feature "bellows/arrays" records its dtype and shape. A key becomes the feature "__key__".
/// Throws: c10::ValueError from write() if two fields have the same feature name, if a name is not UTF-8, or if a
///         record has 2 GiB or more
std::unique_ptr<Sink> tfrecord_sink(const std::string& path, const TfrecordSinkOptions& options = {});

}  // namespace bellows::data
