#include "tests/support/network.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "bellows/comm/rendezvous/store.h"
#include "tests/support/tcp_proxy.h"

namespace bellows::testing {

namespace {

using namespace std::chrono_literals;

class ProxyNetwork final : public Network {
 public:
  explicit ProxyNetwork(int nodes) : store_port_(comm::Store::serve("127.0.0.1", 0).port()) {
    for (int node = 0; node < nodes; ++node) ports_.push_back(node == 0 ? store_port_ : proxy_.gate(node, store_port_));
  }
  ~ProxyNetwork() override { EXPECT_GT(proxy_.passed_bytes(), 0) << "nothing went through the proxy"; }

  void slow_down() override { proxy_.slow_down(5ms, 1e6); }
  void cut(int node) override { proxy_.cut(node); }
  void heal(int node) override { proxy_.heal(node); }

 protected:
  std::string rendezvous(int node) const override {
    return "127.0.0.1:" + std::to_string(ports_[static_cast<size_t>(node)]);
  }
  std::vector<std::string> environment(int node) const override {
    // The nodes are processes of one machine, but must not share memory.
    return {"TEST_PROXY=" + std::to_string(proxy_.port()), "TEST_NODE=" + std::to_string(node),
            "BELLOWS_SHARED_MEMORY=0"};
  }

 private:
  TcpProxy proxy_;
  const int store_port_;
  std::vector<int> ports_;
};

void must_run(const std::string& command) {
  EXPECT_TRUE(run_quietly(command)) << command;
}

class NamespaceNetwork final : public Network {
 public:
  explicit NamespaceNetwork(int nodes) : nodes_(nodes) {
    must_run("ip netns add " + hub());
    must_run("ip -n " + hub() + " link add bridge type bridge");
    must_run("ip -n " + hub() + " link set bridge up");
    for (int node = 0; node < nodes; ++node) {
      const std::string port = "port" + std::to_string(node), inside = "ip -n " + name(node);
      must_run("ip netns add " + name(node));
      must_run("ip -n " + hub() + " link add " + port + " type veth peer name net0 netns " + name(node));
      must_run(inside + " addr add " + address(node) + "/24 dev net0");
      for (const char* device : {"lo", "net0"}) must_run(inside + " link set " + device + " up");
      must_run("ip -n " + hub() + " link set " + port + " up");
      heal(node);
    }
  }
  ~NamespaceNetwork() override {
    for (int node = 0; node < nodes_; ++node) run_quietly("ip netns del " + name(node));
    run_quietly("ip netns del " + hub());
  }

  void slow_down() override {
    for (int node = 0; node < nodes_; ++node) {
      const std::string add = "tc -n " + name(node) + " qdisc add dev net0 root ";
      if (!run_quietly(add + "netem delay 5ms rate 6mbit")) must_run(add + "tbf rate 6mbit burst 16kb latency 2s");
    }
  }
  void cut(int node) override { must_run("ip -n " + hub() + " link set port" + std::to_string(node) + " nomaster"); }
  void heal(int node) override {
    must_run("ip -n " + hub() + " link set port" + std::to_string(node) + " master bridge");
  }

 protected:
  std::string rendezvous(int) const override { return address(0) + ":29500"; }
  std::vector<std::string> prefix(int node) const override {
    return {"ip", "netns", "exec", name(node), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"};
  }

 private:
  static std::string hub() { return "bellows-" + std::to_string(getpid()) + "-hub"; }
  static std::string name(int node) { return "bellows-" + std::to_string(getpid()) + "-" + std::to_string(node); }
  static std::string address(int node) { return "10.213.7." + std::to_string(node + 1); }

  const int nodes_;
};

}  // namespace

bool run_quietly(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

cli::Launch Network::on_node(int node, cli::Launch launch) const {
  const std::vector<std::string> options = {"--node-rank", std::to_string(node), "--rdzv", rendezvous(node)};
  launch.arguments.insert(launch.arguments.begin() + 1, options.begin(), options.end());
  launch.prefix = prefix(node);
  launch.environment.emplace_back("BELLOWS_TOKEN=secret");
  for (const std::string& variable : environment(node)) launch.environment.push_back(variable);
  return launch;
}

std::unique_ptr<Network> make_network(const std::string& kind, int nodes) {
  if (kind == "proxy") return std::make_unique<ProxyNetwork>(nodes);
  return std::make_unique<NamespaceNetwork>(nodes);
}

std::vector<std::string> network_kinds() {
  static const bool allowed = run_quietly(
      "name=bellows-$$; ip netns add $name && ip netns exec $name unshare --pid --fork --kill-child --mount-proc "
      "ip link add port type veth peer name net0; code=$?; ip -n $name link add bridge type bridge || code=1; "
      "tc -n $name qdisc add dev net0 root tbf rate 6mbit burst 16kb latency 2s || code=1; "
      "ip netns del $name; exit $code");
  if (allowed) return {"proxy", "namespaces"};
  return {"proxy"};
}

}  // namespace bellows::testing
