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
  io::ByteSpan file;   ///< the whole file as stored
  io::ByteSpan start;  ///< of a compressed file, about the first MiB, decompressed; else `file`
  bool packed = false;
};

/// A dataset format that open() supports. To add a format, add a row in formats.cpp.
struct FileFormat {
  std::string_view name;
  bool (*fits)(const FileLook& look);
  SourcePtr (*open)(const std::vector<std::string>& files);
  bool text = false;  ///< may also describe other files; in a folder, counts only if there are no other formats
};

/// In the order in which they are tried: the most reliable detections first.
std::span<const FileFormat> file_formats();

/// Returns the format of a file's content, or null.
/// Throws: c10::ValueError if a compressed file is damaged
const FileFormat* recognise(io::ByteSpan file, std::string_view where);

/// Describes a file's content, for messages about unknown formats.
std::string describe_file(io::ByteSpan file, std::string_view where);
/// "tar (WebDataset), TFRecord, …".
std::string accepted_formats();

/// Opens files of one format, which is detected from the first file.
/// Params: files – paths and URLs
/// Throws: c10::ValueError if the format is unknown (the message says what was found and which formats are accepted),
///         or as the format's open function
SourcePtr open_files(const std::vector<std::string>& files);

/// The content of a folder.
struct FolderContent {
  enum class Kind { mds, images, files };
  Kind kind = Kind::files;
  const FileFormat* format = nullptr;  ///< of files
  std::vector<std::string> files;      ///< paths, sorted
};
/// Throws: c10::ValueError if the folder holds several formats or none (the message says what was found and what is
///         accepted)
FolderContent examine_folder(const std::string& folder);

/// Groups the files of a folder into splits by their names without numbers and suffixes: "train" for train-0003.tar.gz
/// and for train-00003-of-00100. NumPy arrays form one split, because each file holds one part of every sample.
Splits splits_by_name(const FolderContent& content);

/// The subfolders that hold the splits of a dataset, sorted.
std::vector<std::string> split_folders(const std::string& folder);

}  // namespace bellows::data
