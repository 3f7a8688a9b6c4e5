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
///
/// If several ranks together hold a replica of the model (join()), a world contains only complete replicas. Rank r has
/// position r % n in its replica of n ranks. The other ranks of a replica that lost a rank wait in rejoin() until a new
/// process has taken its place. A process keeps its position.
/// Threads: not thread-safe
class ElasticWorld {
 public:
  /// Whether the launcher of this process replaces lost ranks.
  static bool is_offered();

  /// When a process joins its first world.
  enum class Start {
    at_once,
    /// In join(). The other ranks do not wait for the process until then, so it can first open its data, for example.
    later,
  };

  /// Joins the current world, unless `start` is `later`. A new process waits until the launcher lets it take part.
  /// Params: options – `collective_timeout_s` also limits how long a rank that does not answer delays the others
  /// Throws: c10::ValueError if the launcher does not replace lost ranks; otherwise like init()
  explicit ElasticWorld(const InitOptions& options = {}, Start start = Start::at_once);
  ~ElasticWorld();
  ElasticWorld(const ElasticWorld&) = delete;
  ElasticWorld& operator=(const ElasticWorld&) = delete;

  /// Joins the current world, if this process is in none. If the world has another number of ranks per replica, all
  /// ranks join a new one.
  /// Params: ranks_per_replica – number of ranks that together hold a replica of the model; the same on all ranks
  /// Throws: like rejoin(); c10::ValueError if `ranks_per_replica` is less than 1
  void join(int ranks_per_replica = 1);
  bool has_joined() const;

  /// Throws: c10::Error if this process is in no world: before join(), or after a rejoin() that threw
  const World& world() const;
  /// Whether the process took the place of a lost one, so that it has no state of the job yet.
  bool is_replacement() const;
  /// Whether the last rejoin() waited because the replica of this process was incomplete. The other ranks have continued,
  /// so the state of this process is outdated.
  bool was_left_out() const;
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
  /// world. Waits until the replica of this process is complete.
  /// Throws: c10::Error if the other ranks do not join in time
  void rejoin();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::comm
