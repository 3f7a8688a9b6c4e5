#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/core/stats.h"
#include "bellows/data/convert/convert.h"
#include "bellows/data/dataset_json.h"
#include "bellows/data/synthetic/synthetic_images.h"
#include "bellows/system/stop.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

struct WrittenSplit {
  std::string name;
  data::ConvertResult result;
  bool existed = false;  ///< a previous run wrote it
};

/// Throws: UsageError if the format cannot hold several splits in one folder.
void check_make_data(const MakeDataArguments& arguments) {
  usable([&] {
    const data::OutputFormat& format = data::find_output_format(arguments.format, arguments.destination);
    TORCH_CHECK_VALUE(!format.is_folder() && format.shards && !format.retypes, "--format ", format.name,
                      " cannot hold several splits in one folder. Expected pack, webdataset, tfrecord, recordio or "
                      "beton.");
    TORCH_CHECK_VALUE(!format.names_file(arguments.destination), "DST: expected the name of a folder, got ",
                      arguments.destination, ", which is the name of a file of the format ", format.name, ".");
  });
}

/// Whether a previous run has already written this split.
/// Throws: c10::ValueError if the folder has a split of this name with other images
bool already_written(const data::Dataset& wanted, const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder + "/dataset.json", ignored)) return false;
  const std::string& split = wanted.info().split;
  data::DatasetInfo info;
  if (!data::read_dataset_json(folder + "/dataset.json", info).contains(split)) return false;
  const data::Dataset there = data::open(folder, {.split = split});
  TORCH_CHECK_VALUE(there.info().name == wanted.info().name && there.info().mean == wanted.info().mean &&
                        there.info().image_size == wanted.info().image_size && there.size() == wanted.size(),
                    folder, " already has a split \"", split, "\" with other images: expected ", wanted.size(), " of ",
                    wanted.info().name, ", found ", there.size(), " of ", there.info().name,
                    ". Choose another folder.");
  return true;
}

nlohmann::ordered_json make_data_json(const MakeDataArguments& arguments, const std::vector<WrittenSplit>& splits) {
  nlohmann::ordered_json json = {{"destination", arguments.destination},
                                 {"synthetic", true},
                                 {"seed", arguments.seed},
                                 {"size", arguments.size},
                                 {"classes", data::synthetic_classes()},
                                 {"stopped", !splits.empty() && splits.back().result.stopped}};
  for (const WrittenSplit& split : splits) {
    json["splits"][split.name] = {
        {"files", split.result.files}, {"samples", split.result.samples}, {"bytes", split.result.bytes}};
  }
  return json;
}

void print_made_data(const MakeDataArguments& arguments, const std::vector<WrittenSplit>& splits) {
  Terminal terminal;
  for (const WrittenSplit& split : splits) {
    terminal.print(c10::str(split.name, ": ", split.result.samples, " synthetic images of ", arguments.size, "x",
                            arguments.size, " in ", data::synthetic_classes().size(), " classes",
                            split.existed ? ", already written" : ", " + format_seconds(split.result.seconds), "\n"));
  }
  terminal.print(splits.back().result.stopped
                     ? "Stopped. The finished parts are preserved. Run the same command again to resume.\n"
                     : "Synthetic dataset: " + arguments.destination + "\n");
}

}  // namespace

int run_make_data(const MakeDataArguments& arguments) {
  check_make_data(arguments);
  check_output_file(arguments.json);
  std::atomic<bool> stop{false};
  const Interrupt interrupt(
      "finishing the current sample",
      [](void* flag) {
        static_cast<std::atomic<bool>*>(flag)->store(true);
        request_stop();
      },
      &stop);
  std::vector<WrittenSplit> splits;
  for (const auto& [name, samples] : {std::pair("train", arguments.train), std::pair("test", arguments.test)}) {
    const data::Dataset images = data::synthetic_images(
        {.samples = samples, .size = arguments.size, .seed = static_cast<uint64_t>(arguments.seed), .split = name});
    WrittenSplit& split = splits.emplace_back(WrittenSplit{.name = name});
    split.existed = already_written(images, arguments.destination);
    if (split.existed) {
      split.result.samples = samples;
    } else {
      split.result = data::convert(images, arguments.destination,
                                   {.format = arguments.format, .threads = arguments.threads, .stop = &stop});
    }
    if (split.result.stopped) break;
  }
  if (arguments.json != "-") print_made_data(arguments, splits);
  write_json(arguments.json, json_text(make_data_json(arguments, splits)));
  return splits.back().result.stopped ? Interrupt::exit_code() : exit_done;
}

}  // namespace bellows::cli
