#pragma once

#include <string>

#include <sys/stat.h>

namespace bellows::compile_detail {

/// Whether only this user and root can change a file: it is theirs, and its mode lets neither group nor others write.
bool is_trusted(const struct stat& status);

/// What lets other users replace files of a folder, or the folder itself: its owner, its mode, and those of its parents up to one that only
/// this user can change, or a sticky one (/tmp). Symbolic links are followed first.
/// Returns: with the command that mends it; "": nothing
std::string distrust_of(const std::string& folder);

/// Makes a folder of mode 0700, with missing parents alike. One of this user that others may write to gets that mode, too.
/// Throws: c10::Error – the system's refusal; what distrust_of() says
void make_trusted_folder(const std::string& folder);

}  // namespace bellows::compile_detail
