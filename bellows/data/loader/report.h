#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/loader/stage_clock.h"

namespace bellows::data {

/// The time that one stage of a loader took, over all its threads.
struct StageTime {
  double total_s = 0;
  double mean_us = 0;  ///< per sample
  double p95_us = 0;   ///< 95 % of the samples (hand-over, transfer: batches) took no longer, within about 12 %
};

/// A possible change to a loader.
enum class Remedy {
  none,               ///< the loader is not the bottleneck
  unknown,            ///< not measured long enough
  more_threads,       ///< cores are free, or reads wait
  bigger_prefetch,    ///< fast enough on average, but not always
  cache_decoded,      ///< the decoded images fit into memory
  pack,               ///< decode once, into a file of smaller or decoded images
  cheaper_transform,  ///< user transforms take most of the time
  faster_storage,     ///< reads wait for the disk or the network
  faster_read,        ///< reads are bound by computation: decompression
  fewer_copies,       ///< writing rows or copying them to the device takes most of the time
};
/// "none", "unknown", "more threads", …
std::string_view to_string(Remedy remedy);

/// The one change that would help most.
struct Advice {
  Remedy remedy = Remedy::unknown;
  std::string sentence;  ///< what to do and why, with the numbers behind it
  double gain = 1;       ///< upper bound of the speedup of the whole loop
};

/// The number of finished batches in the queue at one moment.
struct QueuePoint {
  double at_s = 0;  ///< since the loader's first start()
  double ready = 0;
};

/// Where the time of a loader went since it was created: all its epochs, without the time between them.
struct LoaderReport {
  // Run.
  double seconds = 0;  ///< from start() to the end of the last next()
  int64_t epochs = 0, batches = 0, samples = 0;
  double wait_s = 0;        ///< time that next() waited for a batch
  double first_wait_s = 0;  ///< part of wait_s: waiting for the first batch after start()
  double model_s = 0;       ///< time between calls of next(), which the model used
  double ready_s = 0;       ///< time that finished batches waited for the model, summed over the batches

  // Queue, sampled at each call of next().
  int64_t prefetch = 0;
  double mean_ready = 0;
  std::vector<QueuePoint> queue;  ///< over time; at most 128 points

  // Threads.
  int64_t threads = 0;  ///< current number
  bool auto_threads = false;
  double mean_threads = 0;   ///< over the run
  double busy_s = 0;         ///< work on samples, in workers and in next()
  double cpu_share = 1;      ///< share of busy_s spent computing
  double blocked_share = 0;  ///< share of busy_s spent waiting for a disk, a network or a lock; the rest: for a core
  double process_cpu_s = 0;
  int64_t cores = 0;         ///< number of cores that may work at a time
  int64_t major_faults = 0;  ///< pages read from the disk during decoding
  double read_ahead_s = 0;   ///< time of the threads that prefetch samples
  std::array<StageTime, kLoadStages> stages;

  // Errors.
  int64_t skipped = 0;                            ///< samples left out of batches
  std::array<int64_t, kLoadStages> skipped_in{};  ///< by the stage that failed
  int64_t retries = 0;                            ///< number of retried reads

  // Data.
  int64_t source_samples = 0;
  double picture_bytes = 0;  ///< of a sample's image in a cache; 0: no images
  bool stored = false;       ///< Source::stored()
  bool cached = false;       ///< decoded images are cached
  int64_t memory_available_bytes = 0;

  double samples_per_s() const;
  /// Share of the run that the model spent waiting.
  double wait_share() const;
  const StageTime& operator[](LoadStage stage) const { return stages[static_cast<size_t>(stage)]; }

  /// The one change that would help most, according to the numbers above.
  /// Numerics: a gain is an upper bound: it removes the stage's time and assumes that all other times stay as measured
  Advice advice() const;
  /// The advice and the slowest stage, in one or two sentences.
  std::string bottleneck() const;
  /// A table and the advice, in lines of at most 79 characters.
  std::string to_string() const;
  std::string to_json() const;
};

}  // namespace bellows::data
