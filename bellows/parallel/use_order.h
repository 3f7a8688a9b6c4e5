#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace bellows::parallel {

/// Predicts which bucket is used next: the one that followed the last two uses before.
/// Threads: not thread-safe
class UseOrder {
 public:
  /// The position after some uses.
  using Position = std::pair<std::optional<size_t>, std::optional<size_t>>;

  /// Notes a use. Several uses of the same bucket in a row count once.
  void note(size_t bucket) {
    if (last_.second == bucket) return;
    follower_[last_] = bucket;
    last_ = after(last_, bucket);
  }
  const Position& last() const { return last_; }
  static Position after(const Position& position, size_t bucket) { return {position.second, bucket}; }
  /// Returns the bucket that followed this position before; nothing if it is unknown.
  std::optional<size_t> next(const Position& position) const {
    const auto found = follower_.find(position);
    return found == follower_.end() ? std::nullopt : std::optional(found->second);
  }
  /// Starts at the beginning of the order again.
  void restart() { last_ = {}; }

 private:
  Position last_;
  std::map<Position, size_t> follower_;
};

}  // namespace bellows::parallel
