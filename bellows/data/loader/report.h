#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/loader/stage_clock.h"

namespace bellows::data {

/// The time that one stage of a loader took in all threads together.
struct StageTime {
  double total_s = 0;  ///< total time
  double mean_us = 0;  ///< mean time per sample
  double p95_us = 0;   ///< 95th percentile of the time per sample (hand-over, transfer: per batch), within about 12 %
};

/// A possible change to a loader.
enum class Remedy {
  none,               ///< the loader is not the bottleneck
  unknown,            ///< the measurement is too short
  more_threads,       ///< cores are free, or workers wait for reads
  bigger_prefetch,    ///< the loader is fast enough on average, but not at all times
  cache_decoded,      ///< the decoded images fit into memory
  pack,               ///< convert the dataset once to a file of smaller or decoded images
  cheaper_transform,  ///< user transforms take most of the time
  faster_storage,     ///< reads wait for the disk or the network
  faster_read,        ///< reads spend their time on computation, such as decompression
  fewer_copies,       ///< writing rows or copying them to the device takes most of the time
};
/// Returns the name, such as "none", "unknown" or "more threads".
std::string_view to_string(Remedy remedy);

/// The change that would help most.
struct Advice {
  Remedy remedy = Remedy::unknown;
  std::string sentence;  ///< what to change and why, with the measured numbers
  double gain = 1;       ///< upper bound of the speedup of the whole loop
};

/// The number of finished batches in the queue at one time.
struct QueuePoint {
  double at_s = 0;  ///< seconds since the loader's first start()
  double ready = 0;
};

/// A report of how a loader has spent its time since it was created, in all epochs together. Time between epochs is not
/// included.
struct LoaderReport {
  // Run.
  double seconds = 0;  ///< total time in all epochs, each from start() to the end of its last next()
  int64_t epochs = 0, batches = 0, samples = 0;
  double wait_s = 0;        ///< time that next() waited for a batch
  double first_wait_s = 0;  ///< part of wait_s that belongs to start() and the first next() after it
  double model_s = 0;       ///< time between calls of next(), which the model used
  double ready_s = 0;       ///< time that finished batches waited for the model, summed over all batches

  // Queue, measured at each call of next().
  int64_t prefetch = 0;
  double mean_ready = 0;
  std::vector<QueuePoint> queue;  ///< length of the queue over time; at most 128 points

  // Threads.
  int64_t threads = 0;  ///< current number of worker threads
  bool auto_threads = false;
  double mean_threads = 0;  ///< mean number of worker threads over the run
  double busy_s = 0;        ///< time spent on samples, in workers and in next()
  double cpu_share = 1;     ///< share of busy_s spent on computation
  /// Share of busy_s spent waiting for a disk, a network or a lock. The time that neither cpu_share nor blocked_share
  /// covers is spent waiting for a core.
  double blocked_share = 0;
  double process_cpu_s = 0;
  int64_t cores = 0;         ///< number of cores that the process can use at the same time
  int64_t major_faults = 0;  ///< number of pages that were read from the disk during decoding
  double read_ahead_s = 0;   ///< time of the threads that prefetch samples
  std::array<StageTime, kLoadStages> stages;

  // Errors.
  int64_t skipped = 0;                            ///< number of samples that were left out of batches
  std::array<int64_t, kLoadStages> skipped_in{};  ///< skipped samples by the stage that failed
  int64_t retries = 0;                            ///< number of retried reads

  // Data.
  int64_t source_samples = 0;
  double picture_bytes = 0;  ///< size of one decoded image in a cache; 0: no images
  bool stored = false;       ///< value of Source::stored()
  bool cached = false;       ///< true if decoded images are cached
  int64_t memory_available_bytes = 0;

  double samples_per_s() const;
  /// Returns the share of the run that the model spent waiting.
  double wait_share() const;
  const StageTime& operator[](LoadStage stage) const { return stages[static_cast<size_t>(stage)]; }

  /// Returns the change that would help most, according to the numbers above.
  /// Numerics: the gain is an upper bound, because it assumes that all other times stay as measured
  Advice advice() const;
  /// Returns the advice and the slowest stage, in one or two sentences.
  std::string bottleneck() const;
  /// Returns a table and the advice, in lines of at most 79 characters.
  std::string to_string() const;
  std::string to_json() const;
};

}  // namespace bellows::data
