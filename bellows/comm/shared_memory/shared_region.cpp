#include "bellows/comm/shared_memory/shared_region.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <filesystem>
#include <new>
#include <random>
#include <string>
#include <thread>

#include "bellows/core/round_up.h"

namespace bellows::comm {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr size_t cache_line = 64, page_bytes = 4096;
constexpr auto process_check_period = 50ms;  // how often a rank checks whether the processes of missing ranks still run

/// Sleeps until `word` differs from `value`, for at most about `process_check_period`.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec time{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(process_check_period).count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

/// Whether the process may create files of this size. Otherwise, a signal would end it (ulimit -f).
bool may_create(size_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes <= limit.rlim_cur;
}

/// The network of a process. Processes with different networks count as different machines.
std::string network_of(const std::string& pid) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + pid + "/ns/net", error).string();
}

std::string text_of(const RegionCall& call) {
  static const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
  return c10::str("#", call.number, " ", names[static_cast<size_t>(call.kind)], " ",
                  static_cast<c10::ScalarType>(call.type), "[", call.numel, "]");
}

}  // namespace

struct alignas(cache_line) SharedRegion::Slot {
  std::atomic<uint64_t> arrived = 0;
  std::atomic<uint32_t> closed = 0;
  int64_t pid = 0;
  int64_t start_ticks = 0;
  RegionCall calls[2];  ///< the last two; a rank may announce one more call while another still reads the last
};

struct alignas(cache_line) SharedRegion::Header {
  int64_t token = 0;
  std::atomic<uint32_t> bell = 0;      ///< changes with each arrival
  std::atomic<uint32_t> sleepers = 0;  ///< number of ranks that wait for `bell`
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "the ranks share these numbers");

}  // namespace

SharedRegion::SharedRegion(int rank, int size) : rank_(rank), size_(size), owner_(getpid()) {}

SharedRegion::Header& SharedRegion::header() const {
  return *std::launder(reinterpret_cast<Header*>(memory_));
}

SharedRegion::Slot& SharedRegion::slot(int rank) const {
  return *std::launder(reinterpret_cast<Slot*>(memory_ + sizeof(Header) + static_cast<size_t>(rank) * sizeof(Slot)));
}

size_t SharedRegion::offset(int rank, int64_t number) const {
  const size_t control = round_up(sizeof(Header) + static_cast<size_t>(size_) * sizeof(Slot), page_bytes);
  return control + (2 * static_cast<size_t>(rank) + static_cast<size_t>(number)) * buffer_bytes;
}

bool SharedRegion::map(int file) {
  struct stat status {};
  if (fstat(file, &status) != 0 || status.st_size != static_cast<off_t>(bytes())) return false;
  void* const memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return false;
  madvise(memory, bytes(), MADV_DONTFORK);
  memory_ = static_cast<std::byte*>(memory);
  return true;
}

