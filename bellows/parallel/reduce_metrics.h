#pragma once

#include "bellows/comm/group.h"
#include "bellows/metrics/metric.h"

namespace bellows::parallel {

/// Merges the metrics of all ranks. On every rank, the result covers the batches of all ranks, merged in rank order.
/// The original metrics do not change, and you can continue to update them. Collective.
///
/// Numerics: bit-identical on every rank; counts are exact
/// Cost:     one all_gather of the counts of all metrics (the confusion counts of 1,000 classes take 8 MB per rank). If
///           a metric stores scores, two all_gathers through the host are needed instead, and every rank gets all
///           scores
/// Throws:   c10::ValueError on every rank if metrics with the same name differ in type or options (the message names
///           the first one). Throws like a collective if the ranks' counts differ in size
metrics::MetricCollection reduce_metrics(const metrics::MetricCollection& metrics, const comm::Group& group);
metrics::Metric reduce_metrics(const metrics::Metric& metric, const comm::Group& group);

}  // namespace bellows::parallel
