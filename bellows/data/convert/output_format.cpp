#include "bellows/data/convert/output_format.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/formats/array_source.h"
#include "bellows/data/formats/beton_source.h"
#include "bellows/data/formats/folder_source.h"
#include "bellows/data/formats/mds_source.h"
#include "bellows/data/formats/pack_source.h"
#include "bellows/data/formats/recordio_source.h"
#include "bellows/data/formats/table_source.h"
#include "bellows/data/formats/tfrecord_source.h"
#include "bellows/data/formats/webdataset.h"

namespace bellows::data {

namespace {

using Paths = std::vector<std::string>;

/// Rejects destinations with the suffix of another file type: otherwise they would become folders of packs.
void check_no_foreign_suffix(const std::string& path) {
  constexpr std::array<std::string_view, 30> foreign{
      ".gz",   ".tgz", ".bz2",     ".xz",    ".zst",     ".lz4",  ".zip", ".7z",  ".mds",  ".json",
      ".tsv",  ".txt", ".parquet", ".arrow", ".feather", ".avro", ".orc", ".h5",  ".hdf5", ".mat",
      ".lmdb", ".idx", ".tfrec",   ".pt",    ".pth",     ".pkl",  ".png", ".jpg", ".jpeg", ".ndjson"};
  const std::string suffix = lower_case(std::filesystem::path(path).extension().string());
  if (std::ranges::find(foreign, suffix) == foreign.end()) return;
  std::string all;
  for (const OutputFormat& format : output_formats()) {
    for (const std::string& known : format.suffixes) all += (all.empty() ? "" : ", ") + known;
  }
  TORCH_CHECK_VALUE(false, "convert: ", path, ": no output format uses ", suffix, " files. The suffixes are: ", all,
                    ". For a folder of this name, set `format`, such as pack.");
}

/// A pattern that matches exactly this name.
std::string as_pattern(const std::string& path) {
  std::string pattern;
  for (const char c : path) pattern += c == '%' ? "%%" : std::string(1, c);
  return pattern;
}

std::vector<OutputFormat> formats_of_any_files() {
  return {
      {.name = "pack",
       .suffixes = {".pack"},
       // Resumes the file of an interrupted run.
       .sink = [](const std::string& path) { return pack_sink(path, {.resumable = true}); },
       .open = [](const Paths& paths) { return open_pack(paths); },
       .exact = true},
      {.name = "webdataset",
       .suffixes = {".tar"},
       .sink = [](const std::string& path) { return webdataset_sink(as_pattern(path)); },
       .open = [](const Paths& paths) { return open_webdataset(paths); },
       .keeps_pixels = false},
      {.name = "tfrecord",
       .suffixes = {".tfrecord", ".tfrecords"},
       .sink = [](const std::string& path) { return tfrecord_sink(path); },
       .open = [](const Paths& paths) { return open_tfrecord(paths); }},
      {.name = "recordio",
       .suffixes = {".rec"},
       .sink = [](const std::string& path) { return recordio_sink(path); },
       .open = [](const Paths& paths) { return open_recordio(paths); },
       .keeps_keys = false},
      {.name = "beton",
       .suffixes = {".beton"},
       .sink = [](const std::string& path) { return beton_sink(path); },
       .open = [](const Paths& paths) { return open_beton(paths); },
       .keeps_keys = false,
       .jpeg_quality = BetonOptions().quality},
  };
}

/// Formats that are folders, and formats for numbers or texts only.
std::vector<OutputFormat> formats_of_some_kinds() {
  return {
      {.name = "mds",
       .suffixes = {},
       .sink = [](const std::string& path) { return mds_sink(path, {.hashes = {"xxh64"}}); },
       .open = [](const Paths& paths) { return open_mds(paths.front(), {.verify = Verify::open}); },
       .shards = false},
      {.name = "folder",
       .suffixes = {},
       .sink = [](const std::string& path) { return image_folder_sink(path); },
       .open = [](const Paths& paths) { return open_image_folder(paths.front()); },
       .shards = false,
       .keeps_keys = false,
       .file_name = [](const Sample& sample) { return image_file_name(sample); }},
      {.name = "arrays",
       .suffixes = {".safetensors", ".npz", ".npy"},
       .sink = [](const std::string& path) { return arrays_sink(path); },
       .open = [](const Paths& paths) { return open_arrays(paths); },
       .shards = false,
       .keeps_keys = false,
       .exact = true,
       .number_labels = true},
      {.name = "csv",
       .suffixes = {".csv"},
       .sink = [](const std::string& path) { return csv_sink(path); },
       .open = [](const Paths& paths) { return open_csv(paths); },
       .retypes = true},
      {.name = "jsonl",
       .suffixes = {".jsonl"},
       .sink = [](const std::string& path) { return jsonl_sink(path); },
       .open = [](const Paths& paths) { return open_jsonl(paths); },
       .keeps_pixels = false},
  };
}

}  // namespace

bool OutputFormat::names_file(const std::string& path) const {
  const std::string lower = lower_case(path);
  return std::ranges::any_of(suffixes, [&](const std::string& suffix) { return lower.ends_with(suffix); });
}

const std::vector<OutputFormat>& output_formats() {
  static const std::vector<OutputFormat> formats = [] {
    std::vector<OutputFormat> all = formats_of_any_files();
    const std::vector<OutputFormat> others = formats_of_some_kinds();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }();
  return formats;
}

const OutputFormat& find_output_format(const std::string& name, const std::string& path) {
  std::vector<std::string> names;
  for (const OutputFormat& format : output_formats()) {
    if (format.name == name) return format;
    if (name.empty() && format.names_file(path)) return format;
    names.push_back(format.name);
  }
  TORCH_CHECK_VALUE(name.empty(), "convert: no format is called \"", name, "\".", did_you_mean(name, names),
                    " The formats are: ", c10::Join(", ", names), ".");
  check_no_foreign_suffix(path);
  return output_formats().front();
}

}  // namespace bellows::data
