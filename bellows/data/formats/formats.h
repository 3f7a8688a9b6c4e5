#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/dataset_json.h"
#include "bellows/data/source.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// The input of a format's detection function.
struct FileLook {
  io::ByteSpan file;    ///< the whole file as it is stored
  io::ByteSpan start;   ///< for a compressed file, about the first MiB of the decompressed content; otherwise `file`
  bool packed = false;  ///< true if the file is compressed
};

/// A dataset format that open() supports. To support another format, add a row in formats.cpp.
struct FileFormat {
  std::string_view name;
  bool (*fits)(const FileLook& look);
  SourcePtr (*open)(const std::vector<std::string>& files);
  /// True if the detection may also match files that are not datasets. In a folder, files of such a format are ignored
  /// if the folder also contains files of a format without this flag.
  bool text = false;
};

/// Returns the formats in the order in which they are tried. The most reliable detection functions come first.
std::span<const FileFormat> file_formats();

/// Returns the format of a file's content, or null if it is unknown.
/// Throws: c10::ValueError if a compressed file is damaged
const FileFormat* recognise(io::ByteSpan file, std::string_view where);

/// Describes a file's content for messages about unknown formats.
std::string describe_file(io::ByteSpan file, std::string_view where);
/// Returns a list of all formats for messages, such as "tar (WebDataset), TFRecord, …".
std::string accepted_formats();

/// Opens files of one format. The format is detected from the first file.
/// Params: files – paths and URLs
/// Throws: c10::ValueError if the format is unknown (the message describes the content and lists the supported
///         formats); exceptions of the format's open function
SourcePtr open_files(const std::vector<std::string>& files);

/// The content of a folder.
struct FolderContent {
  enum class Kind { mds, images, files };
  Kind kind = Kind::files;
  const FileFormat* format = nullptr;  ///< format of the files; null unless `kind` is Kind::files
  std::vector<std::string> files;      ///< sorted paths
};
/// Determines the content of a folder.
/// Throws: c10::ValueError if the folder contains several formats or none (the message describes the content and lists
///         the supported formats)
FolderContent examine_folder(const std::string& folder);

/// Groups the files of a folder into splits by their names without numbers and suffixes. For example, train-0003.tar.gz
/// and train-00003-of-00100 belong to the split "train". NumPy arrays form one split, because each file holds one part
/// of every sample.
Splits splits_by_name(const FolderContent& content);

/// Returns the subfolders that are splits of a dataset, sorted by name.
std::vector<std::string> split_folders(const std::string& folder);

}  // namespace bellows::data
