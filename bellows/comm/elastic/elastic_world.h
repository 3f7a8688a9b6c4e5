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
///   bool leave = true;
///   try {
///     train_step(elastic.world());
///     leave = any_rank(elastic.changed(), elastic.world());   // an all-reduce: ranks notice changes at different times
///   } catch (const std::exception&) {
///     if (!elastic.lost_rank()) throw;
///   }
///   if (leave) elastic.rejoin();
/// }
/// ```
/// Ranks that stay come before new ranks. The ranks communicate over Gloo.
/// Threads: not thread-safe
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
  /// Whether the process took the place of a lost one, so that it has no state of the job yet.
  bool is_replacement() const;
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
