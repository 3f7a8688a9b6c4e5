#pragma once

#include <string>
#include <vector>

namespace bellows::comm::testing {

/// What one rank does; throws where the result is not what one process computes alone.
using Scenario = void (*)(const std::vector<std::string>& arguments);
void collectives(const std::vector<std::string>& arguments);
void mesh(const std::vector<std::string>& arguments);
void transfers(const std::vector<std::string>& arguments);

}  // namespace bellows::comm::testing
