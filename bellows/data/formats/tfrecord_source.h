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
  /// Pairs {feature, field} that rename features to fields. If `field` is empty, the feature is omitted.
  /// open_tfrecord() describes the names of all other fields.
  std::vector<std::pair<std::string, std::string>> fields;
  /// The path of each file's index. If empty, each file uses the index next to it if this index exists.
  std::vector<std::string> indexes;
  /// Writes an index next to each local, uncompressed file that has none.
  bool save_index = false;
  /// Maximum size of a record's data. Opening a file with a larger record throws.
  uint64_t max_record_bytes = uint64_t{1} << 30;
  /// Memory for decompressed files (see UnpackedFiles).
  uint64_t unpacked_bytes = uint64_t{1} << 30;
};

/// Opens TFRecord files of tf.train.Example messages with random access. A file may be compressed as a whole (gzip or
/// zlib). The checksum of a record is verified each time the record is read.
///
/// Features become fields, sorted by the name of the feature:
/// - One byte string becomes a field of bytes. Several byte strings become fields NAME.0, NAME.1, ….
/// - One number becomes a 0-dimensional array. Any other list of numbers becomes an array [n] of int64 or float32.
/// - If tfrecord_sink() stored the dtype and shape of an array, both are restored.
/// - A feature without a list of values is omitted.
///
/// Fields have the names of their features, except in these cases:
/// - "image/encoded" becomes "jpg" for a JPEG, "png" for a PNG, and "image" for any other content.
/// - "image/class/label" becomes "label". The label values do not change (in ImageNet's files, they start at 1).
/// - "__key__" becomes the key of the sample.
///
/// A feature is not renamed if another feature already has the new name.
/// Params: files – paths and URLs, in order
/// Cost:   opening reads the length of each record unless there is an index (see tfrecord_index_path()), and stores 8
///         bytes per record. A compressed file is decompressed as a whole and cached up to the limit `unpacked_bytes`.
///         If the files exceed the limit, reading in random order decompresses them repeatedly. Bytes and packed floats
///         are not copied
/// Throws: c10::ValueError if there are no files; if a file is missing or damaged (the message names the path and the
///         byte offset); if an index belongs to a different file; if `indexes` does not have one path per file; if a
///         record is too large. read() throws c10::ValueError if a record is damaged or is not a tf.train.Example; if
///         two features become one field
/// Ref:    tensorflow/core/example/feature.proto
SourcePtr open_tfrecord(const std::vector<std::string>& files, const TfrecordOptions& options = {});

/// Returns the path of a file's index. For X.tfrecord, it is X.tfindex, as in the tfrecord package. For any other name,
/// it is FILE.tfindex.
std::string tfrecord_index_path(const std::string& file);

struct TfrecordSinkOptions {
  /// Pairs {field, feature} that rename fields to features. All other fields keep their names.
  std::vector<std::pair<std::string, std::string>> features;
};

/// Writes a TFRecord file of tf.train.Example messages, and its index. Equal samples always produce byte-identical
/// files.
///
/// A field of bytes becomes a byte string. The type of an array determines its representation:
/// - float32: a list of floats
/// - integers other than uint8 and uint64: a list of int64
/// - all other types: a byte string of the values
///
/// If the representation alone does not determine the array, the feature "bellows/arrays" stores its dtype and shape. A
/// key becomes the feature "__key__".
/// Throws: c10::ValueError from write() if two fields have the same feature name, if a name is not UTF-8, or if a
///         record is 2 GiB or larger
std::unique_ptr<Sink> tfrecord_sink(const std::string& path, const TfrecordSinkOptions& options = {});

}  // namespace bellows::data
