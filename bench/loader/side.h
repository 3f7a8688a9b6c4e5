#pragma once

#include <string>
#include <vector>

namespace bellows::bench {

/// Ours as a process of its own, so that its CPU time and memory are its own, too; bench/peers/loader.py is the other
/// half. It speaks the protocol of peer_process.h: `run N` makes N epochs, `usage` answers with the CPU time so far
/// (s), the proportional set size and the part of it that is no file (MB), `check FILE COUNT SIDE` writes the first
/// COUNT pictures, SIDE × SIDE from their middles and normalised, as floats [COUNT, 3, SIDE, SIDE].
/// Params: kind    – beton, raw, tar, pack or restart
///         folder  – of write_photographs
///         threads – beside the caller
/// Returns: the program's exit code
int serve_side(const std::string& kind, const std::string& folder, int threads);

}  // namespace bellows::bench
