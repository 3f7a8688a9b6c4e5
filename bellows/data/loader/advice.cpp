#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bellows/core/stats.h"
#include "bellows/data/loader/report.h"

namespace bellows::data {

namespace {

constexpr double kNoWait = 0.03;       // share of the run; with less, the loader is not the bottleneck
constexpr double kWorthIt = 1.03;      // smaller gains are not worth a change
constexpr double kClearlyMore = 1.1;   // required advantage over an easier change
constexpr int64_t kFewBatches = 4;     // too few batches for advice
constexpr double kStalled = 0.5;       // share of the workers' time; above it, they wait rather than compute
constexpr double kThreadsPerCore = 4;  // if threads wait rather than compute

std::string in_percent(double share) {
  return format_number("%.0f %%", 100 * share);
}

std::string in_words(double count) {
  return format_number("%.0f", count);
}

/// A model of the loop: per sample, the model takes `model_` and all loader stages together take `work_`. N workers
/// share the work with the consumer, which helps while it waits. A sample takes max(model, (work + model) / (N + 1)).
class Adviser {
 public:
  explicit Adviser(const LoaderReport& report) : report_(report), threads_(report.mean_threads) {
    const double samples = std::max<double>(1, static_cast<double>(report.samples));
    model_ = report.model_s / samples;
    work_ = report.busy_s / samples;
    measured_ = (report.model_s + report.wait_s - report.first_wait_s) / samples;
    for (size_t i = 0; i < 4; ++i) stage_sum_ += report.stages[i].total_s;
    stalled_ = report.blocked_share > kStalled;
    const bool faults = report.major_faults > report.samples / 10;
    storage_ = stalled_ && (share(LoadStage::read) > 0.5 || faults);
  }

  Advice run() {
    const double waited = report_.seconds > 0 ? (report_.wait_s - report_.first_wait_s) / report_.seconds : 0;
    const std::string waits = "waiting for batches took " + in_percent(waited) + " of the time";
    if (report_.batches < kFewBatches || report_.samples == 0)
      return {Remedy::unknown, "The measurement is too short for advice.", 1};
    if (waited < kNoWait)
      return {Remedy::none, "The loader is not the bottleneck (" + waits + "). No change is needed.", 1};
    best_ = {Remedy::unknown, "The loader is the bottleneck (" + waits + "), but no single stage dominates.", 1};
    // From the easiest to the hardest change.
    offer_threads();
    offer_prefetch();
    offer_cache();
    offer_pack();
    offer_stage(LoadStage::transform, Remedy::cheaper_transform,
                "use cheaper transforms, or apply the deterministic ones once with `bellows pack`");
    offer_reading();
    offer_stage(LoadStage::write, Remedy::fewer_copies, "use smaller images, or a smaller type than float");
    return best_;
  }

 private:
  double share(LoadStage stage) const { return stage_sum_ > 0 ? report_[stage].total_s / stage_sum_ : 0; }

  double loop_time(double threads, double work) const { return std::max(model_, (work + model_) / (threads + 1)); }

  /// The gain if the work per sample is reduced to `factor` of its value.
  double gain(double factor) const { return loop_time(threads_, work_) / loop_time(threads_, work_ * factor); }

  void offer(Remedy remedy, double gain, const std::string& sentence) {
    if (!std::isfinite(gain) || gain < kWorthIt || gain < kClearlyMore * best_.gain) return;
    best_ = {remedy,
             sentence + " Expected speedup: at most " + format_number(gain < 9.95 ? "%.1f" : "%.0f", gain) + "×.",
             gain};
  }

