#pragma once

#include <string>

#include "bellows/data/dataset.h"

namespace bellows::data {

/// A source that computes its samples from those of another source. Its fingerprint is that of the origin.
class Derived {
 public:
  virtual ~Derived() = default;
  virtual const SourcePtr& origin() const = 0;
};

/// A short text that identifies a dataset: "1437 samples, 0123456789abcdef". It is the same on every machine and in
/// every folder. It does not depend on file times, on paths above the shards' own names, or on the pipeline.
///
/// It covers the number of samples, the classes, mean and std. If the samples are stored (Source::stored), it also
/// covers the names and sizes of up to 65,536 samples and all bytes of up to 256 samples. These are evenly spaced and
/// include the first and the last one. A change inside a sample that keeps its size is detected only in those 256.
/// Tokenized texts (TextSource, packed()) have the fingerprint of the stored texts.
/// Cost: about 1 µs per sample, plus reading the 256 samples
std::string fingerprint(const Dataset& dataset);

}  // namespace bellows::data
