#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "bellows/core/error.h"
#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// A file of tests/goldens/io; without a name, the folder.
inline std::string golden(const std::string& name = "") {
  return BELLOWS_SOURCE_DIR "/tests/goldens/io/" + name;
}

/// What a call says when it throws c10::ValueError; fails the test when it throws nothing.
inline std::string value_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  ADD_FAILURE() << "expected c10::ValueError";
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A folder of its own for a test. With BELLOWS_IO_OUT set, the one that tools/goldens/io.py --verify reads afterwards.
struct FolderTest : testing::Test {
  FolderTest() {
    const char* kept = std::getenv("BELLOWS_IO_OUT");
    keep = kept != nullptr;
    folder = keep ? std::filesystem::path(kept)
                  : std::filesystem::temp_directory_path() / ("bellows_io_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
  }
  ~FolderTest() override {
    if (!keep) std::filesystem::remove_all(folder);
  }
  std::string path(const std::string& name) const { return folder / name; }

  std::filesystem::path folder;
  bool keep = false;
};

}  // namespace bellows::io
