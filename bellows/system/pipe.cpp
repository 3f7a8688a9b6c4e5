#include "bellows/system/pipe.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "bellows/core/error.h"

namespace bellows {

Pipe::Pipe(const char* who) {
  TORCH_CHECK(::pipe2(ends_.data(), O_CLOEXEC) == 0, who, ": cannot create a pipe: ", errno_message(errno), ".");
}

Pipe::~Pipe() {
  for (const int end : ends_) {
    if (end >= 0) ::close(end);
  }
}

}  // namespace bellows
