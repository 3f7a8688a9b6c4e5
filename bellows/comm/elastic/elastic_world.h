#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "bellows/comm/world.h"

namespace bellows::comm {

/// The world of a job whose ranks can be lost and replaced while the other ranks continue (`bellows launch
/// --replace-lost`). Whenever the launcher announces a change, all ranks leave the world and join a new one:
/// ```
/// comm::ElasticWorld elastic;
/// while (!done) {
///   try {
///     train_step(elastic.world());
///   } catch (const std::exception&) {
///     if (!elastic.lost_rank()) throw;
///   }
///   if (agree(elastic.changed())) elastic.rejoin();   // on all ranks, or after an error
/// }
/// ```
/// Ranks that stay come before new ranks, so rank 0 always has the state of the job.
/// Threads: not thread-safe, except changed()
class ElasticWorld {
 public:
  /// Whether the launcher of this process replaces lost ranks.
  static bool is_offered();

  /// Joins the current world. A new process waits until the launcher lets it take part.
  /// Params: options – `collective_timeout_s` also limits how long a rank that does not answer delays the others
  /// Throws: c10::ValueError if the launcher does not replace lost ranks; otherwise like init()
  explicit ElasticWorld(const InitOptions& options = {});
  ~ElasticWorld();
  ElasticWorld(const ElasticWorld&) = delete;
  ElasticWorld& operator=(const ElasticWorld&) = delete;

  const World& world() const;
  /// Number of the current world. It increases with each change, and is the same on all ranks.
  int64_t generation() const;
  /// Whether the launcher has announced another world since the last rejoin(). Ranks may notice this at different times.
  bool changed() const;
  /// Call this function after an error of a collective. Returns whether a rank was lost. Waits up to `timeout_s` seconds
  /// for the launcher's announcement.
  bool lost_rank(double timeout_s = 10) const;
  /// Closes the connections of the current world. Collectives that still run throw, on all ranks.
  void leave();
  /// Leaves the current world, and joins the newest one. First, destroy everything that uses the groups of the current
  /// world.
  /// Throws: c10::Error if the other ranks do not join in time
  void rejoin();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::comm