std::unique_ptr<SharedRegion> SharedRegion::create(int size) {
  std::unique_ptr<SharedRegion> region(new SharedRegion(0, size));
  if (!may_create(region->bytes())) return nullptr;
  const int file = memfd_create("bellows", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  // Reserves the memory, because a write to memory that the system cannot provide would end the process.
  const bool mapped = fallocate(file, 0, 0, static_cast<off_t>(region->bytes())) == 0 && region->map(file);
  if (!mapped) {
    ::close(file);
    return nullptr;
  }
  region->address_ = {.pid = getpid(), .file = file, .token = static_cast<int64_t>(std::random_device()())};
  new (region->memory_) Header{.token = region->address_.token};
  for (int rank = 0; rank < size; ++rank) new (&region->slot(rank)) Slot;
  const Peer self = this_peer();
  region->slot(0).pid = self.pid;
  region->slot(0).start_ticks = self.start_ticks;
  return region;
}

std::unique_ptr<SharedRegion> SharedRegion::open(const RegionAddress& address, int rank, int size) {
  if (address.file < 0 || network_of(std::to_string(address.pid)) != network_of("self")) return nullptr;
  const std::string path = c10::str("/proc/", address.pid, "/fd/", address.file);
  // In another container, the same numbers belong to another file.
  std::error_code error;
  if (!std::filesystem::read_symlink(path, error).string().starts_with("/memfd:bellows")) return nullptr;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (file < 0) return nullptr;
  std::unique_ptr<SharedRegion> region(new SharedRegion(rank, size));
  const bool mapped = region->map(file);
  ::close(file);
  if (!mapped || region->header().token != address.token) return nullptr;
  const Peer self = this_peer();
  region->slot(rank).pid = self.pid;
  region->slot(rank).start_ticks = self.start_ticks;
  return region;
}

SharedRegion::~SharedRegion() {
  if (address_.file >= 0) ::close(static_cast<int>(address_.file));
  if (!memory_ || owner_ != getpid()) return;  // a child process does not have the memory
  close();
  munmap(memory_, bytes());
}

void SharedRegion::all_opened() {
  if (address_.file >= 0) ::close(static_cast<int>(address_.file));
  address_.file = -1;
  const std::string machine = this_peer().machine;
  for (int rank = 0; rank < size_; ++rank) {
    peers_.push_back({.host = "", .machine = machine, .pid = slot(rank).pid, .start_ticks = slot(rank).start_ticks});
  }
}

void SharedRegion::announce(const RegionCall& call) {
  slot(rank_).calls[++calls_ % 2] = call;
  announced_ = true;
}

bool SharedRegion::all_arrived() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (slot(rank).arrived.load() < arrived_) return false;
  }
  return true;
}

void SharedRegion::barrier(TimePoint end) {
  check_open();
  slot(rank_).arrived.store(++arrived_);
  header().bell.fetch_add(1);
  if (header().sleepers.load() > 0) wake_all(header().bell);
  try {
    wait_for_all(end);
    if (std::exchange(announced_, false)) check_calls();
  } catch (...) {
    close();
    throw;
  }
}

void SharedRegion::check_open() const {
  TORCH_CHECK(slot(rank_).closed.load() == 0, "this rank has closed the connection to the other ranks.");
}

void SharedRegion::wait_for_all(TimePoint end) {
  constexpr int spins = 200;  // about 10 µs, less than a thread needs to fall asleep and wake up
  for (int i = 0; i < spins; ++i) {
    if (all_arrived()) return;
    pause();
  }
  auto next_check = Clock::now() + process_check_period;
  header().sleepers.fetch_add(1);
  struct Awake {
    std::atomic<uint32_t>& sleepers;
    ~Awake() { sleepers.fetch_sub(1); }
  } const awake{header().sleepers};
  while (true) {
    const uint32_t bell = header().bell.load();
    if (all_arrived()) return;
    check_open();
    for (int rank = 0; rank < size_; ++rank) {
      // In this order: a rank can arrive and close the connection between the two reads.
      const bool closed = slot(rank).closed.load() != 0;
      TORCH_CHECK(!closed || slot(rank).arrived.load() >= arrived_, "rank ", rank,
                  " of the group has closed the connection.");
    }
    if (Clock::now() >= next_check) {
      check_missing();
      TORCH_CHECK(Clock::now() < end, "the other ranks did not answer in time.");
      next_check = Clock::now() + process_check_period;
    }
    sleep_while(header().bell, bell);
  }
}

void SharedRegion::check_missing() const {
  for (int rank = 0; rank < size_; ++rank) {
    const auto missing = [&] { return slot(rank).arrived.load() < arrived_; };
    const bool ended = missing() && look_up(peers_[rank]) == PeerState::ended && missing();
    TORCH_CHECK(!ended, "the process of rank ", rank, " of the group (pid ", peers_[rank].pid, ") has ended.");
  }
}

void SharedRegion::check_calls() const {
  const RegionCall& own = slot(rank_).calls[calls_ % 2];
  for (int rank = 0; rank < size_; ++rank) {
    const RegionCall& other = slot(rank).calls[calls_ % 2];
    TORCH_CHECK_VALUE(other == own, "the ranks called different collectives: ", text_of(own), " on rank ", rank_,
                      " of the group, but ", text_of(other), " on rank ", rank, ".");
  }
}

void SharedRegion::close() {
  if (owner_ != getpid()) return;
  slot(rank_).closed.store(1);
  header().bell.fetch_add(1);
  wake_all(header().bell);
}

}  // namespace bellows::comm
