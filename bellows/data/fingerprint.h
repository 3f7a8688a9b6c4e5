#pragma once

#include <string>

#include "bellows/data/dataset.h"

namespace bellows::data {

/// A source that computes its samples from the samples of another source, its origin. fingerprint() reads the origin
/// instead of the derived source.
class Derived {
 public:
  virtual ~Derived() = default;
  virtual const SourcePtr& origin() const = 0;
};

/// Returns a short text that identifies a dataset, such as "1437 samples, 0123456789abcdef". The text is the same on
/// every machine and in every folder. It does not depend on file times, on the folders of the files or on the pipeline.
///
/// The fingerprint covers the number of samples, the classes, the mean and the std. If the samples are stored
/// (Source::stored), it also covers two evenly spaced selections of samples, which include the first and the last
/// sample:
/// - the ids, keys, file names, field names and sizes of up to 65,536 samples
/// - all bytes of up to 256 samples
///
/// A change inside a sample that does not change its size is detected only in those 256 samples. For tokenized texts
/// (TextSource, packed()), the fingerprint covers the stored texts.
/// Cost: about 1 µs per sample, plus reading the 256 samples
std::string fingerprint(const Dataset& dataset);

}  // namespace bellows::data
