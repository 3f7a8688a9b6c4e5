#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#include "bellows/core/log.h"
#include "bellows/core/progress.h"
#include "bellows/data/dataset.h"
#include "bellows/data/picture.h"
#include "bellows/io/images/image.h"
#include "bellows/report/trace_writer.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using Clock = std::chrono::steady_clock;

int64_t parse_threads(const std::string& text) {
  if (text == "auto") return data::LoaderOptions::kAuto;
  const bool digits = !text.empty() && text.size() < 5 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoll(text) > 1024)
    throw UsageError("--threads: expected a number up to 1024, or auto, got \"" + text + "\".");
  return std::stoll(text);
}

constexpr int64_t most_examined = 256;
constexpr int64_t shorter_side = 256, crop_side = 224;  // the usual sizes for evaluation on ImageNet

/// Height and width of a sample's image; nothing where it has none that can be read.
std::optional<std::array<int64_t, 2>> image_size(const data::Source& source, int64_t index) {
  try {
    const data::Sample sample = source.read(index);
    const data::Field* image = data::find_picture(sample);
    if (!image) return {};
    if (image->is_array) return std::array{image->sizes[0], image->sizes[1]};
    const io::ImageInfo info = io::image_info(image->bytes);
    return std::array{info.height, info.width};
  } catch (const c10::Error&) {
    return {};  // the loader counts damaged samples
  }
}

/// True if images differ in size, so that they cannot form a batch as they are. Examines samples from the whole source.
bool sizes_differ(const data::Source& source) {
  const int64_t count = std::min(source.size(), most_examined);
  std::optional<std::array<int64_t, 2>> first;
  for (int64_t i = 0; i < count; ++i) {
    const auto size = image_size(source, i * source.size() / count);
    if (first && size && *size != *first) return true;
    if (!first) first = size;
  }
  return false;
}

/// `dataset` with images of one size.
data::Dataset of_one_size(const data::Dataset& dataset, int64_t crop) {
  if (crop > 0) return dataset.random_resized_crop(crop, crop).flip();
  if (!sizes_differ(*dataset.source())) return dataset;
  log_info("Images differ in size: each is resized to ", shorter_side, " pixels at its shorter side, then cropped to ",
           crop_side, " x ", crop_side, " at the center. Use --crop for another size.");
  return dataset.resize_shorter(shorter_side).center_crop(crop_side, crop_side);
}

data::Dataset dataset_of(const BenchDataArguments& arguments) {
  const int64_t threads = parse_threads(arguments.threads);  // usage errors come before any work
  const data::Dataset dataset = data::open(arguments.url, {.split = arguments.split})
                                    .batch(arguments.batch)
                                    .threads(threads)
                                    .prefetch(arguments.prefetch)
                                    .cache(arguments.cache_mb << 20)
                                    .on_bad_sample(data::OnBadSample::skip);
  const data::Dataset uniform = of_one_size(dataset, arguments.crop);
  return arguments.shuffle ? uniform.shuffle(1) : uniform;
}

/// Loads whole epochs, or for the requested time.
void run_loader(data::Loader& loader, const BenchDataArguments& arguments) {
  const auto end = Clock::now() + std::chrono::duration<double>(arguments.seconds);
  const int64_t epochs = arguments.epochs;
  const auto over = [&] { return Interrupt::requested() || (epochs == 0 && Clock::now() >= end); };
  Progress progress("loading", epochs * loader.samples_per_epoch(), "samples");
  for (int64_t epoch = 0; (epochs == 0 || epoch < epochs) && !over(); ++epoch) {
    loader.start(epoch);
    while (!over()) {
      const auto batch = loader.next();
      if (!batch) break;
      progress.advance(batch->size());
    }
  }
}

}  // namespace

int run_bench_data(const BenchDataArguments& arguments) {
  check_output_file(arguments.json);
  check_output_file(arguments.trace);
  data::Loader loader = dataset_of(arguments).loader();
  const auto trace = arguments.trace.empty() ? nullptr : std::make_shared<TraceWriter>();
  if (trace) loader.trace(trace);
  {
    const Interrupt interrupt("printing the report");
    run_loader(loader, arguments);
  }
  const data::LoaderReport report = loader.report();
  if (trace) {
    loader.trace(nullptr);
    trace->write(arguments.trace);
  }
  if (arguments.json != "-") print_result(report.to_string());
  write_json(arguments.json, report.to_json());
  return Interrupt::requested() ? Interrupt::exit_code() : exit_done;
}

}  // namespace bellows::cli
