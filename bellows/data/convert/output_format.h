#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// A format to which datasets can be converted.
struct OutputFormat {
  std::string name;  ///< for example "webdataset"
  /// Suffixes of the files, with the dot. Shards get the first suffix. The list is empty if the format is a folder.
  std::vector<std::string> suffixes;
  std::unique_ptr<Sink> (*sink)(const std::string& path) = nullptr;
  /// Params: paths – the files, or the one folder
  SourcePtr (*open)(const std::vector<std::string>& paths) = nullptr;
  bool shards = true;        ///< if true, several files can be read as one dataset
  bool keeps_keys = true;    ///< if true, the keys of samples are restored
  bool keeps_pixels = true;  ///< if true, an image that is stored as pixels is read as an image again
  /// If true, the names, types and shapes of all fields are restored, except those of labels if number_labels is true.
  bool exact = false;
  /// If true, the format determines the types of numbers and texts from all samples together, so the types can change.
  /// Verification then compares every sample.
  bool retypes = false;
  bool number_labels = false;  ///< if true, a text label "cls" becomes an int64 array "label"
  int jpeg_quality = 0;        ///< if above 0, images that are not JPEGs become JPEGs of this quality
  /// Set if the format changes the order of the samples. Returns the name of the sample's file, KEY.SUFFIX. After the
  /// sample is read back, KEY is its key and SUFFIX is the name of its first field.
  std::string (*file_name)(const Sample& sample) = nullptr;

  bool is_folder() const { return suffixes.empty(); }
  /// Returns true if `path` has a suffix of the format, in upper or lower case.
  bool names_file(const std::string& path) const;
};

/// Returns all formats, in the order of the help text.
const std::vector<OutputFormat>& output_formats();

/// Returns the format with this name.
/// Params: name – name of a format; "": the suffix of `path` determines the format, which is pack if no format has this
///         suffix
/// Throws: c10::ValueError if the name is unknown (the message suggests the nearest name); if `name` is empty and
///         `path` has the suffix of a file type that cannot be written, such as .zip
const OutputFormat& find_output_format(const std::string& name, const std::string& path);

}  // namespace bellows::data
