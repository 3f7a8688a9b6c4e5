#pragma once

#include "bellows/comm/collectives.h"
#include "bellows/comm/group.h"
#include "bellows/comm/launch_environment.h"
#include "bellows/comm/launcher.h"
#include "bellows/comm/mesh.h"
#include "bellows/comm/node_list.h"
#include "bellows/comm/shard.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/comm/store.h"
#include "bellows/comm/token.h"
#include "bellows/comm/world.h"
