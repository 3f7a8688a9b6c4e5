#pragma once

#include <string>

#include <sys/stat.h>

namespace bellows {

/// Whether only this user and root can change a file: it is theirs, and its mode lets neither group nor others write.
bool is_trusted(const struct stat& status);

/// What lets other users replace files of a folder, or the folder itself: its owner, its mode, and those of its parents up to one that only
/// this user can change, or a sticky one (/tmp). Symbolic links are followed first.
/// Returns: with the command that mends it; "": nothing
std::string distrust_of(const std::string& folder);

/// Makes a folder of mode 0700, with missing parents alike, whatever the umask is. One that exists stays as it is.
/// Throws: c10::Error – the system's refusal
void make_private_folder(const std::string& folder);

/// The same for a folder that has to be trusted afterwards. One of this user that others may write to gets the mode 0700, too.
/// Throws: c10::Error – the system's refusal; what distrust_of() says
void make_trusted_folder(const std::string& folder);

}  // namespace bellows
