#pragma once

#include <memory>

#include "bellows/data/source.h"
#include "bellows/train/teacher/cache_file.h"

namespace bellows::train {

/// Names of the arrays that cached_outputs() adds: logits, int32 classes of the largest logits, and the logarithm of the
/// rest (nn::TopLogits).
constexpr const char* teacher_logits = "teacher_logits";
constexpr const char* teacher_classes = "teacher_classes";
constexpr const char* teacher_rest = "teacher_rest";

/// Returns a source whose samples also have the teacher's outputs from a cache, as arrays. The outputs are not copied.
/// Throws: read() throws c10::ValueError if the cache has no outputs for a sample
data::SourcePtr cached_outputs(data::SourcePtr source, std::shared_ptr<const CacheFile> cache);

}  // namespace bellows::train
