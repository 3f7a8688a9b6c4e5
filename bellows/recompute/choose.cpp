#include "bellows/recompute/choose.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace bellows::recompute::detail {

namespace {

/// The state of one region during the choice.
class ChosenRegion {
 public:
  explicit ChosenRegion(const RegionTrace& trace)
      : kept(trace.wanted()), trace_(trace), difference_(kept.size()), seconds_(trace.seconds_again(kept)) {
    const auto count = static_cast<size_t>(std::count(kept.begin(), kept.end(), 1));
    patience_ = 1 + count / 64;
    for (const size_t i : c10::irange(kept.size())) bytes += kept[i] ? trace.bytes(i) : 0;
    weigh_kept();
  }

  /// Finds the kept storage that saves the least time per byte, counting at most `too_many` bytes.
  double cheapest(int64_t too_many, size_t& storage) const {
    double best = std::numeric_limits<double>::infinity();
    for (const size_t i : c10::irange(kept.size())) {
      if (!kept[i] || trace_.bytes(i) == 0) continue;
      const double cost = difference_[i] / static_cast<double>(std::min(trace_.bytes(i), too_many));
      if (cost < best) best = cost, storage = i;
    }
    return best;
  }

  void give_up(size_t storage) {
    kept[storage] = 0;
    bytes -= trace_.bytes(storage);
    if (++since_weighed_ >= patience_) weigh_kept();
  }

  /// Drops kept storages that save no time.
  void drop_useless() {
    weigh_kept();
    for (const size_t i : c10::irange(kept.size())) {
      if (!kept[i]) continue;
      kept[i] = 0;
      if (trace_.seconds_again(kept) > seconds_) {
        kept[i] = 1;
      } else {
        bytes -= trace_.bytes(i);
      }
    }
    weigh_others();
  }

  /// Finds the storage of at most `room` bytes that saves the most time per byte.
  double dearest(int64_t room, size_t& storage) const {
    double best = 0;
    for (const size_t i : c10::irange(kept.size())) {
      if (kept[i] || trace_.bytes(i) > room || !trace_.keepable(i)) continue;
      const double worth = difference_[i] / static_cast<double>(std::max<int64_t>(trace_.bytes(i), 1));
      if (worth > best) best = worth, storage = i;
    }
    return best;
  }

  void take(size_t storage) {
    kept[storage] = 1;
    bytes += trace_.bytes(storage);
    seconds_ = trace_.seconds_again(kept);
    if (++since_weighed_ >= patience_) weigh_others();
  }

  std::vector<char> kept;
  int64_t bytes = 0;

 private:
  void weigh_kept() { weigh(1); }
  void weigh_others() { weigh(0); }

  /// Computes how much the time changes if a storage is dropped (side 1) or kept (side 0).
  void weigh(char side) {
    seconds_ = trace_.seconds_again(kept);
    for (const size_t i : c10::irange(kept.size())) {
      if (kept[i] != side || !trace_.keepable(i)) continue;
      kept[i] ^= 1;
      difference_[i] = std::abs(trace_.seconds_again(kept) - seconds_);
      kept[i] ^= 1;
    }
    since_weighed_ = 0;
  }

  const RegionTrace& trace_;
  std::vector<double> difference_;
  double seconds_;
  size_t patience_ = 1, since_weighed_ = 0;  ///< changes of a large region until all storages are weighed again
};

/// Calls change(region, storage) for the best change of all regions. best(region, storage) returns a score, or minus
/// infinity.
template <class Best, class Change>
bool change_best(std::vector<ChosenRegion>& regions, int64_t& room, const Best& best, const Change& change) {
  ChosenRegion* where = nullptr;
  size_t what = 0;
  for (double most = -std::numeric_limits<double>::infinity(); ChosenRegion & region : regions) {
    size_t storage = 0;
    if (const double good = best(region, storage); good > most) most = good, where = &region, what = storage;
  }
  if (!where) return false;
  room += where->bytes;
  change(*where, what);
  room -= where->bytes;
  return true;
}

}  // namespace

std::vector<std::vector<char>> choose(const std::vector<const RegionTrace*>& traces, int64_t room) {
  std::vector<ChosenRegion> regions;
  regions.reserve(traces.size());
  for (const RegionTrace* trace : traces) {
    regions.emplace_back(*trace);
    room -= regions.back().bytes;
  }
  const auto cheap = [&](const ChosenRegion& region, size_t& storage) { return -region.cheapest(-room, storage); };
  const auto give_up = [](ChosenRegion& region, size_t storage) { region.give_up(storage); };
  while (room < 0 && change_best(regions, room, cheap, give_up)) {
  }
  for (ChosenRegion& region : regions) {
    room += region.bytes;
    region.drop_useless();
    room -= region.bytes;
  }
  const auto dear = [&](const ChosenRegion& region, size_t& storage) {
    const double worth = region.dearest(room, storage);
    return worth > 0 ? worth : -std::numeric_limits<double>::infinity();
  };
  const auto take = [](ChosenRegion& region, size_t storage) { region.take(storage); };
  while (change_best(regions, room, dear, take)) {
  }
  std::vector<std::vector<char>> result;
  result.reserve(regions.size());
  for (ChosenRegion& region : regions) result.push_back(std::move(region.kept));
  return result;
}

}  // namespace bellows::recompute::detail