  void offer_threads() {
    const auto cores = static_cast<double>(report_.cores);
    const double used = report_.seconds > 0 ? report_.process_cpu_s / report_.seconds : 0;
    const double free = std::max(0.0, std::floor(cores - used + 0.3));
    const double most = stalled_                            ? kThreadsPerCore * cores
                        : report_.threads == 0 && cores > 1 ? std::max(1.0, free)
                                                            : threads_ + free;
    const double enough = model_ > 0 ? std::ceil(work_ / model_) : most;
    const double wanted = std::floor(std::min(most, std::max(enough, threads_ + 1)));
    if (report_.auto_threads || wanted <= threads_) return;
    const std::string why = report_.threads == 0 ? "without worker threads, the model waits while each batch is loaded."
                            : stalled_
                                ? "the worker threads wait " + in_percent(report_.blocked_share) + " of the time."
                                : format_number("%.1f", cores - used) + " of " + in_words(cores) + " cores are free.";
    offer(Remedy::more_threads, loop_time(threads_, work_) / loop_time(wanted, work_),
          "Use " + in_words(wanted) + (wanted == 1 ? " thread" : " threads") + " instead of " + in_words(threads_) +
              ": " + why);
  }

  /// For idle workers while next() sometimes waits.
  void offer_prefetch() {
    const double room = threads_ * report_.seconds;
    const double idle = room > 0 ? 1 - report_.busy_s / room : 0;
    if (report_.threads == 0 || idle < 0.1) return;
    offer(Remedy::bigger_prefetch, measured_ / loop_time(threads_, work_),
          "Prefetch " + std::to_string(4 * report_.prefetch) + " batches instead of " +
              std::to_string(report_.prefetch) + ": workers are idle " + in_percent(idle) +
              " of the time, but batches arrive unevenly.");
  }

  void offer_cache() {
    if (report_.cached || report_.picture_bytes <= 0 || !report_.stored) return;
    const double bytes = report_.picture_bytes * static_cast<double>(report_.source_samples);
    const auto available = static_cast<double>(report_.memory_available_bytes);
    if (bytes > 0.5 * available) return;
    const double saved = share(LoadStage::read) + share(LoadStage::decode);
    offer(Remedy::cache_decoded, gain(1 - saved),
          "Cache decoded images. From the second epoch on, this saves reading and decoding (" + in_percent(saved) +
              " of the loader's time) and needs " + format_bytes(bytes) + " of " + format_bytes(available) +
              " free memory.");
  }

  void offer_pack() {
    if (report_.picture_bytes <= 0 || !report_.stored) return;
    const double decode = share(LoadStage::decode);
    offer(Remedy::pack, gain(1 - 0.8 * decode),
          "Decoding takes " + in_percent(decode) +
              " of the loader's time. Store smaller or decoded images once with `bellows pack`. (Assumes that 80 % of "
              "this time is saved.)");
  }

  void offer_stage(LoadStage stage, Remedy remedy, const std::string& what) {
    const std::string name = stage == LoadStage::transform ? "Transforms take " : "Writing rows takes ";
    offer(remedy, gain(1 - 0.5 * share(stage)),
          name + in_percent(share(stage)) + " of the loader's time: " + what +
              ". (Assumes that half of this time is saved.)");
  }

  void offer_reading() {
    const double part = storage_ ? std::max(share(LoadStage::read), report_.blocked_share) : share(LoadStage::read);
    const std::string takes = in_percent(part) + " of the loader's time";
    if (storage_) {
      offer(Remedy::faster_storage, gain(1 - 0.5 * part),
            "Reading waits for the disk or network (" + takes +
                "). Store the data on a faster or local disk. (Assumes that half of this time is saved.)");
    } else {
      offer(Remedy::faster_read, gain(1 - 0.5 * part),
            "Reading needs computation (" + takes +
                "). Store the data with less compression, or in another format. (Assumes that half of this time is "
                "saved.)");
    }
  }

  const LoaderReport& report_;
  const double threads_;
  double model_ = 0, work_ = 0, measured_ = 0;  // seconds per sample
  double stage_sum_ = 0;
  bool stalled_ = false;  // workers wait, but not for a core
  bool storage_ = false;  // and they wait for the storage
  Advice best_;
};

}  // namespace

Advice LoaderReport::advice() const {
  return Adviser(*this).run();
}

}  // namespace bellows::data
