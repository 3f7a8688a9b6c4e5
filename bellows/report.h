#pragma once

#include "bellows/report/html.h"
#include "bellows/report/trace_writer.h"
