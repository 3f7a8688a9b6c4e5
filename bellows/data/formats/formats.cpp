#include "bellows/data/formats/formats.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/formats/array_source.h"
#include "bellows/data/formats/beton_source.h"
#include "bellows/data/formats/folder_source.h"
#include "bellows/data/formats/mds_source.h"
#include "bellows/data/formats/pack_source.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/recordio_source.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/table_source.h"
#include "bellows/data/formats/tfrecord_source.h"
#include "bellows/data/formats/webdataset.h"
#include "bellows/io/archives/decompress.h"
#include "bellows/io/archives/tar.h"
#include "bellows/io/records/beton.h"
#include "bellows/io/records/pack_layout.h"
#include "bellows/io/records/recordio.h"
#include "bellows/io/records/tfrecord.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

using std::string_view_literals::operator""sv;

constexpr size_t most_looked_at = 1 << 20;

bool is_pack(const FileLook& look) {
  return io::as_text(look.file).starts_with(io::kPackMagic);
}

bool is_npy(const FileLook& look) {
  return io::as_text(look.file).starts_with("\x93NUMPY"sv);
}

/// A zip archive whose first file is an array.
bool is_npz(const FileLook& look) {
  if (look.file.size() < 30 || !io::as_text(look.file).starts_with("PK\x03\x04"sv)) return false;
  const size_t length = io::load_little<uint16_t>(look.file, 26);
  return look.file.size() - 30 >= length && io::as_text(look.file.subspan(30, length)).ends_with(".npy");
}

bool is_recordio(const FileLook& look) {
  return look.file.size() >= 8 && io::load_little<uint32_t>(look.file) == io::recordio_magic;
}

bool is_tfrecord(const FileLook& look) {
  return io::is_tfrecord_head(io::as_text(look.start));
}

/// TensorFlow's other compression of whole files. Its signature is weak, so it is tried last.
bool is_zlib_file(const FileLook& look) {
  return look.file.size() >= 8 && io::is_zlib(look.file);
}

/// Checks the checksum of the first header, or the zero block of an empty archive.
bool is_tar(const FileLook& look) {
  constexpr size_t block = 512;
  if (look.start.size() < block) return false;
  const io::ByteSpan header = look.start.first(block);
  const bool is_zero = io::as_text(header).find_first_not_of('\0') == std::string_view::npos;
  if (is_zero) return look.packed || look.file.size() % block == 0;
  return io::is_tar_header(header);
}

bool is_beton(const FileLook& look) {
  return io::is_beton(look.file);
}

bool is_safetensors(const FileLook& look) {
  if (look.file.size() < 10 || look.file[8] != std::byte{'{'}) return false;
  const uint64_t header = io::load_little<uint64_t>(look.file);
  return header >= 2 && header <= look.file.size() - 8;
}

/// The first non-empty line; nothing if the file is not text.
std::string_view first_line(const FileLook& look) {
  std::string_view text = io::as_text(look.file.first(std::min(look.file.size(), most_looked_at)));
  if (text.starts_with("\xef\xbb\xbf"sv)) text.remove_prefix(3);
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 && c != '\n' && c != '\r' && c != '\t') return {};
  }
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  text = text.substr(0, text.find_first_of("\r\n"));
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

bool is_mds_index(const FileLook& look) {
  const std::string_view text = io::as_text(look.file.first(std::min<size_t>(look.file.size(), 4096)));
  return text.starts_with('{') && text.find("\"shards\"") != std::string_view::npos &&
         text.find("\"mds\"") != std::string_view::npos;
}

bool is_jsonl(const FileLook& look) {
  const std::string_view line = first_line(look);
  return line.starts_with('{') && (line.ends_with('}') || line.size() > most_looked_at / 2);
}

template <char separator>
bool is_table(const FileLook& look) {
  const std::string_view line = first_line(look);
  const bool is_other = line.starts_with('{') || line.starts_with('[') || line.starts_with('<');
  return !is_other && line.find(separator) != std::string_view::npos;
}

template <char separator>
SourcePtr open_table(const std::vector<std::string>& files) {
  return open_csv(files, {.separator = separator});
}

SourcePtr open_mds_index(const std::vector<std::string>& files) {
  TORCH_CHECK_VALUE(files.size() == 1, "open: ", io::public_url(files[1]),
                    ": expected the index.json of one MDS folder, got ", files.size(),
                    " index files. Open the folders separately.");
  const size_t slash = files[0].rfind('/');
  return open_mds(slash == std::string::npos ? "." : files[0].substr(0, slash));
}

