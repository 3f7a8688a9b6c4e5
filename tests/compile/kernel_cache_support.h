#pragma once

#include <gtest/gtest.h>

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/StringUtil.h>

#include "bellows/compile/jit/kernel_cache.h"

namespace bellows::compile_detail::testing {

namespace fs = std::filesystem;

/// A folder that is gone afterwards.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "kernel-cache-test-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> result;
    for (const auto& item : fs::directory_iterator(path)) {
      if (item.path().extension() == ".so") result.push_back(item.path());
    }
    return result;
  }
  std::string path;
};

inline std::string source(int number) {
  return c10::str("extern \"C\" int number() { return ", number, "; }\n");
}

inline int number_in(const Library& library) {
  return reinterpret_cast<int (*)()>(library.symbol("number"))();
}

inline int load_number(KernelCache& cache, int number) {
  return number_in(*cache.load(source(number)));
}

/// The file of a kernel, in a folder that had none.
inline fs::path make_entry(const Folder& folder, int number) {
  KernelCache cache({.folder = folder.path});
  load_number(cache, number);
  return folder.entries().at(0);
}

inline void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs a function in a child process. Returns its status as waitpid() has it.
inline int in_child(const std::function<int()>& function, const std::function<void(pid_t)>& meanwhile = {}) {
  const pid_t child = ::fork();
  if (child == 0) {
    int result = 3;
    try {
      result = function();
    } catch (...) {
    }
    ::_exit(result);
  }
  if (meanwhile) meanwhile(child);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace bellows::compile_detail::testing
