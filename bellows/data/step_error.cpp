#include "bellows/data/step_error.h"

#include "bellows/core/error.h"

namespace bellows::data {

std::string current_message() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string message = user_message(error);
    return message.empty() ? "an error without a message" : message;
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

void throw_step_error(const std::string& step, const Sample& sample) {
  throw StepError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(
          step, ": ", sample.where(), ": ", current_message(),
          ". This is an error in the step itself. For a bad sample, transforms and tokenizers throw c10::ValueError."));
}

}  // namespace bellows::data
