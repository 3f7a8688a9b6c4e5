#pragma once

#include "bellows/comm/group.h"
#include "bellows/metrics/metric.h"

namespace bellows::parallel {

/// Merges the metrics of all ranks. Every rank gets metrics as if they had seen the batches of all ranks in rank order.
/// The original metrics do not change and can continue to accumulate. Collective.
///
/// Numerics: bit-identical on every rank; counts are exact
/// Cost:     one all_gather of the counts for the whole collection (confusion counts of 1,000 classes: 8 MB per rank).
///           Metrics that store scores need two through the host, and every rank gets all scores
/// Throws:   c10::ValueError on every rank if metrics of the same name differ in kind or options (the message names the
///           first one). Like collectives, if the ranks' counts differ in size
metrics::MetricCollection reduce_metrics(const metrics::MetricCollection& metrics, const comm::Group& group);
metrics::Metric reduce_metrics(const metrics::Metric& metric, const comm::Group& group);

}  // namespace bellows::parallel
