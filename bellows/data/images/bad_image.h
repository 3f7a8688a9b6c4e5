#pragma once

#include <exception>

#include "bellows/data/sample.h"
#include "bellows/data/step_error.h"

namespace bellows::data {

/// What was done to an image when it failed.
enum class ImageStep { decode, transform, convert };

/// Throws the error of an image that cannot be decoded or changed: the step that failed, the sample, its place and the
/// reason, `decode: sample "0001" (id 1), jpg at byte 512 of train-000.tar: JPEG data truncated or corrupt: …`.
/// A downloaded file whose image cannot be decoded may have been damaged on its way: the message names the copy.
/// Params: image  – one of the sample's fields; null: the first
///         reason – what the codec (io/images/) or the transform threw
/// Throws: c10::ValueError
[[noreturn]] void throw_bad_image(ImageStep step, const Sample& sample, const Field* image,
                                  const std::exception& reason);

/// Runs a step on an image. What it throws becomes the error of a bad image, except a StepError.
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
