#include "bellows/compile/jit/kernel_compiler.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/io/bytes.h"
#include "bellows/io/hash.h"
#include "bellows/system/file.h"
#include "bellows/system/pipe.h"
#include "bellows/system/trusted_folder.h"

extern char** environ;

namespace bellows::compile_detail {
namespace {

namespace fs = std::filesystem;

/// No contraction: it makes x * x - y * y of equal numbers negative, and kernels of norms and GELU at most 3 % faster.
/// The polynomials call fma explicitly. No flags that would lose infinities, NaNs or the order of a row's parts: loops
/// state by `omp simd` where a sum may be split into parts.
constexpr std::array compiler_flags = {"-std=c++20",
                                       "-O3",
                                       "-march=native",
                                       "-fopenmp-simd",
                                       "-ffp-contract=off",
                                       "-fno-math-errno",
                                       "-fno-trapping-math",
#ifdef __x86_64__
                                       "-mprefer-vector-width=512",  // 1.6× faster than 256 on Ice Lake
#endif
                                       "-fPIC",
                                       "-shared",
                                       "-nostdlib",
                                       "-w"};

/// $TMPDIR and similar variables, or /tmp if they name no folder, or a folder in which other users can replace files.
fs::path temporary_folder() {
  std::error_code none;
  const fs::path chosen = fs::temp_directory_path(none);
  return none || !distrust_of(chosen).empty() ? fs::path("/tmp") : chosen;
}

/// A folder that only this process uses. It is removed with this object.
class PrivateFolder {
 public:
  PrivateFolder() {
    const fs::path parent = temporary_folder();
    path_ = (parent / (std::string(name_start) + "XXXXXX")).string();
    TORCH_CHECK(::mkdtemp(path_.data()), "compile: cannot create a folder in ", parent.string(), ": ",
                errno_message(errno), ". Set TMPDIR to a folder that you can write to.");
  }
  ~PrivateFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  std::string operator/(const char* name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  /// Removes folders of killed processes. No compiler runs for an hour.
  static void remove_old() {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(temporary_folder(), error)) {
      struct stat status {};
      const bool ours = entry.path().filename().string().starts_with(name_start) &&
                        ::lstat(entry.path().c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                        status.st_uid == ::geteuid();
      if (ours && ::time(nullptr) - status.st_mtim.tv_sec > 3600) fs::remove_all(entry.path(), error);
    }
  }

 private:
  static constexpr std::string_view name_start = "bellows-kernel-";
  std::string path_;
};

/// Runs "$@" with its temporary files in $1. The pipe on descriptor 3 closes when the process that created it ends for
/// any reason. Then all processes started here are killed, including the compiler's child processes.
constexpr const char* guarded_program = R"(export TMPDIR="$1"; shift
"$@" 3<&- & program=$!
{ read -r _ <&3; rm -rf "$TMPDIR"; kill -KILL 0; } & guard=$!
wait $program; status=$?
kill -KILL $guard; wait $guard 2>/dev/null
exit $status)";

/// Waits for a child process that leads a process group. Returns -1 if it was stopped or took too long.
int wait_for(pid_t child, const std::stop_token& stop, int timeout_s) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  for (int status = 0;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) return errno == ECHILD ? 0 : -1;  // if SIGCHLD is ignored, there is no status
    if (stop.stop_requested() || std::chrono::steady_clock::now() > last) {
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

constexpr const char* no_process = "compile: cannot start the compiler: ";
constexpr const char* more_processes = ". Raise the limit of processes (ulimit -u), or end other programs.";

/// Starts /bin/sh with default signal handling as leader of a process group. Returns its process id.
/// Throws: c10::Error if the system cannot start a process
pid_t start_shell(std::vector<std::string> words, const std::string& output, const Pipe& alive) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, alive.read_end(), 3);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/bin/sh", &files, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  TORCH_CHECK(error == 0, no_process, errno_message(error), more_processes);
  return child;
}

std::string read_if_there(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string first_lines(const std::string& text, int count) {
  size_t end = 0;
  while (count-- > 0 && end < text.size()) end = std::min(text.find('\n', end), text.size() - 1) + 1;
  return text.substr(0, end);
}

/// Runs a program and redirects its output to a file. Returns its status as waitpid() does, or -1 if it was stopped or
/// took too long.
/// Params: folder – for temporary files; removed even if this process is killed
int run_program(const std::vector<std::string>& words, const PrivateFolder& folder, const std::string& output,
                const std::stop_token& stop, int timeout_s) {
  const Pipe alive("compile");
  std::vector<std::string> all{"sh", "-c", guarded_program, "sh", folder.path()};
  all.insert(all.end(), words.begin(), words.end());
  const int status = wait_for(start_shell(std::move(all), output, alive), stop, timeout_s);
  if (status != 0) {
    const std::string said = first_lines(read_if_there(output), 1);  // of the shell, which starts two processes
    TORCH_CHECK(said.find("annot fork") == said.npos, no_process, said, more_processes);
  }
  return status;
}

/// Equal text means equal code.
std::string this_processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string result;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    for (const std::string_view word : {"model name", "flags", "cpu family", "model\t", "Features", "CPU part"}) {
      if (line.starts_with(word)) result += line + "\n";
    }
  }
  return result;
}

