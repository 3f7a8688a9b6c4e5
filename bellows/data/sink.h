#pragma once

#include "bellows/data/sample.h"

namespace bellows::data {

/// Writes samples one after the other into files of one format.
/// Threads: one thread uses a sink
class Sink {
 public:
  virtual ~Sink() = default;
  /// Copies what it needs from `sample`; its views may become invalid after the call.
  /// Throws: c10::ValueError if the format cannot hold the sample (the message names the sample and the field);
  ///         c10::Error if writing fails, for example because the disk is full
  virtual void write(const Sample& sample) = 0;
  /// Finishes the files and moves them into place. Without this call, no files remain.
  virtual void close() = 0;
};

}  // namespace bellows::data
