#pragma once

#include <string>

namespace bellows {

/// Gives a new file the owner, group and permissions of the file that it is to replace, where the system permits it.
/// Without such a file: those that the umask gives any new file.
void take_ownership(int fd, const std::string& replaced);

}  // namespace bellows
