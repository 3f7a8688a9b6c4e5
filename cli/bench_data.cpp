#include <algorithm>
#include <chrono>

#include "bellows/core/progress.h"
#include "bellows/core/trace_writer.h"
#include "bellows/data/dataset.h"
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

data::Dataset dataset_of(const BenchDataArguments& arguments) {
  const int64_t threads = parse_threads(arguments.threads);  // what was typed wrong is said first
  data::Dataset dataset = data::open(arguments.url, {.split = arguments.split})
                              .batch(arguments.batch)
                              .threads(threads)
                              .prefetch(arguments.prefetch)
                              .cache(arguments.cache_mb << 20)
                              .on_bad_sample(data::OnBadSample::skip);
  if (arguments.crop > 0) dataset = dataset.random_resized_crop(arguments.crop, arguments.crop).flip();
  return arguments.shuffle ? dataset.shuffle(1) : dataset;
}

/// Whole epochs, or as long as asked for.
void run_loader(data::Loader& loader, const BenchDataArguments& arguments) {
  const auto end = Clock::now() + std::chrono::duration<double>(arguments.seconds);
  const int64_t epochs = arguments.epochs;
  const auto over = [&] { return Interrupt::requested() || (epochs == 0 && Clock::now() >= end); };
  Progress progress("load", epochs * loader.samples_per_epoch(), "samples");
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
  check_json_target(arguments.json);
  check_json_target(arguments.trace);
  data::Loader loader = dataset_of(arguments).loader();
  const auto trace = arguments.trace.empty() ? nullptr : std::make_shared<TraceWriter>();
  if (trace) loader.trace(trace);
  {
    const Interrupt interrupt("ending with a report");
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
