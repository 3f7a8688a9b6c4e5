#include "bellows/data/convert/convert.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/progress.h"
#include "bellows/core/stats.h"
#include "bellows/data/convert/compare.h"
#include "bellows/data/convert/convert_places.h"
#include "bellows/data/convert/convert_state.h"
#include "bellows/data/convert/in_order.h"
#include "bellows/data/convert/verify.h"
#include "bellows/data/dataset_json.h"
#include "bellows/data/fingerprint.h"
#include "bellows/data/for_each_spaced.h"
#include "bellows/data/formats/pack_source.h"
#include "bellows/data/picture.h"
#include "bellows/io/bytes.h"
#include "bellows/io/network/cache_folder.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/system/file.h"
#include "bellows/system/machine.h"

namespace bellows::data {

namespace {

ConvertState::Identity identity_of(const Dataset& data, const OutputFormat& format, const ConvertOptions& options) {
  const RecodeOptions& picture = options.picture;
  return {{"source", fingerprint(data)},
          {"format", format.name},
          {"picture", c10::str("shorter ", picture.shorter, ", size ", picture.height, "x", picture.width, ", coding ",
                               static_cast<int>(picture.coding), ", quality ", picture.quality)},
          {"shard size", c10::str(options.shard_bytes, " bytes, ", options.shard_samples, " samples")}};
}

/// Prevents two processes from writing to one destination.
class DestinationInUse {
 public:
  explicit DestinationInUse(const ConvertPlaces& places) : lock_(io::FileLock::try_lock(places.staging() + ".lock")) {
    TORCH_CHECK(lock_, "convert: another bellows pack is writing ", places.destination(),
                ". Wait until it ends, or choose another name.");
  }
  ~DestinationInUse() { lock_->remove_file(); }
  DestinationInUse(const DestinationInUse&) = delete;
  DestinationInUse& operator=(const DestinationInUse&) = delete;

 private:
  std::optional<io::FileLock> lock_;
};

/// Creates a folder and its parents; removes those that are empty at the end.
class MadeFolders {
 public:
  explicit MadeFolders(const std::string& folder) {
    std::error_code error;
    for (auto path = std::filesystem::absolute(folder).lexically_normal();
         !std::filesystem::exists(path, error) && path.has_relative_path(); path = path.parent_path())
      made_.push_back(path);
    std::filesystem::create_directories(folder, error);
    TORCH_CHECK(!error, "convert: cannot create the folder ", folder, ": ", errno_message(error.value()), ".");
  }
  ~MadeFolders() {
    std::error_code in_use;
    for (const auto& folder : made_) std::filesystem::remove(folder, in_use);
  }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

 private:
  std::vector<std::filesystem::path> made_;  // deepest first
};

/// A sample between the source and the sink, and the memory that it points into.
struct ConvertSlot {
  Sample sample;
  Recoder::Work work;
};

void check_fits(const OutputFormat& format, const Sample& sample) {
  const Field* picture = find_picture(sample);
  TORCH_CHECK_VALUE(!picture || !picture->is_array || format.keeps_pixels, "convert: ", sample.where(picture),
                    ": an image that is stored as pixels would not be read as an image from ", format.name,
                    ". Set `encode` to png, which is lossless, or choose another format, such as pack.");
}

/// Checks with some samples that the format can hold them and that the disk has enough space for all samples.
void check_room(const Source& source, const OutputFormat& format, const ConvertPlaces& places,
                const ConvertOptions& options, const ConvertState& state, int64_t written) {
  constexpr int64_t most_looked_at = 32;
  const Recoder recoder(options.picture);
  ConvertSlot slot;
  int64_t bytes = 0, count = 0;
  for_each_spaced(source.size(), most_looked_at, [&](int64_t index) {
    source.read(index, slot.sample);
    recoder.run(slot.sample, slot.work);
    check_fits(format, slot.sample);
    for (const Field& field : slot.sample.fields) bytes += static_cast<int64_t>(field.bytes.size() + field.name.size());
    bytes += static_cast<int64_t>(slot.sample.key.size());
    ++count;
  });
  const double needed =
      static_cast<double>(bytes) / static_cast<double>(count) * static_cast<double>(source.size() - written);
  std::error_code error;
  const auto space = std::filesystem::space(places.staging(), error);
  std::error_code none;
  const auto partial =
      std::filesystem::file_size(places.staged(places.shard_name(state.shards().size())) + ".partial", none);
  const double room = static_cast<double>(space.available) + (none ? 0 : static_cast<double>(partial));
  TORCH_CHECK(error || room >= needed, "convert: ", source.size() - written, " samples need about ",
              format_bytes(needed), ", but ", places.folder(), " has ", format_bytes(room),
              " free. Free some space or choose another disk.");
}

int64_t bytes_of(const std::vector<std::string>& paths) {
  std::error_code error;
  int64_t bytes = 0;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path, error)) {
      bytes += static_cast<int64_t>(std::filesystem::file_size(path, error));
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error))
      if (entry.is_regular_file(error)) bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

