#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/loader/stage_clock.h"

namespace bellows::data {

/// What one stage of a loader took, over all its threads.
struct StageTime {
  double total_s = 0;
  double mean_us = 0;  ///< a sample
  double p95_us = 0;   ///< 95 % of the samples took no longer, to about 12 %; of hand-over and transfer: batch by batch
};

/// What could be changed about a loader.
enum class Remedy {
  none,               ///< it is not the bottleneck
  unknown,            ///< not measured long enough
  more_threads,       ///< cores are free, or reads wait
  bigger_prefetch,    ///< fast enough on average, not always
  cache_decoded,      ///< pictures fit into memory
  pack,               ///< decode once, into a file of smaller or decoded pictures
  cheaper_transform,  ///< the user's steps take the time
  faster_storage,     ///< reads wait for the disk or the network
  faster_read,        ///< reads compute: decompression
  fewer_copies,       ///< writing rows or moving them to the device takes the time
};
/// "none", "unknown", "more threads", …
std::string_view to_string(Remedy remedy);

/// The one change that would help most.
struct Advice {
  Remedy remedy = Remedy::unknown;
  std::string sentence;  ///< what to do and why, with the numbers it follows from
  double gain = 1;       ///< how many times as fast the whole loop would then be, at most
};

/// How many finished batches stood ready at one moment.
struct QueuePoint {
  double at_s = 0;  ///< since the loader's first start()
  double ready = 0;
};

/// Where the time of a loader went, since it was made: all its epochs, without what lay between them.
struct LoaderReport {
  // The run.
  double seconds = 0;  ///< from start() to the end of the last next()
  int64_t epochs = 0, batches = 0, samples = 0;
  double wait_s = 0;        ///< spent in next() until a batch was ready: the model waits for the loader
  double first_wait_s = 0;  ///< of it, for the first batch after start()
  double model_s = 0;       ///< from one next() to the next: the model's
  double ready_s = 0;       ///< that finished batches stood ready, waiting for the model; all of them added up

  // The queue: looked at when next() is called.
  int64_t prefetch = 0;
  double mean_ready = 0;
  std::vector<QueuePoint> queue;  ///< over time; at most 128 points

  // The threads.
  int64_t threads = 0;  ///< now
  bool auto_threads = false;
  double mean_threads = 0;   ///< over the run
  double busy_s = 0;         ///< work on samples, in workers and in next()
  double cpu_share = 1;      ///< of busy_s that a processor worked …
  double blocked_share = 0;  ///< … or a disk, a network or a lock was waited for; the rest waited for a core
  double process_cpu_s = 0;
  int64_t cores = 0;         ///< that may work at a time
  int64_t major_faults = 0;  ///< pages read from the disk in the midst of decoding
  double read_ahead_s = 0;   ///< of the threads that announce samples to the source
  std::array<StageTime, kLoadStages> stages;

  // What was wrong.
  int64_t skipped = 0;                            ///< samples that batches came without
  std::array<int64_t, kLoadStages> skipped_in{};  ///< by the stage that failed
  int64_t retries = 0;                            ///< reads that were tried again

  // The data.
  int64_t source_samples = 0;
  double picture_bytes = 0;  ///< of a sample's picture as a cache would keep it; 0: no pictures
  bool stored = false;       ///< Source::stored()
  bool cached = false;       ///< decoded pictures are kept
  int64_t memory_available_bytes = 0;

  double samples_per_s() const;
  /// Share of the run in which the model waited.
  double wait_share() const;
  const StageTime& operator[](LoadStage stage) const { return stages[static_cast<size_t>(stage)]; }

  /// The one change that would help most, by the numbers above.
  /// Numerics: a gain is an upper bound: it takes the stage's time away and leaves all else as it was measured
  Advice advice() const;
  /// The advice and the stage that takes most, in one or two sentences.
  std::string bottleneck() const;
  /// A table and the advice. Lines of at most 79 letters.
  std::string to_string() const;
  std::string to_json() const;
};

}  // namespace bellows::data
