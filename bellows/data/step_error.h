#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "bellows/data/sample.h"

namespace bellows::data {

/// The error that replaces an exception from user code (a transform, a pixel pass or a tokenizer). Such an exception is
/// a bug in the code, not a bad sample, so Loader::next() throws it regardless of OnBadSample. To reject a sample, a
/// transform or a tokenizer throws c10::ValueError, which does not become a StepError. A pixel pass cannot reject a
/// sample.
class StepError : public c10::Error {
 public:
  using c10::Error::Error;
};

/// Returns the message of the exception that is being handled. The exception can have any type.
std::string current_message();

/// Throws a StepError for the exception that is being handled. The message contains the name of the step, the sample
/// and the message of the exception.
[[noreturn]] void throw_step_error(const std::string& step, const Sample& sample);

/// Runs a step that may reject the sample. A c10::ValueError passes through unchanged. Any other exception becomes a
/// StepError.
/// Params: step – a function that returns the name of the step, for messages
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