void check_options(const ConvertOptions& options, const ConvertPlaces& places, const OutputFormat& format) {
  TORCH_CHECK_VALUE(options.shard_bytes >= 0 && options.shard_samples >= 0 && options.threads >= 0,
                    "convert: the size of shards, the samples per shard and the number of threads must be at least 0.");
  TORCH_CHECK_VALUE(
      places.sharded() || (options.shard_bytes == 0 && options.shard_samples == 0), "convert: ", places.destination(),
      " is ",
      format.is_folder() ? "a folder in the format " + format.name + ", which sets the shard size itself" : "one file",
      ". A shard size needs a destination that is a folder of shards.");
}

/// "train-{000000..000003}.tar"
std::string shard_pattern(const std::string& first, const std::string& last) {
  const size_t number = first.rfind('-') + 1, end = first.find('.', number);
  if (first == last) return first;
  return first.substr(0, number) + "{" + first.substr(number, end - number) + ".." + last.substr(number, end - number) +
         "}" + first.substr(end);
}

void check_text(const char* what, const std::string& text) {
  TORCH_CHECK_VALUE(io::is_utf8(text), "convert: the ", what, " ", io::printable(text),
                    " is not UTF-8, so dataset.json cannot store it. Rename it, or write one file.");
}

/// Throws if both are non-empty and differ.
template <class T>
void check_equal(const char* what, const T& ours, const T& there, const ConvertPlaces& places) {
  constexpr size_t most_shown = 200;
  TORCH_CHECK_VALUE(ours.empty() || there.empty() || ours == there, "convert: ", places.description(),
                    " describes a dataset with different ", what, ": expected the values of the source, ",
                    io::printable(c10::Join(", ", ours), most_shown), ", found ",
                    io::printable(c10::Join(", ", there), most_shown), ". Choose another folder.");
}

/// The content of dataset.json for the samples as they are written.
DatasetInfo written_info(const Dataset& data, const RecodeOptions& picture) {
  DatasetInfo info = data.info();
  if (picture.height > 0 && info.image_size.size() == 3) {
    info.image_size = {picture.height, picture.width, info.image_size[2]};
  } else if (picture.shorter > 0) {
    info.image_size.clear();
  }
  return info;
}

