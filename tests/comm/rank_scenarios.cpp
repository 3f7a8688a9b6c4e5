#include "rank_scenarios.h"

#include <ATen/ATen.h>

#include "bellows/comm/collectives.h"
#include "bellows/comm/failure_notice.h"
#include "bellows/comm/mesh.h"
#include "bellows/comm/point_to_point.h"
#include "bellows/comm/world.h"
#include "bellows/core/error.h"

namespace bellows::comm::testing {

namespace {

#define EXPECT(...) TORCH_CHECK(__VA_ARGS__, "rank ", rank, ": expected " #__VA_ARGS__)

/// What each rank brings; every rank can compute it for all.
at::Tensor part_of(int rank, at::IntArrayRef shape, at::ScalarType type) {
  const at::Tensor numbers = at::arange(1, c10::multiply_integers(shape) + 1, at::kDouble).view(shape);
  return (numbers.remainder(7) + rank + 1).to(type);
}

std::vector<at::Tensor> all_parts(int size, at::IntArrayRef shape, at::ScalarType type) {
  std::vector<at::Tensor> parts;
  parts.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) parts.push_back(part_of(rank, shape, type));
  return parts;
}

at::Tensor reduced(Reduce op, const std::vector<at::Tensor>& parts) {
  const at::Tensor all = at::stack(parts);
  switch (op) {
    case Reduce::sum:
      return all.sum(0, false, all.scalar_type());
    case Reduce::mean:
      return all.mean(0);
    case Reduce::product:
      return all.prod(0, false, all.scalar_type());
    case Reduce::min:
      return all.amin(0);
    default:
      return all.amax(0);
  }
}

/// Small whole numbers: exact in every dtype, in whatever order they are added.
void check_type(const Group& group, at::ScalarType type) {
  const int rank = group.rank(), size = group.size();
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1}, {15}, {17, 3}, {0, 4}, {}}) {
    const auto parts = all_parts(size, shape, type);
    for (const Reduce op : {Reduce::sum, Reduce::mean, Reduce::product, Reduce::min, Reduce::max}) {
      if (op == Reduce::mean && !at::isFloatingType(type)) continue;
      if (op == Reduce::product && at::isReducedFloatingType(type)) continue;  // rounds, in another order
      const at::Tensor expected = reduced(op, parts);
      EXPECT(all_reduce(parts[rank].clone(), group, op).equal(expected));
    }
    for (int root = 0; root < size; ++root) EXPECT(broadcast(parts[rank].clone(), root, group).equal(parts[root]));
    EXPECT(all_gather(parts[rank], group).equal(at::stack(parts)));
  }
  std::vector<at::Tensor> own_parts;
  own_parts.reserve(static_cast<size_t>(size));
  for (const at::Tensor& part : all_parts(size, {size, 5}, type)) own_parts.push_back(part[rank]);
  EXPECT(all_to_all(part_of(rank, {size, 5}, type), group).equal(at::stack(own_parts)));
  const auto parts = all_parts(size, {size * 3, 5}, type);
  for (const Reduce op : {Reduce::sum, Reduce::max}) {
    EXPECT(reduce_scatter(parts[rank], group, op).equal(reduced(op, parts).slice(0, 3 * rank, 3 * rank + 3)));
  }
}

void check_layouts(const Group& group) {
  const int rank = group.rank();
  const auto parts = all_parts(group.size(), {6, 4}, at::kFloat);
  at::Tensor wide = at::zeros({6, 8}), narrow = wide.slice(1, 0, 8, 2);
  narrow.copy_(parts[rank]);
  EXPECT(all_reduce(narrow, group).equal(reduced(Reduce::sum, parts)));
  EXPECT(wide.slice(1, 1, 8, 2).eq(0).all().item<bool>());
  EXPECT(all_gather(parts[rank].t(), group).equal(at::stack(parts).transpose(1, 2)));
  at::Tensor turned = parts[rank].t().clone(at::MemoryFormat::Contiguous).t();
  EXPECT(broadcast(turned, 0, group).equal(parts[0]));
}

