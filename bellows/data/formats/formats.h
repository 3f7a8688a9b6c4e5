#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/dataset_json.h"
#include "bellows/data/source.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// What a recogniser gets to see of a file.
struct FileLook {
  io::ByteSpan file;   ///< all of it, as it lies there
  io::ByteSpan start;  ///< of its content: of a compressed file about the first MiB, unpacked; else `file`
  bool packed = false;
};

/// A format that data sets come in, as open() knows it. A new one is a new row in formats.cpp.
struct FileFormat {
  std::string_view name;
  bool (*fits)(const FileLook& look);
  SourcePtr (*open)(const std::vector<std::string>& files);
  bool text = false;  ///< such files also describe others: in a folder they count where nothing else is there
};

/// In the order in which they are tried: what cannot be mistaken first.
std::span<const FileFormat> file_formats();

/// The format of what a file holds, or null.
/// Throws: c10::ValueError – a compressed file that is damaged
const FileFormat* recognise(io::ByteSpan file, std::string_view where);

/// What a file holds, in words, for who recognises nothing.
std::string describe_file(io::ByteSpan file, std::string_view where);
/// "tar (WebDataset), TFRecord, …".
std::string accepted_formats();

/// Opens files of one format, told by what the first of them holds.
/// Params: files – paths and URLs
/// Throws: c10::ValueError – nothing that is known: what was found, what is accepted; else as the format's open
SourcePtr open_files(const std::vector<std::string>& files);

/// What a folder holds.
struct FolderContent {
  enum class Kind { mds, images, files };
  Kind kind = Kind::files;
  const FileFormat* format = nullptr;  ///< of files
  std::vector<std::string> files;      ///< paths, sorted
};
/// Throws: c10::ValueError – several of them, or nothing: what was found, what is accepted
FolderContent examine_folder(const std::string& folder);

/// The files of a folder by split: by their names without numbers and suffixes, "train" of train-0003.tar.gz and of
/// train-00003-of-00100. NumPy arrays are one split: the parts of each sample.
Splits splits_by_name(const FolderContent& content);

/// Subfolders that hold the splits of a data set, sorted.
std::vector<std::string> split_folders(const std::string& folder);

}  // namespace bellows::data