constexpr std::array kFileFormats{
    FileFormat{"Bellows pack", is_pack, [](const auto& files) { return open_pack(files); }},
    FileFormat{"NumPy array (.npy)", is_npy, [](const auto& files) { return open_arrays(files); }},
    FileFormat{"NumPy archive (.npz)", is_npz, [](const auto& files) { return open_arrays(files); }},
    FileFormat{"RecordIO", is_recordio, [](const auto& files) { return open_recordio(files); }},
    FileFormat{"TFRecord (plain or compressed)", is_tfrecord, [](const auto& files) { return open_tfrecord(files); }},
    FileFormat{"tar (WebDataset; plain or compressed)", is_tar,
               [](const auto& files) { return open_webdataset(files); }},
    FileFormat{"FFCV .beton", is_beton, [](const auto& files) { return open_beton(files); }},
    FileFormat{"safetensors", is_safetensors, [](const auto& files) { return open_arrays(files); }},
    FileFormat{"MDS index.json", is_mds_index, open_mds_index},
    FileFormat{"JSON lines", is_jsonl, [](const auto& files) { return open_jsonl(files); }, true},
    FileFormat{"CSV", is_table<','>, open_table<','>, true},
    FileFormat{"tab-separated table", is_table<'\t'>, open_table<'\t'>, true},
    FileFormat{"semicolon-separated table", is_table<';'>, open_table<';'>, true},
    FileFormat{"zlib-compressed TFRecord", is_zlib_file, [](const auto& files) { return open_tfrecord(files); }, true},
};

/// Holds the decompressed start of a file during detection.
struct UnpackedLook {
  UnpackedLook(io::ByteSpan file, std::string_view where) : look{file, file, false} {
    if (io::detect_compression(file) == io::Compression::none) return;
    memory = io::decompress_start(file, where, most_looked_at);
    look.start = memory;
    look.packed = true;
  }
  io::Bytes memory;
  FileLook look;
};

}  // namespace

std::span<const FileFormat> file_formats() {
  return kFileFormats;
}

const FileFormat* recognise(io::ByteSpan file, std::string_view where) {
  const UnpackedLook unpacked(file, where);
  const auto fits = [&](const FileFormat& format) {
    const bool may_be_packed = format.fits == is_tar || format.fits == is_tfrecord;
    return (may_be_packed || !unpacked.look.packed) && format.fits(unpacked.look);
  };
  const auto found = std::find_if(kFileFormats.begin(), kFileFormats.end(), fits);
  return found == kFileFormats.end() ? nullptr : &*found;
}

std::string describe_file(io::ByteSpan file, std::string_view where) {
  const UnpackedLook unpacked(file, where);
  if (!unpacked.look.packed) return io::describe_content(file);
  return io::describe_content(file) + " that contains " + io::describe_content(unpacked.look.start);
}

std::string accepted_formats() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kFileFormats));
  for (const FileFormat& format : kFileFormats) names.push_back(format.name);
  return c10::Join(", ", names);
}

namespace {

/// The format of a file if the start is enough to detect it. Returns null for text and compressed files, which need
/// more.
const FileFormat* recognise_head(const ShardFiles& files) {
  constexpr uint64_t enough = 64 << 10;
  const auto parts = files.open_parts([](io::PartialFile& file) { file.need(0, enough); });
  const io::ByteSpan bytes = parts.front().bytes();
  if (io::detect_compression(bytes) != io::Compression::none) return nullptr;
  const FileFormat* format = recognise(bytes, files.name(0));
  return format && !format->text ? format : nullptr;
}

const FileFormat* recognise_first(const ShardFiles& files) {
  if (files.is_remote(0)) {
    if (const FileFormat* format = recognise_head(files)) return format;
  }
  const auto content = files.map(0);
  const FileFormat* format = nullptr;
  parse_content(files, 0, [&] {
    format = recognise(content->bytes(), files.name(0));
    TORCH_CHECK_VALUE(format, "open: ", files.name(0), ": expected a dataset, found ",
                      describe_file(content->bytes(), files.name(0)), ". Supported formats: ", accepted_formats(),
                      files.is_remote(0)
                          ? ". On a server, a folder must contain an MDS index.json. Otherwise name its files: "
                            "URL/train-{000..099}.tar. To create such files from images, use `bellows pack`."
                          : ", and folders of such files, of MDS shards, or of JPEG or PNG images.");
  });
  return format;
}

}  // namespace

SourcePtr open_files(const std::vector<std::string>& files) {
  TORCH_CHECK_VALUE(!files.empty(), "open: expected at least one file, got none.");
  const FileFormat* format = recognise_first(ShardFiles({files.front()}));
  return format->open(files);
}

