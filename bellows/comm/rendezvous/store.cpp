#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "bellows/comm/rendezvous/listen.h"
#include "bellows/comm/rendezvous/store_impl.h"
#include "bellows/core/error.h"
#include "bellows/system/no_sigpipe.h"

namespace bellows::comm {

namespace {

Store make_store(c10::intrusive_ptr<c10d::Store> store, int port) {
  return Store(std::make_shared<Store::State>(Store::State{std::move(store), port}));
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

}  // namespace

Store Store::serve(const std::string& host, int port) {
  const NoSigpipe thread_of_server;  // its thread answers ranks that may have ended
  Listener listener(host, port);     // libtorch's own would listen on all addresses of the machine
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.port = static_cast<uint16_t>(listener.port());
  options.masterListenFd = listener.release();
  return make_store(c10::make_intrusive<c10d::TCPStore>(host, options), options.port);
}

Store Store::join(const std::string& host, int port, double timeout_s, const std::stop_token& stop) {
  // libtorch's client also waits, but prints a stack trace for each failed attempt.
  TORCH_CHECK(wait_for_listener(host, port, timeout_s, stop), "store: no store answered at ", host, ":", port,
              " within ", timeout_s,
              " s. Check that the process that serves the store (rank 0 or the launcher) is running.");
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  options.port = static_cast<uint16_t>(port);
  options.timeout = milliseconds(timeout_s);
  return make_store(c10::make_intrusive<c10d::TCPStore>(host, options), port);
}

Store Store::in_file(const std::string& path, int users) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  TORCH_CHECK_VALUE(access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0, "Store: cannot write to ", folder,
                    ": ", errno_message(errno), ". Name a file in a folder that all ranks can write to.");
  return make_store(c10::make_intrusive<c10d::FileStore>(path, users), 0);
}

void Store::set(const std::string& key, const std::string& value) const {
  state_->store->set(key, bytes_of(value));
}

std::string Store::set_first(const std::string& key, const std::string& value) const {
  return text_of(state_->store->compareSet(key, {}, bytes_of(value)));
}

std::optional<std::string> Store::find(const std::string& key) const {
  if (!state_->store->check({key})) return std::nullopt;
  return text_of(state_->store->get(key));
}

std::optional<std::string> Store::wait_for(const std::string& key, double timeout_s) const {
  // libtorch's own wait prints messages after the timeout.
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    if (auto value = find(key)) return value;
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited > std::chrono::duration<double>(timeout_s)) return std::nullopt;
    std::this_thread::sleep_for(
        std::clamp<std::chrono::nanoseconds>(waited / 10, std::chrono::milliseconds(1), std::chrono::milliseconds(50)));
  }
}

Store Store::under(const std::string& prefix) const {
  return make_store(c10::make_intrusive<c10d::PrefixStore>(prefix, state_->store), state_->port);
}

Store Store::another() const {
  return make_store(state_->store->clone(), state_->port);
}

int Store::port() const {
  return state_->port;
}

}  // namespace bellows::comm
