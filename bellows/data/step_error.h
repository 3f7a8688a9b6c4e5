#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "bellows/data/sample.h"

namespace bellows::data {

/// The user's own code (a transform, a pixel pass, a tokenizer) threw something that says nothing about the sample: a
/// mistake in the code, which ends the epoch whatever is done with bad samples. Such code refuses a sample by a
/// c10::ValueError.
class StepError : public c10::Error {
 public:
  using c10::Error::Error;
};

/// The message of the exception that is being handled, of whatever type.
std::string current_message();

/// Throws a StepError that says what the exception being handled does, which step threw it, and at which sample.
[[noreturn]] void throw_step_error(const std::string& step, const Sample& sample);

/// Runs a step that may refuse the sample: a c10::ValueError passes, all else is a StepError.
/// Params: step – makes its name, for messages
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