std::string version_of(const std::string& program, int timeout_s) {
  const PrivateFolder folder;
  const std::string output = folder / "version";
  const int status = run_program({program, "--version"}, folder, output, {}, timeout_s);
  return status == 0 ? first_lines(read_if_there(output), 1) : "";
}

}  // namespace

std::optional<KernelCompiler> KernelCompiler::find(int timeout_s) {
  PrivateFolder::remove_old();
  const char* const chosen = std::getenv("BELLOWS_CXX");
  std::vector<std::string> candidates{"g++", "c++", "clang++"};
  if (chosen && *chosen) candidates = {chosen};
  for (const std::string& candidate : candidates) {
    const std::string version = version_of(candidate, timeout_s);
    if (version.empty()) continue;
    std::string identity = version;
    for (const char* flag : compiler_flags) identity += std::string(flag) + " ";
    const std::string here = this_processor();
    return KernelCompiler{.path = candidate, .identity = identity + "\n" + here, .processor = here};
  }
  TORCH_CHECK(!chosen || !*chosen, "compile: BELLOWS_CXX is \"", chosen, "\", which does not answer --version within ",
              timeout_s, " s. Set it to the name or path of a C++ compiler without arguments, or unset it.");
  return std::nullopt;
}

std::string processor_digest() {
  return io::hash_hex("xxh3_128", io::as_bytes(this_processor()));
}

bool can_run_target(KernelCompiler::Target target) {
#ifdef __x86_64__
  return target == KernelCompiler::Target::x86_64_v3 && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
  return static_cast<void>(target), false;
#endif
}

std::string KernelCompiler::compile(const std::string& source, const std::stop_token& stop, Target target) const {
  const PrivateFolder folder;
  const std::string text = folder / "kernel.cpp", library = folder / "kernel.so", said = folder / "said";
  write_text_file(text, source);
  std::vector<std::string> words{path};
  words.insert(words.end(), compiler_flags.begin(), compiler_flags.end());
  if (target == Target::x86_64_v3)
    std::replace(words.begin(), words.end(), std::string("-march=native"), std::string("-march=x86-64-v3"));
  words.insert(words.end(), {"-o", library, text, "-lm"});
  const int status = run_program(words, folder, said, stop, timeout_s);
  TORCH_CHECK(!stop.stop_requested(), "compile: stopped while a kernel was compiled.");
  TORCH_CHECK(status != -1, "compile: ", path, " needed more than ", timeout_s, " s to compile a kernel.");
  std::string result = read_if_there(library);
  TORCH_CHECK(status == 0 && !result.empty(), "compile: ", path, " cannot compile a generated kernel:\n",
              first_lines(read_if_there(said), 8));
  return result;
}

}  // namespace bellows::compile_detail
