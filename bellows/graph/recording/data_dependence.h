#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace bellows::graph::detail {

/// Notices, while it lives, operators on this thread that look at data: that give a number of a tensor, or results whose sizes data decides.
/// In inference mode an operator that is made of others arrives whole, and no tag says that one of them does.
class DataLook {
 public:
  /// Params: op – made of others; nothing is noticed of one that is not
  explicit DataLook(const c10::OperatorHandle& op);
  ~DataLook();
  DataLook(const DataLook&) = delete;
  DataLook& operator=(const DataLook&) = delete;
  bool seen() const { return seen_; }

 private:
  uint64_t callback_ = 0;  ///< 0: none
  bool* outer_ = nullptr;
  bool seen_ = false;
};

}  // namespace bellows::graph::detail
