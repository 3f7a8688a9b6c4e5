#pragma once

#include <string>

#include "bellows/data/dataset.h"
#include "bellows/train/distillation.h"
#include "bellows/train/resolved_job.h"
#include "bellows/train/teacher/cache_file.h"

namespace bellows::train {

/// Returns all settings on which the outputs in a cache depend: the teacher, a hash of its weights, its dtype and
/// precision, the data's fingerprint, and how samples become inputs.
/// Params: train – the training data of the recipe
CacheFacts cache_facts(const ResolvedJob& job, const Distillation& distillation, const data::Dataset& train);

/// Returns a hash of the names, dtypes, shapes and values of a model's tensors. It is the same on every machine.
std::string weights_hash(const Model& model);

/// Returns the training data with the teacher's outputs from the file `teacher_cache`. If the file does not exist, it
/// is first computed: the teacher runs once for each sample, in the order of the data. If several ranks or runs need the
/// same file at the same time, one of them computes it, and the others wait for it (a lock on PATH.lock). If the process
/// is killed, the next run computes the file again. A file that was computed in fp32 is also used in other precisions.
/// Params:   train – the training data of the recipe, of all ranks together
/// Numerics: the teacher sees each sample in another batch than without a cache. Its outputs may therefore differ by
///           rounding. If they do not depend on the batch, and all logits are stored, training is bit-identical to
///           training without a cache (tests/train/teacher_cache_test.cpp)
/// Cost:     one forward pass of the teacher per sample if the file does not exist. Otherwise, one pass over the file
/// Throws:   c10::ValueError if the file was computed from another teacher, other data or other settings (the message
///           names them), or is damaged. Stopped if request_stop() is called during the computation
data::Dataset with_teacher_outputs(const ResolvedJob& job, const Distillation& distillation,
                                   const data::Dataset& train);

}  // namespace bellows::train
