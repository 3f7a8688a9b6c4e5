#pragma once

#include "bellows/report/trace_writer.h"
