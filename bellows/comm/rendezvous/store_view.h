#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/comm/rendezvous/store.h"
#include "bellows/core/mutex.h"

namespace bellows::comm {

/// A copy of store entries that a background thread keeps up to date. Readers never block on a hanging connection, and
/// can query how long the connection has been hanging.
/// Threads: thread-safe
class StoreView {
 public:
  /// Params: open – connects to the store. The background thread calls it at the start and after renew(), and repeats
  ///                the call until it succeeds
  explicit StoreView(std::function<Store()> open);
  ~StoreView();
  StoreView(const StoreView&) = delete;
  StoreView& operator=(const StoreView&) = delete;

  /// Queues the value, which the background thread writes soon. If an earlier value of the key is still queued, this
  /// value replaces it.
  void set(const std::string& key, const std::string& value);
  /// Like set(), but does not write if the key already exists.
  void set_first(const std::string& key, const std::string& value);
  /// Returns the value of a key, or nothing if it is not known yet. The first call starts the lookup. After the value
  /// is found, it is not looked up again.
  std::optional<std::string> value(const std::string& key);
  /// Returns the value of a key whose value changes. The key is looked up continuously.
  std::optional<std::string> latest(const std::string& key);
  /// Waits until the value is found or the timeout has passed. Returns nothing after the timeout.
  std::optional<std::string> wait_for(const std::string& key, double timeout_s);
  /// Waits until all values are written or the timeout has passed.
  bool flush(double timeout_s);

  /// Returns the number of seconds since the last answer of the store.
  double silent_s() const;
  /// Returns whether the connection is broken because the process that served the store has ended.
  bool is_gone() const;
  /// Abandons a hanging connection and opens a new one.
  void renew();

 private:
  struct State;
  /// Thread-safety analysis is off here, because callers hold the lock or are the only user of the state.
  static void start(const std::shared_ptr<State>& state) BELLOWS_NO_THREAD_SAFETY_ANALYSIS;
  static void run(const std::shared_ptr<State>& state, int64_t generation);
  std::shared_ptr<State> state_;
};

}  // namespace bellows::comm
