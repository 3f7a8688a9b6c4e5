#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::serve {

/// A POSIX shared memory object, which is deleted with this object.
class SharedObject {
 public:
  explicit SharedObject(int64_t bytes);
  ~SharedObject();
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  const std::string& key() const { return key_; }
  int64_t size() const;
  void resize(int64_t bytes) const;
  void write(int64_t offset, const std::vector<float>& values) const;
  std::vector<float> read(int64_t offset, size_t count) const;

 private:
  std::string key_;
  int file_ = -1;
};

}  // namespace bellows::serve
