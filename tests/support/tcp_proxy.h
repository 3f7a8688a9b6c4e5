#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace bellows::testing {

/// What a program on `node` begins a connection to a TcpProxy with.
struct ProxyRequest {
  static constexpr int32_t listen = 1;   ///< it listens at `port`; answered with one byte
  static constexpr int32_t connect = 2;  ///< it wants to reach `port`; what follows is for that
  int32_t kind = 0, node = 0, port = 0;
};

/// The network between programs of this machine that pretend to be on several: passes on what they send each other, at
/// the pace of a slow link, or not at all.
/// Threads: safe
class TcpProxy {
 public:
  TcpProxy();
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  /// Where programs say what they want: ProxyRequest.
  int port() const { return port_; }
  /// Where a program of `node` reaches `port`, on node 0, without saying anything.
  int gate(int node, int port);

  /// From now on, all links. Params: delay – one way; bytes_per_s – of each connection and direction
  void slow_down(std::chrono::milliseconds delay, double bytes_per_s);
  /// Nothing comes from or to this node any more, and nobody is told, until heal().
  void cut(int node);
  void heal(int node);

  int64_t passed_bytes() const { return passed_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Chunk {
    std::string bytes;
    Clock::time_point due;
  };
  /// What came from one end and is to go to the other.
  struct Direction {
    int from = -1, to = -1;
    std::deque<Chunk> chunks;
    Clock::time_point last_due;
    bool ended = false, told = false;
  };
  struct Connection {
    int nodes[2] = {0, 0};
    Direction directions[2];
  };
  struct Gate {
    int listener = -1, node = 0, port = 0;  ///< port 0: asks
  };

  void run();
  Clock::time_point wait_until(std::vector<pollfd>& events);
  void accept_from(const Gate& gate);
  void answer(int fd);
  void connect(int fd, int from_node, int to_node, int port);
  bool is_cut(const Connection& connection) const;
  bool pass(Connection& connection);
  bool take(Direction& direction);
  bool give(Direction& direction);

  std::mutex mutex_;
  std::vector<Gate> gates_;
  std::list<Connection> connections_;
  std::map<int, int> node_of_port_;
  std::set<int> cut_;
  std::chrono::milliseconds delay_{0};
  double bytes_per_s_ = 0;
  std::atomic<int64_t> passed_{0};
  std::atomic<bool> ending_{false};
  int port_ = 0;
  std::thread thread_;
};

}  // namespace bellows::testing
