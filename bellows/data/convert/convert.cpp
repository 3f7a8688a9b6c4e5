#include "bellows/data/convert/convert.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/stats.h"
#include "bellows/data/convert/convert_impl.h"
#include "bellows/data/fingerprint.h"
#include "bellows/data/picture.h"
#include "bellows/io/network/cache_folder.h"
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

/// Two processes at one destination would write the same files.
class DestinationInUse {
 public:
  explicit DestinationInUse(const ConvertPlaces& places) : lock_(io::FileLock::try_lock(places.staging() + ".lock")) {
    TORCH_CHECK(lock_, "convert: another bellows pack is writing ", places.destination(),
                ". Wait until it has ended, or choose another name.");
  }
  ~DestinationInUse() { lock_->remove_file(); }
  DestinationInUse(const DestinationInUse&) = delete;
  DestinationInUse& operator=(const DestinationInUse&) = delete;

 private:
  std::optional<io::FileLock> lock_;
};

/// Makes a folder and those above it; what is empty at the end goes again.
class MadeFolders {
 public:
  explicit MadeFolders(const std::string& folder) {
    std::error_code error;
    for (auto path = std::filesystem::absolute(folder).lexically_normal();
         !std::filesystem::exists(path, error) && path.has_relative_path(); path = path.parent_path())
      made_.push_back(path);
    std::filesystem::create_directories(folder, error);
    TORCH_CHECK(!error, "convert: cannot make the folder ", folder, ": ", errno_message(error.value()), ".");
  }
  ~MadeFolders() {
    std::error_code in_use;
    for (const auto& folder : made_) std::filesystem::remove(folder, in_use);
  }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

 private:
  std::vector<std::filesystem::path> made_;  // the deepest first
};

void check_fits(const OutputFormat& format, const Sample& sample) {
  const Field* picture = find_picture(sample);
  TORCH_CHECK_VALUE(!picture || !picture->is_array || format.keeps_pixels, "convert: ", sample.where(picture),
                    ": a picture as pixels would not be read as a picture from ", format.name,
                    ". Encode it (--encode png loses nothing), or choose another format, such as pack.");
}

/// Looks at some samples: whether the format can hold them, and the disk all of them.
void check_room(const Source& source, const OutputFormat& format, const ConvertPlaces& places,
                const ConvertOptions& options, const ConvertState& state, int64_t written) {
  constexpr int64_t most_looked_at = 32;
  const Recoder recoder(options.picture);
  ConvertSlot slot;
  int64_t bytes = 0, count = 0;
  for_spread(source.size(), most_looked_at, [&](int64_t index) {
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
              format_bytes(needed), ", and ", places.folder(), " has ", format_bytes(room),
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
                    "convert: expected sizes of shards and a number of threads that are not negative.");
  TORCH_CHECK_VALUE(places.sharded() || (options.shard_bytes == 0 && options.shard_samples == 0),
                    "convert: ", places.destination(), " is ",
                    format.is_folder() ? "a folder that " + format.name + " cuts itself" : "one file",
                    "; a size of shards can be chosen where the destination is a folder of shards.");
}

/// Writes and verifies what is missing. Leaves nothing behind where it fails before something is whole.
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
  const auto text = c10::str(user_message(error), " Nothing carries the name ", places.destination(),
                             " yet: what was written waits in ", places.staging(),
                             ". The same command goes on with it; remove that folder to start anew.");
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
  check_destination();  // another may have ended meanwhile
  places.make_staging();
  ConvertState state(places.state_file(), identity);

  ConvertResult result{.format = format.name};
  for (const FinishedShard& shard : state.shards()) result.samples += shard.samples;
  result.kept = result.samples;
  if (!state.compared()) fill_staging(source, format, places, options, state, result);  // else killed after that
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
