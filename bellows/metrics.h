#pragma once

// Includes the component metrics: classification, curves, regression, perplexity and means.
#include "bellows/metrics/accumulator.h"
#include "bellows/metrics/classification.h"
#include "bellows/metrics/curves.h"
#include "bellows/metrics/mean.h"
#include "bellows/metrics/metric.h"
#include "bellows/metrics/perplexity.h"
#include "bellows/metrics/regression.h"
