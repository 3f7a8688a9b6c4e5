#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bellows/comm/rendezvous/store.h"

namespace bellows::comm {

/// What is in a store, as a thread of its own saw it last: who asks never waits for a connection that hangs, and can tell
/// for how long it has been hanging.
/// Threads: safe
class StoreView {
 public:
  /// Params: open – connects; called on the view's thread, at once and by renew(), until it does not throw
  explicit StoreView(std::function<Store()> open);
  ~StoreView();
  StoreView(const StoreView&) = delete;
  StoreView& operator=(const StoreView&) = delete;

  /// Written soon. A value that still waits to be written is replaced.
  void set(const std::string& key, const std::string& value);
  /// The same, unless somebody has set it.
  void set_first(const std::string& key, const std::string& value);
  /// The key's value, which is looked up from the first call on; one that is known is not looked up again.
  std::optional<std::string> value(const std::string& key);
  /// Of a key whose value changes: looked up again and again.
  std::optional<std::string> latest(const std::string& key);
  /// Waits until the value is known, or the time is up.
  std::optional<std::string> wait_for(const std::string& key, double timeout_s);
  /// Waits until all is written that was set, or the time is up.
  bool flush(double timeout_s);

  /// Since the store answered last.
  double silent_s() const;
  /// The connection broke: whoever served the store has ended.
  bool is_gone() const;
  /// Leaves a connection that hangs to itself, and makes another.
  void renew();

 private:
  struct State;
  static void start(const std::shared_ptr<State>& state);
  static void run(const std::shared_ptr<State>& state, int64_t generation);
  std::shared_ptr<State> state_;
};

}  // namespace bellows::comm
