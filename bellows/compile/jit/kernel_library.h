#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

namespace bellows::compile_detail {

/// A loaded shared library. The destructor unloads it.
class Library {
 public:
  /// Params: content – content of the library's file; exactly these bytes are loaded
  /// Throws: c10::Error if the system cannot load the library
  explicit Library(std::string_view content);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  /// Throws: c10::Error if there is no symbol of this name
  void* symbol(const std::string& name) const;
  /// Returns a copy of the library's file.
  std::string content() const;

 private:
  void* handle_ = nullptr;
  /// Stays open while the library is loaded. The system's loader identifies the library by the path `/proc/self/fd/N`,
  /// where N is this descriptor. If N were reused, the loader could return the wrong library.
  int fd_ = -1;
};

/// Provides the libraries of generated sources.
class KernelProvider {
 public:
  virtual ~KernelProvider() = default;
  /// Returns whether load() can return libraries. If not, programs get no generated code.
  virtual bool can_compile() const = 0;
  /// Returns the library that is compiled from `source`.
  /// Threads: thread-safe
  /// Throws:  c10::Error if there is no such library and it cannot be compiled
  virtual std::shared_ptr<const Library> load(const std::string& source, const std::stop_token& stop) = 0;
};

}  // namespace bellows::compile_detail