/// Throws: c10::ValueError if a text is not UTF-8, or if the folder holds shards of another dataset or format
void check_description(const DatasetInfo& info, const OutputFormat& format, const ConvertPlaces& places) {
  check_text("name of the dataset", info.name);
  for (const std::string& name : info.classes) check_text("class", name);
  std::error_code ignored;
  if (!std::filesystem::exists(places.description(), ignored)) return;
  DatasetInfo there;
  const auto splits = parse_dataset_json(read_text_file(places.description()), places.description(), there);
  check_equal("classes", info.classes, there.classes, places);
  check_equal("image_size", info.image_size, there.image_size, places);
  check_equal("mean", info.mean, there.mean, places);
  check_equal("std", info.std, there.std, places);
  for (const auto& [split, pattern] : splits) {
    for (const OutputFormat& other : output_formats())
      TORCH_CHECK_VALUE(other.name == format.name || !other.names_file(pattern), "convert: the split \"", split,
                        "\" in ", places.description(), " is ", other.name, ", ", io::printable(pattern), "; expected ",
                        format.name, ". Choose the same format, or another folder.");
  }
}

/// Writes dataset.json beside the shards, in the format of open(); keeps the other splits of an existing file.
void write_description(const DatasetInfo& info, const ConvertPlaces& places, const std::vector<FinishedShard>& shards) {
  std::error_code ignored;
  nlohmann::ordered_json json;
  if (std::filesystem::exists(places.description(), ignored)) {
    json = nlohmann::ordered_json::parse(read_text_file(places.description()));
  } else {
    if (!info.name.empty()) json["name"] = info.name;
    if (!info.classes.empty()) json["classes"] = info.classes;
    if (!info.image_size.empty()) json["image_size"] = info.image_size;
    if (!info.mean.empty()) json["mean"] = info.mean;
    if (!info.std.empty()) json["std"] = info.std;
  }
  json["splits"][places.split()] = shard_pattern(shards.front().name, shards.back().name);
  write_text_file(places.description(), json.dump(2) + "\n");
}

constexpr int64_t usual_shard_bytes = int64_t{1} << 30;

/// Divides the samples into shards and writes them.
class ShardsWriter {
 public:
  ShardsWriter(const OutputFormat& format, const ConvertPlaces& places, const ConvertOptions& options,
               ConvertState& state, ConvertResult& result)
      : format_(format), places_(places), options_(options), state_(state), result_(result) {
    limit_ = options.shard_bytes > 0 ? options.shard_bytes : usual_shard_bytes;
    position_ = result.samples;
  }

  /// Starts a shard, or resumes an unfinished pack.
  void begin() {
    shard_ = {.name = places_.shard_name(state_.shards().size())};
    sink_ = format_.sink(places_.staged(shard_.name));
    pack_ = dynamic_cast<PackSink*>(sink_.get());
    payload_ = 0;
    if (!pack_) return;
    shard_.kept = shard_.samples = pack_->size();
    position_ += shard_.kept;
  }

  /// The next sample to be written.
  int64_t position() const { return position_; }

  void write(const Sample& sample) {
    if (!sink_) begin();
    sink_->write(sample);
    shard_.digest += sample_digest(format_, sample, position_);
    shard_.unnamed += sample.key.empty() ? 1 : 0;
    for (const Field& field : sample.fields) payload_ += static_cast<int64_t>(field.bytes.size());
    ++shard_.samples;
    ++position_;
    const int64_t bytes = pack_ ? static_cast<int64_t>(pack_->bytes()) : payload_;
    if (places_.sharded() && (bytes >= limit_ || shard_.samples == options_.shard_samples)) end();
  }

  void end() {
    if (!sink_) return;
    sink_->close();
    sink_.reset();
    result_.samples += shard_.samples;
    state_.add(std::move(shard_));
  }

 private:
  const OutputFormat& format_;
  const ConvertPlaces& places_;
  const ConvertOptions& options_;
  ConvertState& state_;
  ConvertResult& result_;
  int64_t limit_, position_ = 0, payload_ = 0;
  FinishedShard shard_;
  std::unique_ptr<Sink> sink_;
  PackSink* pack_ = nullptr;
};

