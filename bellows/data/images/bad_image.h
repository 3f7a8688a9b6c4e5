#pragma once

#include <exception>

#include "bellows/data/sample.h"
#include "bellows/data/step_error.h"

namespace bellows::data {

/// The operation that failed on an image.
enum class ImageStep { decode, transform, convert };

/// Throws the error of an image that cannot be decoded or changed. The message names the failed step, the sample, its
/// location and the reason: `decode: sample "0001" (id 1), jpg at byte 512 of train-000.tar: JPEG data truncated or
/// corrupt: …`. If the file of an image that cannot be decoded was downloaded, the message names the cached copy,
/// because it may have been damaged.
/// Params: image – one of the sample's fields; null: the first
///         reason – the exception of the codec (io/images/) or of the transform
/// Throws: c10::ValueError
[[noreturn]] void throw_bad_image(ImageStep step, const Sample& sample, const Field* image,
                                  const std::exception& reason);

/// Runs a step on an image. Exceptions become the error of a bad image, except a StepError.
template <class F>
void run_on_image(ImageStep step, const Sample& sample, const Field* image, const F& body) {
  try {
    body();
  } catch (const StepError&) {
    throw;
  } catch (const std::exception& reason) {
    throw_bad_image(step, sample, image, reason);
  }
}

}  // namespace bellows::data
