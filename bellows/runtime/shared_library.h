#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace bellows::runtime {

/// Where a library of another project is searched, in this order.
struct LibrarySearch {
  std::string title{};     ///< "ONNX Runtime"
  std::string file{};      ///< "libonnxruntime.so"; names with a version, such as "libonnxruntime.so.1.31", match too
  std::string place{};     ///< the library or its folder; if this is set, no other place is searched
  std::string variable{};  ///< environment variable with the library or its folder, with the same effect as `place`
  std::vector<std::string> folders{};  ///< folders of installations
  std::string wheel{};                 ///< folder in a Python wheel, such as "onnxruntime/capi"
  std::string advice{};                ///< how to install the library
};

/// A shared library that is loaded at run time. It is never unloaded, because its threads may still run.
class SharedLibrary {
 public:
  /// Searches and loads the library: at `place`, where the environment variable points, on the path of the dynamic linker,
  /// in the folders, and in the site-packages of $VIRTUAL_ENV, the user and the system.
  explicit SharedLibrary(const LibrarySearch& search);

  /// Returns an empty text if the library is loaded, and otherwise what is missing and what to install.
  const std::string& missing() const { return missing_; }
  /// Returns the path, or the name if the dynamic linker found the library.
  const std::string& path() const { return path_; }
  /// Returns a function, or null if the library has none with this name.
  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;
  bool open(const std::string& path);

  std::string missing_{}, path_{};
  void* handle_ = nullptr;
};

}  // namespace bellows::runtime
