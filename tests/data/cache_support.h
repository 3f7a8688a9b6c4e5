#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bellows/io/file_cache.h"
#include "tests/data/support.h"
#include "tests/support/http_server.h"

namespace bellows::io::testing {

using bellows::data::testing::TemporaryFolder;
using bellows::testing::HttpServer;

inline std::string bytes_of(char letter, size_t bytes) {
  return std::string(bytes, letter);
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
  uint64_t bytes_here() const {
    uint64_t total = 0;
    for (const std::string& name : files()) total += std::filesystem::file_size(folder / ("cache/files/" + name));
    return total;
  }
  TemporaryFolder folder;
  HttpServer server;
};

}  // namespace bellows::io::testing
