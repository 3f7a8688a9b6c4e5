#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace bellows::bench {

/// An empty folder for kernels that only this run uses. It is deleted afterwards.
struct OwnCache {
  OwnCache() {
    TORCH_CHECK(::mkdtemp(path.data()), "bench compile: cannot create a folder with the pattern ", path, ".");
    ::setenv("BELLOWS_CACHE", path.c_str(), 1);
  }
  ~OwnCache() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  OwnCache(const OwnCache&) = delete;
  OwnCache& operator=(const OwnCache&) = delete;
  std::string path = (std::filesystem::temp_directory_path() / "bench-compile-XXXXXX").string();
};

}  // namespace bellows::bench
