#pragma once

#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Checks that all ranks have the same list of lines. Collective.
/// Params: what – start of the error message
///         item – what a line describes, such as "tensor"
///         own – the lines of this rank
///         advice – end of the error message
/// Cost:   broadcasts the lines of rank 0. The ranks' answers are empty if no line differs
/// Throws: c10::ValueError on every rank if a line differs. The message names the rank, its first differing line and
///         the corresponding line of rank 0
void check_same_lines(const std::string& what, const std::string& item, const std::vector<std::string>& own,
                      const comm::Group& group,
                      const std::string& advice = "Make it with the same options, in the same order, on every rank.");

/// Like check_same_lines(), but returns the message of the exception, or "" if no line differs.
std::string describe_differing_lines(
    const std::string& what, const std::string& item, const std::vector<std::string>& own, const comm::Group& group,
    const std::string& advice = "Make it with the same options, in the same order, on every rank.");

/// Checks that all ranks have the same options, and the same versions of Bellows and libtorch. Collective. Cost and
/// exceptions are those of check_same_lines().
/// Params: user – what has the options, for the error message
///         own – one line per option of this rank
void check_same_options(const std::string& user, std::vector<std::string> own, const comm::Group& group);
/// Like check_same_options(), but returns the message of the exception, or "" if no option differs.
std::string describe_differing_options(const std::string& user, std::vector<std::string> own, const comm::Group& group);

/// Checks that all ranks have the same model: number, order, names, shapes, dtypes and requires_grad of all parameters
/// and buffers. It does not compare values. Collective. Cost and exceptions are those of check_same_lines(), with about
/// 50 bytes per tensor.
void check_same_model(const Model& model, const comm::Group& group);

/// Copies the buffers of rank 0, such as running statistics, to all ranks. Collective.
void broadcast_buffers(const Model& model, const comm::Group& group);

}  // namespace bellows::parallel
