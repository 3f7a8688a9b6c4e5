#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace bellows::comm {

/// A key-value store for several processes. Either one process serves it over TCP, or it is a file that all processes
/// can access. Store is a handle: copies use the same connection.
/// Threads: calls on one connection are serialized. If a thread must not wait for the calls of other threads, use
///          another()
/// Throws:  every call throws c10::Error if the process that served the store has ended
class Store {
 public:
  /// Serves a store on `host`, which must be an address of this machine.
  /// Params: port – 0 selects any free port
  /// Throws: c10::ValueError if the port is in use or the address does not belong to this machine
  static Store serve(const std::string& host, int port);
  /// Joins a store that another process serves. If that process has not started yet, join() waits up to `timeout_s`
  /// seconds.
  /// Params: stop – ends the wait
  /// Throws: c10::Error if no store answers within `timeout_s` seconds, or if the wait is stopped
  static Store join(const std::string& host, int port, double timeout_s, const std::stop_token& stop = {});
  /// Opens a store in a file. The file is deleted when the last of `users` processes leaves. Each set() appends to the
  /// file.
  /// Throws: c10::ValueError if the folder of the file does not exist or is not writable
  static Store in_file(const std::string& path, int users);

  void set(const std::string& key, const std::string& value) const;
  /// Sets the key if it does not exist yet. Returns the resulting value of the key.
  std::string set_first(const std::string& key, const std::string& value) const;
  /// Returns the value of the key, or nothing if the key does not exist.
  std::optional<std::string> find(const std::string& key) const;
  /// Waits until the key exists, and returns its value. Returns nothing after the timeout.
  std::optional<std::string> wait_for(const std::string& key, double timeout_s) const;

  /// Returns a handle to the same store that adds `prefix` to all keys.
  Store under(const std::string& prefix) const;
  /// Returns a handle to the same store with a separate connection.
  Store another() const;
  /// Returns the port on which the store is served; 0 for a file.
  int port() const;

  struct State;
  explicit Store(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::comm
