#pragma once

#include <string>

namespace bellows {

/// Gives a new file the owner, group and permissions of the file that it replaces, as far as the system permits. If
/// there is no such file, the umask determines the permissions.
void take_ownership(int fd, const std::string& replaced);

}  // namespace bellows
