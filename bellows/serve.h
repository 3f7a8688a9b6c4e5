#pragma once

// Includes the component serve: a model server for the Open Inference Protocol, and a load generator for such servers.
#include "bellows/serve/load/load.h"
#include "bellows/serve/server.h"
