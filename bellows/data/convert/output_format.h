#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// A format that data sets can be converted to.
struct OutputFormat {
  std::string name;                   ///< "webdataset"
  std::vector<std::string> suffixes;  ///< of its files, with the dot; the first is what shards get; empty: a folder
  std::unique_ptr<Sink> (*sink)(const std::string& path) = nullptr;
  /// Params: paths – the files, or the one folder
  SourcePtr (*open)(const std::vector<std::string>& paths) = nullptr;
  bool shards = true;  ///< several files can be read as one data set
  bool keeps_keys = true;
  bool keeps_pixels = true;    ///< a picture as pixels is read as a picture again
  bool exact = false;          ///< names, types and shapes of all fields come back as they were
  bool retypes = false;        ///< numbers and texts are told apart by all samples together: each has to be compared
  bool number_labels = false;  ///< but for a label as text, "cls", which becomes an int64 "label"
  int jpeg_quality = 0;        ///< pictures that are no JPEGs become such, of this quality; 0: they do not
  /// Where the order is another: what the sample's file is called, KEY.SUFFIX when it is read.
  std::string (*file_name)(const Sample& sample) = nullptr;

  bool is_folder() const { return suffixes.empty(); }
  /// Whether a path is one file of the format, by its suffix, in letters of any case.
  bool names_file(const std::string& path) const;
};

/// All of them, in the order of the help.
const std::vector<OutputFormat>& output_formats();

/// Params: name – as in the table; "": by the suffix of `path`, a pack where that says nothing
/// Throws: c10::ValueError – no such format (nearest match); no name, and the suffix of files that are not written: .zip
const OutputFormat& find_output_format(const std::string& name, const std::string& path);

}  // namespace bellows::data