namespace {

namespace fs = std::filesystem;

/// "train.tfrecord" of "train.tfrecord-00003-of-00100".
std::string without_count(const std::string& name) {
  const size_t of = name.rfind("-of-");
  if (of == std::string::npos || of + 4 == name.size()) return name;
  if (name.find_first_not_of("0123456789", of + 4) != std::string::npos) return name;
  const size_t dash = name.find_last_not_of("0123456789", of - 1);
  const bool numbered = dash != std::string::npos && dash > 0 && dash + 1 < of && name[dash] == '-';
  return numbered ? name.substr(0, dash) : name;
}

std::string lower_suffix(const fs::path& path) {
  return lower_case(path.extension().string());
}

/// ".tar.gz" for a compressed file, because two ".gz" files may hold different things.
std::string kind_suffix(const std::string& file) {
  const fs::path name = without_count(file);
  const std::string suffix = lower_suffix(name);
  for (const char* packed : {".gz", ".bz2", ".xz", ".zst", ".lz4"}) {
    if (suffix == packed) return lower_suffix(name.stem()) + suffix;
  }
  return suffix;
}

/// "train" of "train-0003"; the whole stem when no number ends it.
std::string split_of(const std::string& path) {
  std::string stem = without_count(fs::path(path).filename().string());
  const size_t suffix = kind_suffix(stem).size();
  stem.erase(stem.size() - suffix);
  const size_t digits = stem.find_last_not_of("0123456789");
  if (digits != std::string::npos && digits + 1 < stem.size()) stem.erase(digits + 1);
  while (stem.size() > 1 && (stem.back() == '-' || stem.back() == '_')) stem.pop_back();
  return stem;
}

/// The entries of a folder by kind.
struct Listing {
  std::map<std::string, std::vector<std::string>> files;  ///< by suffix, sorted
  std::vector<std::string> folders;
  bool pictures = false;

  explicit Listing(const fs::path& folder) {
    std::error_code error, ignored;
    fs::directory_iterator entry(folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with('.')) continue;
      if (entry->is_directory(ignored)) {
        folders.push_back(entry->path().string());
      } else if (is_picture_name(name)) {
        pictures = true;
      } else {
        files[kind_suffix(name)].push_back(entry->path().string());
      }
    }
    TORCH_CHECK_VALUE(!error, "open: cannot list the folder ", folder.string(), ": ", errno_message(error.value()),
                      ".");
    for (auto& [suffix, names] : files) std::sort(names.begin(), names.end());
    std::sort(folders.begin(), folders.end());
  }
};

bool holds_pictures(const std::string& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error); !error && entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    if (is_picture_name(entry->path())) return true;
  }
  return false;
}

/// Each format once, with all files that share a suffix with a file of that format.
std::map<const FileFormat*, std::vector<std::string>> formats_in(const Listing& listing) {
  std::map<const FileFormat*, std::vector<std::string>> found;
  for (const auto& [suffix, names] : listing.files) {
    const MappedFile first(names.front());
    const FileFormat* format = nullptr;
    try {
      format = recognise(first.bytes(), names.front());
    } catch (const c10::ValueError&) {  // damaged: opening it by name reports the error
    }
    if (!format) continue;
    auto& files = found[format];
    files.insert(files.end(), names.begin(), names.end());
    std::sort(files.begin(), files.end());
  }
  return found;
}

}  // namespace

Splits splits_by_name(const FolderContent& content) {
  if (content.format->name.ends_with("(.npy)")) return {{"all", content.files}};
  Splits splits;
  for (const std::string& file : content.files) splits[split_of(file)].push_back(file);
  return splits;
}

std::vector<std::string> split_folders(const std::string& folder) {
  std::vector<std::string> splits = image_folder_splits(folder);
  for (const std::string& path : Listing(folder).folders) {
    std::error_code ignored;
    const bool described = fs::exists(fs::path(path) / "index.json", ignored);
    if (described) splits.push_back(fs::path(path).filename().string());
  }
  std::sort(splits.begin(), splits.end());
  splits.erase(std::unique(splits.begin(), splits.end()), splits.end());
  return splits;
}

FolderContent examine_folder(const std::string& folder) {
  const Listing listing(folder);
  std::vector<std::string> found;
  FolderContent content;
  std::error_code ignored;
  if (fs::exists(fs::path(folder) / "index.json", ignored)) {
    found.emplace_back("an MDS index.json");
    content.kind = FolderContent::Kind::mds;
  }
  const auto formats = formats_in(listing);
  const bool has_shards =
      std::any_of(formats.begin(), formats.end(), [](const auto& found_one) { return !found_one.first->text; });
  const bool has_classes = !has_shards && std::any_of(listing.folders.begin(), listing.folders.end(), holds_pictures);
  if (listing.pictures || has_classes) {
    found.emplace_back("JPEG or PNG images");
    content.kind = FolderContent::Kind::images;
  }
  for (const bool text : {false, true}) {
    if (text && !found.empty()) break;
    for (const auto& [format, files] : formats) {
      if (format->text != text || (format->name.starts_with("MDS") && !found.empty())) continue;
      found.push_back(c10::str(files.size(), " files of the format ", format->name, " (", files.front(),
                               files.size() > 1 ? ", …)" : ")"));
      content = {FolderContent::Kind::files, format, files};
    }
  }
  TORCH_CHECK_VALUE(found.size() < 2, "open: the folder ", folder, " is ambiguous, because it contains ",
                    c10::Join("; ", found), ". Name the files with a pattern such as ", folder,
                    "/*.tar, or name a subfolder.");
  TORCH_CHECK_VALUE(!found.empty(), "open: the folder ", folder,
                    " contains no dataset. Supported: ", accepted_formats(),
                    ", MDS shards with their index.json, and JPEG or PNG images.");
  return content;
}

}  // namespace bellows::data
