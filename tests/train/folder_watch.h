#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::train {

/// Follows, as the kernel tells it, the checkpoints that another process saves in a folder.
class FolderWatch {
 public:
  explicit FolderWatch(const std::string& folder) : fd_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    EXPECT_GE(inotify_add_watch(fd_, folder.c_str(), IN_CREATE | IN_MOVED_TO), 0) << folder;
  }
  ~FolderWatch() { close(fd_); }
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  /// Takes in what happened. Waits for something to happen up to so long. False: nothing did.
  bool update(int timeout_ms) {
    pollfd end{fd_, POLLIN, 0};
    if (poll(&end, 1, timeout_ms) <= 0) return false;
    alignas(inotify_event) std::array<char, 8192> buffer;
    for (ssize_t size; (size = read(fd_, buffer.data(), buffer.size())) > 0;) {
      for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
        if (event->len > 0) note(event->name);
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    }
    return true;
  }

  const std::vector<int64_t>& begun() const { return begun_; }        ///< steps of the saves that began
  const std::vector<int64_t>& finished() const { return finished_; }  ///< steps of the files that came into their place

 private:
  void note(std::string_view name) {
    constexpr std::string_view prefix = "step-";
    constexpr size_t digits = 12;
    if (!name.starts_with(prefix)) return;
    (name.ends_with(".pt") ? finished_ : begun_).push_back(std::stoll(std::string(name.substr(prefix.size(), digits))));
  }

  int fd_;
  std::vector<int64_t> begun_, finished_;
};

}  // namespace bellows::train
