#include "bellows/system/call_site.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/system/file.h"

namespace bellows {

namespace {

/// The functions of one ELF file by address, from its full symbol table. dladdr() reads only the dynamic symbol table,
/// which lacks the static functions of a program.
class SymbolTable {
 public:
  explicit SymbolTable(const std::string& path) {
    try {
      file_ = std::make_unique<MappedFile>(path);
      if (!load()) functions_.clear();
    } catch (const std::exception&) {
      // Unreadable (the vDSO, a deleted program): only the address is available.
    }
  }

  /// Params: address – relative to the load address of the file. Returns the mangled name, or null.
  const char* find(uint64_t address) const {
    auto next = std::upper_bound(functions_.begin(), functions_.end(), address,
                                 [](uint64_t value, const Function& function) { return value < function.start; });
    if (next == functions_.begin()) return nullptr;
    --next;
    return address < next->start + std::max<uint64_t>(next->size, 1) ? next->name : nullptr;
  }

 private:
  struct Function {
    uint64_t start, size;
    const char* name;
  };

  template <class T>
  const T* at(uint64_t offset, uint64_t count = 1) const {
    const auto bytes = file_->bytes();
    const bool fits =
        offset <= bytes.size() && count <= (bytes.size() - offset) / sizeof(T) && offset % alignof(T) == 0;
    return fits ? reinterpret_cast<const T*>(bytes.data() + offset) : nullptr;
  }

  bool load() {
    const auto* header = at<Elf64_Ehdr>(0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
      return false;
    const auto* sections = at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
    if (!sections) return false;
    for (int i = 0; i < header->e_shnum; ++i) {
      const Elf64_Shdr& section = sections[i];
      if (section.sh_type != SHT_SYMTAB || section.sh_link >= header->e_shnum) continue;
      const Elf64_Shdr& names = sections[section.sh_link];
      const uint64_t count = section.sh_size / sizeof(Elf64_Sym);
      const auto* symbols = at<Elf64_Sym>(section.sh_offset, count);
      const char* text = at<char>(names.sh_offset, names.sh_size);
      if (!symbols || !text || names.sh_size == 0 || text[names.sh_size - 1] != '\0') return false;
      for (uint64_t s = 0; s < count; ++s) {
        if (ELF64_ST_TYPE(symbols[s].st_info) != STT_FUNC || symbols[s].st_value == 0) continue;
        if (symbols[s].st_name < names.sh_size)
          functions_.push_back({symbols[s].st_value, symbols[s].st_size, text + symbols[s].st_name});
      }
    }
    std::sort(functions_.begin(), functions_.end(),
              [](const Function& a, const Function& b) { return a.start < b.start; });
    return true;
  }

  std::unique_ptr<MappedFile> file_;
  std::vector<Function> functions_;
};

struct ResolvedFrame {
  bool libtorch = false;  ///< code in one of libtorch's libraries
  bool skipped = false;   ///< not user code, but libtorch's, Bellows' or the standard library's
  std::string text;
};

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_runtime_library(std::string_view file) {
  for (std::string_view name : {"libstdc++", "libc.so", "libm.so", "libgomp", "libpthread", "ld-linux", "libcuda",
                                "libc++", "libasan", "libtsan", "libubsan"}) {
    if (file.starts_with(name)) return true;
  }
  return false;
}

/// Detects functions that the user's program instantiates from templates of libtorch, Bellows and the standard library.
bool is_foreign_symbol(std::string_view name) {
  if (!name.starts_with("_Z")) return name == "_start" || name.starts_with("__libc");
  name.remove_prefix(2);
  while (!name.empty() && (name[0] == 'N' || name[0] == 'K' || name[0] == 'Z' || name[0] == 'L')) name.remove_prefix(1);
  for (std::string_view prefix : {"2at", "3c10", "5torch", "St", "Ss", "9__gnu_cxx", "7bellows"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

std::string demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

class FrameResolver {
 public:
  const ResolvedFrame& resolve(void* address) BELLOWS_REQUIRES(mutex) {
    const auto [found, is_new] = frames_.try_emplace(address);
    if (is_new) found->second = look_up(address);
    return found->second;
  }
  Mutex mutex;

 private:
  ResolvedFrame look_up(void* address) BELLOWS_REQUIRES(mutex) {
    Dl_info info{};
    if (!dladdr(address, &info) || !info.dli_fname) return {false, false, "(unknown code)"};
    const std::string path = info.dli_fname;
    const std::string_view file = file_name(path);
    if (file.starts_with("libtorch") || file.starts_with("libc10")) return {true, true, ""};
    if (is_runtime_library(file)) return {false, true, ""};
    // A return address points after its call, possibly into the next function.
    const uint64_t offset = static_cast<char*>(address) - static_cast<char*>(info.dli_fbase) - 1;
    auto& table = tables_[path];
    if (!table) table = std::make_unique<SymbolTable>(path.find('/') == std::string::npos ? "/proc/self/exe" : path);
    const char* name = table->find(offset);
    if (!name) name = info.dli_sname;
    char place[32];
    std::snprintf(place, sizeof place, "+0x%llx", static_cast<unsigned long long>(offset));
    const std::string where = std::string(file) + place;
    return {false, name && is_foreign_symbol(name), name ? demangled(name) + " (" + where + ")" : where};
  }

  std::unordered_map<void*, ResolvedFrame> frames_ BELLOWS_GUARDED_BY(mutex);
  std::map<std::string, std::unique_ptr<SymbolTable>> tables_ BELLOWS_GUARDED_BY(mutex);
};

}  // namespace

std::string call_site() {
  static FrameResolver& resolver = *new FrameResolver;
  std::array<void*, 96> addresses;
  const int count = ::backtrace(addresses.data(), static_cast<int>(addresses.size()));
  MutexLock lock(resolver.mutex);
  // Without symbols, frames of Bellows look like user code. All of them are deeper than libtorch's, which called
  //   them.
  int first = 0;
  for (int i = count - 1; i >= 0; --i) {
    if (resolver.resolve(addresses[i]).libtorch) first = i;
  }
  for (int i = first; i < count; ++i) {
    const ResolvedFrame& frame = resolver.resolve(addresses[i]);
    if (!frame.skipped) return frame.text;
  }
  return "";
}

}  // namespace bellows
