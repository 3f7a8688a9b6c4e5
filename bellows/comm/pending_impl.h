#pragma once

#include <exception>
#include <memory>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/comm/group_impl.h"

// Parts that collectives and point-to-point calls share.
namespace bellows::comm {

struct Pending::State {
  Group group;
  at::Tensor result;                    ///< returned by wait()
  at::Tensor buffer;                    ///< a dense copy of a result that is not dense, else the result itself
  at::Tensor source;                    ///< kept alive until the work is done
  int divisor = 1;                      ///< number of ranks for a mean, else 1
  c10::intrusive_ptr<c10d::Work> work;  ///< null after the end
  std::exception_ptr failure;           ///< the exception that wait() threw
};

/// Throws: c10::ValueError if the tensor is not dense, or if the group has no back end for its device
/// Params: name – of the calling function, for the message
void check_tensor(const char* name, const at::Tensor& tensor, const Group& group);

/// Returns whether a call needs no communication.
bool nothing_to_exchange(const at::Tensor& tensor, const Group& group);

/// Returns a call that has finished already.
Pending finished(const Group& group, at::Tensor result);

/// Starts a call.
/// Params: start – returns the c10d::Work for the process group and the state
template <class Start>
Pending start_call(Pending::State state, Start start) {
  auto kept = std::make_shared<Pending::State>(std::move(state));
  kept->work = start(*kept->group.state()->process_group, *kept);
  return Pending(std::move(kept));
}

}  // namespace bellows::comm
