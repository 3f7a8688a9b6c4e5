#include "bellows/data/images/bad_image.h"

#include "bellows/core/error.h"

namespace bellows::data {

namespace {

const char* name_of(ImageStep step) {
  switch (step) {
    case ImageStep::decode:
      return "decode";
    case ImageStep::transform:
      return "transform";
    case ImageStep::convert:
      return "convert";
  }
  return "";
}

}  // namespace

void throw_bad_image(ImageStep step, const Sample& sample, const Field* image, const std::exception& reason) {
  // An image that a transform rejects, for example because it is smaller than a crop, does not indicate a damaged file.
  const bool may_be_damaged = step != ImageStep::transform && sample.origin;
  TORCH_CHECK_VALUE(false, name_of(step), ": ", sample.where(image), ": ", user_message(reason),
                    may_be_damaged ? sample.origin->doubt(sample.origin_file) : "");
}

}  // namespace bellows::data