void check_async(const Group& group) {
  const int rank = group.rank();
  std::vector<Pending> pending;
  pending.reserve(5);
  for (int i = 0; i < 5; ++i)
    pending.push_back(all_reduce_async(at::full({1000}, rank + i, at::kDouble), group, Reduce::mean));
  Pending gathered = all_gather_async(at::full({2}, rank), group);
  for (int i = 0; i < 5; ++i) EXPECT(pending[i].wait().eq((group.size() - 1) / 2.0 + i).all().item<bool>());
  EXPECT(gathered.wait().select(1, 0).equal(at::arange(group.size()).to(gathered.wait().scalar_type())));
}

void check_strings(const Group& group) {
  const int rank = group.rank(), size = group.size();
  const auto word = [](int of) { return std::string(static_cast<size_t>(of * 3), static_cast<char>(of)); };
  for (int root = 0; root < size; ++root) EXPECT(broadcast_string(word(rank), root, group) == word(root));
  const auto words = all_gather_strings(word(rank), group);
  EXPECT(static_cast<int>(words.size()) == size);
  for (int of = 0; of < size; ++of) EXPECT(words[of] == word(of));
}

void expect_error(int rank, const std::string& part, const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    TORCH_CHECK(user_message(error).find(part) != std::string::npos, "rank ", rank, ": expected \"", part,
                "\" in: ", user_message(error));
    return;
  }
  TORCH_CHECK(false, "rank ", rank, ": expected an error with \"", part, "\", got none");
}

void check_errors(const World& world) {
  const int rank = world.rank();
  expect_error(rank, "expected a tensor", [&] { all_reduce({}, world); });
  expect_error(rank, "mean needs floating-point", [&] { all_reduce(at::ones({2}, at::kLong), world, Reduce::mean); });
  expect_error(rank, "got root", [&] { broadcast(at::ones({2}), world.size(), world); });
  expect_error(rank, "subgroup odd[", [&] { world.subgroup({0, world.size()}, "odd"); });
  expect_error(rank, "ascending order", [&] { world.subgroup({1, 0}, "odd"); });
  if (world.size() == 1) return;
  expect_error(rank, "multiple of the", [&] { reduce_scatter(at::ones({world.size() + 1}), world); });
  expect_error(rank, "no backend", [&] { all_reduce(at::empty({2}, at::TensorOptions(at::kMeta)), world); });
}

}  // namespace

void collectives(const std::vector<std::string>&) {
  const World world = init();
  const int rank = world.rank();
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte, at::kChar}) {
    check_type(world, type);
  }
  check_layouts(world);
  check_async(world);
  check_strings(world);
  check_errors(world);
  barrier(world);
  EXPECT(world.device().is_cpu());
}

void mesh(const std::vector<std::string>&) {
  const World world = init();
  const int rank = world.rank();
  const Mesh mesh(world, {{"data", 2}, {"tensor", world.size() / 2}});
  const int tensor_size = world.size() / 2;
  EXPECT(mesh.coordinate("data") == rank / tensor_size && mesh.coordinate("tensor") == rank % tensor_size);
  EXPECT(mesh.group("tensor").size() == tensor_size && mesh.group("data").size() == 2);
  // Both axes one after the other reach all.
  at::Tensor sum = at::full({3}, rank, at::kLong);
  all_reduce(sum, mesh.group("tensor"));
  int64_t row = 0;
  for (const int of : mesh.group("tensor").ranks()) row += of;
  EXPECT(sum.eq(row).all().item<bool>());
  all_reduce(sum, mesh.group("data"));
  EXPECT(sum.eq(world.size() * (world.size() - 1) / 2).all().item<bool>());
  const Mesh again(world, {{"data", 2}, {"tensor", tensor_size}});  // groups of its own
  EXPECT(all_gather_strings(std::to_string(rank), again.group("data")).size() == 2u);
  expect_error(rank, "data 1 × tensor 1 is for 1 ranks", [&] { Mesh(world, {{"data", 1}, {"tensor", 1}}); });
  expect_error(rank, c10::str("Mesh: rank 1 has data ", world.size(), " × tensor 1, and rank 0 has data 1 × tensor "),
               [&] {
                 Mesh(world, {{"data", rank == 1 ? world.size() : 1}, {"tensor", rank == 1 ? 1 : world.size()}});
               });
  expect_error(rank, "needs more than ", [&] { Mesh(world, {{"data", world.size() + 1}}); });
  expect_error(rank, "listed twice", [&] { Mesh(world, {{"a", 2}, {"a", 2}}); });
  expect_error(rank, "Did you mean \"tensor\"?", [&] { mesh.group("tenser"); });
}

