#include "bellows/data/images/bad_image.h"

#include "bellows/core/error.h"

namespace bellows::data {

void throw_bad_image(const char* step, const Sample& sample, const Field* image, const std::exception& reason) {
  TORCH_CHECK_VALUE(false, step, ": ", sample.where(image), ": ", user_message(reason));
}

}  // namespace bellows::data
