#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace bellows::comm {

/// Where processes leave words for each other: names and values, kept by one of them (TCP) or in a file that all see.
/// A handle: copies are the same connection.
/// Threads: calls of one connection wait for each other; a thread that must not wait takes another().
/// Throws:  c10::Error from every call – the one that keeps it is gone
class Store {
 public:
  /// Serves a store on `host`, an address of this machine.
  /// Params: port – 0: any that is free
  /// Throws: c10::ValueError – the port is in use, the address is not of this machine
  static Store serve(const std::string& host, int port);
  /// Joins a store that another process serves, or will serve before `timeout_s` seconds are over.
  /// Params: stop – ends the wait for that process
  static Store join(const std::string& host, int port, double timeout_s, const std::stop_token& stop = {});
  /// In a file; the last of `users` processes that leaves removes it. It grows by a line for everything that is set.
  /// Throws: c10::ValueError – its folder is missing, or cannot be written
  static Store in_file(const std::string& path, int users);

  void set(const std::string& key, const std::string& value) const;
  /// Sets it unless somebody has; returns what then is there.
  std::string set_first(const std::string& key, const std::string& value) const;
  /// Nothing where there is no such key yet.
  std::optional<std::string> find(const std::string& key) const;
  /// Waits until there is one; nothing when the time is up.
  std::optional<std::string> wait_for(const std::string& key, double timeout_s) const;

  /// The same store, all keys beginning with `prefix`.
  Store under(const std::string& prefix) const;
  /// The same store through a connection of its own.
  Store another() const;
  /// Port that it is served on; 0 for a file.
  int port() const;

  struct State;
  explicit Store(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::comm