namespace {

/// Each rank sends to all others at once, in both directions, and receives in another order than it sends.
void check_transfers_of_all(const Group& group) {
  const int rank = group.rank(), size = group.size();
  std::vector<Pending> sends;
  for (const int tag : {0, 3}) {
    for (int to = 0; to < size; ++to) {
      if (to == rank) continue;
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16})
        sends.push_back(send_async(part_of(rank * size + to + tag, {5, 3}, type).t(), to, group, tag));
    }
  }
  for (const int tag : {3, 0}) {
    for (int from = size - 1; from >= 0; --from) {
      if (from == rank) continue;
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16}) {
        at::Tensor wide = at::zeros({3, 10}, at::TensorOptions(type));
        receive(wide.slice(1, 0, 10, 2), from, group, tag);
        EXPECT(wide.slice(1, 0, 10, 2).equal(part_of(from * size + rank + tag, {5, 3}, type).t()));
        EXPECT(wide.slice(1, 1, 10, 2).eq(0).all().item<bool>());
      }
    }
  }
  for (Pending& pending : sends) pending.wait();
}

/// A token passes through all ranks, with blocking calls.
void check_ring(const Group& group) {
  const int rank = group.rank(), size = group.size();
  at::Tensor token = at::zeros({1}, at::kLong);
  if (rank > 0) receive(token, rank - 1, group);
  token += rank + 1;
  send(token, (rank + 1) % size, group);
  if (rank == 0) EXPECT(receive(token, size - 1, group).item<int64_t>() == size * (size + 1) / 2);
}

}  // namespace

void transfers(const std::vector<std::string>&) {
  const World world = init();
  const int rank = world.rank(), size = world.size();
  if (size > 1) {
    check_transfers_of_all(world);
    check_ring(world);
    const auto counts = traffic(world);
    EXPECT(counts.at("send").calls == 8 * (size - 1) + 1 && counts.at("receive").calls == counts.at("send").calls);
    EXPECT(counts.at("receive").bytes == counts.at("send").bytes);
    EXPECT(send(at::zeros({0, 4}), (rank + 1) % size, world).numel() == 0);  // no other rank needs to receive it
  }
  expect_error(rank, "send: got rank " + std::to_string(rank), [&] { send(at::ones({2}), rank, world); });
  expect_error(rank, "expected another rank of group world", [&] { receive(at::ones({2}), size, world); });
  expect_error(rank, "receive: expected a tensor", [&] { receive({}, (rank + 1) % size, world); });
  EXPECT(!announced_failure(world));
  if (size == 1) return;
  expect_error(rank, "tag must be at least 0, got -1", [&] { send(at::ones({2}), (rank + 1) % size, world, -1); });
  barrier(world);
  if (rank == 1) EXPECT(announce_failure(world, "first") == "first");
  barrier(world);
  EXPECT(announce_failure(world, "second") == "first" && announced_failure(world) == "first");
}

}  // namespace bellows::comm::testing
