#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "bellows/io/network/file_cache.h"
#include "tests/data/support.h"
#include "tests/support/http_server.h"

namespace bellows::io::testing {

using bellows::data::testing::TemporaryFolder;
using bellows::testing::HttpServer;

inline std::string bytes_of(char letter, size_t bytes) {
  return std::string(bytes, letter);
}

/// Bytes of the whole and partial files in a cache's folder, at one moment.
inline int64_t cached_bytes(const std::string& folder) {
  while (std::filesystem::exists(folder)) {
    const auto lock = FileLock::try_lock(folder + "/.lock");
    if (!lock) continue;
    int64_t total = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::error_code gone;
      const auto bytes = std::filesystem::file_size(entry.path(), gone);
      if (!gone && entry.path().filename().string().find('-') == 40) total += static_cast<int64_t>(bytes);
    }
    return total;
  }
  return 0;
}

class FileCacheTest : public ::testing::Test {
 protected:
  FileCacheOptions options(int64_t limit = 1 << 20) const {
    return {
        folder / "cache", limit, {.attempts = 3, .connect_timeout_ms = 500, .stall_timeout_ms = 1000, .backoff_ms = 2}};
  }
  std::vector<std::string> files(const std::string& suffix = "") const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache/files")) {
      const std::string name = entry.path().filename();
      if (name.ends_with(suffix) && !name.ends_with(".json") && !name.ends_with(".lock")) names.push_back(name);
    }
    return names;
  }
  uint64_t bytes_here() const { return static_cast<uint64_t>(cached_bytes(folder / "cache/files")); }
  TemporaryFolder folder;
  HttpServer server;
};

}  // namespace bellows::io::testing
