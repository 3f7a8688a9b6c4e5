#pragma once

// Includes the component comm: the launcher, process groups and the operations that ranks perform together.
#include "bellows/comm/collectives.h"
#include "bellows/comm/elastic/elastic_world.h"
#include "bellows/comm/failure_notice.h"
#include "bellows/comm/group.h"
#include "bellows/comm/launch/launch_environment.h"
#include "bellows/comm/launch/launcher.h"
#include "bellows/comm/launch/node_list.h"
#include "bellows/comm/mesh.h"
#include "bellows/comm/point_to_point.h"
#include "bellows/comm/rendezvous/store.h"
#include "bellows/comm/rendezvous/token.h"
#include "bellows/comm/shard.h"
#include "bellows/comm/shard_spec.h"
#include "bellows/comm/world.h"