/// Writes the missing samples. Returns false if it was stopped.
bool write_shards(const Source& source, const OutputFormat& format, const ConvertPlaces& places,
                  const ConvertOptions& options, int64_t threads, ConvertState& state, ConvertResult& result) {
  ShardsWriter writer(format, places, options, state, result);
  if (writer.position() == source.size()) return true;
  writer.begin();
  result.kept = writer.position();
  TORCH_CHECK_VALUE(result.kept <= source.size(), "convert: ", places.destination(), " contains ", result.kept,
                    " samples of an unfinished conversion, but the source has ", source.size(),
                    ". Remove it and start again.");
  const Recoder recoder(options.picture);
  Progress progress("writing", source.size() - writer.position(), "samples");
  bool stopped = false;
  in_order<ConvertSlot>(
      writer.position(), source.size(), threads,
      [&](int64_t index, ConvertSlot& slot) {
        source.read(index, slot.sample);
        recoder.run(slot.sample, slot.work);
      },
      [&](int64_t, ConvertSlot& slot) {
        stopped = options.stop && options.stop->load();
        if (stopped) return false;
        writer.write(slot.sample);
        progress.advance(1);
        return true;
      });
  if (!stopped) writer.end();
  return !stopped;
}

/// Writes and verifies the missing samples. If it fails before a shard or a page is complete, it leaves no files.
void fill_staging(const Source& source, const OutputFormat& format, const ConvertPlaces& places,
                  const ConvertOptions& options, ConvertState& state, ConvertResult& result) try {
  places.remove_leftovers(state.shards());
  check_room(source, format, places, options, state, result.samples);
  const int64_t threads = options.threads > 0 ? options.threads : std::max<int64_t>(this_machine().usable_threads(), 1);
  result.stopped = !write_shards(source, format, places, options, threads, state, result);
  if (result.stopped) return;
  std::vector<std::string> files;
  files.reserve(state.shards().size());
  for (const FinishedShard& shard : state.shards()) files.push_back(places.staged(shard.name));
  const auto compared = verify_shards(source, format, files, options, threads, state.shards());
  result.stopped = !compared;
  if (compared) state.set_compared(*compared);
} catch (const c10::Error& error) {
  if (state.shards().empty()) {
    if (!places.has_pages(0)) places.remove_staging();
    throw;
  }
  const auto text = c10::str(
      user_message(error), " Nothing has been moved to ", places.destination(), " yet. The written files are in ",
      places.staging(), ". Run the same command again to resume, or remove that folder to start from the beginning.");
  TORCH_CHECK_VALUE(!dynamic_cast<const c10::ValueError*>(&error), text);
  TORCH_CHECK(false, text);
}

}  // namespace

ConvertResult convert(const Dataset& data, const std::string& destination, const ConvertOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Source& source = *data.source();
  const OutputFormat& format = find_output_format(options.format, destination);
  const ConvertPlaces places(format, destination, data.info().split);
  check_options(options, places, format);
  TORCH_CHECK_VALUE(source.size() > 0, "convert: ", source.describe(), " has no samples.");
  const Recoder checked(options.picture);
  const ConvertState::Identity identity = identity_of(data, format, options);
  const DatasetInfo info = written_info(data, options.picture);
  const auto check_destination = [&] {
    places.check_free();
    if (places.sharded()) check_description(info, format, places);
  };
  check_destination();
  const MadeFolders folders(places.folder());
  const DestinationInUse in_use(places);
  check_destination();  // another process may have finished in the meantime
  places.make_staging();
  ConvertState state(places.state_file(), identity);

  ConvertResult result{.format = format.name};
  for (const FinishedShard& shard : state.shards()) result.samples += shard.samples;
  result.kept = result.samples;
  if (!state.compared()) fill_staging(source, format, places, options, state, result);  // else killed later
  for (const FinishedShard& shard : state.shards())
    result.files.push_back(result.stopped ? places.staged(shard.name) : places.path(shard.name));
  if (!result.stopped) {
    result.compared = *state.compared();
    places.put_in_place();
    if (places.sharded()) write_description(info, places, state.shards());
    places.remove_staging();
  }
  result.bytes = bytes_of(result.files);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace bellows::data
