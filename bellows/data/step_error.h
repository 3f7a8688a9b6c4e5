#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "bellows/data/sample.h"

namespace bellows::data {

/// Thrown if user code (a transform, a pixel pass, a tokenizer) throws an exception other than c10::ValueError. This is
/// a bug in the code rather than a bad sample, so it ends the epoch regardless of OnBadSample. To reject a sample, user
/// code throws c10::ValueError.
class StepError : public c10::Error {
 public:
  using c10::Error::Error;
};

/// The message of the exception that is being handled, of any type.
std::string current_message();

/// Throws a StepError that contains the message of the exception being handled, the name of the step and the sample.
[[noreturn]] void throw_step_error(const std::string& step, const Sample& sample);

/// Runs a step that may reject the sample: a c10::ValueError passes through, any other exception becomes a StepError.
/// Params: step – returns the name of the step, for messages
template <class Name, class F>
void run_step(const Name& step, const Sample& sample, const F& body) {
  try {
    body();
  } catch (const c10::ValueError&) {
    throw;
  } catch (...) {
    throw_step_error(step(), sample);
  }
}

}  // namespace bellows::data
