#pragma once

// Includes the component report, which writes HTML pages and traces.
#include "bellows/report/html.h"
#include "bellows/report/tensorboard_trace.h"
#include "bellows/report/trace_writer.h"
