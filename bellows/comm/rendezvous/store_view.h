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

/// A copy of store entries that a background thread keeps up to date. Readers never block on a hanging connection, and
/// can query how long it has been hanging.
/// Threads: safe
class StoreView {
 public:
  /// Params: open – connects; called on the background thread at the start and by renew(), until it does not throw
  explicit StoreView(std::function<Store()> open);
  ~StoreView();
  StoreView(const StoreView&) = delete;
  StoreView& operator=(const StoreView&) = delete;

  /// Writes the value soon. It replaces an earlier value of the key that is not written yet.
  void set(const std::string& key, const std::string& value);
  /// Like set(), unless the key already exists.
  void set_first(const std::string& key, const std::string& value);
  /// The value of a key. The first call starts looking it up; a value that was found is not looked up again.
  std::optional<std::string> value(const std::string& key);
  /// The value of a key that changes: it is looked up continuously.
  std::optional<std::string> latest(const std::string& key);
  /// Waits until the value is found or the timeout has passed.
  std::optional<std::string> wait_for(const std::string& key, double timeout_s);
  /// Waits until all values are written or the timeout has passed.
  bool flush(double timeout_s);

  /// Seconds since the last answer of the store.
  double silent_s() const;
  /// Whether the connection broke: the process that served the store has ended.
  bool is_gone() const;
  /// Abandons a hanging connection and opens another one.
  void renew();

 private:
  struct State;
  static void start(const std::shared_ptr<State>& state);
  static void run(const std::shared_ptr<State>& state, int64_t generation);
  std::shared_ptr<State> state_;
};

}  // namespace bellows::comm
