#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// A format that datasets can be converted to.
struct OutputFormat {
  std::string name;                   ///< "webdataset"
  std::vector<std::string> suffixes;  ///< of its files, with the dot; shards get the first; empty: a folder
  std::unique_ptr<Sink> (*sink)(const std::string& path) = nullptr;
  /// Params: paths – the files, or the one folder
  SourcePtr (*open)(const std::vector<std::string>& paths) = nullptr;
  bool shards = true;  ///< several files can be read as one dataset
  bool keeps_keys = true;
  bool keeps_pixels = true;  ///< an image stored as pixels is read as an image again
  bool exact = false;        ///< names, types and shapes of all fields are restored
  /// the types of numbers and texts depend on all samples together, so each sample must be compared
  bool retypes = false;
  bool number_labels = false;  ///< except for a label as text, "cls", which becomes an int64 "label"
  int jpeg_quality = 0;        ///< images that are not JPEGs become JPEGs of this quality; 0: they do not
  /// If the format changes the order of the samples: the name of the sample's file, KEY.SUFFIX when it is read.
  std::string (*file_name)(const Sample& sample) = nullptr;

  bool is_folder() const { return suffixes.empty(); }
  /// True if `path` has a suffix of the format, in upper or lower case.
  bool names_file(const std::string& path) const;
};

/// All formats, in the order of the help text.
const std::vector<OutputFormat>& output_formats();

/// Params: name – as in the table; "": chosen by the suffix of `path`, else pack
/// Throws: c10::ValueError if the format is unknown (the message suggests the nearest name); if `name` is empty and
///         `path` has the suffix of a file type that cannot be written, such as .zip
const OutputFormat& find_output_format(const std::string& name, const std::string& path);

}  // namespace bellows::data
