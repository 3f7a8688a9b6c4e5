#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace bellows::comm {

/// A key-value store for several processes. One of them serves it (TCP), or it is a file that all can access. Store is
/// a handle: copies use the same connection.
/// Threads: calls on one connection are serialized; use another() for a thread that must not wait
/// Throws:  c10::Error from every call if the process that serves the store has ended
class Store {
 public:
  /// Serves a store on `host`, an address of this machine.
  /// Params: port – 0: any free port
  /// Throws: c10::ValueError if the port is in use or the address does not belong to this machine
  static Store serve(const std::string& host, int port);
  /// Joins a store that another process serves, or starts to serve within `timeout_s` seconds.
  /// Params: stop – ends the wait for that process
  static Store join(const std::string& host, int port, double timeout_s, const std::stop_token& stop = {});
  /// Opens a store in a file. The last of `users` processes that leaves deletes the file. Each set() appends to the
  /// file.
  /// Throws: c10::ValueError if its folder is missing or not writable
  static Store in_file(const std::string& path, int users);

  void set(const std::string& key, const std::string& value) const;
  /// Sets the key if it does not exist yet. Returns the value that the key has afterwards.
  std::string set_first(const std::string& key, const std::string& value) const;
  /// Returns nothing if the key does not exist.
  std::optional<std::string> find(const std::string& key) const;
  /// Waits until the key exists. Returns nothing after the timeout.
  std::optional<std::string> wait_for(const std::string& key, double timeout_s) const;

  /// The same store with `prefix` added to all keys.
  Store under(const std::string& prefix) const;
  /// The same store through a separate connection.
  Store another() const;
  /// The port on which it is served; 0 for a file.
  int port() const;

  struct State;
  explicit Store(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::comm
