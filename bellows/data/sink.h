#pragma once

#include "bellows/data/sample.h"

namespace bellows::data {

/// Writes samples into files of one format, one after the other.
/// Threads:  one thread uses a sink.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Takes what it needs of `sample`: its views may be gone afterwards.
  /// Throws: c10::ValueError – the format cannot hold it: sample and field; c10::Error – disk full and the like
  virtual void write(const Sample& sample) = 0;
  /// Puts the files in place, whole. Without it, nothing is left behind.
  virtual void close() = 0;
};

}  // namespace bellows::data
