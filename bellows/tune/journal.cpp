#include "bellows/tune/journal.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/io/bytes.h"
#include "bellows/io/crc32.h"
#include "bellows/system/file.h"

namespace bellows::tune {

namespace {

constexpr std::string_view line_begin = "{\"crc32\":\"", line_middle = "\",\"entry\":", line_end = "}\n";
constexpr size_t digits = 8;

std::string line_of(std::string_view entry) {
  std::string line(line_begin);
  return line.append(io::crc32_text(io::crc32(io::as_bytes(entry)))).append(line_middle).append(entry).append(line_end);
}

/// Returns the entry of a complete line, or an empty text if the line is damaged.
std::string entry_of(std::string_view line) {
  const size_t frame = line_begin.size() + digits + line_middle.size();
  if (line.size() <= frame + line_end.size()) return "";
  std::string entry(line.substr(frame, line.size() - frame - line_end.size()));
  return line_of(entry) == line ? entry : "";
}

}  // namespace

Journal::Journal(std::string path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  TORCH_CHECK(fd_ >= 0, "tune: cannot open ", path_, ": ", errno_message(errno), ". Choose another folder.");
  try {
    read();
  } catch (...) {
    ::close(fd_);  // the destructor does not run
    throw;
  }
}

Journal::~Journal() {
  ::close(fd_);
}

void Journal::read() {
  const std::string text = read_text_file(path_);
  std::string_view rest = text;
  for (size_t end = 0; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1)) {
    entries_.push_back(entry_of(rest.substr(0, end + 1)));
    TORCH_CHECK_VALUE(!entries_.back().empty(), "tune: ", path_, ", line ", entries_.size(),
                      ": the line is damaged, because its checksum does not match. Restore the file from a copy, or "
                      "delete this line and all lines after it.");
  }
  size_ = text.size() - rest.size();
  if (rest.empty()) return;
  const size_t known = std::min(rest.size(), line_begin.size());
  TORCH_CHECK_VALUE(rest.substr(0, known) == line_begin.substr(0, known), "tune: ", path_,
                    ": the last line is not an entry of a search. Choose another folder.");
  if (std::string entry = entry_of(std::string(rest) + "\n"); !entry.empty()) {  // an editor removed the line break
    TORCH_CHECK(::write(fd_, "\n", 1) == 1, "tune: cannot repair ", path_, ": ", errno_message(errno), ".");
    entries_.push_back(std::move(entry));
    size_ = text.size() + 1;
    return;
  }
  log_warn("tune: ", path_,
           ": the last line is incomplete, because the search was killed while it wrote the line. "
           "The line was removed.");
  TORCH_CHECK(::ftruncate(fd_, static_cast<off_t>(size_)) == 0, "tune: cannot repair ", path_, ": ",
              errno_message(errno), ".");
}

void Journal::append(std::string_view entry, bool durable) {
  const std::string line = line_of(entry);
  const ssize_t written = ::write(fd_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    const int reason = written < 0 ? errno : ENOSPC;
    if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0) log_debug("tune: cannot truncate ", path_, ".");
    TORCH_CHECK(false, "tune: cannot write ", path_, ": ", errno_message(reason),
                ". The finished trials are safe. Free disk space, and resume the search.");
  }
  size_ += line.size();
  TORCH_CHECK(!durable || ::fdatasync(fd_) == 0, "tune: cannot write ", path_, " to disk: ", errno_message(errno), ".");
}

}  // namespace bellows::tune
