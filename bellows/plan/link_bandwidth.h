#pragma once

namespace bellows::train {

/// The largest number of ranks that measure_link() supports. Every two ranks need a connection.
inline constexpr int most_measured_ranks = 16;

/// Measures the bandwidth between ranks on this machine. Each rank is a thread of this process, and all-reduces 16 MiB
/// over Gloo and the loopback interface, as the ranks of a job on one machine do. Networks between machines, and NCCL,
/// have other bandwidths.
/// Params:  ranks – 2 to `most_measured_ranks`
/// Returns: the bytes per second that one rank sends: 2 (ranks - 1) / ranks · 16 MiB, divided by the median time of
///          five all-reduces
/// Cost:    usually less than a second, and 16 MiB per rank
/// Throws:  c10::ValueError if `ranks` is out of range. c10::Error if the ranks cannot connect
double measure_link(int ranks);

/// Measures the latency between ranks on this machine, in the same way.
/// Returns: the median time of 101 all-reduces of 4 bytes, divided by the 2 (ranks - 1) steps of a ring
/// Throws:  like measure_link()
double measure_link_latency(int ranks);

}  // namespace bellows::train
