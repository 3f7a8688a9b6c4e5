#pragma once

#include <exception>

#include "bellows/data/sample.h"
#include "bellows/data/step_error.h"

namespace bellows::data {

/// The operation that failed on an image.
enum class ImageStep { decode, transform, convert };

/// Throws the error for an image that cannot be decoded, transformed or converted. The message names the failed step,
/// the sample, its location and the reason: `decode: sample "0001" (id 1), jpg at byte 512 of train-000.tar: JPEG data
/// truncated or corrupt: …`. If the file was downloaded and may be damaged, the message also names the cached copy.
/// Params: image – one of the sample's fields, or null for the first field
///         reason – the exception that the codec (io/images/) or the transform threw
/// Throws: c10::ValueError
[[noreturn]] void throw_bad_image(ImageStep step, const Sample& sample, const Field* image,
                                  const std::exception& reason);

/// Runs a step on an image. Any std::exception except StepError becomes the error of throw_bad_image().
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
