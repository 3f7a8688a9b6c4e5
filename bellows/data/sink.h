#pragma once

#include "bellows/data/sample.h"

namespace bellows::data {

/// Writes samples, one after another, to files of one format.
/// Threads: use a sink from one thread only
class Sink {
 public:
  virtual ~Sink() = default;
  /// Writes one sample. The views of `sample` may become invalid after the call.
  /// Throws: c10::ValueError if the format cannot hold the sample (the message names the sample and the field);
  ///         c10::Error if writing fails, for example because the disk is full
  virtual void write(const Sample& sample) = 0;
  /// Finishes the files and moves them into place. If close() is not called, no files remain.
  virtual void close() = 0;
};

}  // namespace bellows::data
