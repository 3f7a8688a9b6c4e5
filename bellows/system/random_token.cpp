#include "bellows/system/random_token.h"

#include <c10/util/Exception.h>
#include <sys/random.h>

#include <array>
#include <cinttypes>
#include <cstdio>

#include "bellows/core/error.h"

namespace bellows {

std::string random_token() {
  std::array<uint64_t, 2> numbers;
  TORCH_CHECK(getrandom(numbers.data(), sizeof numbers, 0) == ssize_t{sizeof numbers},
              "the system returned no random numbers: ", errno_message(errno), ".");
  std::array<char, 33> text;
  std::snprintf(text.data(), text.size(), "%016" PRIx64 "%016" PRIx64, numbers[0], numbers[1]);
  return text.data();
}

}  // namespace bellows
